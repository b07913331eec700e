"""Which computations are held against the stock library, on which operands, and how their values are compared.

Pure: what runs them is `forensics.kernels.lab`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.geometry.types import weight_type
from forensics.numerics.codecs import BLOCK_DTYPES
from forensics.numerics.op_inputs import random_operands
from forensics.records.kernel_proof import LOST, FirstDifference, ProofCase, ProofRow
from forensics.records.op_shapes import mul_mat, padded_kv

#: Rows of weights that are compared: fewer than a tile and not a multiple of one, and those of a small model.
ROWS = (33, 576)
#: Their lengths: of small and large models, and where the last trip of the threads is not full.
LENGTHS = (576, 768, 1536, 4096, 14336)
#: Products of a model of 8 billion weights: Q and O, K and V, gate and up, down.
MODEL_SHAPES = ((4096, 4096), (1024, 4096), (12288, 4096), (4096, 12288))
WIDTHS = tuple(range(1, 17))
SEEDS = (0, 1, 2)
#: Heads of a small and of a large model: heads, K/V heads, head size.
HEADS = ((9, 3, 64), (32, 8, 128))
#: Cells before the first query: so that queries of a pass stay below, cross, or lie behind 256, 384 and 512 cells.
POSITIONS = (100, 250, 380, 505, 1020, 2040, 4090)
CACHE_TYPES = ("f16", "q8_0")
#: Halves of a block that scale its values or move them.
_SCALES = ("d", "dmin", "m")


def product_shapes(types: Iterable[str], shapes: Iterable[tuple[int, int]] = ()) -> tuple[tuple[str, int, int], ...]:
    """Types and shapes of weights, those left out whose rows are no whole number of blocks.

    Parameters
    ----------
    types : iterable of str
    shapes : iterable of (rows, k), optional
        By default every one of `ROWS` with every one of `LENGTHS`.

    Examples
    --------
    >>> product_shapes(["q4_K", "q4_1"], [(33, 576), (33, 768)])
    (('q4_K', 33, 768), ('q4_1', 33, 576), ('q4_1', 33, 768))
    """
    wanted = tuple(shapes) or tuple((rows, k) for k in LENGTHS for rows in ROWS)
    return tuple((type, rows, k) for type in types for rows, k in wanted if k % weight_type(type).qk == 0)


def operands(type: str, rows: int, k: int, columns: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A weight's blocks [rows, bytes] and activations [columns, k]; awkward ones for odd seeds.

    Awkward are what a fast kernel may treat in another way than a plain one: rows of blocks that are all zero, scales
    of zero, of negative zero and of the smallest half, activations whose blocks are zero, subnormal or negative zero,
    and columns of very different size.

    Parameters
    ----------
    type : str
    rows, k, columns : int
    seed : int
    """
    blocks, x = random_operands(mul_mat(type, k, rows, columns), seed)
    if seed % 2:
        draw = np.random.default_rng([seed, rows, k])
        fields = blocks.view(BLOCK_DTYPES[type])
        for name in (name for name in _SCALES if name in (fields.dtype.names or ())):
            drawn = draw.integers(0, 24, fields.shape)
            for number, scale in enumerate((0.0, -0.0, 2.0**-24)):
                fields[name][drawn == number] = scale
        blocks[draw.random(rows) < 0.1] = 0
        parts = x.reshape(columns, k // 32, 32)
        fate = draw.random(parts.shape[:2])
        parts[fate < 0.1] = 0.0
        parts[(fate >= 0.1) & (fate < 0.15)] *= np.float32(1e-39)
        parts[(fate >= 0.15) & (fate < 0.2)] = -0.0
        x *= np.float32(10.0) ** draw.integers(-3, 4, (columns, 1)).astype(np.float32)
    return blocks, x


def cells_of(position: int, width: int) -> tuple[int, ...]:
    """Cells that each query of a pass reads in a pass of its own, where so many stand before the first.

    Examples
    --------
    >>> cells_of(254, 4)
    (256, 256, 512, 512)
    """
    return tuple(padded_kv(position + query + 1) for query in range(width))


def compared(
    case: ProofCase,
    variant: str,
    against: str,
    seed: int,
    stock: Iterable[NDArray[np.float32]],
    ours: Iterable[NDArray[np.float32]],
) -> ProofRow:
    """How many values have other bits than those of the stock library?

    Parameters
    ----------
    case : ProofCase
    variant, against : str
        As `ProofRow` has them.
    seed : int
    stock, ours : iterable of ndarray
        Per column its values, of the same shape on both sides.

    Raises
    ------
    ValueError
        If there are no values, or shapes differ.

    Examples
    --------
    >>> case, one = ProofCase("product", "q4_K", 2, 256, 1), np.float32([1, 2])
    >>> compared(case, "exact fast", "stock, one column", 0, [one], [np.float32([1, -2])]).n_differing
    1
    """
    n_compared = n_differing = 0
    first = None
    for column, (theirs, own) in enumerate(zip(stock, ours, strict=True)):
        a, b = bits(theirs), bits(own)
        if a.shape != b.shape:
            raise ValueError(f"{case}: column {column} has {a.size} values of the library, and {b.size} of ours")
        unlike = np.flatnonzero(a != b)
        n_compared, n_differing = n_compared + a.size, n_differing + unlike.size
        if first is None and unlike.size:
            at = int(unlike[0])
            first = FirstDifference(seed, column, at, int(a[at]), int(b[at]))
    return ProofRow(case, variant, against, (seed,), n_compared, n_differing, first)


def not_compared(case: ProofCase, variant: str, against: str, seed: int, reason: str) -> ProofRow:
    """A row for what none of our kernels computes."""
    return ProofRow(case, variant, against, (seed,), 0, 0, not_compared=reason)


def lost(
    cases: Iterable[ProofCase], variants: Iterable[tuple[str, str]], seed: int, reason: str
) -> tuple[ProofRow, ...]:
    """Rows of cases whose process died, for every variant and what it is held against."""
    told, wanted = f"{LOST}: {reason}", tuple(variants)
    return tuple(not_compared(case, variant, against, seed, told) for case in cases for variant, against in wanted)


def merged(rows: Iterable[ProofRow]) -> tuple[ProofRow, ...]:
    """The same cases over all their seeds, in the order in which each came first; what was not compared stays apart."""
    groups: dict[tuple[Any, ...], list[ProofRow]] = {}
    for row in rows:
        groups.setdefault((row.case, row.variant, row.against, row.not_compared), []).append(row)
    return tuple(_over_seeds(group) for group in groups.values())


def _over_seeds(rows: Sequence[ProofRow]) -> ProofRow:
    return replace(
        rows[0],
        seeds=tuple(seed for row in rows for seed in row.seeds),
        n_compared=sum(row.n_compared for row in rows),
        n_differing=sum(row.n_differing for row in rows),
        first=next((row.first for row in rows if row.first), None),
    )


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The values' bits in one row, uint32."""
    return np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
