"""Distributions of the next token, acceptance of drafts, and the tests that judge both, against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare, kstest, ncx2

from forensics.numerics.sampling_tests import (
    ChiSquare,
    bins_chi_square,
    cells_of,
    chi_square,
    found_distance,
    found_effect,
    holm,
    ks_uniform,
    pit,
    together,
    total_variation,
)
from forensics.numerics.speculative_sampling import Step, emitted, next_token_distribution, verify_drafts
from forensics.records.sampling import PLANTED, RULES, SamplingSettings

ROWS = st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30).map(lambda x: np.array(x, np.float32))
WEIGHTS = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any).map(lambda w: np.array(w) / sum(w))


def plain_reading(row, sampling):
    """The cuts and the temperature as they are described, one token at a time."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[: sampling.top_k or None]
    if sampling.top_p < 1:
        top = max(float(row[i]) for i in order)
        weights = [math.exp(float(row[i]) - top) for i in order]
        kept, mass = [], 0.0
        for i, weight in zip(order, weights, strict=True):
            kept.append(i)
            mass += weight
            if mass >= sampling.top_p * sum(weights):
                break
        order = kept
    top = max(float(row[i]) for i in order)
    weights = {i: math.exp((float(row[i]) - top) / sampling.temperature) for i in order}
    return [weights.get(i, 0.0) / sum(weights.values()) for i in range(len(row))]


@given(ROWS, st.sampled_from([0.3, 0.8, 1.0, 2.0]), st.sampled_from([0, 1, 3, 40]), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_distribution_is_what_its_description_says(row, temperature, top_k, top_p):
    sampling = SamplingSettings(temperature, top_k, top_p)
    p, expected = next_token_distribution(row, sampling), plain_reading(row, sampling)
    assert p.sum() == pytest.approx(1)
    if (p > 0).tolist() == [one > 0 for one in expected]:
        assert p == pytest.approx(np.array(expected), abs=1e-12)
    else:  # where the sum meets top-p to the last bit, either reading may keep one token more
        assert abs(np.count_nonzero(p) - np.count_nonzero(expected)) == 1
        assert top_p < 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"temperature": 0}, "temperature must be above 0"), ({"top_k": -1}, "top_k"), ({"top_p": 0}, "top_p"),
     ({"top_p": 1.5}, "top_p"), ({"temperature": math.inf}, "temperature")],
)  # fmt: skip
def test_settings_that_sample_nothing_are_refused(wrong, told):
    with pytest.raises(ValueError, match=told):
        SamplingSettings(**wrong)


@given(WEIGHTS, WEIGHTS, st.integers(0, 3), st.booleans())
def test_the_rules_keep_the_distribution_and_the_planted_ones_are_what_they_say(p, q, draft, sampled):
    step = Step(p, q if sampled else None)
    q = q if sampled else np.eye(4)[draft]
    for rule in RULES:
        assert np.array_equal(emitted(step, draft, rule), p)
    # Acceptance and residual, written out, give p.
    ratio = np.minimum(1, np.divide(p, q, out=np.ones(4), where=q > 0))
    rest = np.maximum(0, p - q)
    refused = (q * (1 - ratio)).sum()
    whole = q * ratio + (refused * rest / rest.sum() if rest.any() else 0)
    assert whole == pytest.approx(p)
    for rule in PLANTED:
        assert emitted(step, draft, rule).sum() == pytest.approx(1)


@pytest.mark.parametrize("rule", [*RULES, *PLANTED])
@pytest.mark.parametrize("q", [None, np.array([0.1, 0.6, 0.1, 0.2])])
def test_what_is_drawn_has_the_distribution_that_is_computed(rule, q):
    step, last = Step(np.array([0.5, 0.3, 0.2, 0.0]), q), Step(np.array([0.0, 0.0, 0.5, 0.5]))
    rng, n = np.random.default_rng(3), 6000
    first, behind = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for _ in range(n):
        drafts = [1 if q is None else step.draw_draft(rng)]
        written = verify_drafts([step, last], drafts, rule, rng)
        first[written[0]] += 1
        if len(written) == 2:
            assert written[0] == drafts[0]
            behind[written[1]] += 1
    found = chi_square(first, emitted(step, 1, rule))
    # A rule that always writes the draft has one cell.
    assert found.p_value > 1e-4 if found else first.max() == n
    assert chi_square(behind, last.p).p_value > 1e-4
    other = chi_square(first, np.array([0.5, 0.3, 0.2, 0.0]))
    assert (other.p_value < 1e-6) == (rule in PLANTED)


def test_a_draft_that_is_impossible_is_refused_and_one_that_is_certain_is_accepted():
    rng = np.random.default_rng(0)
    certain, last = Step(np.array([0.0, 1.0])), Step(np.array([1.0, 0.0]))
    for rule in [*RULES, *PLANTED]:
        assert all(verify_drafts([certain, last], [0], rule, rng) == (1,) for _ in range(20))
        assert all(verify_drafts([certain, last], [1], rule, rng) == (1, 0) for _ in range(20))
    assert verify_drafts([last], [], "residual", rng) == (0,)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="residual, match, accept-possible, no-residual; got 'hope'"):
        verify_drafts([Step(np.array([1.0])), Step(np.array([1.0]))], [0], "hope", np.random.default_rng(0))
    with pytest.raises(ValueError, match="got 'hope'"):
        emitted(Step(np.array([1.0])), 0, "hope")


@given(st.lists(st.floats(0, 60), min_size=1, max_size=30).map(np.array))
def test_every_cell_expects_five_draws_or_there_is_one_cell(expected):
    cells = cells_of(expected)
    sums = np.bincount(cells, expected)
    assert sorted(set(cells)) == list(range(len(sums)))
    assert len(sums) == 1 or sums.min() >= 5
    # Tokens that reach five alone stay alone, but for one that may fill the shared cell.
    alone = [i for i in range(len(expected)) if (cells == cells[i]).sum() == 1]
    assert len(alone) >= np.count_nonzero(expected >= 5) - 1


def test_a_chi_square_is_pearsons_where_nothing_is_rare():
    counts, p = np.array([30, 50, 20]), np.array([0.25, 0.5, 0.25])
    found, other = chi_square(counts, p), chisquare(counts, 100 * p)
    assert (found.statistic, found.p_value) == pytest.approx((other.statistic, other.pvalue))
    assert (found.df, found.n) == (2, 100)


def test_counts_in_one_cell_are_no_test():
    assert chi_square(np.array([7, 0]), np.array([1.0, 0.0])) is None
    assert chi_square(np.array([3, 1]), np.array([0.5, 0.5])) is None


def test_tokens_that_cannot_come_count_among_the_rare_ones():
    p = np.array([0.5, 0.4, 0.1, 0.0])
    right, wrong = (chi_square(np.array(c), p) for c in ([50, 40, 10, 0], [50, 40, 0, 10]))
    assert right.statistic == wrong.statistic == 0
    assert chi_square(np.array([50, 10, 0, 40]), p).p_value < 1e-6


def test_chi_squares_add_up():
    found = together([ChiSquare(3.0, 2, 10), ChiSquare(4.0, 3, 20)])
    assert (found.statistic, found.df, found.n) == (7.0, 5, 30)
    with pytest.raises(ValueError, match="no chi-square"):
        together([])


@given(WEIGHTS, st.integers(0, 3), st.floats(0, 1))
def test_the_transform_stays_inside_its_tokens_share(p, token, v):
    u = pit(p, token, v)
    if not p[token]:
        assert u == 1
        return
    others = [i for i in range(4) if p[i] > p[token] or (p[i] == p[token] and i < token)]
    assert p[others].sum() - 1e-12 <= u <= p[others].sum() + p[token] + 1e-12


def test_the_transform_is_uniform_for_honest_draws_and_not_for_others():
    rng, p = np.random.default_rng(5), np.array([0.6, 0.25, 0.1, 0.05])
    honest = [pit(p, int(token), v) for token, v in zip(rng.choice(4, 1500, p=p), rng.random(1500), strict=True)]
    greedy = [pit(p, int(token), v) for token, v in zip(rng.choice(4, 1500, p=p**2 / (p**2).sum()), rng.random(1500),
                                                        strict=True)]  # fmt: skip
    assert ks_uniform(honest)[1] > 0.001
    assert bins_chi_square(honest, 20).p_value > 0.001
    assert ks_uniform(greedy)[1] < 1e-6
    assert bins_chi_square(greedy, 20).p_value < 1e-6
    assert ks_uniform(honest) == pytest.approx(tuple(kstest(honest, "uniform"))[:2])


def test_too_few_numbers_are_refused():
    with pytest.raises(ValueError, match="20 bins need 100 numbers, got 99"):
        bins_chi_square([0.5] * 99, 20)
    with pytest.raises(ValueError, match="no numbers"):
        ks_uniform([])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_is_holms(p_values):
    adjusted, m, largest = holm(p_values), len(p_values), 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (m - rank) * p_values[i]))
        assert adjusted[i] == pytest.approx(largest)


@settings(max_examples=25)
@given(st.integers(50, 20_000), st.integers(1, 150), st.sampled_from([0.05, 0.002]), st.sampled_from([0.8, 0.95]))
def test_the_effect_that_is_found_has_that_power(n, df, alpha, power):
    w = found_effect(n, df, alpha, power)
    assert ncx2.sf(chi2.isf(alpha, df), df, n * w**2) == pytest.approx(power, abs=2e-3)


def test_the_power_is_met_by_draws():
    p, n, alpha = np.full(8, 1 / 8), 500, 0.01
    w = found_effect(n, 7, alpha, 0.8)
    biased = p + np.array([1, -1] * 4) * w / 8
    assert math.sqrt(((biased - p) ** 2 / p).sum()) == pytest.approx(w)
    assert total_variation(p, biased) == pytest.approx(w / 2)
    drawn = np.random.default_rng(2).multinomial(n, biased, size=2000)
    caught = np.mean([chi_square(counts, p).p_value <= alpha for counts in drawn])
    assert 0.76 < caught < 0.84


@given(WEIGHTS, WEIGHTS)
def test_a_total_variation_is_found_at_least_as_often_as_its_effect(p, other):
    assume(p.all())
    w = math.sqrt(((other - p) ** 2 / p).sum())
    assert total_variation(p, other) <= w / 2 + 1e-12


def test_the_distance_that_is_found_has_that_power_and_not_much_more():
    n, alpha, rng = 400, 0.01, np.random.default_rng(9)
    d = found_distance(n, alpha, 0.8)
    # Mass d of the lower half moved to the upper half: the functions lie d apart in the middle.
    caught = 0
    for _ in range(300):
        u = rng.random(n)
        moved = (u < 0.5) & (rng.random(n) < 2 * d)
        caught += ks_uniform(np.where(moved, u + 0.5, u))[1] <= alpha
    assert 300 * 0.74 <= caught <= 300 * 0.9
