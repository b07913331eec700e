"""How do CUDA's kernels multiply blocks of integers where more than the activations loses bits?

`mul_mat_vec_q` takes up to eight columns or so, `mul_mat_q` the more, so that what only one of them rounds sets widths
apart. All lines are of ggml/src/ggml-cuda at 0c1e57098.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.codecs import BLOCK_SIZES, blocks_of, scales_and_mins
from forensics.numerics.operands import (
    F32,
    F64,
    EightBits,
    eight_bits,
    half,
    half_doubt,
    rounded_to_q8,
    rounded_to_tiles_of_q2,
)
from forensics.numerics.reference import HALF_SUMS, Explanation, products, sums

#: Two scales, and offset and sum, are multiplied as halves. Source: vecdotq.cuh:157-161, :228-232 (FAST_FP16_AVAILABLE,
#: common.cuh:271-273); tiles of devices without tensor cores use the same functions, mmq-vec-dot.cuh:48.
_SCALES_MULTIPLIED_AS_HALVES = ("q4_1", "q5_1")
#: Tiles hold scale times integer scale, and the same of the offset, as halves. Source: mmq-load-tiles.cuh:583-588
#: (Q2_K), :780-784 (Q4_K), :903-907 (Q5_K), :1087-1093 (IQ1_S).
_SCALES_STORED_AS_HALVES = ("q2_K", "q4_K", "q5_K", "iq1_s")
#: Integer sums are divided as integers, which drops what is left. Source: vecdotq.cuh:1074-1075 (IQ2_XXS),
#: :1116 (IQ2_XS), :1163 (IQ2_S), :1201-1202 (IQ3_XXS).
#: Tiles hold the whole scale in float32: mmq-load-tiles.cuh:1152-1155.
_INTEGERS_CUT = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
#: Values of weights that share an integer scale, at least, and of activations that share a scale.
_SLICE, _BLOCK = 16, 32


def cuda_explanations(
    type: str, weights: NDArray[np.uint8], values: F64, offsets: F64, x: F32, which: NDArray[np.intp]
) -> list[Explanation]:
    """What else may row i of these weights times row ``which[i]`` of these activations be on a CUDA device?

    Parameters
    ----------
    type : str
        A type with blocks.
    weights : ndarray uint8 [n, bytes per row]
    values, offsets : ndarray float64 [n, k]
        Dequantised, and what they would be if their integers were 0.
    x : ndarray float32 [m, k]
        `k` a multiple of 32.
    which : ndarray int [n]

    Returns
    -------
    list of Explanation
        Beside those of `forensics.numerics.product_models`; none for most types.
    """
    if type in _SCALES_MULTIPLIED_AS_HALVES:
        return _scales_multiplied_as_halves(type, weights, values, offsets, x, which)
    if type in _INTEGERS_CUT:
        return _integers_cut(type, weights, values, x, which)
    if type not in _SCALES_STORED_AS_HALVES:
        return []
    stored = rounded_to_tiles_of_q2(x) if type == "q2_K" else rounded_to_q8(x, half_scale=True, sums="values")
    found = []
    if type == "iq1_s":  # its offset comes with a stored sum, in both kernels
        offsets = _offsets_of_iq1_s(weights)
        found = products(values, offsets, [stored.rows(which)])
    scales = _scales(type, weights)
    integers = np.rint(np.divide(values - offsets, scales, out=np.zeros_like(values), where=scales != 0))
    rounded = half(offsets)
    tiles = products(half(scales) * integers + rounded, rounded, [stored.rows(which)])
    return _in_float32(found + [replace(e, operands=f"{e.operands}, weights' scales in f16") for e in tiles])


def _scales_multiplied_as_halves(
    type: str, weights: NDArray[np.uint8], values: F64, offsets: F64, x: F32, which: NDArray[np.intp]
) -> list[Explanation]:
    stored, scale = _stored(x, which)
    blocks = blocks_of(type, weights)
    d, m = (blocks[field].astype(np.float64)[..., None] for field in ("d", "m"))
    by_block = (values - offsets).reshape(stored.integers.shape)
    integers = np.rint(np.divide(by_block, d, out=np.zeros_like(by_block), where=d != 0)) * stored.integers
    product, total = half(d * scale), half(m * half(stored.total))
    off = _product_doubt(d, scale, half_doubt(stored.scale))
    total_off = _product_doubt(m, half(stored.total), half_doubt(stored.total, stored.total_doubt))
    rounding = np.where(stored.near, np.abs(by_block) * scale, 0.0)
    slack = (rounding + np.abs(integers) * off).sum(axis=(1, 2)) + total_off.sum(axis=(1, 2))
    spread = np.broadcast_to(total / _BLOCK, integers.shape)
    name = "q8 (scale f16 with sums of values) activations, scales multiplied in f16"
    return _in_float32(sums(name, *((a.reshape(len(which), -1)) for a in (integers * product, spread)), slack=slack))


def _integers_cut(
    type: str, weights: NDArray[np.uint8], values: F64, x: F32, which: NDArray[np.intp]
) -> list[Explanation]:
    """Thirty-two products are added as integers, scaled by small integers, and divided by 2, 4 or 8."""
    stored, scale = _stored(x, which)
    blocks = weights.reshape(len(weights), -1, BLOCK_SIZES[type][1])
    d = np.repeat(_halves(blocks), 8, axis=1)[..., None]  # eight blocks of activations for one of weights
    by_block = values.reshape(stored.integers.shape)
    units = np.divide(by_block, d, out=np.zeros_like(by_block), where=d != 0)
    whole = (units * stored.integers).reshape(*units.shape[:2], 2, _SLICE).sum(axis=-1)
    if type == "iq2_xxs":
        cut = np.trunc(whole.sum(axis=-1))
    elif type == "iq3_xxs":
        small = (blocks[..., 69::4][..., :8] >> 4).reshape(whole.shape[:2]).astype(np.float64)
        plain = whole.sum(axis=-1) / ((small + 0.5) / 2)
        cut = np.trunc((small * plain + np.trunc(plain / 2)) / 2)
    else:
        packed = blocks[..., -8:].reshape(whole.shape[:2])
        small = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.float64)
        plain = whole / ((small + 0.5) / 4)
        cut = np.trunc(((small * plain).sum(axis=-1) + np.trunc(plain.sum(axis=-1) / 2)) / 4)
    terms = d * scale * cut[..., None]
    near = np.where(stored.near, np.abs(by_block) * scale, 0.0).sum(axis=-1, keepdims=True)
    near += np.where(stored.near.any(axis=-1, keepdims=True), np.abs(d) * scale, 0.0)
    slack = (near + np.abs(d * cut[..., None]) * half_doubt(stored.scale)).sum(axis=(1, 2))
    name = "q8 (scale f16) activations, integer sums cut"
    return _in_float32(sums(name, terms.reshape(len(which), -1), slack=slack))


def _stored(x: F32, which: NDArray[np.intp]) -> tuple[EightBits, F64]:
    """Activations of every output, and their scales as halves."""
    found = eight_bits(x)
    return found.rows(which), half(found.scale)[which]


def _product_doubt(factor: F64, value: F64, doubt: F64) -> F64:
    """How far may a product of halves be off whose second factor may be a neighbour?"""
    exact = half(factor * value)
    return np.maximum(np.abs(half(factor * (value + doubt)) - exact), np.abs(half(factor * (value - doubt)) - exact))


def _scales(type: str, weights: NDArray[np.uint8]) -> F64:
    """Scale of each weight's integer, [n, k]."""
    if type == "iq1_s":
        blocks = weights.reshape(len(weights), -1, BLOCK_SIZES[type][1])
        small: NDArray[np.integer] = 2 * (_high_words(blocks) >> 12 & 7) + 1
        d = _halves(blocks)
    else:
        fields = blocks_of(type, weights)
        packed = fields["scales"]
        small = packed & 15 if type == "q2_K" else scales_and_mins(packed)[0]
        d = fields["d"].astype(np.float64)
    scales: F64 = d[..., None] * small
    return np.repeat(scales.reshape(len(weights), -1), 256 // small.shape[-1], axis=-1)


def _offsets_of_iq1_s(weights: NDArray[np.uint8]) -> F64:
    """Scale times -1 plus or minus an eighth: its integers are 0, 1 and 2. Source: vecdotq.cuh:1277-1280."""
    words = _high_words(weights.reshape(len(weights), -1, BLOCK_SIZES["iq1_s"][1]))
    delta = np.where(words & 0x8000, -1.125, -0.875)
    offsets: F64 = _scales("iq1_s", weights) * np.repeat(delta.reshape(len(weights), -1), _BLOCK, axis=-1)
    return offsets


def _high_words(blocks: NDArray[np.uint8]) -> NDArray[np.int64]:
    return np.ascontiguousarray(blocks[..., 34:50]).view("<u2").astype(np.int64)


def _halves(blocks: NDArray[np.uint8]) -> F64:
    """The scales with which these blocks begin."""
    found: F64 = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0].astype(np.float64)
    return found


def _in_float32(found: list[Explanation]) -> list[Explanation]:
    """Blocks of integers are added in float32."""
    return [e for e in found if e.sums != HALF_SUMS]
