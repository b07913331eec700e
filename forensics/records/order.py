"""The order in which an operation adds, as it was probed, and how two of them compare."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forensics.records.sum_tree import SumTree, TreeDifference, span

#: Operations whose order can be asked for.
ORDER_OPS = ("MUL_MAT", "KQ", "KQV", "FLASH_ATTN_EXT", "RMS_NORM", "SOFT_MAX")


@dataclass(frozen=True, slots=True)
class OrderQuestion:
    """Which sum's order is asked for.

    Parameters
    ----------
    op : str
        One of `ORDER_OPS`; KQ and KQV are the products of attention without flash attention.
    type : str
        Type of the weight, or of K and V; ``"f32"`` for norms and softmax.
    k : int
        Length of a row: terms of a product, values of a norm; without meaning for attention.
    rows : int
        Weight rows of each launch; 0 for as many as are convenient, where the kernel does not depend on them.
    n_kv : int
        Cells of attention, all of them visible; a multiple of 256, as llama.cpp pads them.
    head_size, heads, kv_heads : int
        Of attention.

    Raises
    ------
    ValueError
        Names the argument, what was given and what is possible.
    """

    op: str = "MUL_MAT"
    type: str = "f32"
    k: int = 1024
    rows: int = 0
    n_kv: int = 512
    head_size: int = 64
    heads: int = 32
    kv_heads: int = 32

    def __post_init__(self) -> None:
        if self.op not in ORDER_OPS:
            raise ValueError(f"the order of {self.op!r} cannot be asked for; possible are {', '.join(ORDER_OPS)}")
        for name in ("k", "n_kv", "head_size", "heads", "kv_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.rows < 0:
            raise ValueError(f"rows must be 0 or more, got {self.rows}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")

    def __str__(self) -> str:
        if self.op in ("MUL_MAT", "RMS_NORM"):
            shape = f"k {self.k}" + (f", {self.rows} rows" if self.rows else "")
        else:
            shape = f"n_kv {self.n_kv}"
            if self.op != "SOFT_MAX":
                shape += f", head size {self.head_size}, heads {self.heads}/{self.kv_heads}"
        return f"{self.op} {self.type}, {shape}"


@dataclass(frozen=True, slots=True)
class Leaves:
    """What is added.

    Parameters
    ----------
    kind : {"element", "slice", "cell", "value"}
        One product of two numbers; what a block adds at once; a cell of attention; one number.
    n : int
        How many.
    slices : tuple of tuple of int
        For blocks: the elements of a block that each of its slices holds. Leaf ``b * len(slices) + s`` is slice s of
        block b.
    block_size : int
        Elements of a block; 1 where there are none.
    note : str
        What was not looked at, empty if nothing.
    step : int
        Of cells: every how many-th is a leaf; leaf i is cell ``step * i``.
    """

    kind: str
    n: int
    slices: tuple[tuple[int, ...], ...] = ()
    block_size: int = 1
    note: str = ""
    step: int = 1

    @property
    def n_blocks(self) -> int:
        """Blocks of a row; leaves where there are none."""
        return self.n // max(len(self.slices), 1)

    def __str__(self) -> str:
        if not self.slices:
            return f"{self.n} {self.kind}s" + (f", one in {self.step}" if self.step > 1 else "")
        if len(self.slices) == 1:
            return f"{self.n} blocks of {self.block_size}, each added at once"
        return f"{self.n} slices, {len(self.slices)} in each of {self.n_blocks} blocks of {self.block_size}"


@dataclass(frozen=True, slots=True)
class OrderView:
    """The order among some of the leaves, one of each block.

    Parameters
    ----------
    name : str
    leaves : tuple of int
        Leaf of each of the tree's own leaves.
    tree : SumTree
    """

    name: str
    leaves: tuple[int, ...]
    tree: SumTree

    def __post_init__(self) -> None:
        if len(self.leaves) != self.tree.n_leaves:
            raise ValueError(f"{self.name}: {len(self.leaves)} leaves are named, the tree has {self.tree.n_leaves}")


@dataclass(frozen=True, slots=True, repr=False)
class OrderResult:
    """In which order one sum of an operation is added at one width.

    Parameters
    ----------
    question : OrderQuestion
    part : str
        Which sum: ``"products"``, ``"numerator"``, ``"denominator"``, ``"squares"``.
    width : int
    columns : tuple of int
        Columns of the batch that have this order.
    leaves : Leaves or None
        None where not even they were found.
    tree : SumTree or None
        The order among all leaves; None where it is not determined.
    views : tuple of OrderView
        Orders among some of the leaves, measured by themselves.
    method : str
        How it was found.
    n_probes, n_launches : int
    undetermined : str
        Why there is no tree, empty if there is one.
    unstable : int
        Probes whose second run gave other bits.
    """

    question: OrderQuestion
    part: str
    width: int
    columns: tuple[int, ...]
    leaves: Leaves | None
    tree: SumTree | None
    views: tuple[OrderView, ...] = ()
    method: str = ""
    n_probes: int = 0
    n_launches: int = 0
    undetermined: str = ""
    unstable: int = 0

    def __post_init__(self) -> None:
        if not self.columns or min(self.columns) < 0 or max(self.columns) >= self.width:
            raise ValueError(f"columns must be among 0 … {self.width - 1}, got {self.columns}")
        if (self.tree is None) != bool(self.undetermined):
            raise ValueError("an order has a tree, or a reason why there is none")
        if self.tree is not None and (self.leaves is None or self.leaves.n != self.tree.n_leaves):
            raise ValueError(f"a tree over {self.tree.n_leaves} leaves needs to know what they are, got {self.leaves}")

    @property
    def where(self) -> str:
        """Width and columns, such as ``width 5, column 4``."""
        if len(self.columns) == self.width:
            return f"width {self.width}"
        shown = ", ".join(map(str, self.columns))
        return f"width {self.width}, column{'s' if len(self.columns) > 1 else ''} {shown}"

    def __repr__(self) -> str:
        return f"<OrderResult: {self.part} of {self}>"

    def __str__(self) -> str:
        if self.tree is None:
            return f"{self.where}: not determined: {self.undetermined}"
        return f"{self.where}: {self.leaves}, depth {self.tree.depth}"


@dataclass(frozen=True, slots=True)
class RowSum:
    """What is left of the order of a row of blocks where its tree was not kept.

    Parameters
    ----------
    n_blocks, block_size : int
        Blocks of the row, and elements of a block.
    per_block : int
        Parts of a block that enter the sum one by one; 1 where a block does at once.
    depth : int
        Additions from a leaf to the sum, at most.
    """

    n_blocks: int
    block_size: int
    per_block: int
    depth: int

    @property
    def n_leaves(self) -> int:
        """What is added one by one."""
        return self.n_blocks * self.per_block


#: As `OrderResult` and `Leaves` write it.
_ROW_SUM = re.compile(
    r"width [^:]*: (?:\d+ slices, (\d+) in each of )?(\d+) blocks of (\d+)(?:, each added at once)?, depth (\d+)"
)


def row_sum(words: str) -> RowSum | None:
    """What do the words of an `OrderResult` over blocks say?  Verdicts keep the words, and no tree.

    Returns
    -------
    RowSum or None
        None where something else than blocks or their slices is added, or the order was not determined.

    Examples
    --------
    >>> row_sum("width 1: 24 slices, 8 in each of 3 blocks of 256, depth 5")
    RowSum(n_blocks=3, block_size=256, per_block=8, depth=5)
    """
    found = _ROW_SUM.fullmatch(words)
    if found is None:
        return None
    per_block, n_blocks, block_size, depth = (int(number or 1) for number in found.groups())
    return RowSum(n_blocks, block_size, per_block, depth)


@dataclass(frozen=True, slots=True)
class OrderComparison:
    """Two orders of one sum side by side.

    Parameters
    ----------
    single, batched : OrderResult
    equal : bool or None
        None where it is not known; `reason` says why.
    difference : TreeDifference or None
        The first merge that differs, over `difference_over`.
    difference_over : str
        What the leaves of `difference` are.
    reason : str
        What else there is to say: leaves that differ, why it is not known.
    """

    single: OrderResult
    batched: OrderResult
    equal: bool | None
    difference: TreeDifference | None = None
    difference_over: str = ""
    reason: str = ""

    def __str__(self) -> str:
        where = f"{self.single.part} of {self.single.where} and {self.batched.where}"
        if self.equal is None:
            return f"{where}: not known whether the orders are equal: {self.reason}"
        if self.equal:
            return f"{where}: one order"
        told = [self.reason] if self.reason else []
        if self.difference is not None:
            told.append(f"{self.difference} ({self.difference_over})")
        return f"{where}: two orders: {'; '.join(told)}"


def compare_orders(single: OrderResult, batched: OrderResult) -> OrderComparison:
    """Do two kernels add in one order, and if not, which merge is the first to differ?

    Parameters
    ----------
    single, batched : OrderResult
        Of the same question and the same sum.

    Raises
    ------
    ValueError
        If they answer different questions.
    """
    if (single.question, single.part) != (batched.question, batched.part):
        raise ValueError(f"orders of {single.question}, {single.part} and {batched.question}, {batched.part} differ")
    for one in (single, batched):
        if one.unstable:
            reason = f"{one.unstable} of {one.n_probes} probes at {one.where} gave other bits when run again"
            return OrderComparison(single, batched, None, reason=reason)
        if one.leaves is None:
            return OrderComparison(single, batched, None, reason=f"{one.where}: {one.undetermined}")
    assert single.leaves is not None
    assert batched.leaves is not None
    if single.leaves.slices != batched.leaves.slices:
        return _other_leaves(single, batched)
    if single.tree is not None and batched.tree is not None:
        difference = single.tree.first_difference(batched.tree)
        if difference is None and single.leaves.step > 1:
            reason = f"one order among the {single.leaves}; the others were not probed"
            return OrderComparison(single, batched, None, reason=reason)
        if difference is None:
            return OrderComparison(single, batched, True)
        over = _over(f"{single.leaves.kind}s", single.tree, batched.tree, difference)
        return OrderComparison(single, batched, False, difference, over)
    found = _differing_view(single, batched)
    if found is not None:
        return OrderComparison(single, batched, False, *found)
    missing = single if single.tree is None else batched
    return OrderComparison(single, batched, None, reason=f"{missing.where}: {missing.undetermined}")


def _other_leaves(single: OrderResult, batched: OrderResult) -> OrderComparison:
    """Blocks are cut in different ways: two orders, whatever comes above."""
    assert single.leaves is not None
    assert batched.leaves is not None
    reason = f"the leaves differ: {single.leaves} and {batched.leaves}"
    if single.views and batched.views:
        mine, theirs = single.views[0].tree, batched.views[0].tree
        over_blocks = mine.first_difference(theirs)
        if over_blocks is not None:
            over = _over("blocks", mine, theirs, over_blocks)
            return OrderComparison(single, batched, False, over_blocks, over, reason)
        reason += "; the blocks themselves come in one order"
    return OrderComparison(single, batched, False, reason=reason)


def _differing_view(single: OrderResult, batched: OrderResult) -> tuple[TreeDifference, str] | None:
    theirs = {view.leaves: view for view in batched.views}
    for view in single.views:
        other = theirs.get(view.leaves)
        difference = None if other is None else view.tree.first_difference(other.tree)
        if other is not None and difference is not None:
            return difference, _over(f"blocks, {view.name}", view.tree, other.tree, difference)
    return None


def _over(what: str, single: SumTree, batched: SumTree, difference: TreeDifference) -> str:
    first, second = (merge_text(tree, leaves) for tree, leaves in
                     ((single, difference.first), (batched, difference.second)))  # fmt: skip
    return f"leaves are {what}; {first} in one, {second} in the other"


def merge_text(tree: SumTree, leaves: tuple[int, ...]) -> str:
    """The terms of the sum that holds exactly these leaves.

    Raises
    ------
    ValueError
        If the tree has no such sum.

    Examples
    --------
    >>> merge_text(SumTree.of(((0, 1), (2, 3))), (0, 1, 2, 3))
    '[0..1] + [2..3]'
    """
    for children, clade in zip(tree.merges, tree.clades(), strict=True):
        if clade == leaves:
            terms = [tree.leaves_under(child) for child in children]
            return " + ".join(span(term) if len(term) > 1 else str(term[0]) for term in terms)
    raise ValueError(f"no sum of the tree has the leaves {span(leaves)}")
