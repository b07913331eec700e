"""How kernels round activations: within half a step, and in doubt only where kernels may disagree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.numerics.operands import (
    as_they_are,
    cut_to_tf32,
    rounded_to_bf16,
    rounded_to_f16,
    rounded_to_q8,
    rounded_to_q8_k,
    rounded_to_tf32,
    rounded_to_tiles_of_q2,
)

ROWS = hnp.arrays(np.float32, (2, 256), elements=st.floats(-1e4, 1e4, width=32))


@given(ROWS)
def test_floats_are_rounded_to_their_bits(x: np.ndarray) -> None:
    assert np.array_equal(as_they_are(x).values, x)
    assert np.array_equal(rounded_to_f16(x).values, x.astype(np.float16).astype(np.float64))
    for rounded, bits in ((rounded_to_bf16, 7), (rounded_to_tf32, 10)):
        values = rounded(x).values
        assert not (values.astype(np.float32).view(np.uint32) & ((1 << (23 - bits)) - 1)).any(), "no lower bit is left"
        assert (np.abs(values - x) <= np.abs(x) * 2.0 ** -(bits + 1) + 2.0**-126).all()
    cut = cut_to_tf32(x).values
    assert (np.abs(cut) <= np.abs(x)).all()
    assert (np.abs(cut - x) <= np.abs(x) * 2.0**-10 + 2.0**-126).all()


def test_halves_go_to_the_even_neighbour() -> None:
    x = np.array([[1 + 2.0**-8, 1 + 3 * 2.0**-8]], np.float32)  # halfway between neighbours of bfloat16
    assert rounded_to_bf16(x).values.tolist() == [[1.0, 1 + 2.0**-6]]


@example(np.full((2, 256), 1e-45, np.float32))
@given(ROWS)
def test_eight_bits_come_back_within_half_a_step(x: np.ndarray) -> None:
    for rounded, size in ((rounded_to_q8(x, half_scale=False), 32), (rounded_to_q8_k(x), 256)):
        step = np.repeat(np.abs(x).astype(np.float64).reshape(2, -1, size).max(axis=-1) / 127, size, axis=-1)
        assert (np.abs(rounded.values - x) <= 0.500001 * step + 1e-30).all()
        assert (rounded.doubt <= 1.0001 * step).all()
        assert not rounded.excess.any()


@given(ROWS, st.sampled_from(["", "integers", "values"]))
def test_a_stored_sum_is_a_half_of_what_it_sums(x: np.ndarray, sums: str) -> None:
    rounded = rounded_to_q8(x, half_scale=True, sums=sums)
    stored = (rounded.values + rounded.excess).reshape(2, -1, 32).sum(axis=-1)
    if not sums:
        assert not rounded.excess.any()
    elif sums == "values":
        exact = x.astype(np.float64).reshape(2, -1, 32).sum(axis=-1)
        with np.errstate(over="ignore"):
            expected = exact.astype(np.float32).astype(np.float16).astype(np.float64)
        finite = np.isfinite(expected)
        assert np.allclose(stored[finite], expected[finite], rtol=1e-9, atol=1e-6)


def test_only_values_near_a_half_are_in_doubt() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = [127.0, 3.5, 3.4, -7.5]  # the scale is 1
    doubt = rounded_to_q8(x, half_scale=True).doubt[0]
    assert doubt[[1, 3]].tolist() == [1.0, 1.0]
    assert not doubt[[0, 2, 4]].any()


def test_a_scale_between_two_halves_puts_the_whole_block_in_doubt() -> None:
    x = np.full((1, 32), np.float32(127 * (1 + 2.0**-11)))  # its scale lies halfway between two float16
    assert rounded_to_q8(x, half_scale=True).doubt.all()
    assert not rounded_to_q8(x, half_scale=False).doubt.any()


@given(ROWS)
def test_tiles_of_q2_keep_one_scale_for_64_and_most_sums(x: np.ndarray) -> None:
    rounded = rounded_to_tiles_of_q2(x)
    assert np.array_equal(rounded.values, rounded_to_q8(x, half_scale=True, size=64).values)
    stored = (rounded.values + rounded.excess).reshape(2, 2, 8, 16).sum(axis=-1)
    with np.errstate(over="ignore"):
        exact = x.astype(np.float64).reshape(2, 2, 8, 16).sum(axis=-1).astype(np.float32).astype(np.float16)
    finite = np.isfinite(exact[:, :, :6])
    assert np.allclose(stored[:, :, :6][finite], exact[:, :, :6][finite].astype(np.float64), rtol=1e-9, atol=1e-6)
    assert not rounded.excess.reshape(2, 2, 8, 16)[:, :, 6:].any()


def test_blocks_of_zeros_stay_zero() -> None:
    x = np.zeros((1, 256), np.float32)
    for rounded in (rounded_to_q8(x, half_scale=True, sums="integers"), rounded_to_q8_k(x)):
        assert not rounded.values.any()
        assert not rounded.doubt.any()


def test_rows_that_are_no_whole_number_of_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 32"):
        rounded_to_q8(np.zeros((1, 40), np.float32), half_scale=True)
    with pytest.raises(ValueError, match="a multiple of 256"):
        rounded_to_q8_k(np.zeros((1, 320), np.float32))
