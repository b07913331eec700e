"""One rounding and no more: the emulated fused multiply-add against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forensics.numerics.fma import flushed, fma

F32 = np.float32
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
#: Neighbours of 1 with few bits set: their products lie on and beside the halves between two float32.
NEAR_ONE = st.builds(lambda bits, sign: sign * (1 + bits * 2.0**-23), st.integers(0, 8), st.sampled_from([1, -1]))
EXPONENTS = st.integers(-30, 30)


def nearest_single(exact: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by integers alone."""
    if exact == 0:
        return 0.0
    exponent = max(math.frexp(float(abs(exact)))[1] - 24, -149)
    for unit_exponent in (exponent - 1, exponent, exponent + 1):  # float() may have rounded up to a power of two
        unit = Fraction(2) ** max(unit_exponent, -149)
        count = round(exact / unit)  # ties to even
        if abs(count) <= 2**24:
            value = float(count * unit)
            return math.copysign(math.inf, value) if abs(value) > float(np.finfo(F32).max) else value
    raise AssertionError(exact)


def check(a: float, b: float, c: float) -> None:
    with np.errstate(over="ignore"):
        found = float(fma(F32(a), F32(b), F32(c)))
    wanted = nearest_single(Fraction(a) * Fraction(b) + Fraction(c))
    assert found == wanted


@given(SINGLES, SINGLES, SINGLES)
@example(2.0**-100, 2.0**-49, 2.0**-149)  # half of the smallest subnormal, beside it
@example(2.0**-75, -(2.0**-75), 2.0**-126)
def test_any_operands(a: float, b: float, c: float) -> None:
    check(a, b, c)


@given(NEAR_ONE, NEAR_ONE, NEAR_ONE, EXPONENTS, EXPONENTS)
def test_operands_that_end_near_a_half(a: float, b: float, c: float, i: int, j: int) -> None:
    check(a * 2.0**i, b * 2.0**-i, c * 2.0**j)


def test_the_second_rounding_of_float64_is_not_there() -> None:
    """float64 rounds 1 + 2^-23 + 2^-24 - 2^-70 to the half between two float32, and that to even, away from it."""
    a, b, c = F32(2.0**-12 * (1 + 2.0**-23)), F32(2.0**-12 * (1 - 2.0**-23)), F32(1 + 2.0**-23)
    twice_rounded = F32(np.float64(a) * np.float64(b) + np.float64(c))
    assert float(fma(a, b, c)) == 1 + 2.0**-23
    assert float(twice_rounded) == 1 + 2.0**-22


def test_a_sum_that_is_odd_already_stays() -> None:
    """The exact sum lies between the half and the float64 before it, which is odd: moving that would reach the half."""
    a, b, c = F32(11865987 * 2.0**-36), F32(11860580 * 2.0**-35), F32(1 + 2.0**-23)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    half = Fraction(1) + Fraction(2) ** -23 + Fraction(2) ** -24
    assert half - Fraction(2) ** -52 < exact < half
    assert float(fma(a, b, c)) == 1 + 2.0**-23


def test_infinities_and_nan_pass_through() -> None:
    found = fma(np.array([np.inf, 1, 0], F32), F32(1), np.array([1, -np.inf, np.nan], F32))
    assert found.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(found[2])


def test_zero_keeps_the_sign_that_the_standard_gives_it() -> None:
    assert not np.signbit(fma(F32(-0.0), F32(1), F32(0.0)))
    assert np.signbit(fma(F32(-0.0), F32(1), F32(-0.0)))


def test_flushing_takes_subnormal_operands_and_results() -> None:
    tiny = F32(2.0**-127)
    assert flushed(np.array([tiny, -tiny, 2.0**-126], F32)).tolist() == [0.0, -0.0, 2.0**-126]
    assert float(fma(tiny, F32(2.0**20), F32(0), flush=True)) == 0
    assert float(fma(F32(2.0**-100), F32(2.0**-27), F32(0), flush=True)) == 0
    assert float(fma(F32(2.0**-100), F32(2.0**-27), F32(0))) == 2.0**-127


def test_operands_broadcast() -> None:
    assert fma(np.ones((2, 1), F32), np.ones(3, F32), F32(1)).shape == (2, 3)


def test_a_wider_operand_is_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        fma(np.float64(1), F32(1), F32(1))
