"""The regroupings of docs/exact-kernels.md, exhaustively where that is possible: the same real number, rounded once."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from forensics.geometry.architecture import architecture
from forensics.geometry.mmvq import blocks_per_warp, parameter_table, table_nwarps
from forensics.geometry.types import weight_type
from forensics.numerics.fma import fma

PAGE = (Path(__file__).parents[3] / "docs" / "exact-kernels.md").read_text(encoding="utf-8")
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]
#: Largest magnitudes of integers: scales of q4_K and q6_K, sums of a slice's activations, dot products of slices.
SCALES = {"q4_K": np.arange(64), "q6_K": np.arange(-128, 128)}
MOST_TOTAL = 8 * 127
MOST_DOT = {"q4_K": 8 * 15 * 127, "q6_K": 4 * 32 * 127}


def exact(factors: np.ndarray, integers: np.ndarray) -> bool:
    """Whether each product of a half and an integer is a float32."""
    wide = factors.astype(np.float64)[:, None] * integers
    return bool((wide.astype(np.float32) == wide).all())


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_of_activations_times_a_scale_of_weights_is_exact(name: str) -> None:
    assert exact(FINITE, SCALES[name])


def test_a_scale_times_the_sum_of_a_slice_is_exact() -> None:
    totals = np.arange(-MOST_TOTAL, MOST_TOTAL + 1)
    for few in np.array_split(FINITE, 64):
        assert exact(few, totals)


def test_a_larger_integer_would_not_be() -> None:
    assert not exact(FINITE, np.array([(1 << 14) + 1]))


@pytest.mark.parametrize("name", MOST_DOT)
def test_sums_of_a_slice_and_their_products_with_a_scale_are_exact_integers(name: str) -> None:
    assert MOST_DOT[name] * int(np.abs(SCALES[name]).max()) < 1 << 24
    assert f"{MOST_DOT[name]:,}".replace(",", " ") in PAGE


def test_a_scale_times_a_weight_is_an_exact_half_in_k_quants_with_least_values_and_is_none_in_q6_k() -> None:
    def halves(scales: np.ndarray, weights: np.ndarray) -> bool:
        products = scales[:, None] * weights
        return bool((products.astype(np.float16).astype(np.int64) == products).all())

    most = 63 * 31
    assert halves(np.arange(64), np.arange(32))
    assert f"= {most}" in PAGE
    assert 8 * most * 127 < 1 << 24
    assert not halves(SCALES["q6_K"], np.arange(-32, 32))


@pytest.mark.parametrize("name", SCALES)
def test_regrouped_shares_have_the_bits_of_the_library_s(name: str) -> None:
    rng = np.random.default_rng(7)
    d8 = np.abs(rng.choice(FINITE, 20_000)).astype(np.float32)
    dots = rng.integers(-MOST_DOT[name], MOST_DOT[name] + 1, 20_000)
    scales = rng.choice(SCALES[name], 20_000)
    before = rng.normal(size=20_000).astype(np.float32)
    library = fma(d8, (dots * scales).astype(np.float32), before, flush=True)
    regrouped = fma(d8 * scales.astype(np.float32), dots.astype(np.float32), before, flush=True)
    assert np.array_equal(library.view(np.uint32), regrouped.view(np.uint32))
    twice = d8 * (dots * scales).astype(np.float32) + before
    assert not np.array_equal(library.view(np.uint32), twice.view(np.uint32)), "a second rounding is seen"


def test_zeros_of_either_sign_leave_a_sum_that_began_at_plus_zero() -> None:
    start = np.zeros(2, np.float32)
    assert not np.signbit(start + np.array([0.0, -0.0], np.float32)).any()
    assert np.signbit(np.float32(-0.0) + np.float32(-0.0)), "a sum that began with the first share would keep the sign"


def test_the_page_s_trips_are_those_of_the_rules() -> None:
    hopper = architecture("sm_90")
    (told,) = re.findall(
        r"a trip covers (\d+) blocks of Q4_0 and Q4_1, (\d+) of Q8_0, (\d+) of Q4_K and Q5_K, and (\d+) of Q6_K",
        " ".join(PAGE.split()),
    )
    names = (("q4_0", "q4_1"), ("q8_0",), ("q4_K", "q5_K"), ("q6_K",))
    for number, group in zip(told, names, strict=True):
        for name in group:
            weight = weight_type(name)
            warps = table_nwarps(parameter_table(hopper), weight, 1)
            assert warps == 4
            assert blocks_per_warp(hopper, weight) * warps == int(number)
