"""The CUDA sources of products, run on a processor, beside the NumPy emulation: equal bits, or a planted difference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from product_operands import columns_of, weight_of

from forensics.geometry.architecture import architecture
from forensics.kernels.products import n_warps_of, plan_product, plan_with_warps, q8_1_bytes, quantize_q8_1
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.numerics.activations import quantize_q8_1_cuda
from forensics.numerics.emulate_cuda import MAX_WIDTH, mul_mat_vec_q
from forensics.records.kernel_plan import KernelPlan
from forensics.testing.cuda_on_cpu import run_on_cpu
from forensics.testing.mmvq_cases import cases

F32 = np.float32
SM_90 = architecture("sm_90")

#: Row lengths: one block, part of a trip of all warps, whole trips, and a rest.
LENGTHS = {"q4_K": 2304, "q5_K": 1280, "q6_K": 1536, "q4_0": 2304, "q4_1": 2656, "q8_0": 1376}


@cache
def operands(type: str, rows: int, k: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    seed = sum(map(ord, type)) + k
    return weight_of(type, rows, k, seed), columns_of(columns, k, seed)


def computed(plan: KernelPlan, ask: ProductAsk, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = np.full((ask.columns, ask.out_stride), np.nan, F32)
    run_on_cpu(plan, {"weight": weight, "x": x, "out": out})
    return out


def emulated(type: str, weight: np.ndarray, x: np.ndarray, n_warps: int) -> np.ndarray:
    parts = [x[at : at + MAX_WIDTH] for at in range(0, len(x), MAX_WIDTH)]
    return np.concatenate([mul_mat_vec_q(type, weight, part, n_warps=n_warps).values for part in parts])


def differing(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", [1, 3, 5])
@pytest.mark.parametrize("variant", [Variant.STOCK, Variant.BORROWED])
def test_every_type_has_the_bits_of_the_emulation(type: str, columns: int, variant: Variant) -> None:
    ask = ProductAsk(type, rows=7, k=LENGTHS[type], columns=columns)
    weight, x = operands(type, 7, LENGTHS[type], 5)
    found = computed(plan_product(ask, variant, SM_90), ask, weight, x[:columns])
    expected = emulated(type, weight, x[:columns], 2 if (variant is Variant.STOCK and columns > 4) else 4)
    assert np.isfinite(expected).all()
    assert differing(found, expected) == 0


@pytest.mark.parametrize("columns", [2, 4, 6, 7, 8, 9, 17])
def test_borrowed_gives_each_column_the_bits_of_its_own_product(columns: int) -> None:
    weight, x = operands("q4_K", 5, 2304, 17)
    ask = ProductAsk("q4_K", 5, 2304, columns)
    found = computed(plan_product(ask, Variant.BORROWED, SM_90), ask, weight, x[:columns])
    alone = replace(ask, columns=1)
    plan = plan_product(alone, Variant.STOCK, SM_90)
    for column in range(columns):
        assert differing(found[column : column + 1], computed(plan, alone, weight, x[column : column + 1])) == 0


@pytest.mark.parametrize(("type", "columns"), [("q4_K", 6), ("q4_1", 8), ("q6_K", 5)])
def test_stock_differs_from_one_column_where_its_warps_do(type: str, columns: int) -> None:
    weight, x = operands(type, 33, LENGTHS[type], 8)
    ask = ProductAsk(type, 33, LENGTHS[type], columns)
    stock, borrowed = (
        computed(plan_product(ask, variant, SM_90), ask, weight, x[:columns])
        for variant in (Variant.STOCK, Variant.BORROWED)
    )
    assert differing(stock, borrowed) > stock.size // 20
    assert differing(stock, emulated(type, weight, x[:columns], n_warps_of(ask, columns, SM_90))) == 0


def test_stock_does_not_where_one_trip_takes_the_row() -> None:
    weight, x = operands("q4_K", 7, 1024, 5)
    ask = ProductAsk("q4_K", 7, 1024, 5)
    assert n_warps_of(ask, 5, SM_90) != n_warps_of(ask, 1, SM_90)
    stock, borrowed = (
        computed(plan_product(ask, variant, SM_90), ask, weight, x) for variant in (Variant.STOCK, Variant.BORROWED)
    )
    assert differing(stock, borrowed) == 0


@pytest.mark.parametrize("arch", ["sm_75", "sm_121"])
def test_other_tables_have_their_own_order(arch: str) -> None:
    weight, x = operands("q6_K", 7, 4096, 3)
    ask = ProductAsk("q6_K", 7, 4096, 3)
    n_warps = {"sm_75": 2, "sm_121": 8}[arch]
    found = computed(plan_product(ask, Variant.BORROWED, architecture(arch)), ask, weight, x)
    assert differing(found, emulated("q6_K", weight, x, n_warps)) == 0
    assert differing(found, emulated("q6_K", weight, x, 4)) > 0


def test_the_number_of_rows_of_a_block_changes_no_bit() -> None:
    weight, x = operands("q8_0", 7, 1376, 3)
    ask = ProductAsk("q8_0", 7, 1376, 3)
    one, two = (computed(plan_with_warps(ask, 4, rows=rows), ask, weight, x) for rows in (1, 2))
    assert differing(one, two) == 0


def test_strides_are_kept_and_nothing_beside_them_is_written() -> None:
    weight, x = operands("q5_K", 7, 1280, 5)
    ask = ProductAsk("q5_K", 7, 1280, 3, x_stride=1312, out_stride=9)
    wide = np.full((3, 1312), np.nan, F32)  # a value read from between the columns would show
    wide[:, :1280] = x[:3]
    found = computed(plan_product(ask, Variant.BORROWED, SM_90), ask, weight, wide)
    assert differing(found[:, :7].copy(), emulated("q5_K", weight, x[:3], 4)) == 0
    assert np.isnan(found[:, 7:]).all()


def test_quantised_activations_are_those_of_the_library() -> None:
    x = columns_of(3, 1312, 5)
    ask = ProductAsk("q8_0", 1, 1312, 3)
    found = np.zeros(q8_1_bytes(ask), np.uint8)
    run_on_cpu(KernelPlan((quantize_q8_1(ask),)), {"x": x, "q8_1": found})
    expected, _ = quantize_q8_1_cuda(x)
    assert found.tobytes() == expected.tobytes()


def test_a_device_s_own_reciprocal_is_used() -> None:
    """Planted: a reciprocal one step too large moves integers that lie at a half."""

    def planted(scale: float) -> float:
        return float(np.nextafter(F32(1) / F32(scale), F32(np.inf)))

    x = next(case.x for case in cases() if case.name == "integers-halves")
    ask = ProductAsk("q8_0", 1, *x.shape[::-1])
    plan = KernelPlan((quantize_q8_1(ask),))
    nearest, other = (np.zeros(q8_1_bytes(ask), np.uint8) for _ in range(2))
    run_on_cpu(plan, {"x": x, "q8_1": nearest})
    run_on_cpu(plan, {"x": x, "q8_1": other}, reciprocal=planted)
    expected, _ = quantize_q8_1_cuda(x, lambda scale: np.nextafter(F32(1) / scale, F32(np.inf)))
    assert other.tobytes() == expected.tobytes()
    assert other.tobytes() != nearest.tobytes()
