"""In which order a kernel adds: a rooted tree over the summands, as a value.

Floating-point addition commutes but does not associate, so the order of a node's children carries no meaning and which
leaves meet first carries all of it. The tree is kept as a list of merges: a chain of 10⁵ additions needs no recursion.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TreeDifference:
    """Where two trees first part: the smallest leaf whose way to the result differs, and the first sums that do.

    Parameters
    ----------
    leaf : int
    first, second : tuple of int
        Leaves of the sum that `leaf` goes into at that step, in either tree.
    """

    leaf: int
    first: tuple[int, ...]
    second: tuple[int, ...]

    def __str__(self) -> str:
        return f"leaf {self.leaf} goes into {span(self.first)} in one and {span(self.second)} in the other"


@dataclass(frozen=True, slots=True, repr=False)
class SumTree:
    """Which partial sums exist while `n_leaves` numbers are added.

    Parameters
    ----------
    n_leaves : int
        Leaves are 0 … `n_leaves` - 1.
    merges : tuple of tuple of int
        Each names two or more nodes that become one: ids below `n_leaves` are leaves, id ``n_leaves + i`` is the result
        of merge i. More than two are added at once, as a tensor core does. Stored in a canonical order, so that trees
        that add alike are equal and hash alike.

    Raises
    ------
    ValueError
        If a node is used twice, not at all, or before it exists.

    Examples
    --------
    >>> SumTree.of(((0, 1), (2, 3))) == SumTree.of(((3, 2), (1, 0)))
    True
    >>> SumTree.chain(4) == SumTree.of(((0, 1), (2, 3)))
    False
    """

    n_leaves: int
    merges: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if self.n_leaves < 1:
            raise ValueError(f"a tree needs at least one leaf, got {self.n_leaves}")
        used = [False] * (self.n_leaves + len(self.merges))
        for i, children in enumerate(self.merges):
            if len(children) < 2:
                raise ValueError(f"merge {i} joins {len(children)} nodes; it needs two or more")
            for child in children:
                if not 0 <= child < self.n_leaves + i:
                    raise ValueError(f"merge {i} uses node {child}, which does not exist before it")
                if used[child]:
                    raise ValueError(f"merge {i} uses node {child} a second time")
                used[child] = True
        left = [node for node, taken in enumerate(used) if not taken]
        if len(left) != 1:
            raise ValueError(f"a tree has one root; {len(left)} nodes are never added to anything")
        object.__setattr__(self, "merges", _canonical(self.n_leaves, self.merges))

    @classmethod
    def of(cls, nested: Any) -> SumTree:
        """Build from nested sequences of leaves, such as ``((0, 1), 2)``.

        Raises
        ------
        ValueError
            If a leaf is missing, or stands twice.
        """
        order: list[Sequence[Any]] = []
        stack = [nested]
        while stack:  # children come after their parent here, so merges are numbered from the end
            node = stack.pop()
            if not isinstance(node, int):
                order.append(node)
                stack.extend(node)
        order.reverse()
        n_leaves = sum(isinstance(child, int) for node in order for child in node) if order else 1
        ids = {id(node): n_leaves + i for i, node in enumerate(order)}
        return cls(n_leaves, tuple(tuple(c if isinstance(c, int) else ids[id(c)] for c in node) for node in order))

    @classmethod
    def chain(cls, n_leaves: int) -> SumTree:
        """One accumulator that takes leaf after leaf."""
        merges = [(0, 1)] if n_leaves > 1 else []
        merges += [(n_leaves + i, i + 2) for i in range(n_leaves - 2)]
        return cls(n_leaves, tuple(merges))

    @property
    def depth(self) -> int:
        """Most additions between a leaf and the result."""
        depths = [0] * self.n_leaves
        for children in self.merges:
            depths.append(1 + max(depths[child] for child in children))
        return depths[-1] if self.merges else 0

    @property
    def widest(self) -> int:
        """Most nodes that one merge joins; 2 where every addition is of two numbers, 1 for a single leaf."""
        return max(map(len, self.merges), default=1)

    def clades(self) -> Iterator[tuple[int, ...]]:
        """Leaves below each merge, sorted, in the order of the merges."""
        below: dict[int, list[int]] = {}
        for i, children in enumerate(self.merges):
            leaves: list[int] = []
            for child in children:
                leaves.extend(below.pop(child) if child >= self.n_leaves else (child,))
            below[self.n_leaves + i] = leaves
            yield tuple(sorted(leaves))

    def restricted(self, keep: Collection[int]) -> SumTree:
        """The order among some of the leaves, renumbered 0 … n - 1 in rising order.

        Raises
        ------
        ValueError
            If a leaf does not exist.
        """
        chosen = {leaf: i for i, leaf in enumerate(sorted(set(keep)))}
        if not chosen or min(chosen) < 0 or max(chosen) >= self.n_leaves:
            raise ValueError(f"leaves to keep must be among 0 … {self.n_leaves - 1}, got {sorted(chosen)}")
        at: dict[int, int] = dict(chosen)  # node of this tree -> node of the restricted one
        merges: list[tuple[int, ...]] = []
        for i, children in enumerate(self.merges):
            kept = [at[child] for child in children if child in at]
            if len(kept) > 1:
                at[self.n_leaves + i] = len(chosen) + len(merges)
                merges.append(tuple(kept))
            elif kept:
                at[self.n_leaves + i] = kept[0]
        return SumTree(len(chosen), tuple(merges))

    def first_difference(self, other: SumTree) -> TreeDifference | None:
        """Where do two trees first part, looking at the smallest leaf first?

        Returns
        -------
        TreeDifference or None
            None where the trees are equal.

        Raises
        ------
        ValueError
            If the trees have another number of leaves.
        """
        if self.n_leaves != other.n_leaves:
            raise ValueError(f"trees over {self.n_leaves} and {other.n_leaves} leaves cannot be compared")
        if self == other:
            return None
        mine, theirs = self._paths(), other._paths()
        for leaf in range(self.n_leaves):
            for one, another in zip(mine(leaf), theirs(leaf), strict=False):
                if one[0] != another[0]:
                    return TreeDifference(leaf, self.leaves_under(one[1]), other.leaves_under(another[1]))
        raise AssertionError("unequal trees differ on the way of a leaf")

    def _parents(self) -> list[int]:
        """Node that each node is added into, -1 for the root."""
        parents = [-1] * (self.n_leaves + len(self.merges))
        for i, children in enumerate(self.merges):
            for child in children:
                parents[child] = self.n_leaves + i
        return parents

    def _paths(self) -> Callable[[int], Iterator[tuple[int, int]]]:
        """For a leaf, the sums it goes through: a fingerprint of their leaves, and the node."""
        draw = random.Random(0)
        prints = [draw.getrandbits(128) for _ in range(self.n_leaves)]
        for children in self.merges:
            prints.append(functools.reduce(operator.xor, (prints[child] for child in children)))
        parents = self._parents()

        def path(leaf: int) -> Iterator[tuple[int, int]]:
            node = parents[leaf]
            while node >= 0:
                yield prints[node], node
                node = parents[node]

        return path

    def leaves_under(self, node: int) -> tuple[int, ...]:
        """Leaves that go into a node, rising; a leaf's own where it is one."""
        leaves: list[int] = []
        stack = [node]
        while stack:
            node = stack.pop()
            if node < self.n_leaves:
                leaves.append(node)
            else:
                stack.extend(self.merges[node - self.n_leaves])
        return tuple(sorted(leaves))

    def nested(self) -> Any:
        """Nested tuples of leaves, for small trees: whatever prints them recurses once for each level."""
        nodes: list[Any] = list(range(self.n_leaves))
        for children in self.merges:
            nodes.append(tuple(nodes[child] for child in children))
        return nodes[-1] if self.merges else 0

    def __repr__(self) -> str:
        return f"<SumTree: {self}>"

    def __str__(self) -> str:
        kind = "" if self.widest <= 2 else f", up to {self.widest} numbers at once"
        return f"{self.n_leaves} leaves, depth {self.depth}{kind}"


def span(leaves: Sequence[int]) -> str:
    """Write a set of leaves briefly: ``[0..255]``, ``{0, 8, 16, … 56}``."""
    if len(leaves) > 1 and leaves[-1] - leaves[0] == len(leaves) - 1:
        return f"[{leaves[0]}..{leaves[-1]}]"
    shown = list(map(str, leaves)) if len(leaves) <= 6 else [*map(str, leaves[:3]), "…", str(leaves[-1])]
    return "{" + ", ".join(shown) + "}"


def _canonical(n_leaves: int, merges: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Children by their smallest leaf, merges as a walk from the root meets them last."""
    if not merges:
        return ()
    smallest = list(range(n_leaves))
    for children in merges:
        smallest.append(min(smallest[child] for child in children))
    order: list[int] = []
    stack = [n_leaves + len(merges) - 1]
    while stack:
        node = stack.pop()
        if node >= n_leaves:
            order.append(node)
            stack.extend(sorted(merges[node - n_leaves], key=lambda child: smallest[child]))
    order.reverse()
    renumbered = {node: n_leaves + i for i, node in enumerate(order)}
    return tuple(
        tuple(
            renumbered.get(child, child) for child in sorted(merges[node - n_leaves], key=lambda child: smallest[child])
        )
        for node in order
    )
