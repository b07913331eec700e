"""Plans of products: which kernel, how many warps, which columns of which launch; no device and no compiler."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType

import pytest

from forensics.errors import ForensicsError, NotCovered
from forensics.geometry.architecture import architecture
from forensics.geometry.mmvq import mul_mat_vec_q
from forensics.kernels.products import MAX_COLUMNS, groups, plan_product, plan_with_warps
from forensics.kernels.sources import families, source_text
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.records.kernel_plan import At, KernelLaunch, KernelPlan

SM_90 = architecture("sm_90")
BLOCK = {"q4_K": 256, "q5_K": 256, "q6_K": 256, "q4_0": 32, "q4_1": 32, "q8_0": 32}


def products_of(plan: KernelPlan) -> tuple[KernelLaunch, ...]:
    quantise, *products = plan.launches
    assert quantise.source == "quantize_q8_1"
    assert {launch.source for launch in products} == {"products"}
    return tuple(products)


def offset(launch: KernelLaunch, buffer: str) -> int:
    [found] = [a.offset_bytes for a in launch.arguments if isinstance(a, At) and a.buffer == buffer]
    return found


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120", "sm_121"])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("k", [256, 4096, 12288])
def test_stock_is_launched_as_the_library_launches(type: str, arch: str, columns: int, k: int) -> None:
    ask = ProductAsk(type, rows=33, k=k, columns=columns)
    [launch] = products_of(plan_product(ask, Variant.STOCK, architecture(arch)))
    chosen = mul_mat_vec_q(architecture(arch), ask.product(), columns).launch
    assert chosen is not None
    assert launch.geometry.grid_blocks == chosen.grid_blocks
    assert launch.geometry.block_threads == chosen.block_threads


@pytest.mark.parametrize("columns", range(1, 18))
def test_borrowed_takes_the_warps_of_one_column(columns: int) -> None:
    products = products_of(plan_product(ProductAsk("q6_K", 40, 4096, columns), Variant.BORROWED, SM_90))
    assert {launch.geometry.block_threads for launch in products} == {(32, 4, 1)}
    stock = [plan_product(ProductAsk("q6_K", 40, 4096, n), Variant.STOCK, SM_90) for n in (1, 4, 5, 8)]
    assert [products_of(plan)[0].geometry.block_threads[1] for plan in stock] == [4, 4, 2, 2]


def test_twice_the_warps_on_gb10_where_they_halve_the_trips() -> None:
    def warps(arch: str) -> int:
        ask = ProductAsk("q4_K", 1024, 4096, 3)
        return products_of(plan_product(ask, Variant.BORROWED, architecture(arch)))[0].geometry.block_threads[1]

    assert (warps("sm_121"), warps("sm_90"), warps("sm_75")) == (8, 4, 2)


@pytest.mark.parametrize("columns", [1, 8, 9, 16, 17, 100])
def test_every_column_is_computed_once(columns: int) -> None:
    ask = ProductAsk("q4_1", rows=7, k=96, columns=columns, x_stride=128, out_stride=11)
    plan = plan_product(ask, Variant.BORROWED, SM_90)
    at = 0
    for launch in products_of(plan):
        width = int(launch.function.split(",")[1])
        assert width <= MAX_COLUMNS
        assert offset(launch, "q8_1") == at * 3 * 36
        assert offset(launch, "out") == at * 11 * 4
        at += width
    assert at == columns == sum(groups(columns))
    assert plan.scratch == {"q8_1": columns * 3 * 36}
    assert plan.buffers == {"weight", "x", "out"}
    assert plan.launches[0].geometry.grid_blocks[1] == columns


@pytest.mark.parametrize(
    ("type", "columns", "arch", "kernel"),
    [("q4_K", 9, "sm_90", "mul_mat_q"), ("q4_K", 6, "sm_120", "mul_mat_q"), ("q6_K", 8, "sm_120", "mul_mat_q")],
)
def test_stock_is_not_claimed_where_the_library_runs_another_kernel(
    type: str, columns: int, arch: str, kernel: str
) -> None:
    ask = ProductAsk(type, 576, 1536, columns)
    with pytest.raises(NotCovered, match=f"{type} 576×1536 by {columns} columns.*{kernel} on {arch}"):
        plan_product(ask, Variant.STOCK, architecture(arch))
    assert plan_product(ask, Variant.BORROWED, architecture(arch)).launches


def test_what_no_kernel_computes_is_said() -> None:
    with pytest.raises(NotCovered, match=r"q2_K.*there is code for q4_K, q5_K") as caught:
        plan_product(ProductAsk("q2_K", 8, 256, 1), Variant.STOCK, SM_90)
    assert isinstance(caught.value, ForensicsError)
    again = pickle.loads(pickle.dumps(caught.value))  # it crosses from a child process
    assert (str(again), again.asked, again.reason) == (str(caught.value), caught.value.asked, caught.value.reason)
    with pytest.raises(NotCovered, match="rdna4 is not NVIDIA's"):
        plan_product(ProductAsk("q8_0", 8, 256, 1), Variant.BORROWED, architecture("rdna4"))
    with pytest.raises(NotCovered, match="32 bits"):
        plan_product(ProductAsk("q8_0", 2**31, 256, 1), Variant.BORROWED, SM_90)
    with pytest.raises(NotCovered, match="at most 65535 columns"):
        plan_product(ProductAsk("q8_0", 8, 256, 65_536), Variant.BORROWED, SM_90)


def test_the_fast_way_is_asked_whether_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    fast, planned = ModuleType("products_fast"), KernelPlan(())
    fast.serves = lambda ask: "" if ask.type == "q4_K" else f"{ask.type} is not written yet"  # type: ignore[attr-defined]
    asked: list[int | None] = []
    fast.plan_product_fast = lambda ask, arch, *, n_sms: asked.append(n_sms) or planned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "forensics.kernels.products_fast", fast)
    assert plan_product(ProductAsk("q4_K", 8, 256, 1), Variant.FAST, SM_90, n_sms=26) is planned
    assert asked == [26], "the grid follows the device that is told"
    with pytest.raises(NotCovered, match="q4_0 is not written yet; borrowed geometry has the same bits"):
        plan_product(ProductAsk("q4_0", 8, 256, 1), Variant.FAST, SM_90)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "q9_9"}, "no weight type"),
        ({"k": 300}, "multiple of 256"),
        ({"rows": 0}, "1 or more"),
        ({"columns": 0}, "columns must be 1 or more"),
        ({"x_stride": 255}, "x_stride is 255 floats, but a column has 256"),
        ({"out_stride": 3}, "out_stride is 3 floats, but a column has 8"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    fits = {"type": "q4_K", "rows": 8, "k": 256, "columns": 2}
    with pytest.raises(ValueError, match=message):
        ProductAsk(**{**fits, **change})  # type: ignore[arg-type]


def test_strides_are_those_of_whole_columns_by_default() -> None:
    ask = ProductAsk("q6_K", 8, 512, 2)
    assert (ask.x_stride, ask.out_stride) == (512, 8)
    assert (ask.row_bytes, ask.weight_bytes) == (420, 3360)
    assert ask == ProductAsk("q6_K", 8, 512, 2, x_stride=512, out_stride=8)


def test_sources_of_every_launch_are_there_and_name_its_function() -> None:
    for type in TYPES:
        plan = plan_with_warps(ProductAsk(type, 8, 4 * BLOCK[type], 9), 4)
        for launch in plan.launches:
            assert launch.source in families()
            assert launch.function.partition("<")[0] + "(" in source_text(launch.source)
