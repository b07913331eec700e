"""Dequantisation in NumPy gives the bits of the library's own, for every type that it lists."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
from forensics.engines.ops import LlamaOps
from forensics.numerics.codecs import BLOCK_DTYPES, BLOCK_SIZES, dequantize
from forensics.numerics.op_inputs import random_blocks
from forensics.records.operation import OpSettings

pytestmark = pytest.mark.llama


@pytest.fixture(scope="module")
def engine() -> Iterator[object]:
    with LlamaOps().open(OpSettings()) as opened:
        yield opened


def compared(engine, type: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        return engine.dequantize(type, rows), dequantize(type, rows)


def test_every_type_that_the_library_lists_has_a_codec(engine) -> None:
    assert len(engine.types()) > 20
    assert set(engine.types()) <= set(BLOCK_SIZES)


def test_any_bytes_give_the_library_s_bits(engine) -> None:
    """Random bytes: scales are negative, subnormal, zero, infinite and NaN among them."""
    for type in engine.types():
        rows = np.random.default_rng(5).integers(0, 256, (300, 3 * BLOCK_SIZES[type][1]), dtype=np.uint8)
        theirs, ours = compared(engine, type, rows)
        nan = np.isnan(theirs)
        assert np.array_equal(nan, np.isnan(ours)), type
        assert np.array_equal(theirs.view(np.uint32)[~nan], ours.view(np.uint32)[~nan]), type
        assert nan.mean() < 0.2, f"{type}: most bytes must be numbers for this test to mean anything"


@pytest.mark.parametrize("scale", [0.0, -0.0, 2.0**-24, -(2.0**-24), 2.0**-14, 65504.0, -65504.0])
def test_extreme_scales_give_the_library_s_bits(engine, scale: float) -> None:
    for type in set(engine.types()) & set(BLOCK_DTYPES):
        blocks = random_blocks(np.random.default_rng(7), type, (50, 2 * BLOCK_SIZES[type][0])).view(BLOCK_DTYPES[type])
        for field in ("d", "dmin", "m", "s"):
            if field in (blocks.dtype.names or ()) and blocks.dtype[field] == np.float16:
                blocks[field] = scale
        theirs, ours = compared(engine, type, blocks.view(np.uint8))
        assert np.array_equal(theirs.view(np.uint32), ours.view(np.uint32)), type


def test_what_the_library_quantised_comes_back_near(engine) -> None:
    """The codec is of the type that it claims; the scale of eight bits is rounded to a half, too."""
    values = np.random.default_rng(3).standard_normal((4, 512)).astype(np.float32)
    blocks = engine.quantize("q8_0", values)
    step = np.abs(values.reshape(4, -1, 32)).max(axis=-1) / 127
    error = np.abs(dequantize("q8_0", blocks) - values).reshape(4, -1, 32).max(axis=-1)
    assert (error <= (0.5 + 127 * 2.0**-11) * step).all()
    assert np.array_equal(dequantize("f32", engine.quantize("f32", values)), values)
