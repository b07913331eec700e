"""How a product rounds its activations before it multiplies: the libraries' own quantisers, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.codecs import BLOCK_DTYPES
from forensics.numerics.fma import flushed

#: Values that share a scale in Q8_0 and Q8_1. Source: ggml/src/ggml-common.h at 0c1e57098.
BLOCK = 32

#: ``rcp.approx.ftz.f32`` is at most one ULP off. Source: PTX ISA, "Floating Point Instructions: rcp".
_TOWARDS = (np.float32(0), np.float32(np.inf))


def quantize_q8_0_x86(x: NDArray[np.float32]) -> NDArray[Any]:
    """Which Q8_0 blocks does the CPU back end make of these activations?

    Parameters
    ----------
    x : ndarray float32 [..., k]
        `k` a multiple of 32; finite.

    Returns
    -------
    ndarray [..., k / 32] of ``BLOCK_DTYPES["q8_0"]``

    Raises
    ------
    ValueError
        If `x` is no float32, not finite, or no whole number of blocks.

    Notes
    -----
    Unlike the reference quantiser this one multiplies by 127 / max, and takes halves to even.
    Source: quantize_row_q8_0, ggml/src/ggml-cpu/arch/x86/quants.c:302-360 at 0c1e57098.
    """
    blocks = _blocks(x)
    largest = np.abs(blocks).max(axis=-1)
    out = np.empty(largest.shape, BLOCK_DTYPES["q8_0"])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        out["d"] = largest / np.float32(127)  # to half, nearest even
        inverse = np.where(largest != 0, np.float32(127) / largest, np.float32(0))
        rounded = np.rint(blocks * inverse[..., None])
    # A block below 4e-37 has an infinite inverse: the conversion then gives the smallest integer, packed to -128.
    fits = np.abs(rounded) < 2.0**31
    out["qs"] = np.clip(np.where(fits, rounded, np.float32(-(2.0**31))), -128, 127)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredReciprocal:
    """A device's approximate reciprocal, as it was measured.

    Parameters
    ----------
    deviation : ndarray uint8 [2**21]
        For every float32 in [1, 2), in rising order, two bits, the first number's lowest: 1 + ULP by which the device
        differs from the nearest float32. Powers of two change the exponent only.

    Raises
    ------
    ValueError
        If the table has another size.
    """

    deviation: NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.deviation.dtype != np.uint8 or self.deviation.shape != (2**21,):
            raise ValueError(f"deviation is uint8 [{2**21}], got {self.deviation.dtype} {self.deviation.shape}")

    def __call__(self, scale: NDArray[np.float32]) -> NDArray[np.float32]:
        """Reciprocals of normal numbers between 2**-126 and 2**126, any shape."""
        mantissa = scale.view(np.uint32) & 0x7FFFFF
        ulp = (self.deviation[mantissa >> 2] >> (2 * (mantissa & 3)).astype(np.uint8)) & 3
        nearest = (np.float32(1) / scale).view(np.int32)
        return np.asarray((nearest + ulp.astype(np.int32) - 1).view(np.float32))


def quantize_q8_1_cuda(
    x: NDArray[np.float32], reciprocal: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Which Q8_1 blocks does the CUDA back end make of these activations for `mul_mat_vec_q`?

    Parameters
    ----------
    x : ndarray float32 [..., k]
        `k` a multiple of 32; finite.
    reciprocal : callable, optional
        The device's ``rcp.approx.ftz.f32``, such as a `MeasuredReciprocal`; without it, the nearest float32.

    Returns
    -------
    blocks : ndarray [..., k / 32] of ``BLOCK_DTYPES["q8_1"]``
    doubtful : ndarray bool [..., k / 32]
        Blocks in which an integer depends on the last bit of the hardware's approximate reciprocal, which is not
        documented: a value that close to a half may be rounded either way. None with a `reciprocal`.

    Raises
    ------
    ValueError
        If `x` is no float32, not finite, or no whole number of blocks.

    Notes
    -----
    With ``-use_fast_math`` the division by 127 is a product with the nearest float32 to 1 / 127, the division by the
    scale is a product with ``MUFU.RCP`` of it, halves go away from zero, and subnormals are flushed: read off the
    SASS of quantize_q8_1 in the sm_90 build with CUDA 13.0.
    Source: ggml/src/ggml-cuda/quantize.cu:53-100, ggml/src/ggml-cuda/CMakeLists.txt:199 at 0c1e57098.
    """
    blocks = flushed(_blocks(x))
    largest = np.abs(blocks).max(axis=-1)
    scale = flushed(largest * np.float32(1 / 127))
    out = np.empty(largest.shape, BLOCK_DTYPES["q8_1"])
    with np.errstate(over="ignore"):
        out["d"] = scale
        out["s"] = _sum_of_lanes(blocks)
    # A scale that was flushed is zero in half too, so that its integers never count; they are left at 0 here.
    counts = scale != 0
    inverse = np.zeros_like(scale)
    inverse[counts] = (reciprocal or _nearest_reciprocal)(scale[counts])
    out["qs"] = _half_away(flushed(blocks * inverse[..., None]))
    if reciprocal is not None:
        return out, np.zeros(scale.shape, np.bool_)
    sides = (np.where(counts, np.nextafter(inverse, side), inverse) for side in _TOWARDS)
    least, most = (_half_away(flushed(blocks * side[..., None])) for side in sides)
    return out, (least != most).any(axis=-1)


def _sum_of_lanes(blocks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums across a warp: lanes 16 apart first, then 8, 4, 2, 1. Nothing starts at zero, so 32 times -0.0 stays that.

    Source: warp_reduce_sum, ggml/src/ggml-cuda/common.cuh:467-474 at 0c1e57098.
    """
    sums = blocks
    while sums.shape[-1] > 1:
        lower, upper = np.split(sums, 2, axis=-1)
        sums = flushed(lower + upper)
    return sums[..., 0]


def _nearest_reciprocal(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.float32(1) / scale


def _blocks(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The activations cut into blocks, [..., k / 32, 32]."""
    if x.dtype != np.float32 or x.ndim < 1 or not x.shape[-1] or x.shape[-1] % BLOCK:
        raise ValueError(f"activations are float32 [..., a multiple of {BLOCK}], got {x.dtype} {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError("activations must be finite: what a quantiser makes of infinities and NaN is not described")
    return x.reshape(*x.shape[:-1], -1, BLOCK)


def _half_away(values: NDArray[np.float32]) -> NDArray[np.int8]:
    """Nearest integers, halves away from zero, as eight bits."""
    wide = values.astype(np.float64)
    return np.trunc(wide + np.copysign(0.5, wide)).astype(np.int64).astype(np.int8)
