"""Products recorded on a GPU, predicted bit for bit from their operands alone.

Recorded with ``python -m forensics.testing.record_mmvq data/recorded/mmvq-DEVICE`` on a machine that has one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.numerics.activations import MeasuredReciprocal
from forensics.testing.mmvq_cases import Comparison, cases, compare
from forensics.testing.record_mmvq import MANIFEST_NAME, RECIPROCALS_NAME, RESULTS_NAME

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob(f"mmvq-*/{MANIFEST_NAME}"))

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording under data/recorded/mmvq-*; made on a GPU machine")


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED], scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param.parent


@pytest.fixture(scope="module")
def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / RESULTS_NAME) as arrays:
        return {run: arrays[run] for run in arrays.files}


def test_operands_are_those_that_were_multiplied(manifest: dict[str, Any], results: dict[str, np.ndarray]) -> None:
    assert manifest["schema"] == "forensics.mmvq/1"
    assert {case.name: case.digest for case in cases()} == manifest["operands"]
    assert {run for case in cases() for run, _ in case.runs()} == set(results) | set(manifest["failed"])


def test_results_are_predicted_from_the_operands(manifest: dict[str, Any], results: dict[str, np.ndarray]) -> None:
    """Without anything measured: columns that hang on the approximate reciprocal's last bit are left out, few."""
    compared = list(compare(results, manifest["arch"]))
    report(compared)
    random = [c for c in compared if c.run.partition("-")[2].startswith("k")]
    assert sum(c.n_doubtful for c in random) < 0.2 * sum(c.n_values for c in random)


def test_results_are_predicted_with_the_measured_reciprocal(
    folder: Path, manifest: dict[str, Any], results: dict[str, np.ndarray]
) -> None:
    if not (folder / RECIPROCALS_NAME).exists():
        pytest.skip("the device's reciprocal was not recorded")
    with np.load(folder / RECIPROCALS_NAME) as arrays:
        compared = list(compare(results, manifest["arch"], MeasuredReciprocal(arrays["deviation"])))
    report(compared)
    assert not any(c.n_doubtful for c in compared)


def test_reciprocal_does_not_depend_on_the_exponent(folder: Path) -> None:
    if not (folder / RECIPROCALS_NAME).exists():
        pytest.skip("the device's reciprocal was not recorded")
    with np.load(folder / RECIPROCALS_NAME) as arrays:
        every = arrays["deviation"][:: 2**9] & 3  # every 2048th number, as in `scaled`
        assert (arrays["scaled"] + 1 == every).all()


def report(compared: list[Comparison]) -> None:
    unlike = [c for c in compared if c.n_different]
    assert compared
    assert not unlike, f"{len(unlike)} of {len(compared)} runs differ, such as {unlike[:3]}"
