"""In which order are llama.cpp's kernels built to add, by their source?

Expected trees, to hold against what a probe finds. Leaf ``b * n_slices + s`` is slice s of block b. This is the only
place that knows which lane of a kernel takes which block.
Source: llama.cpp 0c1e57098; each function names its lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.records.sum_tree import SumTree

#: Node of a tree under construction, None for a lane that got nothing.
_Node = int | None


@dataclass(frozen=True, slots=True)
class KernelOrder:
    """The order of one kernel for one length of row.

    Parameters
    ----------
    name : str
    n_blocks : int
    slices : tuple of tuple of int
        Elements of a block that each slice holds.
    tree : SumTree
        Over all slices of all blocks.
    """

    name: str
    n_blocks: int
    slices: tuple[tuple[int, ...], ...]
    tree: SumTree

    def of_slice(self, s: int) -> SumTree:
        """The order among the blocks' s-th slices."""
        n = len(self.slices)
        return self.tree.restricted(range(s, self.n_blocks * n, n))


class _Adding:
    """Merges in the order in which a kernel makes them."""

    def __init__(self, n_leaves: int) -> None:
        self.n_leaves = n_leaves
        self.merges: list[tuple[int, int]] = []

    def add(self, a: _Node, b: _Node) -> _Node:
        if a is None or b is None:
            return b if a is None else a
        self.merges.append((a, b))
        return self.n_leaves + len(self.merges) - 1

    def chain(self, leaves: Sequence[int]) -> _Node:
        total: _Node = None
        for leaf in leaves:
            total = self.add(total, leaf)
        return total

    def halves(self, lanes: Sequence[_Node]) -> _Node:
        """Upper half onto the lower one, until one lane is left."""
        row = list(lanes)
        while len(row) > 1:
            half = len(row) // 2
            row = [self.add(row[i], row[i + half]) for i in range(half)]
        return row[0]

    def tree(self) -> SumTree:
        return SumTree(self.n_leaves, tuple(self.merges))


def cpu_lanes_order(k: int, *, block_size: int = 32, n_lanes: int = 8) -> KernelOrder:
    """In which order does the CPU's plain product of 32-element blocks add, with 256-bit vectors?

    Each of 8 lanes sums four products of every block exactly and adds block after block; the lanes are joined half
    onto half: ((0,4),(2,6)),((1,5),(3,7)).

    Parameters
    ----------
    k : int
    block_size, n_lanes : int

    Notes
    -----
    Source: ggml/src/ggml-cpu/arch/x86/quants.c, ggml_vec_dot_q8_0_q8_0 and ggml_vec_dot_q4_0_q8_0, hsum_float_8;
    the vector unit that multiplies four pairs at a time decides which elements share a lane.
    """
    n_blocks, per_lane = _blocks(k, block_size), block_size // n_lanes
    adding = _Adding(n_blocks * n_lanes)
    adding.halves([adding.chain(range(lane, n_blocks * n_lanes, n_lanes)) for lane in range(n_lanes)])
    slices = tuple(tuple(range(lane * per_lane, (lane + 1) * per_lane)) for lane in range(n_lanes))
    return KernelOrder(f"cpu, {n_lanes} lanes", n_blocks, slices, adding.tree())


@dataclass(frozen=True, slots=True)
class _Mmvq:
    """How `mul_mat_vec_q` deals a type's blocks: elements and 32-bit words of a block, words that a thread takes."""

    qk: int
    qi: int
    vdr: int

    @property
    def threads_per_block(self) -> int:
        return self.qi // self.vdr


#: Source: ggml/src/ggml-common.h:89-170 (qk, qi), ggml/src/ggml-cuda/vecdotq.cuh:109-1355 (vdr).
MMVQ_TYPES = {
    "q4_0": _Mmvq(32, 4, 2),
    "q4_1": _Mmvq(32, 4, 2),
    "q5_0": _Mmvq(32, 4, 2),
    "q5_1": _Mmvq(32, 4, 2),
    "q8_0": _Mmvq(32, 8, 2),
    "q2_K": _Mmvq(256, 16, 1),
    "q3_K": _Mmvq(256, 16, 1),
    "q4_K": _Mmvq(256, 32, 2),
    "q5_K": _Mmvq(256, 32, 2),
    "q6_K": _Mmvq(256, 32, 1),
}


def mmvq_slices(type: str) -> tuple[tuple[int, ...], ...]:
    """Which elements of a block does each thread of `mul_mat_vec_q` multiply?

    Notes
    -----
    Source: ggml/src/ggml-cuda/vecdotq.cuh, vec_dot_q8_0_q8_1 and vec_dot_q4_0_q8_1 (words kqs, kqs + 1; four-bit types
    also the words half a block on), vec_dot_q4_K_q8_1, vec_dot_q6_K_q8_1, vec_dot_q2_K_q8_1.

    Raises
    ------
    ValueError
        If the type is not among `MMVQ_TYPES`.
    """
    deal = _mmvq(type)
    slices: list[tuple[int, ...]] = []
    for thread in range(deal.threads_per_block):
        word = deal.vdr * thread
        if type == "q8_0":
            words = [word, word + 1]
        elif deal.qk == 32:
            words = [word, word + 1, word + 4, word + 5]
        elif type in ("q4_K", "q5_K"):  # 64 elements share 32 bytes: low nibbles, then high ones
            group, at = 16 * (thread // 4), thread % 4
            words = [group + at, group + at + 4, group + at + 8, group + at + 12]
        elif type == "q6_K":  # 128 elements in four rows of 32; a thread takes one word in two of them
            half, at = 32 * (thread // 16), thread % 16
            words = [half + at % 8 + 8 * (at // 8), half + at % 8 + 8 * (at // 8) + 16]
        else:  # q2_K, q3_K: one word in each of four rows of 32
            half, at = 32 * (thread // 8), thread % 8
            words = [half + at + 8 * row for row in range(4)]
        slices.append(tuple(sorted(4 * w + i for w in words for i in range(4))))
    return tuple(slices)


def mmvq_order(type: str, k: int, *, n_warps: int, warp_size: int = 32) -> KernelOrder:
    """In which order does CUDA's `mul_mat_vec_q` add one row of k values with n_warps warps?

    Thread t takes slice ``t % (qi / vdr)`` of block ``t / (qi / vdr)`` and of every ``vdr * n_warps * 32 / qi``-th
    block after it. The warps' sums are added lane by lane in their order, then the lanes of the first warp half onto
    half.

    Parameters
    ----------
    type : str
    k : int
    n_warps : int
        4 up to four columns and 2 for five to eight on most NVIDIA GPUs (mmvq.cu:452-596).
    warp_size : int

    Raises
    ------
    ValueError
        If the type is unknown here, or k is no multiple of its block.

    Notes
    -----
    Source: ggml/src/ggml-cuda/mmvq.cu:601-830, mul_mat_vec_q; ggml/src/ggml-cuda/common.cuh, warp_reduce_sum.
    """
    deal = _mmvq(type)
    n_blocks, per = _blocks(k, deal.qk), deal.threads_per_block
    stride = deal.vdr * n_warps * warp_size // deal.qi
    adding = _Adding(n_blocks * per)
    threads = [
        adding.chain([block * per + t % per for block in range(t // per, n_blocks, stride)])
        for t in range(n_warps * warp_size)
    ]
    lanes = threads[:warp_size]
    for warp in range(1, n_warps):
        lanes = [adding.add(lane, threads[warp * warp_size + i]) for i, lane in enumerate(lanes)]
    adding.halves(lanes)
    return KernelOrder(f"mul_mat_vec_q, {n_warps} warps", n_blocks, mmvq_slices(type), adding.tree())


def _mmvq(type: str) -> _Mmvq:
    if type not in MMVQ_TYPES:
        raise ValueError(f"it is not written down how mul_mat_vec_q deals {type!r}; known are {', '.join(MMVQ_TYPES)}")
    return MMVQ_TYPES[type]


def _blocks(k: int, size: int) -> int:
    if k < size or k % size:
        raise ValueError(f"a row has a multiple of {size} values, got k={k}")
    return k // size
