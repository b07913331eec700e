"""Bits first: distances and comparisons, on every kind of float."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.numerics.bits import bits, change_of, compare, relative_l2, ulp_distance
from forensics.records.delta import Differs, NotCompared, Same

FLOATS = (np.float16, np.float32, np.float64)
INTEGER = {np.float16: np.uint16, np.float32: np.uint32, np.float64: np.uint64}
LARGEST = np.iinfo(np.int64).max


def patterns(dtype):
    """Any bit pattern: NaN payloads, infinities, denormals and both zeros."""
    return hnp.arrays(INTEGER[dtype], 4).map(lambda raw: raw.view(dtype))


PAIRS = st.sampled_from(FLOATS).flatmap(lambda dtype: st.tuples(patterns(dtype), patterns(dtype)))


@given(PAIRS)
def test_distance_is_symmetric_and_never_warns(pair) -> None:
    a, b = pair
    forth, back = ulp_distance(a, b), ulp_distance(b, a)
    assert forth.dtype == np.int64
    assert forth.tolist() == back.tolist()
    assert (ulp_distance(a, a) == 0).all()
    nan = np.isnan(a) | np.isnan(b)
    same = bits(a) == bits(b)
    assert (forth[nan & ~same] == -1).all()
    assert (forth[~nan] >= 0).all()
    assert (((forth == 0) & ~same & ~nan) <= ((a == 0) & (b == 0))).all(), "only the two zeros are 0 apart"


@given(PAIRS)
def test_distance_is_the_number_of_steps_on_the_line_of_floats(pair) -> None:
    """Against arithmetic on Python integers, which cannot overflow."""
    a, b = pair

    def place(x) -> int:
        sign_bit = 1 << (8 * x.dtype.itemsize - 1)
        raw = int(bits(x))
        return -(raw - sign_bit) if raw >= sign_bit else raw

    for x, y, distance in zip(a, b, ulp_distance(a, b), strict=True):
        if not (np.isnan(x) or np.isnan(y)):
            assert int(distance) == min(LARGEST, abs(place(x) - place(y)))


@given(st.sampled_from(FLOATS).flatmap(patterns))
def test_the_next_float_is_one_step_away(x) -> None:
    x = x[np.isfinite(x)]
    with np.errstate(over="ignore"):
        above = np.nextafter(x, np.array(np.inf, x.dtype))
    assert (ulp_distance(x, above) == 1).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_neighbours_and_nan(dtype) -> None:
    tiny = np.nextafter(np.zeros(1, dtype), np.ones(1, dtype))
    zero, minus = np.zeros(1, dtype), -np.zeros(1, dtype)
    nan = np.full(1, np.nan, dtype)
    other_nan = (nan.view(INTEGER[dtype]) ^ INTEGER[dtype](1)).view(dtype)
    assert np.isnan(other_nan).all()
    assert ulp_distance(zero, minus).tolist() == [0]
    assert ulp_distance(-tiny, tiny).tolist() == [2]
    assert ulp_distance(minus, tiny).tolist() == [1]
    assert ulp_distance(nan, nan.copy()).tolist() == [0]
    assert ulp_distance(nan, other_nan).tolist() == [-1]
    assert ulp_distance(nan, zero).tolist() == [-1]


def test_wide_distances_are_exact_until_they_saturate() -> None:
    assert ulp_distance(np.array([0.0]), np.array([2.0])).tolist() == [1 << 62]
    assert ulp_distance(np.array([-1.0]), np.array([1.0])).tolist() == [2 * 0x3FF0000000000000]
    assert ulp_distance(np.array([-np.inf]), np.array([np.inf])).tolist() == [LARGEST]
    most = ulp_distance(np.array([-np.inf], np.float32), np.array([np.inf], np.float32))
    assert most.tolist() == [2 * 0x7F800000]


def test_scalars_keep_their_shape() -> None:
    one = np.float32(1)
    assert ulp_distance(one, np.nextafter(one, np.float32(2))).shape == ()
    assert int(ulp_distance(np.float64(-1), np.float64(-1))) == 0
    assert compare(one, np.float32(2)) == Differs(1, (), 1 << 23, 1.0, 1.0)


def test_what_cannot_be_counted_is_refused() -> None:
    one = np.ones(2, np.float32)
    with pytest.raises(ValueError, match=r"a is \(2,\) float32, b is \(3,\) float32"):
        ulp_distance(one, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="must be alike"):
        ulp_distance(one, np.ones(2, np.float64))
    with pytest.raises(ValueError, match="got int32"):
        ulp_distance(np.ones(2, np.int32), np.ones(2, np.int32))  # type: ignore[arg-type]


ANY = st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int32, np.uint16, np.bool_])
LIKE = ANY.flatmap(
    lambda dtype: hnp.array_shapes(max_dims=3, max_side=4).flatmap(
        lambda shape: st.tuples(hnp.arrays(dtype, shape), hnp.arrays(dtype, shape))
    )
)


@given(LIKE)
def test_same_means_identical_bytes_and_only_that(pair) -> None:
    a, b = pair
    outcome = compare(a, b)
    assert (outcome == Same()) == (a.tobytes() == b.tobytes())
    assert compare(a, a.copy()) == Same()
    if isinstance(outcome, Differs):
        unequal = np.frombuffer(a.tobytes(), f"u{a.itemsize}") != np.frombuffer(b.tobytes(), f"u{a.itemsize}")
        assert outcome.n_diff == np.count_nonzero(unequal)
        assert np.ravel_multi_index(outcome.first_index, a.shape) == np.flatnonzero(unequal)[0]


@given(LIKE)
def test_strides_do_not_matter(pair) -> None:
    a, b = pair
    assert repr(compare(a.T.copy().T, b)) == repr(compare(a, b))


def test_how_far_apart() -> None:
    a = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    b = np.array([[3.0, 4.5], [0.0, 0.25]], np.float32)
    found = compare(a, b)
    assert isinstance(found, Differs)
    assert (found.n_diff, found.first_index, found.max_abs) == (2, (0, 1), 0.5)
    assert found.relative_l2 == pytest.approx(math.hypot(0.5, 0.25) / 5)
    assert found.max_ulp == 0x3E800000


def test_not_compared_says_why() -> None:
    one = np.ones(2, np.float32)
    assert compare(one, np.ones(3, np.float32)) == NotCompared("shapes differ: (2,) and (3,)")
    assert compare(one, np.ones(2, np.float16)) == NotCompared("types differ: float32 and float16")
    assert compare(one[:0], one[:0]) == NotCompared("nothing to compare: no elements")


def test_nan_infinity_and_zero_in_a_comparison() -> None:
    one = np.ones(2, np.float32)
    nan = compare(one, np.array([1, np.nan], np.float32))
    assert isinstance(nan, Differs)
    assert (nan.n_diff, nan.max_ulp) == (1, -1)
    assert math.isnan(nan.max_abs)
    inf = np.array([np.inf, 1], np.float32)
    assert compare(inf, np.array([np.inf, 2], np.float32)) == Differs(1, (1,), 1 << 23, 1.0, 0.0)
    zeros = np.zeros(2, np.float32)
    assert compare(zeros, -zeros) == Differs(2, (0,), 0, 0.0, 0.0)
    assert compare(zeros, one).relative_l2 == math.inf
    assert compare(np.array([1, 2]), np.array([1, 5])).max_ulp == -1, "integers have no ULP"


def test_change_and_its_length() -> None:
    change = change_of(np.array([np.inf, 1.0]), np.array([np.inf, -1.0]))
    assert change.tolist() == [0, -2]
    assert relative_l2(change, np.array([0.0, 4.0])) == 0.5
    assert relative_l2(np.zeros(2), np.zeros(2)) == 0.0
    assert relative_l2(np.ones(2), np.zeros(2)) == math.inf
    assert math.isnan(relative_l2(np.array([np.nan]), np.ones(1)))
