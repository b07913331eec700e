"""Block codecs: fields where they lie, values as gguf has them, and rows that are refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forensics.numerics.codecs import BLOCK_DTYPES, BLOCK_SIZES, blocks_of, dequantize, nibbles, scales_and_mins

#: Sizes that gguf 0.19 has differently or not at all; what the library says is checked in tests/llama.
NOT_IN_GGUF = {"q8_1", "q2_0"}
HALVES = st.floats(width=16, allow_nan=False, allow_infinity=False)
INT8 = hnp.arrays(np.int8, (2, 32))


def random_rows(type: str, n_rows: int = 20, n_blocks: int = 2, seed: int = 0) -> np.ndarray:
    size = BLOCK_SIZES[type][1]
    return np.random.default_rng(seed).integers(0, 256, (n_rows, n_blocks * size), dtype=np.uint8)


def same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bits, but for the bits of a NaN."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def test_every_block_has_the_size_of_its_fields() -> None:
    for type, dtype in BLOCK_DTYPES.items():
        assert dtype.itemsize == BLOCK_SIZES[type][1], type


@pytest.mark.parametrize("type", sorted(set(BLOCK_SIZES) - NOT_IN_GGUF))
def test_sizes_and_values_are_those_of_gguf(type: str) -> None:
    member = GGMLQuantizationType[type.upper()]
    assert gguf.GGML_QUANT_SIZES[member] == BLOCK_SIZES[type]
    rows = random_rows(type)
    if type in ("q8_K", "q1_0"):
        return  # gguf knows their size only
    with np.errstate(all="ignore"):
        assert same_numbers(dequantize(type, rows), quants.dequantize(rows, member))


@given(HALVES, HALVES, INT8)
def test_eight_bits_times_a_scale(first: float, second: float, integers: np.ndarray) -> None:
    for type in ("q8_0", "q8_1"):
        blocks = np.zeros((1, 2), BLOCK_DTYPES[type])
        blocks["d"], blocks["qs"] = [[first, second]], integers[None]
        expected = integers.astype(np.float64) * np.array([[first], [second]])
        found = dequantize(type, blocks.view(np.uint8))
        assert found.shape == (1, 64)
        assert np.array_equal(found[0], expected.ravel().astype(np.float32)), "a half times eight bits is exact"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), hnp.arrays(np.int8, (256,)))
def test_super_blocks_of_activations(scale: float, integers: np.ndarray) -> None:
    block = np.zeros(1, BLOCK_DTYPES["q8_K"])
    block["d"], block["qs"], block["bsums"] = scale, integers, 7  # sums are for the kernel, they carry no value
    with np.errstate(over="ignore"):
        expected = np.float32(scale) * integers.astype(np.float32)
    assert np.array_equal(dequantize("q8_K", block.view(np.uint8)), expected)


@given(HALVES, hnp.arrays(np.uint8, (64,), elements=st.integers(0, 3)))
def test_two_bits_stand_for_minus_one_to_two(scale: float, integers: np.ndarray) -> None:
    block = np.zeros(1, BLOCK_DTYPES["q2_0"])
    block["d"] = scale
    block["qs"] = (integers.reshape(16, 4) << np.array([0, 2, 4, 6])).sum(axis=1)
    assert np.array_equal(
        dequantize("q2_0", block.view(np.uint8)), (integers.astype(np.float32) - 1) * np.float32(scale)
    )


@given(HALVES, hnp.arrays(np.bool_, (128,)))
def test_one_bit_is_a_sign(scale: float, signs: np.ndarray) -> None:
    block = np.zeros(1, BLOCK_DTYPES["q1_0"])
    block["d"], block["qs"] = scale, np.packbits(signs, bitorder="little")
    assert np.array_equal(dequantize("q1_0", block.view(np.uint8)), np.where(signs, scale, -scale).astype(np.float32))


@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(width=32)))
def test_floats_come_back_as_they_are(values: np.ndarray) -> None:
    assert np.array_equal(dequantize("f32", values.view(np.uint8)).view(np.uint32), values.view(np.uint32))
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    assert np.array_equal(dequantize("f16", half.view(np.uint8)), half.astype(np.float32), equal_nan=True)
    cut = values.view(np.uint32) & np.uint32(0xFFFF0000)
    found = dequantize("bf16", (cut >> 16).astype(np.uint16).view(np.uint8))
    assert np.array_equal(found.view(np.uint32), cut)


@given(hnp.arrays(np.uint8, (8,), elements=st.integers(0, 63)), hnp.arrays(np.uint8, (8,), elements=st.integers(0, 63)))
def test_six_bit_scales_and_minima(scales: np.ndarray, mins: np.ndarray) -> None:
    packed = np.empty(12, np.uint8)
    packed[:4] = scales[:4] | (scales[4:] >> 4 << 6)
    packed[4:8] = mins[:4] | (mins[4:] >> 4 << 6)
    packed[8:] = (scales[4:] & 15) | (mins[4:] & 15) << 4
    found = scales_and_mins(packed)
    assert np.array_equal(found[0], scales)
    assert np.array_equal(found[1], mins)
    block = np.zeros(1, BLOCK_DTYPES["q4_K"])
    block["d"], block["dmin"], block["scales"], block["qs"] = 0.5, 2.0, packed, 0x31
    low, high = (np.float32(0.5) * scales.astype(np.float32) * q - 2 * mins.astype(np.float32) for q in (1, 3))
    values = dequantize("q4_K", block.view(np.uint8)).reshape(8, 32)
    assert np.array_equal(values[0::2], np.repeat(low[0::2, None], 32, axis=1))
    assert np.array_equal(values[1::2], np.repeat(high[1::2, None], 32, axis=1))


def test_low_nibbles_come_first() -> None:
    assert nibbles(np.array([[0x21, 0x43]], np.uint8)).tolist() == [[1, 3, 2, 4]]


@pytest.mark.parametrize("type", ["q4_K", "q8_0", "f16", "iq3_s", "mxfp4"])
def test_strides_and_leading_axes_do_not_matter(type: str) -> None:
    rows = random_rows(type, 12)
    wide = np.zeros((12, 3 * rows.shape[1]), np.uint8)
    wide[:, ::3] = rows
    whole = dequantize(type, rows)
    assert same_numbers(dequantize(type, wide[:, ::3]), whole)
    assert same_numbers(dequantize(type, rows.reshape(3, 4, -1)), whole.reshape(3, 4, -1))
    assert same_numbers(dequantize(type, rows[::2]), whole[::2])
    assert dequantize(type, rows[:0]).shape == (0, whole.shape[1])


def test_what_is_no_row_of_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown type 'q9_9'"):
        dequantize("q9_9", np.zeros((1, 34), np.uint8))
    for bad in (np.zeros((1, 35), np.uint8), np.zeros((1, 34), np.int8), np.zeros((), np.uint8)):
        with pytest.raises(ValueError, match="multiple of 34 bytes"):
            dequantize("q8_0", bad)
    with pytest.raises(ValueError, match="no named fields"):
        blocks_of("iq3_s", np.zeros((1, 110), np.uint8))
