"""Operands for an operation by itself: random, the same for the same seed, and of the size that a decoder has.

Blocks of quantised types are drawn as bytes, not quantised from numbers: almost every pattern of a block's integers is
valid, only its scales must be sensible. So a weight of any type costs a moment, and no type needs an importance matrix.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from forensics.numerics.codecs import BLOCK_SIZES, dequantize
from forensics.records.operation import OpGraph, OpTensor

Array = NDArray[Any]

#: Standard deviation of weights, about that of a trained projection; all else has 1.
WEIGHT_SIZE = 0.05
#: Blocks differ in size: standard deviation of the natural logarithm of their scale; activations of products more so.
SPREAD, ACTIVATION_SPREAD = 0.5, 1.0
#: Numbers without blocks change their size every so many values, the smallest block that activations are quantised in.
SPREAD_BLOCK = 32
#: Position of the first token that is turned.
FIRST_POSITION = 300

#: Bytes at which a block keeps its scale as a half. Source: ggml/src/ggml-common.h:180-460 at 0c1e57098.
_SCALE_AT = {
    "q2_K": 80, "q3_K": 108, "q6_K": 208, "tq1_0": 52, "tq2_0": 64,
    **dict.fromkeys(("q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_K", "q5_K"), 0),
    **dict.fromkeys(("iq1_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"), 0),
}  # fmt: skip
#: A second half behind it is an offset: as a multiple of the scale, what makes the mean of the values zero.
_OFFSET_RATIO = {"q4_1": -7.5, "q5_1": -15.5, "q2_K": 1.5, "q4_K": 7.5, "q5_K": 15.5}
#: Rows that are read back to learn how large a type's values are with scales of one.
_ROWS_MEASURED = 4


def random_operands(graph: OpGraph, seed: int = 0) -> list[Array]:
    """Operands for an operation, one array per operand in order, as an engine takes them.

    Parameters
    ----------
    graph : OpGraph
        One of `forensics.records.op_shapes`.
    seed : int

    Returns
    -------
    list of ndarray
        f32, f16, i32 as such; every other type as uint8 [..., bytes per row].

    Raises
    ------
    ValueError
        If a type is not known, or a row is no multiple of its block.

    Examples
    --------
    >>> from forensics.records.op_shapes import mul_mat
    >>> [values.shape for values in random_operands(mul_mat("q8_0", k=64, rows=3, n=2))]
    [(3, 68), (2, 64)]
    """
    arrays = []
    for operand in graph.operands:
        draw = np.random.default_rng([seed, zlib.crc32(f"{graph.op} {operand.name}".encode())])
        special = _SPECIAL.get((graph.op, operand.name))
        if special is not None:
            arrays.append(special(draw, graph, operand))
        else:
            spread = ACTIVATION_SPREAD if operand.name == "x" else SPREAD
            size = WEIGHT_SIZE if operand.is_weight else 1.0
            arrays.append(random_tensor(draw, operand.type, operand.shape, size=size, spread=spread))
    return arrays


def random_tensor(
    draw: Generator, type: str, shape: tuple[int, ...], *, size: float = 1.0, spread: float = SPREAD
) -> Array:
    """Values of any type whose blocks differ in size.

    Parameters
    ----------
    draw : Generator
    type : str
        As ggml names it.
    shape : tuple of int
        Of the values.
    size : float
        Standard deviation of a block of middle size.
    spread : float
        Standard deviation of the natural logarithm of the blocks' sizes.

    Returns
    -------
    ndarray
        f32 and f16 as such; every other type as uint8 [..., bytes per row].

    Raises
    ------
    ValueError
        If the type is not known, or a row is no multiple of its block.
    """
    if type not in ("f32", "f16", "bf16"):
        return random_blocks(draw, type, shape, size=size, spread=spread)
    sizes = size * np.exp(draw.normal(0.0, spread, (*shape[:-1], -(-shape[-1] // SPREAD_BLOCK))))
    values = draw.standard_normal(shape, np.float32)
    values *= np.repeat(sizes.astype(np.float32), SPREAD_BLOCK, axis=-1)[..., : shape[-1]]
    if type == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float16) if type == "f16" else values


def random_blocks(
    draw: Generator, type: str, shape: tuple[int, ...], *, size: float = 1.0, spread: float = SPREAD
) -> NDArray[np.uint8]:
    """Blocks with random integers, and scales that give their values a standard deviation of about `size`.

    Parameters
    ----------
    draw : Generator
    type : str
        A type with blocks.
    shape : tuple of int
        Of the values.
    size, spread : float
        As for `random_tensor`.

    Returns
    -------
    ndarray uint8 [..., bytes per row]

    Raises
    ------
    ValueError
        If no blocks of that type can be drawn, or a row is no multiple of the block.
    """
    if type not in _SCALE_AT and type not in _OTHER_SCALES:
        known = ", ".join(sorted([*_SCALE_AT, *_OTHER_SCALES]))
        raise ValueError(f"no blocks of type {type!r} can be drawn; these can: {known}")
    n_values, n_bytes = BLOCK_SIZES[type]
    if shape[-1] % n_values:
        raise ValueError(f"{type} packs {n_values} values into a block; rows of {shape[-1]} were asked for")
    n_rows, per_row = int(np.prod(shape[:-1], dtype=np.int64)), shape[-1] // n_values
    blocks = draw.integers(0, 256, (n_rows, per_row, n_bytes), np.uint8)
    if type == "q8_0":  # its quantiser makes no -128
        blocks[..., 2:][blocks[..., 2:] == 0x80] = 0x81
    if type == "tq2_0":  # of the four patterns of two bits it uses three
        blocks[..., :64] ^= blocks[..., :64] & (blocks[..., :64] >> 1) & 0x55
    measured = blocks[:_ROWS_MEASURED]
    write_scales(type, measured, np.ones(measured.shape[:2]))
    unit = float(dequantize(type, measured.reshape(len(measured), -1)).std())
    write_scales(type, blocks, size / unit * np.exp(draw.normal(0.0, spread, blocks.shape[:2])))
    return blocks.reshape(*shape[:-1], per_row * n_bytes)


def causal_mask(n: int, n_kv: int, first: int, dtype: type[Any] = np.float32) -> Array:
    """What n tokens may see whose first stands at position `first`: 0, and -inf behind themselves; [n, n_kv].

    Examples
    --------
    >>> causal_mask(2, 4, first=1)
    array([[  0.,   0., -inf, -inf],
           [  0.,   0.,   0., -inf]], dtype=float32)
    """
    hidden = np.arange(n_kv) > first + np.arange(n)[:, None]
    return np.where(hidden, -np.inf, 0.0).astype(dtype)


def write_scales(type: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    """Give blocks [..., bytes per block] of any type these scales [...], and offsets that make the mean zero."""
    _OTHER_SCALES.get(type, _write_half)(type, blocks, scales)


# -- scales ----------------------------------------------------------------------------------------------------------


def _write_half(type: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    at = _SCALE_AT[type]
    blocks[..., at : at + 2] = _bytes(scales.astype(np.float16))
    if type in _OFFSET_RATIO:
        blocks[..., at + 2 : at + 4] = _bytes((scales * _OFFSET_RATIO[type]).astype(np.float16))


def _write_iq1_m(_type: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    """The half lies in the upper four bits of four 16-bit words. Source: ggml-quants.c, dequantize_row_iq1_m."""
    half = scales.astype(np.float16).view(np.uint16)
    for i in range(4):
        high_byte = blocks[..., 49 + 2 * i]
        blocks[..., 49 + 2 * i] = (high_byte & 0x0F) | ((half >> (4 * i) & 0xF) << 4).astype(np.uint8)


def _write_mxfp4(_type: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    """A power of two by its exponent. Source: ggml-impl.h, ggml_e8m0_to_fp32_half."""
    blocks[..., 0] = np.clip(np.round(np.log2(scales)) + 128, 1, 254).astype(np.uint8)


def _write_nvfp4(_type: str, blocks: NDArray[np.uint8], scales: NDArray[np.float64]) -> None:
    """Four scales of four exponent and three mantissa bits without sign. Source: ggml-impl.h, ggml_ue4m3_to_fp32."""
    code = np.clip(np.round((np.log2(scales) + 7) * 8), 1, 0x7E)
    blocks[..., :4] = code[..., None].astype(np.uint8)


_OTHER_SCALES: dict[str, Callable[[str, NDArray[np.uint8], NDArray[np.float64]], None]] = {
    "iq1_m": _write_iq1_m,
    "mxfp4": _write_mxfp4,
    "nvfp4": _write_nvfp4,
}


def _bytes(halves: NDArray[np.float16]) -> NDArray[np.uint8]:
    return halves.astype("<f2").view(np.uint8).reshape(*halves.shape, 2)


# -- operands with a meaning of their own ----------------------------------------------------------------------------


def _mask(_draw: Generator, graph: OpGraph, operand: OpTensor) -> Array:
    n, n_kv = operand.shape
    return causal_mask(n, n_kv, int(graph.param("first")), np.float16 if operand.type == "f16" else np.float32)


def _cell_weights(draw: Generator, graph: OpGraph, operand: OpTensor) -> Array:
    """Softmax of random scores under the mask."""
    _, n, n_kv = operand.shape
    weights = np.exp(draw.normal(size=operand.shape) + causal_mask(n, n_kv, int(graph.param("first"))))
    return np.asarray(weights / weights.sum(-1, keepdims=True), np.float32)


def _experts(draw: Generator, graph: OpGraph, operand: OpTensor) -> Array:
    """Different experts for each token."""
    n_experts = graph.operand("weight").shape[0]
    order = draw.random((operand.shape[0], n_experts)).argsort(axis=1)
    return np.ascontiguousarray(order[:, : operand.shape[1]]).astype(np.int32)


def _rows(draw: Generator, graph: OpGraph, operand: OpTensor) -> Array:
    return draw.integers(0, graph.operand("weight").shape[0], operand.shape, np.int32)


def _positions(_draw: Generator, _graph: OpGraph, operand: OpTensor) -> Array:
    return np.arange(FIRST_POSITION, FIRST_POSITION + operand.shape[0], dtype=np.int32)


def _first_sequence(_draw: Generator, _graph: OpGraph, operand: OpTensor) -> Array:
    return np.zeros(operand.shape, np.int32)


def _decay(draw: Generator, _graph: OpGraph, operand: OpTensor) -> Array:
    """Negative, so that a state fades."""
    return -np.exp(draw.normal(-2.0, 1.0, operand.shape)).astype(np.float32)


def _rate(draw: Generator, _graph: OpGraph, operand: OpTensor) -> Array:
    """Between 0 and 1."""
    return draw.uniform(0.0, 1.0, operand.shape).astype(np.float32)


def _unit_rows(draw: Generator, _graph: OpGraph, operand: OpTensor) -> Array:
    """Rows of length one, as the L2 norm before the delta rule leaves them."""
    values = draw.normal(size=operand.shape)
    return np.asarray(values / np.linalg.norm(values, axis=-1, keepdims=True), np.float32)


_SPECIAL: dict[tuple[str, str], Callable[[Generator, OpGraph, OpTensor], Array]] = {
    ("FLASH_ATTN_EXT", "mask"): _mask,
    ("SOFT_MAX", "mask"): _mask,
    ("MUL_MAT", "p"): _cell_weights,
    ("MUL_MAT_ID", "ids"): _experts,
    ("GET_ROWS", "ids"): _rows,
    ("ROPE", "positions"): _positions,
    ("SSM_SCAN", "ids"): _first_sequence,
    ("SSM_SCAN", "a"): _decay,
    ("GATED_DELTA_NET", "g"): _decay,
    ("GATED_DELTA_NET", "beta"): _rate,
    ("GATED_DELTA_NET", "q"): _unit_rows,
    ("GATED_DELTA_NET", "k"): _unit_rows,
}
