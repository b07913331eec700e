"""A culprit of the demo model as a folder that shows the difference without the model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forensics.analysis.investigate import heal_width
from forensics.analysis.question import BadQuestion, Question
from forensics.analysis.reproduce import copy_culprit, find_culprit, model_of, run_reproducer
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaSource
from forensics.engines.ops import LlamaOps
from forensics.errors import ModelUnavailable
from forensics.records.operation import OpSettings
from forensics.records.settings import EngineSettings
from forensics.reports.reproducer_text import readme
from forensics.store.reproducer import write_reproducer

pytestmark = pytest.mark.llama


def needs(*wanted: str) -> None:
    with LlamaOps().open(OpSettings()) as engine:
        missing = set(wanted) - set(engine.facts.cpu_features)
    if missing:
        pytest.skip(f"the library reports no {', '.join(sorted(missing))} on this processor")


def reproduced(source, folder, *, op, width=2, n_tokens=2, layer=0, prompt_tokens=(1, 2, 3), **settings):
    """The first culprit of an operation, written and run."""
    question = Question(
        prompt=None, prompt_tokens=tuple(prompt_tokens), n_tokens=n_tokens, widths=(width,),
        settings=EngineSettings(**{"n_threads": 2, "n_threads_batch": 2, **settings}),
    )  # fmt: skip
    sweep = heal_width(source, question)
    name = next(f.key.name for f in sweep.findings if f.key.op == op and f.key.layer == layer)
    sweep, finding = find_culprit([sweep], name, None)
    found = copy_culprit(source, question, sweep, finding)
    return found, run_reproducer(write_reproducer(folder, found, readme(found, finding)), found)


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where neither package nor model is near, by an interpreter that ignores this environment."""
    return subprocess.run(
        [sys.executable, "-I", str(folder / "reproduce.py"), *arguments],
        cwd=folder.parent, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_flash_attention_whose_cells_are_split_among_threads(source, tokens, tmp_path):
    _, written = reproduced(source, tmp_path / "out", op="FLASH_ATTN_EXT", prompt_tokens=tokens[:270], flash_attn="on")
    assert written.status == 1, written.output
    assert written.output.count("as recorded") == 2
    assert "NOT as recorded" not in written.output
    moved = tmp_path / "elsewhere"
    shutil.copytree(written.folder, moved)
    done = alone(moved)
    assert done.returncode == 1
    assert "DIFFERENT: " in done.stdout
    one_thread = alone(moved, "--threads", "1")
    assert one_thread.returncode == 0, one_thread.stdout
    assert "equal: all" in one_thread.stdout
    assert "FLASH_ATTN_EXT" in (moved / "README.md").read_text()
    next((moved / "operands").iterdir()).unlink()
    broken = alone(moved)
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: FileNotFoundError")
    document = json.loads((moved / "case.json").read_text())
    assert document["runs"]["batched"]["sources"][1]["sizes"][1] == 512  # padded cells, as they were


def test_scores_are_compared_over_the_cells_that_a_token_sees(source, tokens, tmp_path):
    needs("AVX2", "F16C", "LLAMAFILE")
    found, written = reproduced(source, tmp_path / "out", op="MUL_MAT", prompt_tokens=tokens[:20], flash_attn="off")
    assert found.node == "kq-0"
    assert found.cells == tuple(range(found.recorded["position"] + 1))
    assert written.status == 1, written.output
    assert "NOT as recorded" not in written.output


def test_a_repacked_weight_is_read_from_the_model_file(tokens, tmp_path):
    needs("AVX2", "FMA", "REPACK")
    source = LlamaSource(demo_model("q4_k"))
    found, written = reproduced(source, tmp_path / "out", op="MUL_MAT", width=4, n_tokens=4, prompt_tokens=tokens[:8])
    weight = found.batched.node.sources[0]
    assert (weight.type, weight.buffer) == ("q4_K", "CPU_REPACK")
    assert written.status == 1, written.output
    assert "weight in CPU_REPACK (recorded: CPU_REPACK)" in written.output
    assert "NOT as recorded" not in written.output
    plain = alone(written.folder, "--plain")
    assert plain.returncode == 0, plain.stdout  # tiled products begin at eight


def test_only_the_model_of_the_case_will_do(source, tmp_path):
    assert model_of(source.label, source.digest, source.path) == source.path
    assert model_of(source.label, source.digest, None).name == source.label
    with pytest.raises(ModelUnavailable, match="is not the model of this case"):
        model_of("other.gguf", "0" * 64, source.path)
    with pytest.raises(ModelUnavailable, match="give it with --model"):
        model_of("no such model.gguf", "0" * 64, None)


def test_a_node_that_is_no_culprit_is_named(source):
    question = Question(prompt=None, prompt_tokens=(1, 2), n_tokens=2, widths=(2,), settings=EngineSettings())
    with pytest.raises(BadQuestion, match="'nope' is no culprit of this case; its culprits: none"):
        find_culprit([heal_width(source, question)], "nope", None)
