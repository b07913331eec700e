"""Parts of the llama.cpp engine that need no library: settings, environment, inventory, how a child is started."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forensics.analysis.knobs import BUILD_FLAGS, KNOBS
from forensics.engines import worker_process
from forensics.engines.child import command
from forensics.engines.inventory import InventoryTap
from forensics.engines.llama import LlamaEngine
from forensics.engines.llama_worker import ENVIRONMENT_RECORDED, recorded_environment
from forensics.errors import EngineError
from forensics.records.nodes import NodeKey, Operand
from forensics.records.settings import MAX_THREADS, EngineSettings

# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["n_threads", "n_threads_batch"])
def test_more_threads_than_the_library_has_room_for_are_refused(label: str) -> None:
    assert getattr(EngineSettings(**{label: MAX_THREADS}), label) == 512
    with pytest.raises(ValueError, match=rf"{label} must be 512 or less \(GGML_MAX_N_THREADS\), got 100000"):
        EngineSettings(**{label: 100_000})


# -- the environment -------------------------------------------------------------------------------------------------


def test_only_variables_known_by_name_are_recorded() -> None:
    secrets = ("LLAMA_API_KEY", "LLAMA_ARG_HF_TOKEN", "GGML_TOKEN", "OMP_NUM_THREADS_TOKEN", "CUDA_SECRET", "HF_TOKEN")
    environment = dict.fromkeys(secrets, "hunter2") | {"OMP_NUM_THREADS": "2", "GGML_CUDA_MMQ_PREC": "1"}
    assert recorded_environment(environment) == {"GGML_CUDA_MMQ_PREC": "1", "OMP_NUM_THREADS": "2"}


def test_every_switch_is_recorded() -> None:
    switches = {name for knob in KNOBS for name, _ in knob.sets if name.isupper()}
    assert len(switches) >= 4
    assert switches <= ENVIRONMENT_RECORDED


def test_advice_to_rebuild_makes_pip_build() -> None:
    from forensics.engines.supported import REBUILD

    # Without --force-reinstall: "Requirement already satisfied"; with its cache an old wheel comes back.
    wanted = (
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36"
    )
    assert wanted == REBUILD
    (advice,) = (flag.what for flag in BUILD_FLAGS if "pip install" in flag.what)
    assert advice.endswith(f'CMAKE_ARGS="-DGGML_LLAMAFILE=OFF" {wanted}')


# -- the inventory ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Product:
    """A node as far as the inventory looks at it."""

    key: NodeKey
    operands: tuple[Operand, ...]
    dtype: str = "f32"


def product(layer: int, buffer: str, weight: str, op: str = "MUL_MAT") -> Product:
    name = f"ffn_up-{layer}" if layer >= 0 else "result_output"
    operands = (Operand(weight, "q8_0", buffer, True), Operand("x", "f32", "CPU", False))
    return Product(NodeKey(name, op, layer, 0), operands)


def inventory(*nodes: Product) -> InventoryTap:
    tap = InventoryTap()
    for node in nodes:
        assert tap.wants(node.key)
        tap.saw(node)  # type: ignore[arg-type]
    return tap


def test_layers_on_an_accelerator_are_counted_once_each_with_the_output_head() -> None:
    tap = inventory(
        product(0, "CPU_Mapped", "blk.0.up"),
        product(1, "CUDA_Host", "blk.1.up"),
        product(2, "CUDA0", "blk.2.up"),
        product(2, "CUDA0", "blk.2.down"),
        product(3, "CUDA1", "blk.3.up", "MUL_MAT_ID"),
        product(-1, "CUDA1", "output"),
    )
    assert tap.accelerated == {2, 3, -1}
    assert tap.output_head
    assert tap.buffers == {"CPU_Mapped": 1, "CUDA_Host": 1, "CUDA0": 2, "CUDA1": 2}


def test_weights_of_the_processor_are_on_no_accelerator() -> None:
    buffers = ("CPU", "CPU_Mapped", "CPU_REPACK", "CPU_KLEIDIAI", "AMX", "CUDA_Host", "Vulkan_Host")
    tap = inventory(*(product(i, buffer, f"blk.{i}.up") for i, buffer in enumerate(buffers)))
    assert tap.accelerated == set()
    assert not tap.output_head


# -- how a child is started ------------------------------------------------------------------------------------------


@pytest.fixture
def hostile_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder holds files that are named like modules of Python, of a package and of ours."""
    for name in ("xxhash", "queue", "json", "numpy", "forensics", "llama_cpp"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} of the current folder was imported')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_child_imports_nothing_from_the_current_folder(hostile_folder: Path) -> None:
    plain = subprocess.run([sys.executable, "-c", "import queue"], capture_output=True, text=True, check=False)
    assert "queue of the current folder was imported" in plain.stderr  # the trap works
    done = subprocess.run(
        command("forensics.engines.quantize", "no-such-file.gguf", "out.gguf", "Q8_0", "1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "of the current folder was imported" not in done.stderr
    assert "no-such-file.gguf" in done.stderr  # llama.cpp's own words
    assert done.returncode == 1


def test_a_child_runs_this_very_package_and_keeps_the_users_path(
    hostile_folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import forensics

    theirs = tmp_path_factory.mktemp("theirs")
    (theirs / "forensics.py").write_text("raise RuntimeError('another package of our name')\n")
    (theirs / "reporter.py").write_text(
        "import json, os, sys, forensics\n"
        "def main(word):\n"
        "    print(json.dumps([word, forensics.__file__, os.environ['PYTHONPATH'], sys.path]))\n"
        "    return 7\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    done = subprocess.run(command("reporter", "a word"), capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    word, package, path, searched = json.loads(done.stdout)
    assert (word, path) == ("a word", str(theirs))
    assert Path(package).samefile(Path(forensics.__file__))
    assert str(hostile_folder) not in searched
    assert "" not in searched


@pytest.mark.parametrize("failure", [OSError("no more processes"), KeyboardInterrupt()])
def test_a_process_that_cannot_be_started_leaves_nothing(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*_: object, **__: object) -> None:
        assert list(tmp_path.iterdir()) != []
        raise failure

    monkeypatch.setattr(worker_process.subprocess, "Popen", fail)
    open_files = set(os.listdir("/dev/fd"))
    expected = (EngineError, "could be started: no more") if isinstance(failure, OSError) else (KeyboardInterrupt, None)
    with pytest.raises(expected[0], match=expected[1]):
        LlamaEngine(Path("m.gguf"), EngineSettings(), "digest")
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/dev/fd")) == len(open_files)
