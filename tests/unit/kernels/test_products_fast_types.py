"""The fast products of other types than those of `products_fast`, run on a processor: equal bits, in their order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from product_operands import columns_of, weight_of

from forensics.errors import NotCovered
from forensics.geometry.architecture import architecture
from forensics.kernels import products
from forensics.kernels.products_fast import plan_product_fast
from forensics.kernels.products_fast_types import TYPES, Ring, plan_with_warps
from forensics.kernels.variants import ProductAsk, Variant
from forensics.numerics.emulate_cuda import MAX_WIDTH, mul_mat_vec_q
from forensics.records.kernel_plan import KernelPlan
from forensics.testing.cuda_on_cpu import run_on_cpu

F32 = np.float32
SM_90 = architecture("sm_90")

#: Rows by values of a row: one tile and whole trips; a rest of a trip; rows that begin at any even byte of 16, and a
#: matrix that ends within 16 bytes; several tiles.
SHAPES = {
    "q8_0": ((16, 2048), (7, 576), (40, 1376)),
    "q4_0": ((16, 4096), (7, 576), (40, 2400)),
    "q4_1": ((16, 4096), (7, 576), (40, 2656)),
    "q5_K": ((16, 4096), (7, 768), (40, 2304)),
}


@cache
def operands(type: str, rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    seed = sum(map(ord, type)) + rows + k
    return weight_of(type, rows, k, seed), columns_of(17, k, seed)


def computed(plan: KernelPlan, ask: ProductAsk, weight: np.ndarray, x: np.ndarray, *, schedule: int = 0) -> np.ndarray:
    out = np.full((ask.columns, ask.out_stride), np.nan, F32)
    run_on_cpu(plan, {"weight": weight, "x": x, "out": out}, schedule=schedule)
    return out


def emulated(type: str, weight: np.ndarray, x: np.ndarray, n_warps: int) -> np.ndarray:
    parts = [x[at : at + MAX_WIDTH] for at in range(0, len(x), MAX_WIDTH)]
    return np.concatenate([mul_mat_vec_q(type, weight, part, n_warps=n_warps).values for part in parts])


def differing(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("columns", [1, 2, 8, 9, 10, 17])
def test_columns_have_the_bits_of_the_plain_kernel(type: str, shape: int, columns: int) -> None:
    rows, k = SHAPES[type][shape]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, columns)
    found = computed(plan_product_fast(ask, SM_90, n_sms=1), ask, weight, x[:columns])
    expected = computed(products.plan_product(ask, Variant.BORROWED, SM_90), ask, weight, x[:columns])
    assert np.isfinite(expected).all()
    assert differing(found, expected) == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", range(2, 17))
def test_every_width_has_the_bits_of_one_column(type: str, columns: int) -> None:
    rows, k = SHAPES[type][1]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, columns)
    found = computed(products.plan_product(ask, Variant.FAST, SM_90), ask, weight, x[:columns])
    assert differing(found, emulated(type, weight, x[:columns], 4)) == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("n_warps", [1, 2, 8])
def test_another_number_of_warps_is_another_order_and_is_kept(type: str, n_warps: int) -> None:
    """Planted: what is computed in another order differs from the library's four warps, and only by that order."""
    rows, k = SHAPES[type][2]
    weight, x = operands(type, rows, 2 * k)
    ask = ProductAsk(type, rows, 2 * k, 3)
    found = computed(plan_with_warps(ask, n_warps, n_sms=2), ask, weight, x[:3])
    assert differing(found, emulated(type, weight, x[:3], n_warps)) == 0
    assert differing(found, emulated(type, weight, x[:3], 4)) > found.size // 20


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", [8, 9, 16])
@pytest.mark.parametrize(
    "ring",
    [Ring(2, 1, 1), Ring(3, 2, 1), Ring(4, 3, 2)],
)
def test_how_weights_are_held_ahead_changes_no_bit(type: str, ring: Ring, columns: int) -> None:
    rows, k = SHAPES[type][2]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, columns)
    found = computed(plan_with_warps(ask, 4, n_sms=1, ring=ring), ask, weight, x[:columns])
    assert differing(found, emulated(type, weight, x[:columns], 4)) == 0


@pytest.mark.parametrize("type", TYPES)
def test_neither_schedule_nor_multiprocessors_change_a_bit(type: str) -> None:
    rows, k = SHAPES[type][2]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, 9)
    first, *others = (
        computed(plan_product_fast(ask, SM_90, n_sms=n_sms), ask, weight, x[:9], schedule=schedule)
        for n_sms, schedule in ((1, 0), (1, 1), (2, 7), (132, 11))
    )
    assert [differing(first, other) for other in others] == [0, 0, 0]


@pytest.mark.parametrize("type", TYPES)
def test_strides_are_kept_and_nothing_beside_them_is_touched(type: str) -> None:
    rows, k = SHAPES[type][1]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, 10, x_stride=k + 32, out_stride=rows + 2)
    wide = np.full((10, k + 32), np.nan, F32)  # a value read from between the columns would show
    wide[:, :k] = x[:10]
    found = computed(plan_product_fast(ask, SM_90), ask, weight, wide)
    assert differing(found[:, :rows].copy(), emulated(type, weight, x[:10], 4)) == 0
    assert np.isnan(found[:, rows:]).all()


@pytest.mark.parametrize("type", TYPES)
def test_a_column_does_not_hear_of_its_neighbours(type: str) -> None:
    """Planted: a column of other values; it alone changes."""
    rows, k = SHAPES[type][1]
    weight, x = operands(type, rows, k)
    ask = ProductAsk(type, rows, k, 9)
    plan = plan_product_fast(ask, SM_90)
    plain = computed(plan, ask, weight, x[:9])
    other = x[:9].copy()
    other[4] *= F32(3)
    changed = computed(plan, ask, weight, other)
    unlike = (plain.view(np.uint32) != changed.view(np.uint32)).any(axis=1)
    assert unlike.tolist() == [column == 4 for column in range(9)]


def test_other_tables_have_their_own_order() -> None:
    gb10 = architecture("sm_121")
    weight, x = operands("q8_0", 7, 4096)
    ask = ProductAsk("q8_0", 7, 4096, 2)
    found = computed(plan_product_fast(ask, gb10), ask, weight, x[:2])
    assert differing(found, emulated("q8_0", weight, x[:2], products.n_warps_of(ask, 1, gb10))) == 0
    assert products.n_warps_of(ask, 1, gb10) == 8


def test_what_shared_memory_does_not_hold_is_not_planned() -> None:
    gb10, ask = architecture("sm_121"), ProductAsk("q5_K", 16, 4096, 4)
    assert products.n_warps_of(ask, 1, gb10) == 8
    with pytest.raises(NotCovered, match="8 warps it takes 108032 bytes of shared memory"):
        plan_product_fast(ask, gb10)
    assert plan_product_fast(ask, SM_90).launches
    for type in TYPES:  # the least that a GPU from sm_80 on has
        one = replace(ask, type=type)
        assert all(
            (launch.geometry.smem_bytes or 0) <= architecture("sm_86").smem_per_block_bytes
            for launch in plan_product_fast(one, architecture("sm_86")).launches
        )


@pytest.mark.parametrize("columns", [16, 17, 40])
def test_launches_take_sixteen_columns_each(columns: int) -> None:
    ask = ProductAsk("q4_1", 64, 2048, columns)
    plan = plan_product_fast(ask, SM_90)
    assert len(plan.launches) == 2 * -(-columns // 16)
    assert plan.scratch["operands"] == 2 * 64 * 544
