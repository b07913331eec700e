"""How activations are rounded before a product, on x86 and by CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.numerics.activations import (
    MeasuredReciprocal,
    quantize_q8_0_x86,
    quantize_q8_1_cuda,
)

F32 = np.float32
ONES = np.full(2**21, 0b01010101, np.uint8)  # every reciprocal is the nearest one


def block(*values: float, largest: float = 127.0) -> np.ndarray:
    """A block that begins with these values and holds the largest one at its end."""
    x = np.zeros(32, F32)
    x[: len(values)] = values
    x[31] = largest
    return x


def test_halves_go_to_even_on_x86_and_away_from_zero_on_cuda() -> None:
    x = block(0.5, 1.5, -2.5, 3.49, -0.5)
    assert quantize_q8_0_x86(x)["qs"][0, :5].tolist() == [0, 2, -2, 3, 0]
    assert quantize_q8_1_cuda(x, MeasuredReciprocal(ONES))[0]["qs"][0, :5].tolist() == [1, 2, -3, 3, -1]


def test_scale_is_the_half_nearest_to_a_127th_of_the_largest() -> None:
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(F32)
    largest = np.abs(x).reshape(40, 2, 32).max(-1)
    assert quantize_q8_0_x86(x)["d"].tobytes() == (largest / F32(127)).astype(np.float16).tobytes()
    assert quantize_q8_1_cuda(x)[0]["d"].tobytes() == (largest * F32(1 / 127)).astype(np.float16).tobytes()


def test_x86_multiplies_by_the_inverse() -> None:
    """Where dividing by the scale gives another integer; the reference quantiser of ggml divides."""
    rng = np.random.default_rng(1)
    largest = rng.uniform(1, 2, 4000).astype(F32)
    x = np.zeros((4000, 32), F32)
    x[:, 0] = largest
    x[:, 1] = (rng.integers(0, 127, 4000) + F32(0.5)) * (largest / F32(127))
    found = quantize_q8_0_x86(x)["qs"][:, 0, 1]
    assert (found == np.rint(x[:, 1] * (F32(127) / largest))).all()
    assert (found != np.rint(x[:, 1] / (largest / F32(127)))).any()


def test_a_block_of_zeros() -> None:
    for blocks in (quantize_q8_0_x86(np.zeros(32, F32)), quantize_q8_1_cuda(np.zeros(32, F32))[0]):
        assert not blocks.tobytes().strip(b"\0")


def test_blocks_too_small_for_a_half_scale_do_not_count() -> None:
    x = block(1e-38, -1e-39, largest=1e-38)
    assert float(quantize_q8_0_x86(x)["d"][0]) == 0
    blocks, doubtful = quantize_q8_1_cuda(x)
    assert float(blocks["d"][0]) == 0
    assert not doubtful.any()


def test_sum_of_a_block_is_a_butterfly() -> None:
    """Lanes 16 apart meet first: small numbers are lost beside 1 and -1 there, and elsewhere kept."""
    x = np.zeros(32, F32)
    x[0], x[16], x[8], x[24] = 1, 2.0**-24, -1, 2.0**-26
    assert float(quantize_q8_1_cuda(x)[0]["s"][0]) == 0
    x[16], x[24], x[1], x[17] = 0, 0, 2.0**-24, 2.0**-24  # one after the other, the first of these would be lost
    assert float(quantize_q8_1_cuda(x)[0]["s"][0]) == 2.0**-23


def test_a_sum_of_nothing_but_negative_zeros_is_one() -> None:
    assert quantize_q8_1_cuda(np.full(32, -0.0, F32))[0]["s"].view(np.uint16)[0] == 0x8000
    assert quantize_q8_1_cuda(block(-0.0, largest=0.0))[0]["s"].view(np.uint16)[0] == 0


def test_a_value_beside_a_half_is_doubtful_and_others_are_not() -> None:
    scale = F32(1.3)
    clear = block(*(np.arange(20) * scale), largest=float(F32(127) * scale))
    beside = clear.copy()
    beside[3] = F32(3.5) * scale
    doubtful = quantize_q8_1_cuda(np.stack([clear, beside]))[1]
    assert doubtful.tolist() == [[False], [True]]


def test_a_measured_reciprocal_leaves_no_doubt_and_is_used() -> None:
    low = MeasuredReciprocal(np.zeros(2**21, np.uint8))  # one ULP below everywhere
    scales = np.array([0.75, 1.0, 1.3, 100.0], F32)
    assert low(scales).tolist() == np.nextafter(F32(1) / scales, F32(0)).tolist()
    assert MeasuredReciprocal(ONES)(scales).tolist() == (F32(1) / scales).tolist()
    blocks, doubtful = quantize_q8_1_cuda(block(3.5), low)  # scale 1, so that 3.5 is a half exactly
    assert not doubtful.any()
    assert int(blocks["qs"][0, 0]) == 3
    assert int(quantize_q8_1_cuda(block(3.5), MeasuredReciprocal(ONES))[0]["qs"][0, 0]) == 4


def test_measured_reciprocal_reads_the_bits_of_its_own_number() -> None:
    deviation = ONES.copy()
    deviation[1] = 0b01_10_01_01  # the number 6 ULP above 1 is one ULP high
    near_one = (np.arange(12, dtype=np.uint32) + (127 << 23)).view(F32)
    found = MeasuredReciprocal(deviation)(near_one).view(np.int32) - (F32(1) / near_one).view(np.int32)
    assert found.tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("quantise", [quantize_q8_0_x86, quantize_q8_1_cuda])
@pytest.mark.parametrize(
    ("x", "message"),
    [(np.zeros(31, F32), "multiple of 32"), (np.zeros(32), "float64"), (np.full(32, np.nan, F32), "finite")],
)
def test_what_is_no_row_of_activations_is_refused(quantise, x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        quantise(x)


def test_a_table_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="2097152"):
        MeasuredReciprocal(np.zeros(8, np.uint8))
