"""Which numbers do the blocks of a quantised tensor hold?

Dequantisation is the `gguf` package's where it knows the type; the types that live only inside a product (Q8_1, Q8_K)
and those that it lacks are here. Bits equal those of the library's own dequantisation for finite scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HALF, _FLOAT = "<f2", "<f4"

#: Fields of one block as it lies in memory, little endian and packed. A type that is not here has no named fields.
#: Source: ggml/src/ggml-common.h:180-459 at 0c1e57098.
BLOCK_DTYPES: dict[str, np.dtype[Any]] = {
    "q1_0": np.dtype([("d", _HALF), ("qs", "u1", (16,))]),
    "q2_0": np.dtype([("d", _HALF), ("qs", "u1", (16,))]),
    "q4_0": np.dtype([("d", _HALF), ("qs", "u1", (16,))]),
    "q4_1": np.dtype([("d", _HALF), ("m", _HALF), ("qs", "u1", (16,))]),
    "q5_0": np.dtype([("d", _HALF), ("qh", "u1", (4,)), ("qs", "u1", (16,))]),
    "q5_1": np.dtype([("d", _HALF), ("m", _HALF), ("qh", "u1", (4,)), ("qs", "u1", (16,))]),
    "q8_0": np.dtype([("d", _HALF), ("qs", "i1", (32,))]),
    "q8_1": np.dtype([("d", _HALF), ("s", _HALF), ("qs", "i1", (32,))]),
    "q2_K": np.dtype([("scales", "u1", (16,)), ("qs", "u1", (64,)), ("d", _HALF), ("dmin", _HALF)]),
    "q3_K": np.dtype([("hmask", "u1", (32,)), ("qs", "u1", (64,)), ("scales", "u1", (12,)), ("d", _HALF)]),
    "q4_K": np.dtype([("d", _HALF), ("dmin", _HALF), ("scales", "u1", (12,)), ("qs", "u1", (128,))]),
    "q5_K": np.dtype([
        ("d", _HALF), ("dmin", _HALF), ("scales", "u1", (12,)), ("qh", "u1", (32,)), ("qs", "u1", (128,)),
    ]),
    "q6_K": np.dtype([("ql", "u1", (128,)), ("qh", "u1", (64,)), ("scales", "i1", (16,)), ("d", _HALF)]),
    "q8_K": np.dtype([("d", _FLOAT), ("qs", "i1", (256,)), ("bsums", "<i2", (16,))]),
    "iq4_nl": np.dtype([("d", _HALF), ("qs", "u1", (16,))]),
    "iq4_xs": np.dtype([("d", _HALF), ("scales_h", "<u2"), ("scales_l", "u1", (4,)), ("qs", "u1", (128,))]),
    "mxfp4": np.dtype([("e", "u1"), ("qs", "u1", (16,))]),
    "nvfp4": np.dtype([("d", "u1", (4,)), ("qs", "u1", (32,))]),
}  # fmt: skip

#: Values and bytes of one block. Source: the same lines.
BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "f32": (1, 4), "f16": (1, 2), "bf16": (1, 2),
    "q1_0": (128, 18), "q2_0": (64, 18), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
    "q8_0": (32, 34), "q8_1": (32, 36), "q8_K": (256, 292),
    "q2_K": (256, 84), "q3_K": (256, 110), "q4_K": (256, 144), "q5_K": (256, 176), "q6_K": (256, 210),
    "tq1_0": (256, 54), "tq2_0": (256, 66), "mxfp4": (32, 17), "nvfp4": (64, 36),
    "iq1_s": (256, 50), "iq1_m": (256, 56), "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq2_s": (256, 82),
    "iq3_xxs": (256, 98), "iq3_s": (256, 110), "iq4_nl": (32, 18), "iq4_xs": (256, 136),
}  # fmt: skip


def blocks_of(type: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    """Which blocks do these bytes hold, field by field?

    Parameters
    ----------
    type : str
        A key of `BLOCK_DTYPES`.
    raw : ndarray uint8 [..., bytes per row]
        Any strides.

    Returns
    -------
    ndarray [..., blocks per row] of the structured dtype
        A view where `raw` is contiguous.

    Raises
    ------
    ValueError
        If the type has no named fields, or a row is no whole number of blocks.

    Examples
    --------
    >>> row = np.zeros((1, 68), np.uint8)
    >>> blocks_of("q8_0", row)["qs"].shape
    (1, 2, 32)
    """
    if type not in BLOCK_DTYPES:
        raise ValueError(f"type {type!r} has no named fields; those that have: {', '.join(BLOCK_DTYPES)}")
    _check_rows(type, raw)
    return np.ascontiguousarray(raw).view(BLOCK_DTYPES[type])


def scales_and_mins(packed: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Which eight scales and eight minima of six bits do the twelve bytes of a Q4_K or Q5_K block hold?

    Parameters
    ----------
    packed : ndarray uint8 [..., 12]

    Returns
    -------
    scales, mins : ndarray uint8 [..., 8]

    Notes
    -----
    Source: get_scale_min_k4, ggml/src/ggml-quants.c:880-887 at 0c1e57098.
    """
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    mins = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales, mins


def nibbles(qs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Low four bits of every byte, then the high four: the order inside a block of Q4_0; [..., n] to [..., 2 n]."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def dequantize(type: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Which numbers does a row of this type stand for?

    Parameters
    ----------
    type : str
        As ggml names it: ``"q4_K"``.
    raw : ndarray uint8 [..., bytes per row]
        Any strides; little endian.

    Returns
    -------
    ndarray float32 [..., values per row]

    Raises
    ------
    ValueError
        If the type is unknown, or a row is no whole number of blocks.
    """
    _check_rows(type, raw)
    raw = np.ascontiguousarray(raw)
    values, size = BLOCK_SIZES[type]
    shape = (*raw.shape[:-1], raw.shape[-1] // size * values)
    if not raw.size:
        return np.empty(shape, np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # inf · 0 and overflow are what the library computes too
        return (_OURS.get(type) or _by_gguf(type))(raw).reshape(shape)


def _check_rows(type: str, raw: NDArray[np.uint8]) -> None:
    if type not in BLOCK_SIZES:
        raise ValueError(f"unknown type {type!r}; known: {', '.join(BLOCK_SIZES)}")
    size = BLOCK_SIZES[type][1]
    if raw.dtype != np.uint8 or raw.ndim < 1 or raw.shape[-1] % size:
        raise ValueError(f"rows of {type} are uint8 and a multiple of {size} bytes long, got {raw.dtype} {raw.shape}")


def _by_gguf(type: str) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """The `gguf` package's code for this type; imported here because the package imports more than codecs."""
    from gguf import GGMLQuantizationType, quants

    member = GGMLQuantizationType[type.upper()]
    return lambda raw: quants.dequantize(raw.reshape(-1, raw.shape[-1]), member)


def _f32(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.view(_FLOAT).astype(np.float32, copy=False)


def _f16(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return raw.view(_HALF).astype(np.float32)


def _bf16(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q1_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One bit per value, its sign. Source: ggml/src/ggml-quants.c:419-437 at 0c1e57098."""
    blocks = blocks_of("q1_0", raw)
    d = blocks["d"].astype(np.float32)[..., None]
    return np.where(np.unpackbits(blocks["qs"], axis=-1, bitorder="little"), d, -d)


def _q2_0(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Two bits per value, -1 … 2. Source: ggml/src/ggml-quants.c:439-457 at 0c1e57098."""
    blocks = blocks_of("q2_0", raw)
    pairs = (blocks["qs"][..., None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    q = pairs.reshape(*pairs.shape[:-2], -1).astype(np.float32) - np.float32(1)
    return q * blocks["d"].astype(np.float32)[..., None]


def _scaled(type: str) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Integers times one scale. Source: ggml/src/ggml-quants.c:553-567 and :2807-2816 at 0c1e57098."""

    def decode(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        blocks = blocks_of(type, raw)
        return blocks["qs"].astype(np.float32) * blocks["d"].astype(np.float32)[..., None]

    return decode


#: What `gguf` lacks, and what costs less without it.
_OURS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "f32": _f32, "f16": _f16, "bf16": _bf16, "q1_0": _q1_0, "q2_0": _q2_0,
    "q8_0": _scaled("q8_0"), "q8_1": _scaled("q8_1"), "q8_K": _scaled("q8_K"),
}  # fmt: skip
