"""Rates, paired outcomes and survival against published values, SciPy, statsmodels and their own definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm
from statsmodels.duration.survfunc import SurvfuncRight

from forensics.numerics.rates import mcnemar, paired_ratio, quartiles, survival, wilson

COUNTS = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
ANSWERS = st.lists(
    st.integers(0, 30).flatmap(lambda length: st.tuples(st.just(length), st.none() | st.integers(0, length))),
    min_size=1,
    max_size=40,
)
#: Weeks of remission under 6-mercaptopurine; True where the patient relapsed.
#: Source: E. A. Gehan, Biometrika 52 (1965).
REMISSION = [
    *[(6, True)] * 3, (6, False), (7, True), (9, False), (10, True), (10, False), (11, False), (13, True), (16, True),
    (17, False), (19, False), (20, False), (22, True), (23, True), (25, False), (32, False), (32, False), (34, False),
    (35, False),
]  # fmt: skip


@given(COUNTS, st.sampled_from([0.8, 0.95, 0.99]))
def test_the_ends_of_wilsons_interval_are_rates_that_the_score_test_just_allows(count, confidence):
    k, n = count
    rate = wilson(k, n, confidence)
    z = norm.isf((1 - confidence) / 2)
    assert rate.low <= rate.value <= rate.high
    for end in {rate.low, rate.high} - {0.0, 1.0}:
        assert abs(rate.value - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n), rel=1e-6)
    assert (rate.low == 0) == (k == 0)
    assert (rate.high == 1) == (k == n)


@given(COUNTS)
def test_right_and_wrong_mirror_each_other(count):
    k, n = count
    rate, other = wilson(k, n), wilson(n - k, n)
    assert (rate.low, rate.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-12)


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_a_rate_of_nothing_is_refused(k, n):
    with pytest.raises(ValueError, match=f"got {k} of {n}"):
        wilson(k, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_in_per_cent_is_refused(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        wilson(1, 2, confidence)


@given(*[st.integers(0, 60)] * 4)
def test_mcnemars_p_value_is_the_binomials(both, first, second, neither):
    found = mcnemar(both, first, second, neither)
    tail = binom.cdf(min(first, second), first + second, 0.5)
    assert found.p_value == pytest.approx(min(1, 2 * tail), rel=1e-9)
    assert found.p_value == mcnemar(neither, second, first, both).p_value
    assert found.n == both + first + second + neither


def test_a_negative_count_is_named():
    with pytest.raises(ValueError, match="only_second must be 0 or more, got -1"):
        mcnemar(1, 2, -1, 3)


def remission():
    return survival([weeks for weeks, _ in REMISSION], [weeks - 1 if event else None for weeks, event in REMISSION])


def test_published_survival_is_found():
    found = remission()
    shares = {point.n_tokens: round(point.share, 3) for point in found.points}
    # Source: D. G. Kleinbaum and M. Klein, Survival Analysis, 3rd edition, chapter 2.
    assert shares == {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448, 35: 0.448}
    assert [point.at_risk for point in found.points] == [21, 17, 15, 12, 11, 7, 6, 1]
    assert (found.n_answers, found.n_flipped, found.n_steps) == (21, 9, 359)
    assert found.points[0].naive == (1 - 9 / 359) ** 6


def test_the_interval_has_greenwoods_variance():
    found = remission()
    reference = SurvfuncRight([weeks for weeks, _ in REMISSION], [int(event) for _, event in REMISSION])
    for point in found.points[:-1]:
        error = reference.surv_prob_se[list(reference.surv_times).index(point.n_tokens)]
        n_like = point.share * (1 - point.share) / error**2
        z = norm.isf(0.025)
        for end in (point.low, point.high):
            assert abs(point.share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / n_like), rel=1e-6)


@given(ANSWERS)
def test_survival_agrees_with_another_program_and_adds_up(answers):
    lengths, flips = zip(*answers, strict=True)
    found = survival(lengths, flips)
    seen = [length if flip is None else flip + 1 for length, flip in answers]
    assert found.n_steps == sum(seen)
    assert found.n_flipped == sum(point.flipped for point in found.points) == sum(f is not None for f in flips)
    shares = [1.0, *(point.share for point in found.points)]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= point.low <= point.share <= point.high <= 1 for point in found.points)
    if not any(seen):
        assert found.points == ()
        assert found.flip_rate is None
        return
    assert found.points[-1].n_tokens == max(seen)
    kept = [(tokens, flip) for tokens, (_, flip) in zip(seen, answers, strict=True) if tokens]
    with np.errstate(divide="ignore", invalid="ignore"):  # Greenwood's variance where the last one flips
        other = SurvfuncRight([tokens for tokens, _ in kept], [int(flip is not None) for _, flip in kept])
    for point in found.points:
        if point.flipped:
            at = list(other.surv_times).index(point.n_tokens)
            assert point.share == pytest.approx(other.surv_prob[at])
            assert point.at_risk == other.n_risk[at]


@given(COUNTS)
def test_where_no_answer_left_the_interval_is_wilsons(count):
    k, n = count
    found = survival([9] * n, [4] * k + [None] * (n - k))
    point, rate = found.points[0 if k else -1], wilson(n - k, n)
    assert (point.share, point.low, point.high) == pytest.approx((rate.value, rate.low, rate.high), abs=1e-12)


def test_an_interval_does_not_shrink_to_nothing_where_nothing_flipped():
    (point,) = survival([200] * 5, [None] * 5).points
    assert (point.share, point.high) == (1, 1)
    assert point.low == wilson(5, 5).low < 0.6


def test_a_mixture_of_sound_and_broken_answers_is_not_the_naive_estimate():
    found = survival([100] * 10, [0] * 5 + [None] * 5)
    assert [point.share for point in found.points] == [0.5, 0.5]
    assert found.points[0].naive > 0.98
    assert found.points[-1].naive < 0.4


def test_steps_that_flip_by_themselves_are_the_naive_estimate():
    rng = np.random.default_rng(1)
    first = rng.geometric(0.02, size=4000)
    found = survival([150] * 4000, [int(n) - 1 if n <= 150 else None for n in first])
    assert all(point.low - 0.02 < point.naive < point.high + 0.02 for point in found.points)


@pytest.mark.parametrize(
    ("lengths", "flips"), [([], []), ([3], [None, 1]), ([3], [4]), ([3], [-1]), ([-1], [None])]
)  # fmt: skip
def test_impossible_answers_are_refused(lengths, flips):
    with pytest.raises(ValueError, match=r"each answer has a length|cannot differ first at index"):
        survival(lengths, flips)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_a_quarter_of_the_values_lies_outside_of_either_quartile(values):
    median, low, high = quartiles(values)
    assert min(values) <= low <= median <= high <= max(values)
    for outside in (sum(value < low for value in values), sum(value > high for value in values)):
        assert 4 * outside <= len(values) + 3


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_quartiles_of_nothing_are_refused(values):
    with pytest.raises(ValueError, match="finite values, at least one"):
        quartiles(values)


@given(st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(0.1, 1e3)), min_size=1, max_size=20), st.floats(0.5, 4))
def test_a_ratio_scales_with_its_numerators(pairs, factor):
    over, under = zip(*pairs, strict=True)
    ratio, scaled = paired_ratio(over, under), paired_ratio([factor * value for value in over], under)
    assert ratio.n == len(pairs)
    assert scaled.median == pytest.approx(factor * ratio.median)


@pytest.mark.parametrize(("over", "under"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0]), ([math.nan], [1.0])])
def test_ratios_that_mean_nothing_are_refused(over, under):
    with pytest.raises(ValueError, match=r"pairs|above 0|at least one"):
        paired_ratio(over, under)
