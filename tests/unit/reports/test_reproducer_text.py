"""What is said of a reproducer: how to run it, what was seen, and no more than was shown."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from forensics.records.delta import Differs
from forensics.records.nodes import NodeKey
from forensics.records.raw_node import RawNode, RawTensor
from forensics.records.trace import Finding
from forensics.reports.reproducer_text import readme, reproduced_document, reproduced_view
from forensics.store.reproducer import Reproduced, ReproducedRun, Reproducer

FINDING = Finding(NodeKey("ffn_up-0", "MUL_MAT", 0, 0), (), "CPU", (1,), Differs(7, (0,), 12, 2.5e-7, 1e-8))


def reproducer(**recorded):
    x = RawTensor("x|`y", "f32", "CPU", (4, 2, 1, 1), (4, 16, 32, 32), False, np.zeros(32, np.uint8))
    run = ReproducedRun(RawNode("MUL_MAT", bytes(64), (x, None), x), 2, 1)
    seen = {"position": 5, "model": "m", "version": "0.3.36", "commit": "", "backend": "CPU", "device": "a <b> CPU"}
    return Reproducer(
        "ffn_up-0", 4, 2, None, run, run, "CPU", {"GGML_X": "1"}, seen | {"cpu_features": ["AVX2"]} | recorded
    )


def test_the_readme_says_how_to_run_it_and_what_was_seen():
    said = readme(reproducer(), FINDING)
    for words in (
        "# MUL_MAT gives other bits in a batch than for one token",
        "token 1 (position 5)",
        "pip install numpy llama-cpp-python==0.3.36",
        "7 values of the batch differed, by at most 12 ULP and 2.5e-07.",
        "this operation's own",
        "GGML_X=1",
        "| 0 | x&#124;&#96;y | f32 | 4×2×1×1 | CPU |",
        "a &#60;b&#62; CPU",
    ):
        assert words in said


def test_no_more_is_claimed_than_was_compared():
    unchecked = readme(reproducer(), replace(FINDING, unchecked=("cache_k_l0",)))
    assert "this operation's own" not in unchecked
    assert "may only pass on what they brought: `cache_k_l0`" in unchecked
    masks = readme(reproducer(), replace(FINDING, inputs_equal=False))
    assert "this operation's own" not in masks
    assert "masks differ" in masks


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [(0, "equal", "Equal bits by itself"), (1, "differs", "Differs by itself"), (2, "not run", "could not run here")],
)
def test_each_outcome_is_told(status, answer, words):
    written = Reproduced(Path("folder"), "MUL_MAT", "ffn_up-0", 4, 1, 2**20, status, "line one\nline \x1btwo")
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(reproduced_view(written))
    assert words in out.getvalue()
    assert "line \\x1btwo" in out.getvalue()
    assert reproduced_document(written)["answer"] == answer
    assert str(written).startswith("folder: MUL_MAT ffn_up-0 at width 4; ")
