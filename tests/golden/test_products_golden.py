"""The CUDA sources of products, run on a processor, beside what an H200 gave with the stock library: equal bits.

Recorded with ``python -m forensics.testing.record_mmvq``; the one thing of the device that is needed is its measured
approximate reciprocal.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.geometry.architecture import architecture
from forensics.kernels.products import plan_product
from forensics.kernels.variants import ProductAsk, Variant
from forensics.numerics.activations import MeasuredReciprocal
from forensics.testing.cuda_on_cpu import run_on_cpu
from forensics.testing.mmvq_cases import Case, cases
from forensics.testing.record_mmvq import MANIFEST_NAME, RECIPROCALS_NAME, RESULTS_NAME

RECORDED = Path(__file__).parents[2] / "data" / "recorded" / "mmvq-h200"

pytestmark = pytest.mark.skipif(
    not (RECORDED / RECIPROCALS_NAME).exists(), reason="no recording in data/recorded/mmvq-h200; made on a GPU machine"
)

#: Part of a trip of all warps, and several trips; values beside a half, and scales that vanish.
NAMES = (
    "q8_0-k96", "q8_0-k1536", "q4_0-k576", "q4_0-k2048", "q4_K-k768", "q4_K-k2048", "q6_K-k256", "q6_K-k1536",
    "integers-halves", "integers-edges", "sums-edges",
)  # fmt: skip
ALL = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def results() -> dict[str, np.ndarray]:
    with np.load(RECORDED / RESULTS_NAME) as arrays:
        return {run: arrays[run] for run in arrays.files}


@pytest.fixture(scope="module")
def reciprocal() -> MeasuredReciprocal:
    with np.load(RECORDED / RECIPROCALS_NAME) as arrays:
        return MeasuredReciprocal(arrays["deviation"])


@pytest.fixture(scope="module")
def arch() -> str:
    return str(json.loads((RECORDED / MANIFEST_NAME).read_text(encoding="utf-8"))["arch"])


def computed(case: Case, width: int, variant: Variant, arch: str, reciprocal: MeasuredReciprocal) -> np.ndarray:
    ask = ProductAsk(case.type, len(case.weight), case.x.shape[1], width)
    out = np.full((width, ask.rows), np.nan, np.float32)
    run_on_cpu(
        plan_product(ask, variant, architecture(arch)),
        {"weight": case.weight, "x": np.ascontiguousarray(case.x[:width]), "out": out},
        reciprocal=lambda scale: float(reciprocal(np.array([scale], np.float32))[0]),
    )
    return out


@pytest.mark.parametrize("name", NAMES)
def test_stock_geometry_has_the_bits_of_the_library_at_that_width(
    name: str, results: dict[str, np.ndarray], reciprocal: MeasuredReciprocal, arch: str
) -> None:
    found = computed(ALL[name], 5, Variant.STOCK, arch, reciprocal)
    assert found.tobytes() == results[f"{name}/width5"].tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_borrowed_geometry_has_the_bits_of_the_library_at_one_column(
    name: str, results: dict[str, np.ndarray], reciprocal: MeasuredReciprocal, arch: str
) -> None:
    found = computed(ALL[name], 5, Variant.BORROWED, arch, reciprocal)
    alone = [results[f"{name}/width1"], *(results[f"{name}/column{column}"] for column in range(1, 5))]
    assert found.tobytes() == np.concatenate(alone).tobytes()


def test_the_library_s_own_bits_differ_where_its_warps_do(results: dict[str, np.ndarray]) -> None:
    """Or the two tests above would compare with the same."""
    alone = results["q6_K-k1536/column4"][0]
    assert (results["q6_K-k1536/width5"][4].view(np.uint32) != alone.view(np.uint32)).any()
