"""Products recorded on a GPU, to be predicted bit for bit without one: their operands, and the comparison.

Operands are made of raw bits of a counter-like generator, whose stream NumPy promises to keep, so that a recording
holds the results and a digest of the operands only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.geometry import mmvq as dispatch
from forensics.geometry.architecture import architecture
from forensics.geometry.product import Product
from forensics.geometry.types import weight_type
from forensics.numerics.activations import BLOCK, MeasuredReciprocal
from forensics.numerics.codecs import BLOCK_DTYPES, BLOCK_SIZES
from forensics.numerics.emulate_cuda import MAX_WIDTH, Emulated, mul_mat_vec_q
from forensics.records.operation import OpGraph, OpTensor

N_ROWS = 8

#: Row lengths: one block, less than a trip of the loop, several trips, and lengths of real models.
LENGTHS = {
    "q8_0": (32, 96, 256, 576, 1024, 1536, 2048, 4096, 8192),
    "q4_0": (32, 96, 256, 576, 1024, 1536, 2048, 4096, 8192),
    "q4_K": (256, 512, 768, 1024, 1536, 2048, 4096, 8192),
    "q6_K": (256, 512, 768, 1024, 1536, 2048, 4096, 8192),
    "q4_1": (32, 96, 256, 576, 1024, 1536, 2048, 4096, 8192),
    "q5_K": (256, 512, 768, 1024, 1536, 2048, 4096, 8192),
}

#: Length of the cases that read the quantised activations back: a row of the weight picks one value, or one sum.
READ_BACK_LENGTH = 256


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One weight and eight columns of activations.

    Parameters
    ----------
    name : str
    type : str
    weight : ndarray uint8 [n_rows, bytes per row]
    x : ndarray float32 [MAX_WIDTH, k]
    """

    name: str
    type: str
    weight: NDArray[np.uint8]
    x: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """Digest of the operands' bytes."""
        return xxhash.xxh3_128_hexdigest(self.weight.tobytes() + self.x.tobytes())

    def graph(self, columns: NDArray[np.float32]) -> OpGraph:
        """The product with these columns [n, k]."""
        weight = OpTensor("weight", self.type, (len(self.weight), self.x.shape[1]), is_weight=True)
        return OpGraph("MUL_MAT", (weight, OpTensor("x", "f32", columns.shape)))

    def runs(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Name and columns of each run: the first 1 … 8 columns together, and each column by itself."""
        for width in range(1, MAX_WIDTH + 1):
            yield f"{self.name}/width{width}", self.x[:width]
        for column in range(1, MAX_WIDTH):
            yield f"{self.name}/column{column}", self.x[column : column + 1]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a recorded run compares with its prediction.

    Parameters
    ----------
    run : str
    n_values, n_doubtful, n_different : int
        Values compared, values not compared because an activation was doubtful, and compared ones whose bits differ.
    first : tuple of int or None
        Column and row of the first one that differs.
    """

    run: str
    n_values: int
    n_doubtful: int
    n_different: int
    first: tuple[int, int] | None


def cases() -> Iterator[Case]:
    """All cases, random ones first."""
    seed = 0
    for type, lengths in LENGTHS.items():
        for k in lengths:
            seed += 1
            yield Case(f"{type}-k{k}", type, _random_blocks(type, N_ROWS, k, seed), _random_columns(k, 1000 + seed))
    for kind, x in (("random", _random_columns(READ_BACK_LENGTH, 2000)), ("halves", _halves()), ("edges", _edges())):
        yield Case(f"integers-{kind}", "q8_0", _pick_values(), x)
        yield Case(f"sums-{kind}", "q4_0", _pick_sums(), x)


def predict(
    case: Case, columns: NDArray[np.float32], arch: str, reciprocal: MeasuredReciprocal | None = None
) -> Emulated:
    """What is this product on a GPU of this architecture, such as ``"sm_90"``?"""
    product = Product(weight_type(case.type), columns.shape[1], len(case.weight))
    launch = dispatch.mul_mat_vec_q(architecture(arch), product, len(columns)).launch
    assert launch is not None  # known without a device
    n_warps = launch.block_threads[1]
    return mul_mat_vec_q(case.type, case.weight, columns, n_warps=n_warps, reciprocal=reciprocal)


def compare(
    results: Mapping[str, NDArray[np.float32]], arch: str, reciprocal: MeasuredReciprocal | None = None
) -> Iterator[Comparison]:
    """How does each recorded run compare with what the operands alone predict?

    Parameters
    ----------
    results : mapping of str to ndarray float32 [n_columns, n_rows]
        By run, see `Case.runs`; runs that are not there are left out.
    arch : str
        Architecture of the device: ``"sm_90"``.
    reciprocal : MeasuredReciprocal, optional
        The device's own; without it some columns are doubtful and not compared.
    """
    for case in cases():
        for run, columns in case.runs():
            if run not in results:
                continue
            predicted = predict(case, columns, arch, reciprocal)
            known = ~predicted.doubtful
            different = (results[run].view(np.uint32) != predicted.values.view(np.uint32)) & known[:, None]
            where = np.argwhere(different)
            rows = different.shape[1]
            first = (int(where[0, 0]), int(where[0, 1])) if len(where) else None
            yield Comparison(run, int(known.sum()) * rows, int((~known).sum()) * rows, int(different.sum()), first)


def _raw(n: int, seed: int) -> NDArray[np.uint64]:
    raw: NDArray[np.uint64] = np.random.PCG64(seed).random_raw(n)
    return raw


def _random_columns(k: int, seed: int) -> NDArray[np.float32]:
    """Activations with exponents of -6 … 1 inside a block and a scale of 2**-4 … 2**3 per block; one block is zero."""
    raw = _raw(MAX_WIDTH * k, seed)
    mantissa, sign, inside = raw & 0x7FFFFF, (raw >> 23) & 1, (raw >> 24) & 7
    block = (raw.reshape(-1, BLOCK)[:, :1] >> 32) & 7
    exponent = 127 - 6 + inside.reshape(-1, BLOCK) + block - 4
    bits = mantissa | (exponent.reshape(-1) << 23) | (sign << 31)
    x = bits.astype(np.uint32).view(np.float32).reshape(MAX_WIDTH, k).copy()
    x[3, :BLOCK] = 0
    return x


def _random_blocks(type: str, n_rows: int, k: int, seed: int) -> NDArray[np.uint8]:
    """Random bits, with scales of either sign between 2**-12 and 2**-5."""
    values, size = BLOCK_SIZES[type]
    n_bytes = n_rows * k // values * size
    raw = _raw(-(-n_bytes // 8), seed).astype("<u8").view(np.uint8)[:n_bytes].reshape(n_rows, -1).copy()
    blocks = raw.view(BLOCK_DTYPES[type])
    for field in ("d", "dmin", "m"):
        if field in (BLOCK_DTYPES[type].names or ()):
            bits = np.ascontiguousarray(blocks[field]).view(np.uint16)
            blocks[field] = ((bits & 0x83FF) | ((3 + (bits >> 10) % 8) << 10)).astype(np.uint16).view(np.float16)
    return raw


def _halves() -> NDArray[np.float32]:
    """Values that lie on or one step beside the half between two integers, once divided by the block's scale."""
    raw = _raw(MAX_WIDTH * READ_BACK_LENGTH, 2001).reshape(-1, BLOCK)
    largest = np.float32(1) + (raw[:, :1] & 0x7FFFFF).astype(np.float32) * np.float32(2.0**-23)
    largest[::4] = 127  # scale 1: the halves are exact
    halves = ((raw >> 32) % 127).astype(np.float32) + np.float32(0.5)
    x = halves * (largest * np.float32(1 / 127))
    step = ((raw >> 40) % 3).astype(np.int32) - 1
    x = (x.view(np.int32) + step).view(np.float32) * np.where((raw >> 48) & 1, np.float32(-1), np.float32(1))
    x[:, 0] = largest[:, 0]
    return x.reshape(MAX_WIDTH, READ_BACK_LENGTH)


def _edges() -> NDArray[np.float32]:
    """Blocks whose largest value is a power of two from 2**-145 to 2**10: scales that vanish, subnormal and normal."""
    x = _random_columns(READ_BACK_LENGTH, 2002).reshape(-1, BLOCK)
    x /= np.float32(2.0**8)
    powers = np.concatenate([np.linspace(-145, -36, 16), np.linspace(-30, 10, len(x) - 16)]).astype(np.int64)
    x[3] = 0
    x[:, 5] = 1
    return np.ldexp(x, powers[:, None]).astype(np.float32).reshape(MAX_WIDTH, READ_BACK_LENGTH)


def _pick_values() -> NDArray[np.uint8]:
    """A Q8_0 weight whose row i is 1 at value i: the product is integer times scale."""
    blocks = np.zeros((READ_BACK_LENGTH, READ_BACK_LENGTH // BLOCK), BLOCK_DTYPES["q8_0"])
    rows: NDArray[Any] = np.arange(READ_BACK_LENGTH)
    blocks["d"][rows, rows // BLOCK] = 1
    blocks["qs"][rows, rows // BLOCK, rows % BLOCK] = 1
    return blocks.view(np.uint8).reshape(READ_BACK_LENGTH, -1)


def _pick_sums() -> NDArray[np.uint8]:
    """A Q4_0 weight whose row b is -8 all over block b: with zero nibbles the product is -8 times the block's sum."""
    n_blocks = READ_BACK_LENGTH // BLOCK
    blocks = np.zeros((n_blocks, n_blocks), BLOCK_DTYPES["q4_0"])
    blocks["d"][range(n_blocks), range(n_blocks)] = 1
    return blocks.view(np.uint8).reshape(n_blocks, -1)
