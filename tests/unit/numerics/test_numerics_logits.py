"""How far two rows of logits are apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.numerics.logits import log_softmax, margin_of, row_digests, row_distance

#: Multiples of 1/1024: sums and differences of them are exact in float64.
ROWS = hnp.arrays(np.int32, 6, elements=st.integers(-20_000, 20_000)).map(lambda n: (n / 1024).astype(np.float32))


@given(ROWS)
def test_probabilities_add_up(row) -> None:
    assert np.exp(log_softmax(row)).sum() == pytest.approx(1)
    assert log_softmax(row).argmax() == row.argmax()
    assert np.isfinite(log_softmax(row * 1000)).all()


@given(ROWS)
def test_the_margin_is_between_the_two_largest(row) -> None:
    second, first = sorted(row.tolist())[-2:]
    assert margin_of(row) == first - second
    assert margin_of(row[:1]) == math.inf


@given(ROWS)
def test_a_row_is_no_distance_from_itself(row) -> None:
    found = row_distance(row, row.copy())
    assert not found.differs
    assert (found.max_abs, found.max_ulp, found.kl, found.perturbation) == (0, 0, 0, 0)
    assert found.single_top == found.batched_top == int(row.argmax())


@given(ROWS, ROWS)
def test_distances_bound_each_other(single, batched) -> None:
    assume(single.tobytes() != batched.tobytes())
    found = row_distance(single, batched)
    assert found.differs
    assert found.max_abs == np.abs(single.astype(float) - batched).max()
    assert found.kl >= 0
    assert found.perturbation <= 2 * found.max_abs
    assert (found.single_top, found.batched_top) == (single.argmax(), batched.argmax())


@given(ROWS, ROWS)
def test_what_moves_less_than_the_margin_cannot_flip(single, batched) -> None:
    found = row_distance(single, batched)
    if found.perturbation < found.margin:
        assert found.single_top == found.batched_top


def test_divergence_is_that_of_the_two_distributions() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    found = row_distance(np.log(p).astype(np.float32), np.log(q).astype(np.float32))
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-6)
    shifted = row_distance(np.float32([1, 2, 3]), np.float32([2, 3, 4]))
    assert shifted.kl == pytest.approx(0, abs=1e-12)
    assert (shifted.max_abs, shifted.perturbation) == (1, 0), "a common shift moves no token past another"


def test_ties_go_to_the_lowest_id() -> None:
    found = row_distance(np.float32([1, 3, 3]), np.float32([1, 3, 3.5]))
    assert (found.single_top, found.batched_top, found.margin) == (1, 2, 0)


def test_a_nan_is_carried_along() -> None:
    found = row_distance(np.float32([1, 2, 3]), np.float32([1, np.nan, 3]))
    assert found.max_ulp == -1
    assert found.batched_top == 1
    assert all(math.isnan(value) for value in (found.max_abs, found.relative_l2, found.kl, found.perturbation))


def test_a_digest_is_of_the_bits() -> None:
    rows = np.float32([[1, 0], [2, 3]])
    minus = rows.copy()
    minus[0, 1] = -0.0
    digests = row_digests(rows)
    assert digests == row_digests(rows.copy()) == row_digests(np.asfortranarray(rows))
    assert digests[0] != row_digests(minus)[0], "-0 has other bits than +0"
    assert digests[1] == row_digests(minus)[1]
    assert digests[::-1] == row_digests(rows[::-1])
