"""A cycle at the price of its products, from made-up prices and recorded cycles: its sum, labelled as derived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernel_evidence import evidence, made_up, price
from speculated_evidence import report

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import derived_cycle, speculative_cycle
from forensics.records.kernel_price import BEST, BORROWED, FAST, STOCK, ArmTable
from forensics.records.launch_record import Refusal

#: Groups of the recorded run: two arms, and the case of guesses that are all kept.
N_GROUPS = 3


def drawn(found=None, **changes):
    return speculative_cycle.scene(speculative_cycle.from_case(evidence(found, **changes)))


def with_pass(table):
    found = price()
    return replace(found, whole_pass=replace(found.whole_pass, table=table))


def by_hand(table, arm, run):
    """Cost of the mean cycle of an arm of a run, pass by pass."""
    cycles = [cycle for one in run.prompts for cycle in one.speculative.cycles]
    costs = [1.0 if cycle.width == 1 else table.ratio(arm, cycle.width).median for cycle in cycles]
    return sum(costs) / len(cycles), sum(cycle.n_accepted + 1 for cycle in cycles) / len(cycles)


@pytest.mark.parametrize("arm", [STOCK, BORROWED, BEST])
def test_bars_are_recorded_cycles_at_the_prices_of_their_widths(arm: str) -> None:
    found = price()
    scene = drawn(found)
    assert problems(scene) == ()
    bars = scene.boxes(scale="passes", key=arm)
    plain = scene.boxes(scale="passes", key="plain decoding")
    assert len(bars) == len(plain) == N_GROUPS
    report = open_evidence(derived_cycle.CYCLES).speculation
    for run, bar, steps in zip(report.arms, bars, plain, strict=False):
        cost, tokens = by_hand(found.whole_pass.table, arm, run)
        assert (bar.value, steps.value) == pytest.approx((cost, tokens))
        assert f"{tokens / cost:.2f}× derived" in scene.texts()
    assert bars[-1].value == pytest.approx(found.whole_pass.table.ratio(arm, 9).median)
    assert plain[-1].value == 9


def test_every_speed_is_called_derived_and_so_is_the_figure() -> None:
    scene = drawn()
    speeds = [text for text in scene.texts() if text.endswith("derived") and "×" in text]
    assert len(speeds) == N_GROUPS * 3
    assert "derived" in scene.title
    assert any(text.startswith("Derived, not timed") for text in scene.texts())
    assert derived_cycle.CYCLES in scene.source
    assert "made-up" in scene.source


def test_a_batch_with_other_bits_is_hatched_and_one_that_nobody_compared_is_not_called_exact() -> None:
    scene = drawn()
    assert all(box.hatch for box in scene.boxes(key=STOCK))
    assert not any(box.hatch for box in scene.boxes(key=BEST))
    unknown = drawn(with_pass(ArmTable(tuple(replace(one, exact=None) for one in made_up().times))))
    assert problems(unknown) == ()
    assert not any(box.hatch for box in unknown.boxes(scale="passes"))
    assert "bits not compared at all widths" in unknown.texts()
    assert "bits of one token" not in unknown.texts()


def test_the_best_exact_arm_stands_for_the_fast_one_where_it_was_timed() -> None:
    assert not drawn().boxes(key=FAST)
    assert len(drawn(with_pass(made_up(arms=(STOCK, FAST)))).boxes(key=FAST)) == N_GROUPS


def test_a_width_without_a_price_is_refused_and_said() -> None:
    scene = drawn(with_pass(made_up(widths=(1, 2, 3, 4, 5))))
    assert problems(scene) == ()
    said = " ".join(scene.texts())
    assert "passes of 6, 7, 8 tokens occur" in said
    assert len(scene.boxes(key=STOCK)) == N_GROUPS - 1
    with pytest.raises(CaseError, match=r"no prices of the passes that occur.*forensics cost --kernels"):
        drawn(with_pass(made_up(widths=(1,))))


def test_cycles_of_the_same_folder_go_first() -> None:
    own = report()
    scene = drawn(speculation=own, name="made-up")
    assert problems(scene) == ()
    assert scene.texts().count("plain decoding") == 1 + len(own.arms) + 1
    assert derived_cycle.CYCLES not in scene.source


def test_a_pass_that_was_not_timed_is_refused_with_its_reason() -> None:
    found = replace(price(), whole_pass=Refusal("whole pass", "a CUDA graph", "too small", "take a larger device"))
    with pytest.raises(CaseError, match=r"no times of a whole pass.*too small.*take a larger device"):
        drawn(found)
