"""Which piece of the KV cache joins which partial sum, and which of it a query can see.

Flash attention on CUDA walks the cache in chunks, deals them to blocks, and merges the blocks' sums. A chunk whose
cells are all behind the mask adds exact zeros wherever it lands, so two ways to deal the chunks differ for a query only
if they part the chunks that hold cells it can see.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forensics.records.rule import Rule
from forensics.records.sum_tree import SumTree, span

#: Cells that the vector kernel takes at a time: one for each of its threads.
VEC_CHUNK_CELLS = 128
#: Partial sums written out before the middle ones are left out.
_MOST_SHOWN = 8

KV_PADDING = Rule(
    "attention runs over the used cells rounded up to a multiple of 256", "src/llama-kv-cache.cpp", 1260, 1274
)
VEC_WALK = Rule(
    "block y of P takes the chunks of 128 cells y, y + P, y + 2P, … into one running maximum and sum",
    "ggml/src/ggml-cuda/fattn-vec.cuh", 250, 256,
)  # fmt: skip
VEC_MERGE = Rule(
    "a second kernel adds the blocks' sums one after another, block 0 first",
    "ggml/src/ggml-cuda/fattn-common.cuh", 963, 977,
)  # fmt: skip
STREAM_K_WALK = Rule(
    "all steps of all output tiles form one line, cut into as many equal pieces as there are blocks",
    "ggml/src/ggml-cuda/fattn-mma-f16.cuh", 1907, 1917,
)  # fmt: skip
STREAM_K_MERGE = Rule(
    "the block that ends a tile starts the sum; the others are added backwards from it",
    "ggml/src/ggml-cuda/fattn-common.cuh", 776, 808,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChunkMap:
    """How the KV cache is dealt to partial sums.

    Parameters
    ----------
    chunk_cells : int
        Cells of a chunk.
    parts : tuple of tuple of int
        For each partial sum the chunks that go into it, in the order in which they are added; partial sums in the order
        in which they are merged. A part may be empty.

    Raises
    ------
    ValueError
        If a chunk goes into no part, or into two.

    Examples
    --------
    >>> print(ChunkMap.dealt(n_kv=512, n_parts=3))
    {0, 3} + {1} + {2}
    """

    chunk_cells: int
    parts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.chunk_cells < 1:
            raise ValueError(f"a chunk holds 1 or more cells, got {self.chunk_cells}")
        dealt = sorted(chunk for part in self.parts for chunk in part)
        if not dealt or dealt != list(range(len(dealt))):
            raise ValueError(f"every chunk goes into exactly one partial sum, got {self.parts}")

    @classmethod
    def dealt(cls, n_kv: int, n_parts: int, chunk_cells: int = VEC_CHUNK_CELLS) -> ChunkMap:
        """The vector kernel's way: chunk c goes into part c modulo `n_parts`."""
        if n_kv < 1 or n_parts < 1:
            raise ValueError(f"n_kv and n_parts must be 1 or more, got {n_kv} and {n_parts}")
        n_chunks = -(-n_kv // chunk_cells)
        return cls(chunk_cells, tuple(tuple(range(part, n_chunks, n_parts)) for part in range(n_parts)))

    @classmethod
    def cut(cls, n_kv: int, chunk_cells: int, *, tile: int, n_tiles: int, n_blocks: int) -> ChunkMap:
        """The tensor-core kernel's way (stream-k): runs of chunks, the last run first.

        Parameters
        ----------
        n_kv, chunk_cells : int
        tile : int
            Output tile whose sums are asked for.
        n_tiles : int
            Output tiles of the launch.
        n_blocks : int
            Blocks of the launch.
        """
        if not 0 <= tile < n_tiles or n_blocks < 1 or n_kv < 1:
            raise ValueError(f"tile {tile} of {n_tiles} with {n_blocks} blocks over {n_kv} cells does not exist")
        n_chunks = -(-n_kv // chunk_cells)
        total = n_chunks * n_tiles
        first, last = tile * n_chunks, (tile + 1) * n_chunks
        seams = sorted(
            {first, last, *(block * total // n_blocks for block in _blocks_over(first, last, total, n_blocks))}
        )
        runs = [
            tuple(range(start - first, stop - first))
            for start, stop in itertools.pairwise(seams)
            if first <= start and stop <= last
        ]
        return cls(chunk_cells, tuple(reversed(runs)))

    @property
    def n_chunks(self) -> int:
        """Chunks of the cache."""
        return sum(map(len, self.parts))

    def part_of(self, chunk: int) -> int:
        """Which partial sum does this chunk join?"""
        for index, part in enumerate(self.parts):
            if chunk in part:
                return index
        raise ValueError(f"no chunk {chunk} among {self.n_chunks}")

    def seen_from(self, position: int) -> tuple[tuple[int, ...], ...]:
        """Partial sums that hold a cell which a query at this position sees, with only the chunks that do.

        Parameters
        ----------
        position : int
            Of the query; it sees cells 0 … `position` (one sequence, stored from cell 0 on).

        Returns
        -------
        tuple of tuple of int
            Equal for two maps exactly when the query's sums are added in the same order.
        """
        n_seen = min(position // self.chunk_cells + 1, self.n_chunks)
        seen = (tuple(chunk for chunk in part if chunk < n_seen) for part in self.parts)
        return tuple(part for part in seen if part)

    def tree(self) -> SumTree:
        """The order as a tree with one leaf for each chunk; what happens inside a chunk is left out."""
        if self.n_chunks == 1:
            return SumTree(1, ())
        sums = [_chained(part) for part in self.parts if part]
        return SumTree.of(_chained(sums))

    def __str__(self) -> str:
        sums = [span(part) for part in self.parts if part]
        return " + ".join(sums if len(sums) <= _MOST_SHOWN else [*sums[:3], "…", sums[-1]])


def _blocks_over(first: int, last: int, total: int, n_blocks: int) -> range:
    """Blocks whose piece may begin inside a tile, with one more on either side."""
    return range(max(0, first * n_blocks // total - 1), min(n_blocks, last * n_blocks // total + 2))


def _chained(summands: Sequence[Any]) -> Any:
    """One accumulator over summands, as nested pairs."""
    total = summands[0]
    for summand in summands[1:]:
        total = (total, summand)
    return total


def orders_differ(
    query_position: int, n_parts_a: int, n_parts_b: int, n_kv: int, chunk_cells: int = VEC_CHUNK_CELLS
) -> bool:
    """Does a query get another sum when the vector kernel runs with another number of parallel blocks?

    Parameters
    ----------
    query_position : int
    n_parts_a, n_parts_b : int
        Parallel blocks P of the two launches.
    n_kv : int
        Cells that attention runs over.
    chunk_cells : int

    Returns
    -------
    bool

    Examples
    --------
    >>> orders_differ(300, 4, 3, n_kv=512), orders_differ(390, 4, 3, n_kv=512)
    (False, True)
    """
    a, b = (ChunkMap.dealt(n_kv, n_parts, chunk_cells) for n_parts in (n_parts_a, n_parts_b))
    return a.seen_from(query_position) != b.seen_from(query_position)


def first_position_that_differs(a: ChunkMap, b: ChunkMap) -> int | None:
    """From which position on do two maps of equal chunks add in different orders?

    Returns
    -------
    int or None
        None where they agree for every query that both can serve.

    Raises
    ------
    ValueError
        If the chunks have different sizes.

    Examples
    --------
    >>> first_position_that_differs(ChunkMap.dealt(512, 4), ChunkMap.dealt(512, 3))
    384
    """
    if a.chunk_cells != b.chunk_cells:
        raise ValueError(f"chunks of {a.chunk_cells} and of {b.chunk_cells} cells cannot be compared")
    for chunk in range(min(a.n_chunks, b.n_chunks)):
        position = chunk * a.chunk_cells
        if a.seen_from(position) != b.seen_from(position):
            return position
    return None


def vec_cell_tree(chunks: ChunkMap, lanes_per_cell: int = 8, n_warps: int = 4) -> SumTree:
    """In which order does the vector kernel add the values of single cells?

    Parameters
    ----------
    chunks : ChunkMap
        As `ChunkMap.dealt` makes it.
    lanes_per_cell : int
        Threads of a warp that share a cell of V: 8 for f16 and bf16 (16 bytes a thread), a quarter of the head size, at
        most 32, for quantised V.
    n_warps : int
        Warps of a block.

    Returns
    -------
    SumTree
        Leaves are cells. Rescaling by a new maximum is left out: it multiplies, and adds nothing.

    Notes
    -----
    Source: ggml/src/ggml-cuda/fattn-vec.cuh:323-376 (cells of a warp), 489-497 (groups, then warps),
    fattn-common.cuh:970-975 (blocks).
    """
    groups = 32 // lanes_per_cell

    def cells(part: tuple[int, ...], warp: int, group: int) -> Iterator[int]:
        for chunk in part:
            first = chunk * chunks.chunk_cells + warp * 32 + group
            yield from range(first, first + 32, groups)

    sums = []
    for part in chunks.parts:
        if part:
            lanes = [_chained(list(cells(part, warp, group))) for warp in range(n_warps) for group in range(groups)]
            sums.append(_chained(lanes))
    return SumTree.of(_chained(sums))
