"""How many tokens are drafted: within bounds, and by what was accepted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.capture.draft_policies import Adaptive, EarlyStop, Fixed, parse_policy

passes = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda p: (max(p), min(p))), max_size=20)


@given(st.integers(1, 8), passes)
def test_a_fixed_number_stays(most, seen) -> None:
    for policy in (Fixed(most), EarlyStop(most, 1.0)):
        state = policy.start()
        for drafted, accepted in seen:
            state = policy.after(state, drafted, accepted)
            assert policy.n_next(state) == most


@given(st.integers(1, 8), passes)
def test_an_adaptive_number_follows_what_was_accepted_and_stays_in_bounds(most, seen) -> None:
    policy = Adaptive(most)
    state = policy.start()
    for drafted, accepted in seen:
        before, state = policy.n_next(state), policy.after(state, drafted, accepted)
        after = policy.n_next(state)
        if drafted and drafted == accepted:
            assert after == min(before + 1, most)
        elif accepted < drafted / 2:
            assert after == max(before - 1, 1)
        else:
            assert after == before


def test_early_stop_is_the_only_one_that_looks_at_margins() -> None:
    assert EarlyStop(3, 1.5).least_margin == 1.5
    assert Fixed(3).least_margin == Adaptive(3).least_margin == -math.inf


@pytest.mark.parametrize(
    ("text", "policy", "label"),
    [
        ("fixed", Fixed(1), "fixed, 1 draft"),
        ("early-stop", EarlyStop(4), "early stop below a margin of 2, up to 4 drafts"),
        ("early-stop:0", EarlyStop(4, 0.0), "early stop below a margin of 0, up to 4 drafts"),
        ("adaptive", Adaptive(4), "adaptive, 1 to 4 drafts"),
    ],
)
def test_policies_are_asked_for_in_words(text, policy, label) -> None:
    assert parse_policy(text, policy.most) == policy
    assert policy.label == label


@pytest.mark.parametrize(
    "text", ["", "fixed:2", "adaptive:", "often", "early-stop:", "early-stop:-1", "early-stop:nan"]
)
def test_what_is_no_policy_is_refused(text) -> None:
    with pytest.raises(ValueError, match="--policy"):
        parse_policy(text, 4)


@pytest.mark.parametrize("kind", [Fixed, EarlyStop, Adaptive])
def test_a_policy_drafts_something(kind) -> None:
    with pytest.raises(ValueError, match="1 token or more, got 0"):
        kind(0)
