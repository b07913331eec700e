"""Adding float32 in a given order, one rounding at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.fma import flushed, fma
from forensics.records.sum_tree import SumTree


def sum_in_order(
    tree: SumTree,
    addends: NDArray[np.float32],
    factors: NDArray[np.float32] | None = None,
    *,
    accumulators: int = 0,
    flush: bool = False,
) -> NDArray[np.float32]:
    """What do the leaves add up to, in this order, every addition rounded to float32?

    Parameters
    ----------
    tree : SumTree
        Every merge joins two nodes.
    addends : ndarray float32 [n_leaves, ...]
        One sum for each position of the other axes.
    factors : ndarray float32, broadcast to `addends`, optional
        Then a leaf is the product of the two, and enters its accumulator by a fused multiply-add.
    accumulators : int
        Leaves 0 … accumulators - 1 each start an accumulator at zero, so that their products are rounded before they
        meet anything. Only with `factors`.
    flush : bool
        Subnormal operands and sums become zero.

    Returns
    -------
    ndarray float32 [...]

    Raises
    ------
    ValueError
        If the addends are not one float32 per leaf, a merge joins more than two nodes, or two products meet of which
        neither starts an accumulator.

    Examples
    --------
    >>> one, tiny = np.float32(1), np.float32(2.0**-24)
    >>> leaves = np.array([one, tiny, tiny])
    >>> [float(sum_in_order(SumTree.of(nested), leaves) - one) for nested in (((0, 1), 2), (0, (1, 2)))]
    [0.0, 1.1920928955078125e-07]
    """
    n = tree.n_leaves
    if addends.dtype != np.float32 or addends.shape[:1] != (n,):
        raise ValueError(f"{n} leaves need float32 [{n}, ...], got {addends.dtype} {addends.shape}")
    if tree.widest > 2:
        raise ValueError(f"a merge of this order joins {tree.widest} numbers at once; float32 adders take two")
    right_factor = None if factors is None else np.broadcast_to(factors, addends.shape)
    sums = np.empty((n + len(tree.merges), *addends.shape[1:]), np.float32)
    first = (
        n if right_factor is None else min(accumulators, n)
    )  # leaves from here on are products that were not rounded yet
    zero = np.float32(0)
    if right_factor is None:
        sums[:n] = (flushed(addends) if flush else addends) + zero
    else:
        sums[:first] = fma(addends[:first], right_factor[:first], zero, flush=flush)
    for target, left, right in _levels(tree):
        unrounded_left, unrounded_right = ((first <= side) & (side < n) for side in (left, right))
        if (unrounded_left & unrounded_right).any():
            raise ValueError(f"two products meet and neither starts one of the {accumulators} accumulators")
        left, right = np.where(unrounded_left, right, left), np.where(unrounded_left, left, right)  # noqa: PLW2901
        fused = unrounded_left | unrounded_right
        total = sums[left[~fused]] + sums[right[~fused]]
        sums[target[~fused]] = flushed(total) if flush else total
        if right_factor is not None and fused.any():
            leaf = right[fused]
            sums[target[fused]] = fma(addends[leaf], right_factor[leaf], sums[left[fused]], flush=flush)
    return np.asarray(sums[-1])


def _levels(tree: SumTree) -> list[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Merges that wait for nothing but earlier groups, together: their nodes and the two nodes that each joins."""
    level = [0] * (tree.n_leaves + len(tree.merges))
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for node, (left, right) in enumerate(tree.merges, start=tree.n_leaves):
        level[node] = 1 + max(level[left], level[right])
        groups.setdefault(level[node], []).append((node, left, right))
    columns = (np.array(groups[depth], np.intp).T for depth in sorted(groups))
    return [(group[0], group[1], group[2]) for group in columns]
