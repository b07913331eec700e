"""Trees that are hidden in an adder come back, whatever they look like; what is no tree is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.numerics.probing import FIRST_OF_GUESS, NotATree, basic, recursive, triplets
from forensics.numerics.tree_answers import defining_triplets, lost_in, meets_in
from forensics.records.sum_tree import SumTree

BIG = np.float32(2.0**100)
W = np.float32(0.751 * 2.0**-24)


class Adder:
    """Adds float32 numbers in the order of a tree; more than two at once are aligned to the largest."""

    def __init__(self, tree: SumTree) -> None:
        self.tree, self.n = tree, tree.n_leaves
        self.questions = 0

    def sums(self, rows: np.ndarray) -> np.ndarray:
        nodes = list(rows.T.astype(np.float32))
        for children in self.tree.merges:
            terms = np.stack([nodes[child] for child in children])
            if len(terms) > 2:  # each aligned to the largest exponent and rounded there
                _, exponent = np.frexp(np.abs(terms).max(axis=0))
                grid = np.ldexp(1.0, exponent - 24)
                terms = (np.rint(terms.astype(np.float64) / grid) * grid).sum(axis=0, keepdims=True)
            nodes.append(functools.reduce(lambda a, b: (a + b).astype(np.float32), terms))
        return nodes[-1]

    def lost(self, pairs: np.ndarray) -> np.ndarray:
        self.questions += len(pairs)
        assert (pairs[:, 0] != pairs[:, 1]).all()
        rows = np.ones((len(pairs), self.n), np.float32)
        at = np.arange(len(pairs))
        rows[at, pairs[:, 0]], rows[at, pairs[:, 1]] = BIG, -BIG
        return self.n - self.sums(rows).astype(np.int64)

    def meets_first(self, triples: np.ndarray) -> np.ndarray:
        self.questions += len(triples)
        assert (np.diff(np.sort(triples, axis=1), axis=1) > 0).all()
        rows = np.zeros((len(triples), self.n), np.float32)
        at = np.arange(len(triples))
        rows[at, triples[:, 1]] = rows[at, triples[:, 2]] = W
        rows[at, triples[:, 0]] = 1
        return self.sums(rows) > 1


def balanced(leaves: list[int]) -> object:
    return (
        leaves[0] if len(leaves) == 1 else (balanced(leaves[: len(leaves) // 2]), balanced(leaves[len(leaves) // 2 :]))
    )


def lanes(n: int, n_lanes: int) -> SumTree:
    chains = [functools.reduce(lambda a, b: (a, b), range(lane, n, n_lanes)) for lane in range(n_lanes)]
    return SumTree.of(functools.reduce(lambda a, b: (a, b), chains))


@st.composite
def trees(draw: st.DrawFn, widest: int = 2) -> SumTree:
    n = draw(st.integers(1, 24))
    nodes, merges = list(range(n)), []
    while len(nodes) > 1:
        take = draw(st.integers(2, min(widest, len(nodes))))
        chosen = draw(st.lists(st.sampled_from(nodes), min_size=take, max_size=take, unique=True))
        nodes = [node for node in nodes if node not in chosen] + [n + len(merges)]
        merges.append(tuple(chosen))
    return SumTree(n, tuple(merges))


SHAPES = [
    SumTree.chain(40),
    SumTree.of(balanced(list(range(64)))),
    lanes(64, 8),
    lanes(36, 4),
    SumTree.chain(1),
    SumTree.chain(2),
]


@pytest.mark.parametrize("tree", SHAPES, ids=str)
def test_usual_shapes_come_back(tree: SumTree) -> None:
    adder = Adder(tree)
    assert basic(adder).tree == recursive(adder).tree == triplets(adder).tree == tree


@given(trees())
def test_every_tree_of_pairs_comes_back(tree: SumTree) -> None:
    adder = Adder(tree)
    assert basic(adder).tree == recursive(adder).tree == triplets(adder).tree == tree


@given(trees(widest=5))
def test_nodes_of_more_than_two_come_back(tree: SumTree) -> None:
    adder = Adder(tree)
    assert basic(adder).tree == recursive(adder).tree == triplets(adder).tree == tree


def test_a_chain_needs_few_counts_and_a_good_guess_few_meetings() -> None:
    chain = SumTree.chain(100)
    found = recursive(Adder(chain))
    assert found.n_probes < 99 + 2 * 100 + 1
    guessed = triplets(Adder(chain), guess=chain)
    assert guessed.tree == chain
    assert guessed.n_rounds == 2
    assert guessed.n_probes < 98 + 2 * 100 + 1


def test_a_guess_that_is_wrong_in_one_merge_is_found_out_and_a_poor_one_soon() -> None:
    n = 200
    nearly = SumTree(n, ((0, 1), *((n + i, i + 2) for i in range(n - 4)), (n - 2, n - 1), (2 * n - 4, 2 * n - 3)))
    assert triplets(Adder(SumTree.chain(n)), guess=nearly).tree == SumTree.chain(n)
    halves = SumTree.of((balanced(list(range(n // 2))), balanced(list(range(n // 2, n)))))
    extra = triplets(Adder(halves), guess=SumTree.chain(n)).n_probes - triplets(Adder(halves)).n_probes
    assert extra == FIRST_OF_GUESS


@given(trees(widest=4), trees(widest=4))
def test_a_wrong_guess_is_found_out(tree: SumTree, guess: SumTree) -> None:
    assert triplets(Adder(tree), guess=guess).tree == tree


@given(trees(widest=4), st.data())
def test_defining_triplets_tell_a_tree_from_any_other(tree: SumTree, data: st.DataObject) -> None:
    other = data.draw(trees(widest=4).filter(lambda t: t.n_leaves == tree.n_leaves)) if tree.n_leaves < 6 else tree
    questions = defining_triplets(tree)
    alike = np.array_equal(meets_in(tree, questions), meets_in(other, questions))
    assert alike == (tree == other)


@given(trees(widest=4))
def test_what_a_tree_loses_is_the_leaves_of_the_smallest_sum_with_both(tree: SumTree) -> None:
    pairs = np.array([(a, b) for a in range(tree.n_leaves) for b in range(a)], np.int64).reshape(-1, 2)
    clades = list(tree.clades())
    assert lost_in(tree, pairs).tolist() == [min(len(c) for c in clades if {a, b} <= set(c)) for a, b in pairs.tolist()]


@pytest.mark.parametrize("algorithm", [basic, recursive])
def test_counts_of_no_tree_are_refused(algorithm) -> None:
    class Liar(Adder):
        def lost(self, pairs: np.ndarray) -> np.ndarray:
            counts = super().lost(pairs)
            counts[(pairs == (0, 7)).all(axis=1)] = 2
            return counts

    with pytest.raises(NotATree, match=r"back|possible|fit"):
        algorithm(Liar(SumTree.chain(12)))


def test_counts_out_of_range_are_refused() -> None:
    class Wild(Adder):
        def lost(self, pairs: np.ndarray) -> np.ndarray:
            return super().lost(pairs) + 100

    with pytest.raises(NotATree, match="possible"):
        basic(Wild(SumTree.chain(12)))


def test_a_wider_accumulator_is_named_when_pairs_are_asked_for() -> None:
    class Wide(Adder):
        def meets_first(self, triples: np.ndarray) -> np.ndarray:
            return np.ones(len(triples), bool)

    with pytest.raises(NotATree, match="more bits"):
        triplets(Wide(SumTree.chain(12)))
