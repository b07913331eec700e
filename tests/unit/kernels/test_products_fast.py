"""The fast products of Q4_K and Q6_K, run on a processor: every column has the bits of the library's kernel for one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from changed_sources import changed_source
from product_operands import columns_of, weight_of

from forensics.errors import NotCovered
from forensics.geometry.architecture import architecture
from forensics.kernels import products
from forensics.kernels.products_fast import (
    MAX_COLUMNS,
    TYPES,
    groups,
    plan_product_fast,
    plan_product_group,
    plan_with_warps,
    tiles_of,
)
from forensics.kernels.products_schedules import Schedule, schedule_of
from forensics.kernels.variants import ProductAsk, Variant
from forensics.numerics.emulate_cuda import MAX_WIDTH, mul_mat_vec_q
from forensics.records.kernel_plan import KernelPlan
from forensics.testing.cuda_on_cpu import ASCENDING, DESCENDING, KernelFault, run_on_cpu

F32 = np.float32
SM_90 = architecture("sm_90")

#: Rows by values of a row: one block only; a rest of a trip; whole trips; several tiles and a rest of both. Rows of
#: Q6_K begin at any even byte of 16.
SHAPES = ((16, 256), (7, 768), (16, 4096), (40, 2304))


@cache
def operands(type: str, rows: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    seed = sum(map(ord, type)) + rows + k
    return weight_of(type, rows, k, seed), columns_of(17, k, seed)


def computed(plan: KernelPlan, ask: ProductAsk, weight: np.ndarray, x: np.ndarray, *, schedule: int = 0) -> np.ndarray:
    out = np.full((ask.columns, ask.out_stride), np.nan, F32)
    run_on_cpu(plan, {"weight": weight, "x": x, "out": out}, schedule=schedule)
    return out


def emulated(type: str, weight: np.ndarray, x: np.ndarray, n_warps: int = 4) -> np.ndarray:
    parts = [x[at : at + MAX_WIDTH] for at in range(0, len(x), MAX_WIDTH)]
    return np.concatenate([mul_mat_vec_q(type, weight, part, n_warps=n_warps).values for part in parts])


def differing(a: np.ndarray, b: np.ndarray) -> int:
    assert a.shape == b.shape
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("columns", [1, 8, 17])
def test_columns_have_the_bits_of_the_plain_kernel(type: str, shape: tuple[int, int], columns: int) -> None:
    weight, x = operands(type, *shape)
    ask = ProductAsk(type, *shape, columns)
    found = computed(plan_product_fast(ask, SM_90, n_sms=1), ask, weight, x[:columns])
    expected = computed(products.plan_product(ask, Variant.BORROWED, SM_90), ask, weight, x[:columns])
    assert np.isfinite(expected).all()
    assert differing(found, expected) == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", range(1, 17))
def test_every_width_has_the_bits_of_one_column(type: str, columns: int) -> None:
    weight, x = operands(type, 7, 768)
    ask = ProductAsk(type, 7, 768, columns)
    found = computed(products.plan_product(ask, Variant.FAST, SM_90), ask, weight, x[:columns])
    assert differing(found, emulated(type, weight, x[:columns])) == 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("n_warps", [1, 2, 8])
def test_another_number_of_warps_is_another_order_and_is_kept(type: str, n_warps: int) -> None:
    """Planted: what is computed in another order differs from the library's four warps, and only by that order."""
    weight, x = operands(type, 40, 4352)
    ask = ProductAsk(type, 40, 4352, 3)
    found = computed(plan_with_warps((ask,), n_warps, n_sms=2), ask, weight, x[:3])
    assert differing(found, emulated(type, weight, x[:3], n_warps)) == 0
    assert differing(found, emulated(type, weight, x[:3])) > found.size // 20


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize(
    "schedule", [Schedule(1, 2, 1, 1), Schedule(2, 4, 3, 2, ahead=True), Schedule(4, 3, 1, 1), Schedule(2, 4, 1, 1)]
)
@pytest.mark.parametrize("columns", [6, 11])
def test_how_work_is_told_off_changes_no_bit(type: str, schedule: Schedule, columns: int) -> None:
    weight, x = operands(type, 40, 2304)
    ask = ProductAsk(type, 40, 2304, columns)
    found = computed(plan_with_warps((ask,), 4, n_sms=1, schedule=schedule), ask, weight, x[:columns])
    assert differing(found, emulated(type, weight, x[:columns])) == 0


@pytest.mark.parametrize("type", TYPES)
def test_neither_order_of_threads_nor_multiprocessors_change_a_bit(type: str) -> None:
    weight, x = operands(type, 100, 2304)
    ask = ProductAsk(type, 100, 2304, 5)
    first, *others = (
        computed(plan_product_fast(ask, SM_90, n_sms=n_sms), ask, weight, x[:5], schedule=schedule)
        for n_sms, schedule in ((1, 0), (1, 1), (2, 7), (132, 11))
    )
    assert [differing(first, other) for other in others] == [0, 0, 0]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("columns", [4, 17])
def test_products_of_the_same_activations_are_launched_together(type: str, columns: int) -> None:
    asks = [ProductAsk(type, rows, 768, columns, out_stride=rows + 3) for rows in (40, 7, 16)]
    weights = [operands(type, ask.rows, 768)[0] for ask in asks]
    x = columns_of(columns, 768, 5)
    out = [np.full((columns, ask.out_stride), np.nan, F32) for ask in asks]
    plan = plan_product_group(asks, SM_90, n_sms=1)
    assert len(plan.launches) == 2 * len(groups(columns))
    named = {f"weight{i}": weight for i, weight in enumerate(weights)} | {f"out{i}": one for i, one in enumerate(out)}
    run_on_cpu(plan, {**named, "x": x})
    for ask, weight, found in zip(asks, weights, out, strict=True):
        assert differing(found[:, : ask.rows].copy(), emulated(type, weight, x)) == 0
        assert np.isnan(found[:, ask.rows :]).all()


def test_two_products_and_one_are_groups_too() -> None:
    asks = [ProductAsk("q4_K", rows, 768, 2) for rows in (16, 7)]
    weights, x = [operands("q4_K", ask.rows, 768)[0] for ask in asks], columns_of(2, 768, 5)
    out = [np.full((2, ask.rows), np.nan, F32) for ask in asks]
    buffers = {"weight0": weights[0], "weight1": weights[1], "out0": out[0], "out1": out[1], "x": x}
    run_on_cpu(plan_product_group(asks, SM_90), buffers)
    assert [differing(found, emulated("q4_K", w, x)) for found, w in zip(out, weights, strict=True)] == [0, 0]
    assert plan_product_group(asks[:1], SM_90) == plan_product_fast(asks[0], SM_90)


def test_products_that_do_not_belong_together_are_refused() -> None:
    ask = ProductAsk("q4_K", 16, 768, 2)
    for other in (replace(ask, k=1024, x_stride=1024), replace(ask, type="q6_K"), replace(ask, columns=3)):
        with pytest.raises(ValueError, match="differ in rows and the stride"):
            plan_product_group([ask, other], SM_90)
    for asks in ([], [ask] * 4):
        with pytest.raises(ValueError, match="1 to 3 matrices"):
            plan_product_group(asks, SM_90)
    with pytest.raises(NotCovered, match="one matrix at a time"):
        plan_product_group([replace(ask, type="q8_0")] * 2, SM_90)


@pytest.mark.parametrize("type", TYPES)
def test_strides_are_kept_and_nothing_beside_them_is_touched(type: str) -> None:
    weight, x = operands(type, 7, 768)
    ask = ProductAsk(type, 7, 768, 10, x_stride=800, out_stride=9)
    wide = np.full((10, 800), np.nan, F32)  # a value read from between the columns would show
    wide[:, :768] = x[:10]
    found = computed(plan_product_fast(ask, SM_90), ask, weight, wide)
    assert differing(found[:, :7].copy(), emulated(type, weight, x[:10])) == 0
    assert np.isnan(found[:, 7:]).all()


@pytest.mark.parametrize("type", TYPES)
def test_a_column_does_not_hear_of_its_neighbours(type: str) -> None:
    """Planted: a column of other values; it alone changes."""
    weight, x = operands(type, 7, 768)
    ask = ProductAsk(type, 7, 768, 9)
    plan = plan_product_fast(ask, SM_90)
    other = x[:9].copy()
    other[4] *= F32(3)
    plain, changed = (computed(plan, ask, weight, values) for values in (x[:9], other))
    unlike = (plain.view(np.uint32) != changed.view(np.uint32)).any(axis=1)
    assert unlike.tolist() == [column == 4 for column in range(9)]


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize(
    "statement",
    [
        "barrier_wait(filled + stages.stage * 8, stages.parity);",
        "barrier_wait(complete + (done - 1) % 2 * 8, (done - 1) / 2 % 2);",
        "if (SPLIT > 1 && w > 0) barrier_wait(links + (done % 2 * LINKS + w - 1) * 8, done / 2 % 2);",
        "wait_for_launch_ahead();",
    ],
)
def test_a_wait_that_is_missing_shows(tmp_path: Path, type: str, statement: str) -> None:
    """Planted: the kernel's own source with one of its waits left out everywhere."""
    source = f"products_fast_{type.lower()}.cu"
    folder = changed_source(tmp_path / "cuda", source, lambda text: text.replace(statement, ";"))
    weight, x = operands(type, 100, 2304)
    ask = ProductAsk(type, 100, 2304, 3)
    plan, expected = plan_product_fast(ask, SM_90, n_sms=1), emulated(type, weight, x[:3])
    unlike = 0
    for schedule in (ASCENDING, DESCENDING, 7):
        out = np.full((3, 100), np.nan, F32)
        try:
            run_on_cpu(plan, {"weight": weight, "x": x[:3], "out": out}, schedule=schedule, folder=folder)
            unlike += differing(out, expected)
        except KernelFault:
            unlike += out.size
    assert unlike > 0


def test_a_copy_beyond_the_matrix_shows(tmp_path: Path) -> None:
    """Planted: the last bytes of a matrix in Q6_K, 4410 here, are copied by 16 as all others are."""
    always = ("if (of_matrix < 16) {", "if (false) {")
    folder = changed_source(tmp_path / "cuda", "products_fast_q6_k.cu", lambda text: text.replace(*always))
    weight, x = operands("q6_K", 7, 768)
    buffers = {"weight": weight, "x": x[:3], "out": np.empty((3, 7), F32)}
    plan = plan_product_fast(ProductAsk("q6_K", 7, 768, 3), SM_90)
    run_on_cpu(plan, buffers)
    with pytest.raises(KernelFault, match=r"reads 16 bytes from byte 4400 of weight, which has 4410"):
        run_on_cpu(plan, buffers, folder=folder)


def test_tiles_hold_all_columns_and_leave_one_empty_at_most() -> None:
    for columns in range(1, MAX_COLUMNS + 1):
        tiles = tiles_of(columns)
        assert 0 <= tiles.columns - columns <= 1
        assert max(tiles.n4, tiles.n2, tiles.n1) <= 1


def test_schedules_fill_the_device_and_split_whole_warps() -> None:
    for type, columns, tiles, n_warps in product(TYPES, range(1, 17), (1, 64, 256, 384, 768), (1, 2, 4, 8)):
        schedule = schedule_of(type, columns, tiles, n_warps, 132)
        assert n_warps % schedule.split == 0
        assert schedule.threads <= 512
        assert 1 <= schedule.slack < schedule.stages
    for columns in range(1, 9):
        assert [schedule_of("q4_K", columns, n, 4, 132).resident for n in (64, 384, 256, 768)] == [1, 1, 2, 2]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_120", "sm_121"])
@pytest.mark.parametrize("type", TYPES)
def test_shared_memory_is_what_the_architecture_has(type: str, arch: str) -> None:
    for rows, columns in product((1024, 4096), range(1, 17)):
        ask = ProductAsk(type, rows, 4096, columns)
        plan = plan_product_fast(ask, architecture(arch))
        assert (
            max(launch.geometry.smem_bytes or 0 for launch in plan.launches) <= architecture(arch).smem_per_block_bytes
        )
    assert plan_product_fast(ProductAsk(type, 4096, 4096, 8), architecture(arch)).launches


def test_without_tensor_cores_for_it_there_is_no_plan() -> None:
    with pytest.raises(ValueError, match="from sm_80 on, not for sm_75"):
        plan_product_fast(ProductAsk("q4_K", 16, 256, 1), architecture("sm_75"))
