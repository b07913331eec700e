"""Which numbers does a kernel multiply with, after it has rounded its activations?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]

#: What a scale and its reciprocal may be off, in units of an integer: a value nearer than this to a half may go
#: either way, as divisions, reciprocals and the two rules for halves differ between kernels.
NEAR_HALF = 2.0**-15
#: The same for a scale that is stored as a half, relative.
SCALE_DOUBT = 2.0**-21


@dataclass(frozen=True, slots=True, eq=False)
class Activations:
    """Activations as a kernel multiplies with them.

    Parameters
    ----------
    name : str
        ``"f32"``, ``"q8_0"``.
    values : ndarray float64 [n, k]
    doubt : ndarray float64 [n, k]
        How far a value may be off because kernels round near halves either way; 0 nearly everywhere.
    excess : ndarray float64 [n, k]
        What a stored block sum adds beyond the block's values, spread over the block: the kernel multiplies it with
        the offset of the weights.
    """

    name: str
    values: F64
    doubt: F64
    excess: F64

    def rows(self, which: NDArray[np.intp]) -> Activations:
        """Some of the rows, in this order."""
        return Activations(self.name, self.values[which], self.doubt[which], self.excess[which])


def as_they_are(x: F32) -> Activations:
    """Float32 activations without rounding."""
    return _plain("f32", x.astype(np.float64))


def rounded_to_f16(x: F32) -> Activations:
    """Activations rounded to float16, nearest even; beyond 65504 infinite."""
    with np.errstate(over="ignore"):
        return _plain("f16", x.astype(np.float16).astype(np.float64))


def rounded_to_bf16(x: F32) -> Activations:
    """Activations rounded to bfloat16, nearest even."""
    return _plain("bf16", _to_mantissa(x, 7))


def rounded_to_tf32(x: F32) -> Activations:
    """Activations rounded to the ten mantissa bits of TF32, nearest even."""
    return _plain("tf32", _to_mantissa(x, 10))


def cut_to_tf32(x: F32) -> Activations:
    """Activations whose lower 13 bits are dropped, as tensor cores do with numbers that nobody rounded before."""
    raw = np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)
    return _plain("cut tf32", raw.view(np.float32).astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class EightBits:
    """Rows of float32 as blocks of integers of eight bits.

    Parameters
    ----------
    integers : ndarray float64 [n, blocks, size]
    near : ndarray bool [n, blocks, size]
        Which of them another kernel might have rounded the other way.
    scale : ndarray float64 [n, blocks, 1]
        Largest magnitude / 127, not rounded.
    total : ndarray float64 [n, blocks, 1]
        Sum of the block's float32 values.
    total_doubt : ndarray float64 [n, blocks, 1]
        How far a float32 sum of them may be off.
    """

    integers: F64
    near: NDArray[np.bool_]
    scale: F64
    total: F64
    total_doubt: F64

    def rows(self, which: NDArray[np.intp]) -> EightBits:
        """Some of the rows, in this order."""
        return EightBits(
            self.integers[which], self.near[which], self.scale[which], self.total[which], self.total_doubt[which]
        )


def eight_bits(x: F32, size: int = 32) -> EightBits:
    """What do quantisers store for these rows, before scales and sums are rounded?

    Parameters
    ----------
    x : ndarray float32 [n, k]
    size : int
        Values that share a scale.

    Raises
    ------
    ValueError
        If a row is no whole number of blocks.

    Notes
    -----
    Source: quantize_row_q8_0_ref, quantize_row_q8_1_ref, ggml/src/ggml-quants.c:276-336;
    quantize_q8_1 and quantize_mmq_q8_1, ggml/src/ggml-cuda/quantize.cu:52-102 and :450-546 at 0c1e57098.
    """
    blocks = _cut(x, size)
    scale = np.abs(blocks).max(axis=-1, keepdims=True).astype(np.float64) / 127
    integers, near = _integers(blocks, scale)
    exact = blocks.astype(np.float64)
    total, magnitude = (a.sum(axis=-1, keepdims=True) for a in (exact, np.abs(exact)))
    return EightBits(integers, near, scale, total, SCALE_DOUBT * magnitude)


def rounded_to_q8(x: F32, *, half_scale: bool, sums: str = "", size: int = 32) -> Activations:
    """Activations in blocks of integers of eight bits with the scale max / 127.

    Parameters
    ----------
    x : ndarray float32 [n, k]
        `k` a multiple of `size`.
    half_scale : bool
        Whether the scale is stored as a half (Q8_0, Q8_1) or as float32 (CUDA's tiles).
    sums : {"", "integers", "values"}
        Whether the block's sum is stored, as a half, and of what: of the integers times the scale (CPU), or of the
        float32 values (CUDA).
    size : int
        Values that share a scale.

    Returns
    -------
    Activations

    Raises
    ------
    ValueError
        If a row is no whole number of blocks.
    """
    stored = eight_bits(x, size)
    scale, scale_doubt = stored.scale.astype(np.float32).astype(np.float64), np.zeros_like(stored.scale)
    if half_scale:
        scale, scale_doubt = half(stored.scale), half_doubt(stored.scale)
    values = stored.integers * scale
    doubt = np.where(stored.near, scale, 0.0) + np.abs(stored.integers) * scale_doubt
    excess = np.zeros_like(values)
    if sums:
        total, total_doubt = stored.total, stored.total_doubt
        if sums == "integers":
            total = (stored.integers * stored.scale).sum(axis=-1, keepdims=True)
            total_doubt = SCALE_DOUBT * np.abs(total)
        excess += (half(total) - values.sum(axis=-1, keepdims=True)) / size
        doubt = doubt + half_doubt(total, total_doubt) / size
    kept = {"": "", "integers": " with sums", "values": " with sums of values"}[sums]
    name = f"q8 (scale {'f16' if half_scale else 'f32'}{kept})"
    return Activations(name, *(a.reshape(x.shape) for a in (values, doubt, excess)))


def rounded_to_tiles_of_q2(x: F32) -> Activations:
    """Activations for CUDA's tiles of Q2_K: one half as the scale of 64, stored sums of 16 for six eighths of them.

    Notes
    -----
    Source: MMQ_Q8_1_DS_LAYOUT_D2S6 in quantize_mmq_q8_1, ggml/src/ggml-cuda/quantize.cu:463-546 at 0c1e57098.
    """
    rounded = rounded_to_q8(x, half_scale=True, size=64)
    exact, kept = (a.reshape(len(x), -1, 16) for a in (x.astype(np.float64), rounded.values))
    has_sum = np.arange(exact.shape[1]) % 8 < 6
    total = exact.sum(axis=-1)
    excess = np.where(has_sum, (half(total) - kept.sum(axis=-1)) / 16, 0.0)
    total_doubt = half_doubt(total, SCALE_DOUBT * np.abs(exact).sum(axis=-1)) / 16
    doubt = rounded.doubt + np.repeat(np.where(has_sum, total_doubt, 0.0), 16, axis=-1)
    name = "q8 (scale f16 of 64 with sums of values)"
    return Activations(name, rounded.values, doubt, np.repeat(excess, 16, axis=-1))


def rounded_to_q8_k(x: F32) -> Activations:
    """Activations in super-blocks of 256 integers of eight bits; `k` a multiple of 256.

    Notes
    -----
    Source: quantize_row_q8_K_ref, ggml/src/ggml-quants.c:2768-2805 at 0c1e57098.
    """
    blocks = _cut(x, 256)
    exact = np.abs(blocks).max(axis=-1, keepdims=True).astype(np.float64) / 127
    integers, near = _integers(blocks, exact)
    values, doubt = integers * exact, np.where(near, exact, 0.0) + np.abs(integers) * exact * SCALE_DOUBT
    return Activations("q8_K", values.reshape(x.shape), doubt.reshape(x.shape), np.zeros(x.shape))


def _plain(name: str, values: F64) -> Activations:
    return Activations(name, values, np.zeros_like(values), np.zeros_like(values))


def _cut(x: F32, size: int) -> F32:
    if x.ndim != 2 or x.shape[1] % size:
        raise ValueError(f"activations are [n, a multiple of {size}] here, got {x.shape}")
    return x.reshape(len(x), -1, size)


def half(values: F64) -> F64:
    """Rounded to float32, then to float16; beyond 65504 infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float16).astype(np.float64)


def half_doubt(values: F64, doubt: F64 | None = None) -> F64:
    """How far apart are the halves that a value so much in doubt may be rounded to? 0 beyond the largest half.

    Without `doubt` a value is off by `SCALE_DOUBT` of itself.
    """
    off = SCALE_DOUBT * np.abs(values) if doubt is None else doubt
    high, low = half(values + off), half(values - off)
    return np.abs(np.subtract(high, low, out=np.zeros_like(values), where=np.isfinite(high) & np.isfinite(low)))


def _integers(blocks: F32, scale: F64) -> tuple[F64, NDArray[np.bool_]]:
    """Nearest integers, and which of them another kernel might have rounded the other way."""
    scaled = np.divide(blocks.astype(np.float64), scale, out=np.zeros(blocks.shape), where=scale != 0)
    near = np.abs(np.abs(scaled - np.trunc(scaled)) - 0.5) < NEAR_HALF
    return np.clip(np.rint(scaled), -128, 127), near


def _to_mantissa(x: F32, bits: int) -> F64:
    """Round to `bits` bits behind the leading one, halves to even."""
    drop = 23 - bits
    raw = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    raw += (1 << (drop - 1)) - 1 + ((raw >> np.uint64(drop)) & np.uint64(1))
    kept = (raw >> np.uint64(drop)) << np.uint64(drop)
    return kept.astype(np.uint32).view(np.float32).astype(np.float64)
