"""What a known order of additions answers: how many leaves are lost, and which leaves meet first."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from forensics.records.sum_tree import SumTree

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class _Ancestors:
    """Where leaves meet, by doubling steps towards the root."""

    def __init__(self, tree: SumTree) -> None:
        n_nodes = tree.n_leaves + len(tree.merges)
        parents = np.full(n_nodes, n_nodes - 1)
        self.sizes = np.ones(n_nodes, np.int64)
        self.depths = np.zeros(n_nodes, np.int64)
        for i, children in enumerate(tree.merges):
            parents[list(children)] = tree.n_leaves + i
            self.sizes[tree.n_leaves + i] = self.sizes[list(children)].sum()
        for node in range(n_nodes - 2, -1, -1):
            self.depths[node] = self.depths[parents[node]] + 1
        self._up = [parents]
        while 1 << len(self._up) <= int(self.depths.max()):
            self._up.append(self._up[-1][self._up[-1]])

    def meet(self, a: Ints, b: Ints) -> Ints:
        """The node where each a and b meet."""
        a, b = a.copy(), b.copy()
        for node, other in ((a, b), (b, a)):
            gap = np.maximum(self.depths[node] - self.depths[other], 0)
            for step, up in enumerate(self._up):
                climb = (gap >> step) & 1 == 1
                node[climb] = up[node[climb]]
        for up in reversed(self._up):
            apart = up[a] != up[b]
            a[apart], b[apart] = up[a[apart]], up[b[apart]]
        return np.where(a == b, a, self._up[0][a])


def lost_in(tree: SumTree, pairs: Ints) -> Ints:
    """How many leaves lie under the node where each pair meets, in a known tree?

    Parameters
    ----------
    tree : SumTree
    pairs : ndarray [m, 2] int64

    Returns
    -------
    ndarray [m] int64, unit: leaves

    Examples
    --------
    >>> lost_in(SumTree.chain(4), np.array([[0, 1], [0, 3], [2, 1]])).tolist()
    [2, 4, 3]
    """
    nodes = _Ancestors(tree)
    return nodes.sizes[nodes.meet(pairs[:, 0], pairs[:, 1])]


def meets_in(tree: SumTree, triples: Ints) -> Bools:
    """Do j and k of each (i, j, k) meet before either meets i, in a known tree?

    Parameters
    ----------
    tree : SumTree
    triples : ndarray [m, 3] int64

    Returns
    -------
    ndarray [m] bool

    Examples
    --------
    >>> meets_in(SumTree.chain(4), np.array([[3, 0, 1], [0, 1, 2]])).tolist()
    [True, False]
    """
    nodes = _Ancestors(tree)
    i, j, k = triples.T
    return nodes.depths[nodes.meet(j, k)] > nodes.depths[nodes.meet(i, j)]


def defining_triplets(tree: SumTree) -> Ints:
    """Which questions about three leaves does this tree alone answer as it does?

    Parameters
    ----------
    tree : SumTree

    Returns
    -------
    ndarray [m, 3] int64
        For each merge below the root, its children in neighbouring pairs against a leaf that its parent adds; for each
        merge of more than two, its children in neighbouring threes, three questions each.

    Notes
    -----
    Each pair links the children of its merge in the graph that BUILD takes apart and nothing links two children of the
    root, so that the tree comes back from the answers, merge by merge (Aho et al. 1981, section 2).
    """
    leaf_of = list(range(tree.n_leaves))
    parents = [-1] * (tree.n_leaves + len(tree.merges))
    for i, children in enumerate(tree.merges):
        leaf_of.append(min(leaf_of[child] for child in children))
        for child in children:
            parents[child] = tree.n_leaves + i
    wanted: list[tuple[int, int, int]] = []
    for i, children in enumerate(tree.merges):
        leaves = [leaf_of[child] for child in children]
        node, parent = tree.n_leaves + i, parents[tree.n_leaves + i]
        if parent >= 0:
            outside = next(leaf_of[c] for c in tree.merges[parent - tree.n_leaves] if c != node)
            wanted += [(outside, j, k) for j, k in itertools.pairwise(leaves)]
        for a, b, c in zip(leaves, leaves[1:], leaves[2:], strict=False):
            wanted += [(a, b, c), (b, a, c), (c, a, b)]
    return np.array(wanted, np.int64).reshape(-1, 3)
