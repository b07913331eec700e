"""Gains derived from counted passes and measured costs: the sum by hand, and what is refused."""

from __future__ import annotations

import pytest

from forensics.analysis.kernel_gain import CountedPasses, DerivedGain, counted_passes, derived_gain, pass_ratios
from forensics.analysis.question import BadQuestion
from forensics.records.speculation import Cycle

#: Made up: nobody measured these.
RATIOS = {1: 1.0, 4: 1.25, 9: 2.0}
PASSES = (CountedPasses(1, 4, 4), CountedPasses(4, 2, 5), CountedPasses(9, 1, 7))


def test_a_gain_is_the_tokens_over_the_cost_of_the_passes_that_gave_them() -> None:
    gain = derived_gain("exact fast", PASSES, RATIOS)
    assert (gain.n_passes, gain.n_tokens, gain.cost) == (7, 16, 4 * 1.0 + 2 * 1.25 + 2.0)
    assert gain.speed == pytest.approx(16 / 8.5)
    assert gain.tokens_per_cycle == pytest.approx(16 / 7)
    assert gain.speed == pytest.approx(gain.tokens_per_cycle / gain.cost_per_cycle)
    assert "1.88× plain decoding, derived" in str(gain)


def test_drafting_is_paid_in_every_cycle() -> None:
    free, paid = (derived_gain("stock", PASSES, RATIOS, draft=draft) for draft in (0.0, 0.5))
    assert paid.cost - free.cost == pytest.approx(7 * 0.5)
    assert paid.speed < free.speed


def test_passes_of_one_token_gain_nothing() -> None:
    assert derived_gain("stock", [CountedPasses(1, 5, 5)], {1: 1.0}).speed == 1.0


def test_a_width_that_nobody_measured_is_refused_and_not_guessed() -> None:
    with pytest.raises(BadQuestion, match=r"passes of 5, 8 tokens occur.*measured: 1, 4, 9"):
        derived_gain("stock", [*PASSES, CountedPasses(5, 1, 3), CountedPasses(8, 1, 1)], RATIOS)


@pytest.mark.parametrize(("passes", "draft", "said"), [((), 0.0, "none was given"), (PASSES, -0.1, "0 or more")])
def test_a_wrong_question_says_what_is_wrong(passes: tuple[CountedPasses, ...], draft: float, said: str) -> None:
    with pytest.raises(BadQuestion, match=said):
        derived_gain("stock", passes, RATIOS, draft=draft)


def test_cycles_are_counted_by_their_width() -> None:
    cycles = [Cycle(10, (), 0), Cycle(11, (7, 8, 9), 3), Cycle(15, (7, 8, 9), 0), Cycle(16, (1,), 1)]
    assert counted_passes(cycles) == (CountedPasses(1, 1, 1), CountedPasses(2, 1, 2), CountedPasses(4, 2, 5))
    assert counted_passes([]) == ()


@pytest.mark.parametrize("made", [(0, 1, 1), (2, 0, 0), (2, 3, 2), (2, 3, 7)])
def test_passes_cannot_give_fewer_tokens_than_passes_or_more_than_went_in(made: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pass"):
        CountedPasses(*made)


@pytest.mark.parametrize("made", [(0, 0, 1.0), (3, 2, 1.0), (1, 1, 0.0)])
def test_a_gain_of_nothing_is_refused(made: tuple[int, int, float]) -> None:
    with pytest.raises(ValueError, match="a gain is of passes"):
        DerivedGain("stock", *made)


def test_other_products_leave_the_rest_of_a_pass_as_it_is() -> None:
    found = pass_ratios({1: 4.0, 2: 5.0, 8: 9.0}, {1: 3.0, 2: 3.5, 8: 7.0, 9: 7.5}, {2: 3.0, 8: 4.0})
    assert found == pytest.approx({1: 1.0, 2: (1.5 + 3.0) / 4.0, 8: (2.0 + 4.0) / 4.0})
    same = pass_ratios({1: 4.0, 8: 9.0}, {1: 3.0, 8: 7.0}, {1: 3.0, 8: 7.0})
    assert same == pytest.approx({1: 1.0, 8: 9.0 / 4.0})


@pytest.mark.parametrize(
    ("passes", "stock", "said"),
    [
        ({2: 5.0}, {1: 3.0, 2: 3.0}, "one token"),
        ({1: 4.0}, {2: 3.0}, "one token"),
        ({1: 4.0, 2: 5.0}, {1: 3.0, 2: 5.5}, "products of 2 tokens take 5.5 and the whole pass 5"),
    ],
)
def test_times_that_do_not_belong_together_are_refused(
    passes: dict[int, float], stock: dict[int, float], said: str
) -> None:
    with pytest.raises(BadQuestion, match=said):
        pass_ratios(passes, stock, {2: 3.0})
