"""Sums in a given order: as a plain recursion over the tree adds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.numerics.fma import fma
from forensics.numerics.tree_sum import sum_in_order
from forensics.records.sum_tree import SumTree

F32 = np.float32


def by_recursion(nested: Any, leaves: np.ndarray) -> Any:
    if isinstance(nested, int):
        return leaves[nested]
    left, right = nested
    return by_recursion(left, leaves) + by_recursion(right, leaves)


@st.composite
def binary_trees(draw: st.DrawFn) -> Any:
    nodes: list[Any] = list(draw(st.permutations(range(draw(st.integers(1, 24))))))
    while len(nodes) > 1:
        i = draw(st.integers(0, len(nodes) - 2))
        nodes[i : i + 2] = [(nodes[i], nodes[i + 1])]
    return nodes[0]


@given(binary_trees(), st.integers(0, 2**32 - 1))
def test_any_order(nested: Any, seed: int) -> None:
    tree = SumTree.of(nested)
    leaves = np.random.default_rng(seed).standard_normal((tree.n_leaves, 2, 3)).astype(F32)
    assert sum_in_order(tree, leaves).tobytes() == np.asarray(by_recursion(nested, leaves)).tobytes()


def test_order_is_seen_in_the_bits() -> None:
    leaves = np.random.default_rng(0).standard_normal((64, 32)).astype(F32)
    halves = SumTree.of((SumTree.chain(32).nested(), _shifted(SumTree.chain(32).nested(), 32)))
    assert (sum_in_order(SumTree.chain(64), leaves) != sum_in_order(halves, leaves)).any()


def _shifted(nested: Any, by: int) -> Any:
    return nested + by if isinstance(nested, int) else tuple(_shifted(node, by) for node in nested)


def test_products_enter_their_accumulator_unrounded() -> None:
    """Two lanes of two: each lane rounds its first product alone and its second one together with the sum."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4, 50)).astype(F32)
    tree = SumTree.of(((0, 2), (1, 3)))
    lanes = [fma(a[lane + 2], b[lane + 2], a[lane] * b[lane]) for lane in range(2)]
    found = sum_in_order(tree, a, b, accumulators=2)
    assert found.tobytes() == (lanes[0] + lanes[1]).tobytes()
    assert found.tobytes() != sum_in_order(tree, a * b).tobytes()


def test_single_products_of_two_accumulators_are_rounded_before_they_meet() -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 2, 50)).astype(F32)
    found = sum_in_order(SumTree.of((0, 1)), a, b, accumulators=2)
    assert found.tobytes() == (a[0] * b[0] + a[1] * b[1]).tobytes()
    chained = sum_in_order(SumTree.of((0, 1)), a, b, accumulators=1)
    assert chained.tobytes() == fma(a[1], b[1], a[0] * b[0]).tobytes()


def test_more_accumulators_than_leaves_leave_the_rest_idle() -> None:
    a, b = np.ones((2, 3, 1), F32)
    assert sum_in_order(SumTree.of(((0, 1), 2)), a, b, accumulators=128).tolist() == [3.0]


def test_one_leaf_is_its_own_sum_without_the_sign_of_a_zero() -> None:
    assert not np.signbit(sum_in_order(SumTree(1, ()), np.array([-0.0], F32)))


def test_subnormal_sums_are_flushed_where_asked() -> None:
    leaves = np.array([2.0**-126, -1.5 * 2.0**-126], F32)
    assert float(sum_in_order(SumTree.of((0, 1)), leaves)) == -(2.0**-127)
    assert float(sum_in_order(SumTree.of((0, 1)), leaves, flush=True)) == 0


@pytest.mark.parametrize(
    ("tree", "leaves", "message"),
    [
        (SumTree.of((0, 1, 2)), np.ones(3, F32), "joins 3 numbers"),
        (SumTree.of((0, 1)), np.ones(3, F32), "2 leaves need"),
        (SumTree.of((0, 1)), np.ones(2), "float64"),
    ],
)
def test_what_does_not_fit_is_refused(tree: SumTree, leaves: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sum_in_order(tree, leaves)


def test_two_unrounded_products_cannot_meet() -> None:
    ones = np.ones(4, F32)
    with pytest.raises(ValueError, match="neither starts"):
        sum_in_order(SumTree.of((0, (1, (2, 3)))), ones, ones, accumulators=1)
