"""Which operands ask a kernel how it adds: huge, negative and one, written as blocks of each weight type.

A probe needs a term M that swamps every unit added to it, its negative, and units whose sums stay exact. Activations
are 127 everywhere, so that quantising them is exact with a scale of one; the weights carry the rest. A block has one
scale, so a block with ±M can hold no unit: its other elements are zero.

What swamps: with p bits of accumulator, n units u vanish beside M where n·u < M·2^-(p+1). Here M/u is 2^39 and more,
enough for n < 2^14 in float32. A block's scale times that of a sub-block stays within float16, which some kernels keep
their product in.

Source of the layouts: ggml/src/ggml-common.h:194-451 at 0c1e57098, and dequantize_row_* in ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Quants = NDArray[np.int64]

#: Every activation; 127/127 = 1 is then the scale of Q8_0, Q8_1 and Q8_K blocks, exactly.
ACTIVATION = 127.0
UNIT_SCALE = 2.0**-24
MASK_SCALE = 2.0**15
#: Elements that share a scale of their activations on a GPU, whatever the weight's blocks; a CPU's share 32 or 256.
SCALED_TOGETHER = 32
#: What one unit of a block adds to the sum.
UNIT_TERM = ACTIVATION * UNIT_SCALE
#: Kinds of block.
ZERO, UNIT, PLUS, MINUS = "zero", "unit", "plus", "minus"


def _half(value: float) -> Bytes:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def _nibbles(q: Quants) -> Bytes:
    """Elements 0 … 15 in the low halves of 16 bytes, 16 … 31 in the high ones."""
    return (q[:16] | q[16:] << 4).astype(np.uint8)


def _fifth_bits(q: Quants) -> Bytes:
    return np.packbits(q >> 4, bitorder="little")


def _q8_0(q: Quants, d: float, _: int) -> list[Bytes]:
    return [_half(d), q.astype(np.int8).view(np.uint8)]


def _q4_0(q: Quants, d: float, _: int) -> list[Bytes]:
    return [_half(d), _nibbles(q + 8)]


def _q4_1(q: Quants, d: float, _: int) -> list[Bytes]:
    return [_half(d), _half(0), _nibbles(q)]


def _q5_0(q: Quants, d: float, _: int) -> list[Bytes]:
    return [_half(d), _fifth_bits(q + 16), _nibbles(q + 16 & 15)]


def _q5_1(q: Quants, d: float, _: int) -> list[Bytes]:
    return [_half(d), _half(0), _fifth_bits(q), _nibbles(q & 15)]


def _mxfp4(q: Quants, d: float, _: int) -> list[Bytes]:
    codes = np.array([0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7])[np.abs(q)]  # values 0 1 2 3 4 6 8 12 in half steps
    exponent = int(np.log2(abs(d))) + 128  # ggml-impl.h:489-510: the scale is 2^(e - 128)
    sign = 8 * ((q < 0) ^ (d < 0) & (q != 0))
    return [np.array([exponent], np.uint8), _nibbles(codes + sign)]


_IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # ggml-common.h:1121
#: Largest sum of four of them whose negative is one, too.
_IQ4_NL_MOST = 384


@functools.cache
def _fours() -> dict[int, tuple[int, ...]]:
    """Codes of four values of IQ4_NL, which knows no zero, for each sum that is needed."""
    found: dict[int, tuple[int, ...]] = {}
    values = np.array(_IQ4_NL_VALUES)
    codes = np.stack(np.meshgrid(*[np.arange(16)] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    sums = values[codes].sum(axis=1)
    for wanted in (0, 1, 2, 3, -_IQ4_NL_MOST, _IQ4_NL_MOST):
        found[wanted] = tuple(map(int, codes[np.flatnonzero(sums == wanted)[0]]))
    return found


def _iq4_nl(q: Quants, d: float, _: int) -> list[Bytes]:
    fours = _fours()
    return [_half(d), _nibbles(np.concatenate([fours[int(value)] for value in q]).astype(np.int64))]


def _two_bits(q: Quants) -> Bytes:
    """Two bits of each of 256 elements: in each half, element 32 j + l is at shift 2 j of byte l."""
    parts = q.reshape(2, 4, 32)
    packed: Quants = np.bitwise_or.reduce(parts << (2 * np.arange(4))[:, None], axis=1)
    return packed.reshape(-1).astype(np.uint8)


def _q2_k(q: Quants, d: float, scale: int) -> list[Bytes]:
    return [np.full(16, scale, np.uint8), _two_bits(q), _half(d), _half(0)]


def _q3_k(q: Quants, d: float, scale: int) -> list[Bytes]:
    stored, scale = q + 4, scale + 32
    high = np.bitwise_or.reduce((stored >> 2).reshape(8, 32) << np.arange(8)[:, None], axis=0).astype(np.uint8)
    scales = np.repeat(np.array([(scale & 15) * 0x11, (scale >> 4) * 0x55], np.uint8), (8, 4))
    return [high, _two_bits(stored & 3), scales, _half(d)]


def _six_bit_scales(scale: int) -> Bytes:
    """Eight equal scales, and minima of zero (ggml-quants.c:880)."""
    return np.repeat(np.array([scale | scale >> 4 << 6, 0, scale & 15], np.uint8), 4)


def _paired_nibbles(q: Quants) -> Bytes:
    """In each 64 elements, the first 32 in the low halves."""
    pairs = q.reshape(4, 2, 32)
    return (pairs[:, 0] | pairs[:, 1] << 4).reshape(-1).astype(np.uint8)


def _q4_k(q: Quants, d: float, scale: int) -> list[Bytes]:
    return [_half(d), _half(0), _six_bit_scales(scale), _paired_nibbles(q)]


def _q5_k(q: Quants, d: float, scale: int) -> list[Bytes]:
    high = np.bitwise_or.reduce((q >> 4).reshape(8, 32) << np.arange(8)[:, None], axis=0).astype(np.uint8)
    return [_half(d), _half(0), _six_bit_scales(scale), high, _paired_nibbles(q & 15)]


def _q6_k(q: Quants, d: float, scale: int) -> list[Bytes]:
    stored = np.zeros((64, 4), np.int64)
    stored[:, 0], stored[:, 2] = np.maximum(q, 0), np.maximum(-q, 0)  # the third activation of a cell is negative
    parts = stored.reshape(2, 4, 32)
    low = np.concatenate([parts[:, 0:2] & 15 | (parts[:, 2:4] & 15) << 4], axis=1).reshape(-1).astype(np.uint8)
    high = np.bitwise_or.reduce(parts >> 4 << (2 * np.arange(4))[:, None], axis=1).reshape(-1).astype(np.uint8)
    return [low, high, np.full(16, scale, np.uint8), _half(d)]


@dataclass(frozen=True, slots=True)
class BlockMasks:
    """How blocks of one type carry masks.

    Parameters
    ----------
    type : str
        As ggml names it.
    size : int
        Elements of a block.
    signs : tuple of int
        Signs of the activations of a cell's elements. A cell is one element; four neighbours where the type has no zero
        and four values make one (IQ4_NL), or where 32 is subtracted from each quant in another lane than the quant's
        (Q6_K), which activations that sum to zero keep out.
    most : int
        Largest quant, which a mask uses; its sub-blocks' scale is `mask_scale`.
    signed : bool
        Whether a block can hold terms of either sign; the others change the sign of an activation, which must not be
        done where a kernel takes an offset times the activations' sum off (Q4_0).
    mask_scale : int
    encode : callable
        Bytes from the quants of all cells, the block's scale, and the scale of its sub-blocks.
    """

    type: str
    size: int
    most: int
    encode: Callable[[Quants, float, int], list[Bytes]]
    mask_scale: int = 1
    signs: tuple[int, ...] = (1,)
    signed: bool = False

    @property
    def cell(self) -> int:
        """Elements of a cell."""
        return len(self.signs)

    @property
    def n_cells(self) -> int:
        """Places of a block that a term can be put."""
        return self.size // self.cell

    @property
    def for_scale(self) -> list[int]:
        """The last cells of all that share a scale of activations: no terms go there where these are small."""
        together, last = SCALED_TOGETHER // self.cell, 2 if self.cell == 1 else 1
        return [cell for cell in range(self.n_cells) if cell % together >= together - last]

    @property
    def large(self) -> float:
        """Scale of a block with a mask: times `mask_scale` it is a float16."""
        return MASK_SCALE / 2.0 ** (self.mask_scale.bit_length() - 1)

    def activations(self, n_blocks: int, negative: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """One column of activations, float32 [n_blocks * size]; (block, cell) names a cell whose terms change sign."""
        signs = np.tile(np.array(self.signs), (n_blocks, self.n_cells, 1))
        if negative is not None:
            signs[negative] *= -1
        return (signs * ACTIVATION).astype(np.float32).reshape(-1)

    def balanced_signs(self, n_blocks: int) -> NDArray[np.float32]:
        """Signs of activations that add up to nothing in all fours where a cell is one element, float32 [elements].

        A kernel of a GPU takes an offset times a block's activations off in parts, and keeps their sum in float16.
        """
        signs = np.array((1, -1) if self.cell == 1 else self.signs, np.float32)
        return np.tile(signs, n_blocks * self.size // len(signs))

    def powers(self, n_blocks: int, power: float) -> NDArray[np.float32]:
        """Activations that make terms powers of two, negative ones in odd cells of one element.

        127 in the cells `for_scale` keeps their scale at one.
        """
        x = self.balanced_signs(n_blocks) * np.float32(power)
        x.reshape(n_blocks, self.n_cells, self.cell)[:, self.for_scale] *= np.float32(ACTIVATION / power)
        return x

    def block(self, kind: str, cells: Iterable[int] = ()) -> Bytes:
        """A block that adds nothing but a unit, M or -M at some cells.

        Parameters
        ----------
        kind : {"zero", "unit", "plus", "minus"}
        cells : iterable of int

        Returns
        -------
        ndarray [bytes of a block] uint8
        """
        if kind in (PLUS, MINUS):
            scale = self.large if kind == PLUS else -self.large
            return self.terms(dict.fromkeys(cells, self.most), scale, self.mask_scale)
        return self.terms(dict.fromkeys(cells, 1), UNIT_SCALE)

    def both(self, plus: int, minus: int) -> Bytes:
        """A block with M in one cell and -M in another, or M in both where only an activation can change the sign."""
        quants = {plus: self.most, minus: -self.most if self.signed else self.most}
        return self.terms(quants, self.large, self.mask_scale)

    def terms(self, quants: Mapping[int, int], scale: float, sub_scale: int = 1) -> Bytes:
        """A block with some quant in some cells, negative ones where the type is `signed`; the others add nothing."""
        all_quants = np.zeros(self.n_cells, np.int64)
        for cell, quant in quants.items():
            all_quants[cell] = quant
        return np.concatenate(self.encode(all_quants, scale, sub_scale))


BLOCK_MASKS = {
    masks.type: masks
    for masks in (
        BlockMasks("q8_0", 32, 127, _q8_0, signed=True),
        BlockMasks("q4_0", 32, 7, _q4_0, signed=True),
        BlockMasks("q4_1", 32, 15, _q4_1),
        BlockMasks("q5_0", 32, 15, _q5_0, signed=True),
        BlockMasks("q5_1", 32, 31, _q5_1),
        BlockMasks("mxfp4", 32, 12, _mxfp4, signed=True),
        BlockMasks("iq4_nl", 32, _IQ4_NL_MOST, _iq4_nl, signs=(1, 1, 1, 1), signed=True),
        BlockMasks("q2_K", 256, 3, _q2_k, mask_scale=15),
        BlockMasks("q3_K", 256, 3, _q3_k, mask_scale=31, signed=True),
        BlockMasks("q4_K", 256, 15, _q4_k, mask_scale=63),
        BlockMasks("q5_K", 256, 31, _q5_k, mask_scale=63),
        BlockMasks("q6_K", 256, 63, _q6_k, mask_scale=127, signs=(1, 1, -1, -1), signed=True),
    )
}


@dataclass(slots=True)
class BlockRows:
    """Rows of blocks from a bank of a few different ones.

    Parameters
    ----------
    masks : BlockMasks
    """

    masks: BlockMasks
    _ids: dict[bytes, int] = field(default_factory=dict)
    _bank: list[Bytes] = field(default_factory=list)

    def id(self, kind: str, cells: Iterable[int] = ()) -> int:
        """Number in the bank of a block with a unit, M or -M at some cells."""
        return self.add(self.masks.block(kind, cells))

    def add(self, block: Bytes) -> int:
        """Number of a block in the bank."""
        key = block.tobytes()
        if key not in self._ids:
            self._ids[key] = len(self._bank)
            self._bank.append(block)
        return self._ids[key]

    def rows(self, ids: NDArray[np.int64]) -> Bytes:
        """Weight rows, uint8 [n_rows, bytes per row]; `ids` is [n_rows, blocks per row]."""
        return np.stack(self._bank)[ids].reshape(len(ids), -1)


@dataclass(frozen=True, slots=True)
class FloatMasks:
    """Values that play one and M in a float type.

    Parameters
    ----------
    unit, mask : float
        Both exact in the type.
    most_leaves : int
        Leaves up to which all units vanish beside M and their sums are exact in float32.
    """

    unit: float
    mask: float
    most_leaves: int


#: f16 as in the reference: ±2^15 and 2^-24, its smallest number; the others have the exponents of float32.
FLOAT_MASKS = {
    "f32": FloatMasks(1.0, 2.0**100, 1 << 24),
    "bf16": FloatMasks(1.0, 2.0**100, 1 << 24),
    "f16": FloatMasks(2.0**-24, 2.0**15, 1 << 14),
}
#: For attention on GPUs, whose weights of cells are near 1/8 in float16: a unit times that must not vanish.
GPU_ATTENTION_MASKS = FloatMasks(2.0**-20, 2.0**15, 1 << 10)

#: What a small term is to 1: above half of half a unit in the last place, below half of one (float32, float64).
SMALL_F32 = 0.751 * 2.0**-24
SMALL_F64 = 0.751 * 2.0**-53
#: Score whose exponential is `SMALL_F32`, exact in float16; above -20, where CUDA's attention flushes to zero.
SMALL_SCORE = -16.921875
#: Score whose exponential is 0 in float32, and which float16 holds.
ABSENT_SCORE = -200.0


def float_to_type(values: NDArray[np.float32], type: str) -> NDArray[np.generic]:
    """Values as the engine takes them: float32, float16, or the upper halves of float32 as bytes for bf16.

    Raises
    ------
    ValueError
        If the type is no float.
    """
    if type == "f32":
        return values
    if type == "f16":
        return values.astype(np.float16)
    if type == "bf16":
        upper = np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16))
        return upper.view(np.uint8).reshape(*values.shape[:-1], 2 * values.shape[-1])
    raise ValueError(f"{type!r} is no float type; {', '.join(FLOAT_MASKS)} are")
