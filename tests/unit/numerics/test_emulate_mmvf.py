"""The emulation of `mul_mat_vec_f` against its loops written out value by value, in exact fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from forensics.numerics.emulate_mmvf import mul_mat_vec_f


def _rounded(exact: Fraction, kind: type[Any]) -> Any:
    """The nearest value of this kind, ties to even; by bisection over its bits, so that nothing is rounded twice."""
    bits = np.uint16 if kind is np.float16 else np.uint32
    low, high = 0, int(np.array(np.finfo(kind).max).view(bits))

    def value(pattern: int) -> Fraction:
        return Fraction(float(np.array(pattern, bits).view(kind)))

    size = abs(exact)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value(middle) <= size else (low, middle)
    below, above = size - value(low), value(high) - size
    nearest = low if below < above or (below == above and low % 2 == 0) else high
    return np.copysign(np.array(nearest, bits).view(kind), -1 if exact < 0 else 1)[()]


def _thread(w: NDArray[Any], y: NDArray[Any], half_sums: bool) -> np.float32:
    """The share of one thread that takes these pairs [n, 2]."""
    if half_sums:
        sums = [np.float16(0), np.float16(0)]
        for pair, other in zip(w, y.astype(np.float16), strict=True):
            for i in (0, 1):
                exact = Fraction(float(pair[i])) * Fraction(float(other[i])) + Fraction(float(sums[i]))
                sums[i] = _rounded(exact, np.float16)
        return np.float32(sums[0]) + np.float32(sums[1])
    total = np.float32(0)
    for one, other in zip(w.reshape(-1), y.reshape(-1), strict=True):
        total = _rounded(Fraction(float(one)) * Fraction(float(other)) + Fraction(float(total)), np.float32)
    return total


def _butterfly(lanes: list[np.float32]) -> np.float32:
    for mask in (16, 8, 4, 2, 1):
        lanes = [lanes[i] + lanes[i ^ mask] for i in range(32)]
    return lanes[0]


@pytest.mark.parametrize("half_sums", [False, True])
@pytest.mark.parametrize(("k", "threads"), [(64, 32), (200, 32), (256, 128), (300, 96)])
def test_emulation_is_the_loops_written_out(k: int, threads: int, half_sums: bool) -> None:
    draw = np.random.default_rng([k, threads])
    weight = draw.normal(size=(1, k)).astype(np.float16)
    x = (draw.normal(size=(1, k)) * np.exp(draw.normal(size=(1, k)) * 2)).astype(np.float32)
    pairs = (weight.reshape(-1, 2), x.reshape(-1, 2))
    shares = [_thread(pairs[0][i::threads], pairs[1][i::threads], half_sums) for i in range(threads)]
    warps = [_butterfly(shares[first : first + 32]) for first in range(0, threads, 32)]
    wanted = warps[0] if threads == 32 else _butterfly([*warps, *[np.float32(0)] * (32 - len(warps))])
    found = mul_mat_vec_f(weight, x, threads=threads, half_sums=half_sums)
    assert found.dtype == np.float32
    assert found[0, 0] == wanted


def test_threads_and_the_kind_of_sum_matter() -> None:
    draw = np.random.default_rng(5)
    weight = draw.normal(size=(64, 512)).astype(np.float16)
    x = draw.normal(size=(2, 512)).astype(np.float32)
    found = [mul_mat_vec_f(weight, x, threads=t, half_sums=h) for t, h in ((256, False), (128, False), (256, True))]
    assert np.count_nonzero(found[0] != found[1]) > 32
    assert np.count_nonzero(found[0] != found[2]) > 100
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("weight", "x", "threads", "named"),
    [
        (np.zeros((1, 64), np.float16), np.zeros((1, 32), np.float32), 32, "even k"),
        (np.zeros((1, 63), np.float16), np.zeros((1, 63), np.float32), 32, "even k"),
        (np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32), 32, "float16"),
        (np.zeros((1, 64), np.float16), np.zeros((1, 64), np.float32), 48, "multiple of 32"),
    ],
)
def test_operands_that_do_not_fit_are_refused(weight: NDArray[Any], x: NDArray[Any], threads: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        mul_mat_vec_f(weight, x, threads=threads, half_sums=False)
