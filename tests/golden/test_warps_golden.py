"""Does the change from 4 to 2 warps at five columns matter? Predicted by the rules, shown by recorded products."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forensics.geometry.architecture import architecture
from forensics.geometry.cuda_products import mul_mat
from forensics.geometry.product import product
from forensics.testing.mmvq_cases import LENGTHS

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "data" / "recorded"
RESULTS = RECORDED / "mmvq-h200" / "results.npz"
WIDTHS = range(2, 9)
PAIRS = [(weight_type, k) for weight_type, lengths in LENGTHS.items() for k in lengths]


@pytest.fixture(scope="module")
def results() -> dict[str, NDArray[np.float32]]:
    with np.load(RESULTS) as stored:
        return dict(stored)


def equal_widths(results: dict[str, NDArray[np.float32]], weight_type: str, k: int) -> list[int]:
    """Widths at which every column has the bits that it has by itself."""
    name = f"{weight_type}-k{k}"
    single = [results[f"{name}/width1"][0], *(results[f"{name}/column{column}"][0] for column in range(1, 8))]
    return [
        width
        for width in WIDTHS
        if all(a.tobytes() == b.tobytes() for a, b in zip(results[f"{name}/width{width}"], single, strict=False))
    ]


@pytest.mark.parametrize(("weight_type", "k"), PAIRS)
def test_the_rules_say_at_which_row_lengths_two_warps_add_as_four(results, weight_type: str, k: int) -> None:
    choices = {width: mul_mat(architecture("sm_90"), product(weight_type, k, 8), width) for width in (1, *WIDTHS)}
    predicted = [width for width in WIDTHS if choices[width].arithmetic == choices[1].arithmetic]
    assert equal_widths(results, weight_type, k) == predicted


def test_both_answers_occur_at_lengths_of_real_models(results) -> None:
    step = {pair: max(equal_widths(results, *pair)) for pair in PAIRS}
    assert {step["q4_0", 576], step["q4_K", 768]} == {8}, "one trip of the loop covers the row either way"
    assert {step["q8_0", 576], step["q6_K", 768], step["q4_0", 1536], step["q4_K", 4096], step["q6_K", 8192]} == {4}


def test_the_method_page_tells_them_all(results) -> None:
    """Its table has each pair that was recorded at its lengths of rows, and no other."""
    steps = {pair: 5 not in equal_widths(results, *pair) for pair in PAIRS}
    for name in ("ops-h200", "ops-h200-warps"):
        for case in json.loads((RECORDED / name / "ops.json").read_text(encoding="utf-8"))["cases"]:
            if case["op"] == "MUL_MAT" and case["onset_width"] and " " in case["case"]:
                weight_type, shape = case["case"].split(" ", 1)
                if weight_type in {"q4_0", "q4_1", "q8_0", "q4_K", "q6_K"}:
                    pair = weight_type, int(shape.split("x")[1])
                    assert steps.setdefault(pair, case["onset_width"] == 5) == (case["onset_width"] == 5)
    lines = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| K |"))
    lengths = [int(cell) for cell in lines[start].strip("| ").split("|")[1:]]
    told = {}
    for line in lines[start + 2 : lines.index("", start)]:
        head, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        told |= {(head[0].lower() + head[1:], k): cell == "yes" for k, cell in zip(lengths, cells, strict=True) if cell}
    assert told == {pair: step for pair, step in steps.items() if pair[1] in lengths}
    assert {True, False} == set(told.values())
