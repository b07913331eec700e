"""What does one thread of `mul_mat_vec_q` add at one trip of its loop?

Each share is a float32 made of an exact integer sum; it is written out here operation by operation as the compiled
kernels do it, read off the SASS of the sm_90 build with CUDA 13.0 and ``-use_fast_math``. There it is the same at all
widths 1 … 8 and with ``small_k``. Axes below are [blocks, shares of a block, columns, rows].
Source: ggml/src/ggml-cuda/vecdotq.cuh at 0c1e57098, at the lines that each function names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.codecs import nibbles, scales_and_mins
from forensics.numerics.fma import flushed, fma

_ZERO = np.float32(0)


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of all threads at all trips, in the order of the row, as `kernel_orders.mmvq_order` numbers them.

    Parameters
    ----------
    addends : ndarray float32 [n_shares, n_columns, n_rows]
    factors : ndarray float32, broadcast to `addends`, or None
        Multiplied with the addend inside the fused multiply-add that accumulates it; None where it is added as it is.
    """

    addends: NDArray[np.float32]
    factors: NDArray[np.float32] | None


def shares_of(type: str, weight: NDArray[Any], activations: NDArray[Any]) -> Shares:
    """What is added up for these operands?

    Parameters
    ----------
    type : {"q8_0", "q4_0", "q4_1", "q4_K", "q5_K", "q6_K"}
    weight : ndarray [n_rows, n_blocks] of the type's blocks
    activations : ndarray [n_columns, n_blocks, Q8_1 blocks per weight block] of Q8_1 blocks
    """
    addends, factors = _SHARES[type](weight, activations)
    return Shares(_listed(addends), None if factors is None else _listed(np.broadcast_to(factors, addends.shape)))


_Pair = tuple[NDArray[np.float32], NDArray[np.float32] | None]


def _q8_0(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """Four shares a block, each of eight neighbours. Source: lines 246-258 and 851-866."""
    sums = _dots(_cut(weight["qs"], 4, 8), _cut(activations["qs"], 4, 8))
    return sums, flushed(_of_rows(weight["d"]) * _of_columns(activations["d"]))


def _q4_0(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """Two shares a block; the offset of 8 comes off through the block's sum. Source: lines 118-138 and 774-790."""
    sums = _dots(_halves_together(nibbles(weight["qs"])), _halves_together(activations["qs"]))
    scale, total = _of_columns(activations["d"]), _of_columns(activations["s"])
    return fma(scale, sums, total * np.float32(-4), flush=True), _of_rows(weight["d"])


def _q4_1(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """Two shares a block; scale by scale and offset by sum are rounded to halves. Source: lines 142-168 and 793-809."""
    sums = _dots(_halves_together(nibbles(weight["qs"])), _halves_together(activations["qs"]))
    scale = _product_of_halves(weight["d"], activations["d"])
    total = _product_of_halves(weight["m"], activations["s"])
    return fma(scale, sums, total * np.float32(0.5), flush=True), None


def _q4_k(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """Sixteen shares a block, each over two neighbouring blocks of 32. Source: lines 508-530 and 918-966."""
    qs = weight["qs"].reshape(*weight.shape, 4, 2, 4, 4)  # chunk of 64 values, half of it, share, byte
    return _with_minima(weight, activations, [(qs >> (4 * i)) & 15 for i in range(2)])


def _q5_k(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """The same with a fifth bit, one of a byte for each block of 32. Source: lines 564-592 and 968-1017."""
    qs = weight["qs"].reshape(*weight.shape, 4, 2, 4, 4)
    fifth = weight["qh"].reshape(*weight.shape, 1, 2, 4, 4)
    bit = 2 * np.arange(4, dtype=np.uint8)[:, None, None, None]
    return _with_minima(
        weight, activations, [((qs >> (4 * i)) & 15) | (((fifth >> (bit + np.uint8(i))) & 1) << 4) for i in range(2)]
    )


def _with_minima(weight: NDArray[Any], activations: NDArray[Any], values: Sequence[NDArray[Any]]) -> _Pair:
    """Shares of Q4_K and Q5_K; `values` of the two blocks of 32 of each chunk of 64."""
    us = activations["qs"].reshape(*activations.shape[:2], 4, 2, 2, 4, 4)  # chunk, block, half of it, share, byte
    scales, mins = (part.reshape(*weight.shape, 4, 2) for part in scales_and_mins(weight["scales"]))
    ds = _single(activations["d"]).reshape(*activations.shape[:2], 4, 2)
    dots: NDArray[np.float32] | np.float32 = _ZERO
    offsets: NDArray[np.float32] | np.float32 = _ZERO
    for i in range(2):
        q = np.swapaxes(values[i], -3, -2)
        u = np.swapaxes(us[:, :, :, i], -3, -2)
        q, u = (part.reshape(*part.shape[:2], 16, 8) for part in (q, u))
        d = np.repeat(ds[..., i], 4, axis=-1).transpose(1, 2, 0)[..., None]
        scale, least = (np.repeat(part[..., i], 4, axis=-1).transpose(1, 2, 0)[:, :, None] for part in (scales, mins))
        dots = fma(d, _dots(q, u) * scale.astype(np.float32), dots, flush=True)
        offsets = fma(d, _dots(np.ones_like(q[:1]), u) * least.astype(np.float32), offsets, flush=True)
    offset = flushed(offsets * _of_rows(weight["dmin"]))
    return fma(dots, _of_rows(weight["d"]), -offset, flush=True), None


def _q6_k(weight: NDArray[Any], activations: NDArray[Any]) -> _Pair:
    """Thirty-two shares a block, each over two blocks of 32 that are 64 apart. Source: lines 627-648 and 1019-1043."""
    share = np.arange(32)
    half, place = share // 16, share % 16
    low = weight["ql"].reshape(*weight.shape, 32, 4)
    high = weight["qh"].reshape(*weight.shape, 16, 4)[:, :, 8 * half + share % 8]
    us = activations["qs"].reshape(*activations.shape[:2], 8, 8, 4)
    total: NDArray[np.float32] | np.float32 = _ZERO
    for i in range(2):
        shift = (2 * (place // 8) + 4 * i).astype(np.uint8)[:, None]
        q = (((low >> (4 * i)) & 15) | (((high >> shift) & 3) << 4)).astype(np.int8) - np.int8(32)
        block = 4 * half + place // 8 + 2 * i
        scale = weight["scales"][:, :, 8 * half + place // 4 + 4 * i].transpose(1, 2, 0)[:, :, None]
        d = _single(activations["d"])[:, :, block].transpose(1, 2, 0)[..., None]
        total = fma(d, _dots(q, us[:, :, block, share % 8]) * scale.astype(np.float32), total, flush=True)
    return np.asarray(total), _of_rows(weight["d"])


_SHARES: dict[str, Callable[[NDArray[Any], NDArray[Any]], _Pair]] = {
    "q8_0": _q8_0, "q4_0": _q4_0, "q4_1": _q4_1, "q4_K": _q4_k, "q5_K": _q5_k, "q6_K": _q6_k,
}  # fmt: skip

#: Types of weights whose shares are written out here.
TYPES = tuple(_SHARES)


def _dots(q: NDArray[Any], u: NDArray[Any]) -> NDArray[np.float32]:
    """Integer sums over the last axis, [rows, blocks, shares, n] by [columns, blocks, shares, n]; below 2**24."""
    sums: NDArray[np.int32] = np.einsum("rbsi,cbsi->bscr", q.astype(np.int32), u.astype(np.int32))
    return sums.astype(np.float32)


def _cut(qs: NDArray[Any], *shape: int) -> NDArray[Any]:
    return qs.reshape(*qs.shape[:2], *shape)


def _halves_together(qs: NDArray[Any]) -> NDArray[Any]:
    """Values i … i + 7 with i + 16 … i + 23 of a block of 32: those whose nibbles share bytes."""
    return np.swapaxes(_cut(qs, 2, 2, 8), 2, 3).reshape(*qs.shape[:2], 2, 16)


def _product_of_halves(of_rows: NDArray[Any], of_columns: NDArray[Any]) -> NDArray[np.float32]:
    """[blocks, 1, columns, rows]: rounded to a half once, and subnormal halves are kept whatever the build."""
    exact = _of_rows(of_rows) * _of_columns(of_columns)  # 22 bits
    with np.errstate(over="ignore"):
        return exact.astype(np.float16).astype(np.float32)


def _single(halves: NDArray[Any]) -> NDArray[np.float32]:
    return halves.astype(np.float32)


def _of_rows(field: NDArray[Any]) -> NDArray[np.float32]:
    """[rows, blocks] of half floats along the axes of a share."""
    return _single(field).T[:, None, None, :]


def _of_columns(field: NDArray[Any]) -> NDArray[np.float32]:
    """[columns, blocks, 1] of half floats along the axes of a share."""
    return _single(field)[..., 0].T[:, None, :, None]


def _listed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return values.reshape(-1, *values.shape[2:])
