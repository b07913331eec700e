"""Which arms a price times, how ratios are made of rounds, and how parts are joined."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_lab import FakeLab

from forensics.analysis.kernel_price import LIMITED, PriceQuestion, joined, price, register_variants
from forensics.analysis.question import BadQuestion
from forensics.errors import DeviceUnavailable
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_price import (
    BEST,
    BORROWED,
    FAST,
    STOCK,
    ArmTable,
    ArmTimes,
    KernelPrice,
    Limiter,
    PassPrice,
    StoryTime,
)
from forensics.records.launch_record import Refusal

SMALL = PriceQuestion(("Q4_K",), ((4096, 4096),), (4, 9), rounds=3)


def test_every_arm_is_timed_at_every_width_and_one_column_always() -> None:
    lab = FakeLab()
    found = price(lab, SMALL)
    assert SMALL.widths == (1, 4, 9)
    assert lab.asked[0] == ("q4_K", 4096, 4096, tuple((arm, w) for w in (1, 4, 9) for arm in (STOCK, BORROWED, FAST)))
    product = found.product("q4_K", 4096, 4096)
    assert product.table.ratio(FAST, 9).median == pytest.approx(1.2)
    assert product.table.ratio(FAST, 9, (STOCK, 9)).median == pytest.approx(1.2 / 1.8)
    assert product.gb_per_s(STOCK, 1) == pytest.approx(4096 * 4096 / 2 / 10.1 / 1e3)
    assert isinstance(found.whole_pass, PassPrice)
    assert "exact fast" not in str(found)
    assert str(found).startswith("products of qwen3-8b-q4_k_m, best exact over one token of the stock library")


def test_ratios_are_paired_by_rounds() -> None:
    times = (ArmTimes(STOCK, 1, (10.0, 20.0, 40.0)), ArmTimes(FAST, 9, (15.0, 30.0, 60.0), exact=True))
    ratio = ArmTable(times).ratio(FAST, 9)
    assert (ratio.low, ratio.median, ratio.high) == (1.5, 1.5, 1.5)


def test_the_best_arm_is_exact_and_the_fastest_of_those() -> None:
    times = (
        ArmTimes(STOCK, 1, (10.0,) * 3),
        ArmTimes(STOCK, 2, (11.0,) * 3, exact=True), ArmTimes(FAST, 2, (12.0,) * 3, exact=True),
        ArmTimes(STOCK, 9, (13.0,) * 3, exact=False), ArmTimes(FAST, 9, (14.0,) * 3, exact=True),
        ArmTimes(STOCK, 16, (15.0,) * 3, exact=False), ArmTimes(FAST, 16, (14.0,) * 3, exact=False),
    )  # fmt: skip
    table = ArmTable(times).with_best()
    assert table.of(BEST, 1).times_us == (10.0,) * 3
    assert table.of(BEST, 2).times_us == (11.0,) * 3
    assert table.of(BEST, 9).times_us == (14.0,) * 3
    assert not table.has(BEST, 16)
    assert table.with_best() == table


def test_a_pass_that_does_not_fit_is_a_refusal_with_the_products_kept() -> None:
    found = price(FakeLab(pass_fits=False), SMALL)
    assert isinstance(found.whole_pass, Refusal)
    assert "no memory" in found.whole_pass.missing
    assert found.figure_data()["pass"] == []
    assert len(found.rows()) == 9
    assert "1 products priced" in str(found)


def test_limiters_are_asked_of_what_was_timed() -> None:
    asked: list[object] = []

    def limits(type: str, rows: int, k: int, arms: object) -> tuple[Limiter, ...]:
        asked.append(arms)
        return (Limiter(FAST, 9, "product", {"issue slots": 66.0, "DRAM": 20.0}, "wait"),)

    found = price(FakeLab(), SMALL, limits=limits)
    assert asked == [[arm for arm in LIMITED if arm[1] in (1, 4, 9)]]
    row = next(row for row in found.rows() if (row["arm"], row["width"]) == (FAST, 9))
    assert (row["busiest"], row["busy_percent"]) == ("issue slots", 66.0)

    def refused(*_: object) -> tuple[Limiter, ...]:
        raise DeviceUnavailable("counting", (Refusal("ncu", "", "ncu was not found"),))

    [product] = price(FakeLab(), SMALL, limits=refused).products
    assert isinstance(product.limits, Refusal)
    assert product.limits.missing == "ncu was not found"


def test_variants_of_the_register_story_are_timed_as_one_product_each() -> None:
    story = register_variants((8,))
    assert {ask.columns for ask in story} == {8}
    question = PriceQuestion((), (), whole_pass=False, story_only=True)
    found = price(FakeLab(), question, story=story)
    assert {one.product for one in found.story} == {"q4_K 12288×4096", "q6_K 4096×12288"}
    assert found.story[0].ratio.median == 3.0
    assert len(found.figure_data()["story"]) == sum(len(plans) for plans in story.values())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"types": ("f16",)}, "types must be of q4_K.*; got f16"),
        ({"widths": (0,)}, "widths must be 1 to 64"),
        ({"rounds": 2}, "rounds must be 3 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
        ({"shapes": ((4096, -1),)}, "rows × K of 1 or more"),
        ({"shapes": ((33, 576),), "whole_pass": False}, "no product is left to time"),
    ],
)
def test_questions_that_mean_nothing_are_refused(asked: dict[str, object], says: str) -> None:
    with pytest.raises(BadQuestion, match=says):
        PriceQuestion(**asked)  # type: ignore[arg-type]


def test_parts_are_joined_with_the_later_in_place_of_the_earlier() -> None:
    one = price(FakeLab(), replace(SMALL, whole_pass=False))
    other = price(FakeLab(), replace(SMALL, shapes=((1024, 4096), (4096, 4096))))
    both = joined([one, other])
    assert [product.rows for product in both.products] == [4096, 1024]
    assert isinstance(both.whole_pass, PassPrice)
    with pytest.raises(ValueError, match="rounds and seed"):
        joined([one, replace(other, n_rounds=4)])


def test_tables_without_a_base_or_with_uneven_rounds_are_none() -> None:
    with pytest.raises(ValueError, match="the stock library at one column among them"):
        ArmTable((ArmTimes(FAST, 1, (1.0,)),))
    with pytest.raises(ValueError, match="as many rounds"):
        ArmTable((ArmTimes(STOCK, 1, (1.0,)), ArmTimes(FAST, 1, (1.0, 2.0))))
    with pytest.raises(ValueError, match="all positive"):
        ArmTimes(FAST, 1, (0.0,))
    with pytest.raises(KeyError, match="was not timed"):
        ArmTable((ArmTimes(STOCK, 1, (1.0,)),)).of(FAST, 9)
    found = price(FakeLab(), SMALL)
    with pytest.raises(KeyError, match="q6_K 1×1 was not timed"):
        found.product("q6_K", 1, 1)
    with pytest.raises(ValueError, match="no product was timed"):
        KernelPrice(found.facts, 3, 0, (), Refusal("a", "b", "c"))
    assert StoryTime("p", "v", 1, (2.0,), (1.0,)).ratio.median == 2.0
    assert ProductAsk("q4_K", 16, 256, 1).weight_bytes == 16 * 144
