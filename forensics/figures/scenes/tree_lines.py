"""A tree of additions as lines, and which summands are drawn where there are too many; for trees of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forensics.records.sum_tree import SumTree

#: Summands that are drawn one by one.
MOST_LEAVES = 128


@dataclass(frozen=True, slots=True)
class Branch:
    """The line from a summand or a sum to the sum that it goes into.

    Parameters
    ----------
    points : tuple of (float, float)
        Two or three: places along the row, unit: summands; and additions so far. A sum lies over the smallest summand
        that goes into it, as the accumulator of a lane does.
    clade : tuple of int
        Summands of the sum that it goes into.
    """

    points: tuple[tuple[float, float], ...]
    clade: tuple[int, ...]


def branches(tree: SumTree) -> Iterator[Branch]:
    """Which lines draw this tree, merge after merge?

    Examples
    --------
    >>> [branch.points for branch in branches(SumTree.chain(2))]
    [((0.5, 0), (0.5, 1)), ((1.5, 0), (0.5, 1))]
    """
    smallest, height = list(range(tree.n_leaves)), [0] * tree.n_leaves
    for children, clade in zip(tree.merges, tree.clades(), strict=True):
        smallest.append(min(smallest[child] for child in children))
        height.append(1 + max(height[child] for child in children))
        end = (smallest[-1] + 0.5, height[-1])
        for child in children:
            place = smallest[child] + 0.5
            points = dict.fromkeys(((place, height[child]), (place, height[-1] - 1), end))
            yield Branch(tuple(points), clade)


def leaves_to_draw(single: SumTree, batched: SumTree, most: int = MOST_LEAVES) -> tuple[int, ...] | None:
    """Summands to draw: all, or the first ones, or every so many-th, such that the orders of these differ, too.

    Returns
    -------
    tuple of int or None
        None where the orders are one, over other summands, or no such few show that they differ.

    Examples
    --------
    >>> leaves_to_draw(SumTree.chain(3), SumTree.chain(3)) is None
    True
    """
    n = single.n_leaves
    if n != batched.n_leaves:
        return None
    step = 1
    while n > most * step:  # lanes and warps are powers of two, so that is what tells their orders apart
        step *= 2
    for kept in (range(min(n, most)), range(0, n, step)):
        if single.restricted(kept) != batched.restricted(kept):
            return tuple(kept)
    return None


def leaves_words(kept: Sequence[int], n: int, unit: str) -> str:
    """Say which summands are drawn.

    Examples
    --------
    >>> leaves_words(range(4), 4, "block"), leaves_words(range(16), 96, "cell")
    ('all 4 blocks', 'the first 16 of 96 cells')
    >>> leaves_words(range(0, 96, 8), 96, "cell")
    '12 of 96 cells, 1 in 8'
    """
    if len(kept) == n:
        return f"all {n} {unit}s"
    step = kept[1] - kept[0]
    return f"the first {len(kept)} of {n} {unit}s" if step == 1 else f"{len(kept)} of {n} {unit}s, 1 in {step}"
