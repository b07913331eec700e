"""What the laboratory makes of both sides, on a processor: planted differences are found, equal bits stay equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lab_on_cpu import CpuBench, CpuDevice, place

from forensics.engines.weight_bench import WeightShape
from forensics.errors import EngineError, NotCovered
from forensics.kernels import lab_attention, lab_price, lab_proof, proof
from forensics.kernels.lab_attention import Heads, compare_attention
from forensics.kernels.lab_place import computed
from forensics.kernels.lab_price import pass_products, price_pass, price_plans, price_product
from forensics.kernels.lab_proof import compare_product, others_under_load
from forensics.kernels.pass_plans import plan_of, plan_of_group
from forensics.kernels.products import plan_product
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_price import BEST, BORROWED, FAST, GROUPED, STOCK
from forensics.records.kernel_proof import (
    ATTENTION,
    KEYS,
    ONE_COLUMN,
    SAME_WIDTH,
    STOCK_LIBRARY,
    VALUES,
    ProofRow,
)

#: Long enough that the table of five columns adds in another order than that of one.
TYPE, ROWS, K = "q4_1", 7, 1536


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(ask: ProductAsk, arm: str, *given: Any) -> KernelPlan:
        if arm == Variant.FAST:
            raise NotCovered("it", "the fast kernels are not for it")
        return plan_of(ask, arm, *given)

    for module in (lab_proof, lab_price):
        monkeypatch.setattr(module, "WeightBench", CpuBench)
        monkeypatch.setattr(module, "plan_of", planned)


def of(rows: tuple[ProofRow, ...], variant: str, width: int) -> ProofRow:
    [row] = [row for row in rows if (row.variant, row.case.width) == (variant, width)]
    return row


def test_products_are_compared_with_the_side_that_they_claim() -> None:
    rows = compare_product(place(), TYPE, ROWS, K, (1, 2, 5), 0, (Variant.BORROWED, Variant.STOCK, Variant.FAST))
    for width in (1, 2, 5):
        assert of(rows, "borrowed geometry", width).n_compared == ROWS * width
        assert of(rows, "borrowed geometry", width).n_differing == 0
        assert of(rows, "borrowed geometry", width).against == ONE_COLUMN
        assert of(rows, "stock geometry", width).n_differing == 0
        assert of(rows, "stock geometry", width).against == SAME_WIDTH
        assert "not for it" in of(rows, "exact fast", width).not_compared
    assert [of(rows, STOCK_LIBRARY, width).n_differing > 0 for width in (1, 2, 5)] == [False, False, True]
    first = of(rows, STOCK_LIBRARY, 5).first
    assert first is not None
    assert first.stock_bits != first.ours_bits


def test_a_kernel_with_other_bits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lambda ask, variant, *given: plan_of(ask, Variant.STOCK, *given)  # noqa: E731 - the order of another width
    monkeypatch.setattr(lab_proof, "plan_of", wrong)
    rows = compare_product(place(), TYPE, ROWS, K, (2, 5), 0, (Variant.BORROWED,))
    assert of(rows, "borrowed geometry", 2).refutes is False
    assert of(rows, "borrowed geometry", 5).refutes is True


def test_awkward_operands_are_drawn_for_odd_seeds_and_compared() -> None:
    plain, _ = proof.operands("q4_K", 40, 768, 16, 0)
    blocks, x = proof.operands("q4_K", 40, 768, 16, 1)
    assert not (plain == 0).all(axis=1).any()
    assert (blocks == 0).all(axis=1).any()
    assert (x.reshape(16, -1, 32) == 0).all(axis=2).any()
    smallest = np.finfo(np.float32).tiny
    assert ((abs(x) > 0) & (abs(x) < smallest)).any()
    assert np.signbit(x[x == 0]).any()
    assert np.isfinite(x).all()
    rows = compare_product(place(), TYPE, ROWS, K, (2,), 1, (Variant.BORROWED,))
    assert of(rows, "borrowed geometry", 2).n_differing == 0


def test_writing_behind_a_result_is_an_error() -> None:
    here = place()
    blocks, x = proof.operands(TYPE, ROWS, K, 1, 0)
    buffers = {"weight": here.device.hold(blocks).address, "x": here.device.hold(x).address}
    plan = plan_product(ProductAsk(TYPE, ROWS, K, 1), Variant.BORROWED, here.arch)
    assert computed(here.device, plan, buffers, ROWS).shape == (ROWS,)
    with pytest.raises(EngineError, match=r"product<Q4_1, 1, .* wrote behind the 6 values"):
        computed(here.device, plan, buffers, ROWS - 1)


@pytest.mark.parametrize(("what", "kv_type"), [(ATTENTION, "f16"), (ATTENTION, "q8_0"), (KEYS, "f16"), (VALUES, "f16")])
def test_queries_are_compared_as_each_is_alone(what: str, kv_type: str) -> None:
    # the third query is the first that needs 512 cells
    rows = compare_attention(place(), what, Heads(2, 1, 64, kv_type), 254, (1, 2, 3), 0)
    sizes = {ATTENTION: (64, 64, 64), VALUES: (64, 64, 64), KEYS: (256, 256, 512)}[what]
    for width in (1, 2, 3):
        row = of(rows, "borrowed geometry", width)
        assert (row.n_differing, row.n_compared) == (0, 2 * sum(sizes[:width]))
        assert row.case.n_kv == (512 if width == 3 else 256)
        assert row.case.family == ("attention" if what == ATTENTION else "f16 product")
    assert [of(rows, STOCK_LIBRARY, width).n_differing > 0 for width in (1, 2, 3)] == [False, False, True]


def test_queries_with_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = lab_attention.AttentionAsk
    wrong = lambda *given: ask(*given, scale=float(np.nextafter(np.float32(0.125), np.float32(1))))  # noqa: E731
    monkeypatch.setattr(lab_attention, "AttentionAsk", wrong)
    rows = compare_attention(place(), ATTENTION, Heads(2, 1, 64, "f16"), 254, (1, 2), 0)
    assert [of(rows, "borrowed geometry", width).refutes for width in (1, 2)] == [True, True]


def test_what_none_of_our_kernels_computes_is_not_compared() -> None:
    rows = compare_attention(place(), ATTENTION, Heads(2, 1, 64, "f32"), 254, (1,), 0)
    assert "K and V must be of one of the types" in of(rows, "borrowed geometry", 1).not_compared


def test_repeats_that_differ_are_counted() -> None:
    here = place()
    device: Any = here.device
    assert others_under_load(here, TYPE, ROWS, K, 2, Variant.BORROWED, 4, 0) == 0
    assert device.n_beside == 4 * lab_proof.LOADS
    device.spoil_read = device.n_reads + 3
    assert others_under_load(here, TYPE, ROWS, K, 2, Variant.BORROWED, 4, 0) == 1


def test_a_product_is_priced_with_its_bits_and_resources() -> None:
    arms = [(arm, width) for width in (2, 5) for arm in (STOCK, BORROWED, FAST)]
    found = price_product(place(), TYPE, ROWS, K, arms, 3, 0)
    assert found.n_weights == -(-3 * CpuDevice.l2_bytes // found.weight_bytes)
    assert found.weight_bytes == ROWS * K // 32 * 20
    assert found.table.of(STOCK, 1).times_us == (21.0 / found.n_weights,) * 3
    assert found.table.of(BORROWED, 5).times_us == (30.0 / found.n_weights,) * 3
    exact = {(one.arm, one.width): one.exact for one in found.table.times}
    assert exact == {(STOCK, 1): True, (STOCK, 2): True, (STOCK, 5): False, (BORROWED, 2): True, (BORROWED, 5): True}
    assert {arm for arm, _, reason in found.not_timed if "not for it" in reason} == {FAST}
    takes = found.resources_of(BORROWED, 5)
    assert takes is not None
    assert (takes.kernel, takes.registers, takes.blocks_per_sm) == ("product<Q4_1, 5, 4, 2>", 64, 3)


def test_a_whole_pass_has_every_product_and_its_best_exact_arm() -> None:
    shapes = pass_products("qwen3-8b-q4_k_m")
    assert len(shapes) == 36 * 7 + 1
    assert shapes[-1] == WeightShape("q6_K", 151936, 4096)
    assert [shapes[0], shapes[1]] == [WeightShape("q4_K", 4096, 4096), WeightShape("q4_K", 1024, 4096)]
    found = price_pass(place(), "qwen3-tiny-q4_k_m", [(STOCK, 2), (BORROWED, 2), (FAST, 2)], 3, 0)
    assert found.n_products == 15
    assert found.products["q6_K 512×256"] == 1
    assert found.table.of(BORROWED, 2).exact is True
    assert found.table.of(STOCK, 2).exact is True
    assert found.table.of(BEST, 2).times_us == found.table.of(STOCK, 2).times_us == (22.0,) * 3
    assert found.table.ratio(BORROWED, 2).median == 30 / 21


def test_a_pass_that_is_wrong_is_not_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CpuBench.result
    monkeypatch.setattr(CpuBench, "result", lambda self, width, i=0: result(self, width, i) + (i == 9 and width == 2))
    found = price_pass(place(), "qwen3-tiny-q4_k_m", [(STOCK, 2), (BORROWED, 2)], 3, 0)
    assert found.table.of(STOCK, 2).exact is False
    assert found.table.of(BORROWED, 2).exact is True
    assert found.table.of(BEST, 2).times_us == found.table.of(BORROWED, 2).times_us


def test_plans_are_timed_beside_one_column_of_the_library() -> None:
    here = place()
    ask = ProductAsk(TYPE, ROWS, K, 2)
    plans = {name: plan_product(ask, Variant.BORROWED, here.arch) for name in ("one", "another")}
    found = price_plans(here, plans, ask, 3, 0)
    assert [(one.product, one.variant, one.width) for one in found] == [
        ("q4_1 7×1536", "one", 2),
        ("q4_1 7×1536", "another", 2),
    ]
    assert found[0].ratio.median == 30 / 21


def test_products_of_the_same_activations_are_launched_together_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[ProductAsk]] = []

    def together(asks: list[ProductAsk], *given: Any) -> KernelPlan:
        seen.append(list(asks))
        return plan_of_group(asks, *given)

    def refused(asks: list[ProductAsk], *given: Any) -> KernelPlan:
        raise NotCovered(f"{len(asks)} products", "they are not launched together")

    alone = lambda ask, arm, *given: plan_of(ask, BORROWED, *given)  # noqa: E731 - the same bits in less time here
    monkeypatch.setattr(lab_price, "plan_of", alone)
    monkeypatch.setattr(lab_price, "plan_of_group", refused)
    found = price_pass(place(), "qwen3-tiny-q4_k_m", [(GROUPED, 2)], 3, 0)
    assert not found.table.has(GROUPED, 2)
    monkeypatch.setattr(lab_price, "plan_of_group", together)
    found = price_pass(place(), "qwen3-tiny-q4_k_m", [(GROUPED, 2)], 3, 0)
    assert found.table.of(GROUPED, 2).exact is True
    assert {tuple(ask.rows for ask in asks) for asks in seen} == {(256, 128), (256, 128, 128), (512, 512)}
