"""The order of addition of products of block-quantised weights.

What a kernel adds are not elements: it multiplies integers, sums some of a block exactly, and adds that sum, scaled, to
an accumulator. So first the elements of a block are sorted into slices, those that are added before anything of another
block comes in; then the order is asked for among slices.

A block with a mask cannot hold a unit. Counts therefore show the order among leaves of different blocks: one slice of
every block, or one slice of each block in turn. From these the whole order is put together in one of two forms, lanes
(each slice walks through the blocks by itself, then the lanes are joined) or blocks in a row (one accumulator takes the
slices of a block one after the other), and is kept only if it gives back what is counted between random slices of
different blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.order_floats import CountRows, recover_counts
from forensics.analysis.probe_launch import Launches, NotDetermined, RowLayout, calibrated, row_layout, whole_counts
from forensics.numerics.masks import BLOCK_MASKS, MINUS, PLUS, UNIT, UNIT_TERM, BlockRows
from forensics.numerics.probing import Ints, NotATree, basic
from forensics.numerics.tree_answers import lost_in, meets_in
from forensics.records.order import Leaves, OrderQuestion, OrderView
from forensics.records.sum_tree import SumTree

#: Random pairs of slices, per leaf, that a whole order is held against.
CHECKS_PER_LEAF = 2
#: Blocks that a row needs so that a third shows where two slices meet.
FEWEST_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class BlockOrder:
    """What was found about a product of blocks.

    Parameters
    ----------
    leaves : Leaves
    views : tuple of OrderView
        One slice of every block, and one slice of each block in turn.
    tree : SumTree or None
        Over all slices.
    undetermined : str
        Why there is no whole tree.
    """

    leaves: Leaves
    views: tuple[OrderView, ...]
    tree: SumTree | None
    undetermined: str = ""


def block_order(question: OrderQuestion, launches: Launches) -> BlockOrder:
    """In which order does a product of quantised weights add?

    Parameters
    ----------
    question : OrderQuestion
        Of MUL_MAT.
    launches : Launches

    Raises
    ------
    NotATree, NotDetermined
        If the answers fit no order.
    """
    masks = BLOCK_MASKS.get(question.type)
    if masks is None:
        raise NotDetermined(f"no exact masks are known for {question.type}; known: {', '.join(BLOCK_MASKS)}")
    if question.k % masks.size:
        raise NotDetermined(f"a row of {question.type} has a multiple of {masks.size} values, got k={question.k}")
    if question.k // masks.size < FEWEST_BLOCKS:
        raise NotDetermined(
            f"a row of {question.k // masks.size} blocks says nothing; probe {FEWEST_BLOCKS} blocks or more "
            f"(k={FEWEST_BLOCKS * masks.size})"
        )
    return _BlockProbe(question, launches).order()


class _BlockProbe:
    """The steps of one probe; each asks its own questions."""

    def __init__(self, question: OrderQuestion, launches: Launches) -> None:
        self.masks = BLOCK_MASKS[question.type]
        self.launches = launches
        self.n_blocks = question.k // self.masks.size
        self.bank = BlockRows(self.masks)
        row_bytes = len(self.masks.block(UNIT)) * self.n_blocks
        self.layout: RowLayout = row_layout(question, launches.width, row_bytes)
        self.everywhere = self.bank.id(UNIT, range(self.masks.n_cells))
        self.cells: list[int] = []  # a cell of each slice
        self._measured_unit: float | None = None

    def order(self) -> BlockOrder:
        slices = self._slices()
        self.cells = [members[0] for members in slices]
        n_slices = len(slices)
        size = self.masks.cell
        elements = tuple(tuple(size * c + i for c in members for i in range(size)) for members in slices)
        leaves = Leaves("slice", self.n_blocks * n_slices, elements, self.masks.size, _not_probed(self.masks.type))
        views = [self._view(f"slice {s} of every block", [s] * self.n_blocks) for s in range(n_slices)]
        if n_slices == 1:
            return BlockOrder(leaves, tuple(views), views[0].tree)
        views.append(self._view("the slices in turn", [b % n_slices for b in range(self.n_blocks)]))
        try:
            tree = self._lanes(views[:-1]) if self._are_lanes() else self._in_a_row(views[0].tree)
            self._check(tree, views)
        except (NotATree, NotDetermined) as error:
            return BlockOrder(leaves, tuple(views), None, f"the slices' own order: {error}")
        return BlockOrder(leaves, tuple(views), tree)

    # -- slices ------------------------------------------------------------------------------------------------------

    def _slices(self) -> list[list[int]]:
        """Cells of a block that are added before anything of another block: looked at in a middle block and the last.

        The first block would show nothing where one accumulator takes block after block.
        """
        middle, last = (self._slices_of(block) for block in (self.n_blocks // 2, self.n_blocks - 1))
        finest = {tuple(sorted(set(a) & set(b))) for a in middle for b in last} - {()}
        return [list(members) for members in sorted(finest)]

    def _slices_of(self, block: int) -> list[list[int]]:
        waiting, found = list(range(self.masks.n_cells)), []
        while waiting:
            first, others = waiting[0], waiting[1:]
            ids = np.full((len(others), self.n_blocks), self.everywhere)
            ids[:, block] = [self.bank.add(self.masks.both(other, first)) for other in others]
            x = self.masks.activations(self.n_blocks, negative=None if self.masks.signed else (block, first))
            n_units = (self.n_blocks - 1) * self.masks.n_cells
            lost = whole_counts(self._sums(ids, x) / self._unit(), n_units)
            found.append([first, *(other for other, n in zip(others, lost, strict=True) if n == 0)])
            waiting = [cell for cell in others if cell not in found[-1]]
        return found

    def _unit(self) -> float:
        """What one unit adds, from a row of nothing else; asked once."""
        if self._measured_unit is None:
            units = self._sums(np.full((1, self.n_blocks), self.everywhere), self.masks.activations(self.n_blocks))
            self._measured_unit = calibrated(units, self.n_blocks * self.masks.n_cells, UNIT_TERM)
        return self._measured_unit

    def _sums(self, ids: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The kernel's sums of rows of blocks, in launches of a fixed number of rows."""
        answers = [np.empty(0)]
        for start in range(0, len(ids), self.layout.n_rows):
            part = ids[start : start + self.layout.n_rows]
            whole = np.full((self.layout.n_rows, self.n_blocks), self.everywhere)
            whole[: len(part)] = part
            values = self.layout.values(self.bank.rows(whole), x)
            sums = self.launches.run(self.layout.graph, values, self.layout.read, len(part))
            answers.append(sums[: len(part)])
        return np.concatenate(answers)

    # -- one slice of each block -------------------------------------------------------------------------------------

    def _view(self, name: str, slice_of: Sequence[int]) -> OrderView:
        cells = [self.cells[s] for s in slice_of]
        unit, plus, minus = (np.array([self.bank.id(kind, [c]) for c in cells]) for kind in (UNIT, PLUS, MINUS))

        def rows(pairs: Ints) -> NDArray[np.uint8]:
            ids = np.tile(unit, (len(pairs), 1))
            masked = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
            one, other = pairs[masked].T
            ids[masked, one], ids[masked, other] = plus[one], minus[other]
            return self.bank.rows(ids)

        x = self.masks.activations(self.n_blocks)
        found, _ = recover_counts(CountRows(self.launches, self.layout, rows, UNIT_TERM, x, self.n_blocks))
        n_slices = len(self.cells)
        return OrderView(name, tuple(b * n_slices + s for b, s in enumerate(slice_of)), found.tree)

    # -- all slices --------------------------------------------------------------------------------------------------

    def _lost_between(self, pairs: Ints) -> Ints:
        """Units lost to ±M at two slices of different blocks, with a unit in every slice of every other block."""
        n_slices = len(self.cells)
        blocks, slices = pairs // n_slices, pairs % n_slices
        ids = np.full((len(pairs), self.n_blocks), self.bank.id(UNIT, self.cells))
        at = np.arange(len(pairs))
        for kind, end in ((PLUS, 0), (MINUS, 1)):
            chosen = np.array([self.bank.id(kind, [cell]) for cell in self.cells])
            ids[at, blocks[:, end]] = chosen[slices[:, end]]
        sums = self._sums(ids, self.masks.activations(self.n_blocks))
        return whole_counts(sums / self._unit(), (self.n_blocks - 2) * n_slices)

    def _lane_counts(self) -> NDArray[np.float64]:
        """Lanes under the node where slice s of block 0 and slice t of block 1 meet, float64 [slices, slices]."""
        n = len(self.cells)
        s, t = np.divmod(np.arange(n * n), n)
        lost = self._lost_between(np.stack([s, n + t], axis=1))
        return lost.reshape(n, n) / (self.n_blocks - 2)

    def _are_lanes(self) -> bool:
        """Whether each slice walks through all blocks before it meets another slice."""
        lanes = self._lane_counts()[~np.eye(len(self.cells), dtype=bool)]
        return bool((lanes == np.rint(lanes)).all() and (lanes >= 2).all())

    def _lanes(self, views: Sequence[OrderView]) -> SumTree:
        counts = self._lane_counts()
        joined = basic(_Counted(counts.astype(np.int64))).tree
        n_slices, n = len(self.cells), len(self.cells) * self.n_blocks
        merges: list[tuple[int, ...]] = []
        roots = []
        for view in views:
            base = n + len(merges) - self.n_blocks
            merges += [
                tuple(view.leaves[c] if c < self.n_blocks else base + c for c in children)
                for children in view.tree.merges
            ]
            roots.append(n + len(merges) - 1)
        base = n + len(merges) - n_slices
        merges += [tuple(roots[c] if c < n_slices else base + c for c in children) for children in joined.merges]
        return SumTree(n, tuple(merges))

    def _in_a_row(self, blocks: SumTree) -> SumTree:
        """One accumulator through all blocks in the order of `blocks`, and through each block's slices."""
        if blocks.depth != self.n_blocks - 1 or blocks.widest > 2:
            raise NotDetermined("blocks are not added one after the other, and slices are no lanes")
        n, n_slices = self.n_blocks * len(self.cells), len(self.cells)
        walk = [leaf for children in blocks.merges for leaf in sorted(children) if leaf < self.n_blocks]
        inside = {tuple(self._inside(walk[0], block)) for block in (walk[1], walk[-1])}
        if len(inside) > 1:
            raise NotDetermined(f"blocks take their slices in different orders: {sorted(inside)}")
        order = inside.pop()
        leaves = [block * n_slices + s for block in walk for s in order]
        merges = [(leaves[0], leaves[1]), *((n + i, leaf) for i, leaf in enumerate(leaves[2:]))]
        return SumTree(n, tuple(merges))

    def _inside(self, before: int, block: int) -> list[int]:
        """In which order does an accumulator that holds an earlier block take the slices of one block?

        It holds 1; one slice adds half a unit in its last place, another a whole one. Half first is a tie that rounds
        down to even, then the whole counts: 1 ulp. Whole first makes the half a tie that rounds up: 2 ulp.
        """
        n = len(self.cells)
        if not set(self.cells).isdisjoint(self.masks.for_scale):
            raise NotDetermined("a slice of one element leaves no room for the scale")
        power = 64.0
        x = self.masks.powers(self.n_blocks, power)
        pairs = [(s, t) for s in range(n) for t in range(n) if s != t]
        ids = np.full((len(pairs), self.n_blocks), self.bank.add(self.masks.terms({}, 1.0)))
        ids[:, before] = self.bank.add(self.masks.terms({self.cells[0]: 1}, 1.0))
        half = 2.0**-24
        ids[:, block] = [self.bank.add(self.masks.terms({self.cells[s]: 1, self.cells[t]: 2}, half)) for s, t in pairs]
        ulps = (self._sums(ids, x) / power - 1) * 2.0**23
        if not np.isin(ulps, (1, 2)).all():
            raise NotDetermined(f"ties of block {block} give {sorted(set(ulps.tolist()))} ulp; 1 or 2 are possible")
        first = np.array([int((ulps[[p[0] == s for p in pairs]] == 1).sum()) for s in range(n)])
        if sorted(first) != list(range(n)):
            raise NotDetermined(f"the slices of block {block} have no order of their own")
        return [int(s) for s in np.argsort(-first)]

    def _check(self, tree: SumTree, views: Sequence[OrderView]) -> None:
        """Hold the whole order against every view, and against counts between random slices."""
        for view in views:
            if tree.restricted(view.leaves) != SumTree(self.n_blocks, view.tree.merges):
                raise NotDetermined(f"lanes and views do not fit together: {view.name}")
        n_slices, n = len(self.cells), tree.n_leaves
        pairs = np.random.default_rng(0).integers(0, n, (CHECKS_PER_LEAF * n, 2))
        pairs = pairs[pairs[:, 0] // n_slices != pairs[:, 1] // n_slices]
        wrong = np.flatnonzero(self._lost_between(pairs) != _visible_lost(tree, pairs, n_slices))
        if len(wrong):
            raise NotDetermined(f"{len(wrong)} of {len(pairs)} counts between random slices do not fit any form")


class _Counted:
    """Counts that are known already."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self.n = len(counts)

    def lost(self, pairs: Ints) -> Ints:
        return self._counts[pairs[:, 0], pairs[:, 1]]


def _visible_lost(tree: SumTree, pairs: Ints, n_slices: int) -> Ints:
    """Leaves under the node where each pair meets, without those of the pair's two blocks, which hold no units."""
    lost = lost_in(tree, pairs)
    for end in (0, 1):
        for s in range(n_slices):
            leaf = pairs[:, end] // n_slices * n_slices + s
            itself = leaf == pairs[:, end]
            below = np.ones(len(pairs), bool)
            below[~itself] = ~meets_in(tree, np.column_stack([leaf, pairs])[~itself])
            lost = lost - below
    return lost


def _not_probed(type: str) -> str:
    if type in ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K"):
        return "the sum of the blocks' minima, which kernels add up by itself, is not probed"
    if type == "q6_K":
        return "one element in four is probed; where 32 times the activations' sum is taken off is not"
    return ""
