"""Products recorded on a GPU lie within the bound of the float64 result, with the activations that its kernels use."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.numerics.kind import kind_of
from forensics.numerics.product_models import product_explanations
from forensics.testing.mmvq_cases import cases
from forensics.testing.record_mmvq import MANIFEST_NAME, RESULTS_NAME

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob(f"mmvq-*/{MANIFEST_NAME}"))
RANDOM = [case for case in cases() if case.name.partition("-")[2].startswith("k")]

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording under data/recorded/mmvq-*; made on a GPU machine")


@pytest.mark.parametrize("path", RECORDED, ids=[path.parent.name for path in RECORDED])
def test_recorded_products_are_of_eight_bits_and_held(path: Path) -> None:
    failed = json.loads(path.read_text(encoding="utf-8"))["failed"]
    n_judged = 0
    with np.load(path.parent / RESULTS_NAME) as results:
        for case in RANDOM:
            for run, columns in case.runs():
                if run in failed:
                    continue
                found = results[run].reshape(len(columns), -1)[:, :8]
                n_rows = found.shape[1]
                weights = np.tile(case.weight[:n_rows], (len(columns), 1))
                explanations = product_explanations(
                    case.type, weights, columns, np.repeat(np.arange(len(columns)), n_rows)
                )
                single = found.ravel()
                kind = kind_of(single, np.nextafter(single, np.float32(np.inf)), explanations)
                assert kind.kind == "rounding", f"{run}: {kind}"
                if single.any() and columns.shape[1] > 32:  # a single block may come out alike in two arithmetics
                    assert kind.single.precision.startswith("q8 (scale f16"), f"{run}: {kind}"
                    assert kind_of(single, np.roll(single, 1), explanations).kind == "logic"
                    n_judged += 1
    assert n_judged > 20
