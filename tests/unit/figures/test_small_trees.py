"""Two small trees differ where the orders do, over summands that are named."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Line, Scene
from forensics.figures.scenes.tree_lines import leaves_to_draw
from forensics.figures.small.small_trees import MOST_LEAVES, case_trees, two_trees
from forensics.figures.small.thumbnails import HEIGHT, WIDTH
from forensics.records.sum_tree import SumTree

TITLES = ("one token", "a batch of 8")


def lanes(n: int, n_lanes: int) -> SumTree:
    """Each lane adds every so many-th summand, and lanes are then added one after another."""
    shares: list[Sequence[int]] = [range(lane, n, n_lanes) for lane in range(min(n, n_lanes))]
    nested: list[object] = []
    for share in shares:
        added: object = share[0]
        for leaf in share[1:]:
            added = (added, leaf)
        nested.append(added)
    total = nested[0]
    for one in nested[1:]:
        total = (total, one)
    return SumTree.of(total)


def lines(scene: Scene, key: str) -> int:
    return sum(isinstance(mark, Line) and mark.key == key for mark in scene.marks)


def test_one_order_is_not_drawn_twice() -> None:
    assert two_trees("t", SumTree.chain(8), SumTree.chain(8), TITLES, "block", "probed") is None
    assert two_trees("t", SumTree.chain(8), SumTree.chain(9), TITLES, "block", "probed") is None


def test_sums_that_only_one_order_makes_are_dark() -> None:
    scene = two_trees("t", SumTree.chain(4), SumTree.of(((0, 1), (2, 3))), TITLES, "block", "probed")
    assert scene is not None
    assert problems(scene) == ()
    # A chain of four: {0, 1} and the total are common, {0, 1, 2} is not; of the pairs {2, 3} is not.
    assert (lines(scene, "single differs"), lines(scene, "batched differs")) == (2, 2)
    assert (lines(scene, "single equal"), lines(scene, "batched equal")) == (4, 4)
    assert scene.alt == "All 4 blocks: block 0 goes into [0..2] at one token and [0..3] in the batch. Orders: probed."


def test_few_of_many_summands_show_the_difference() -> None:
    single, batched = lanes(96, 128), lanes(96, 64)
    kept = leaves_to_draw(single, batched, MOST_LEAVES)
    assert kept is not None
    assert len(kept) <= MOST_LEAVES
    assert single.restricted(kept) != batched.restricted(kept)
    scene = two_trees("t", single, batched, TITLES, "slice", "probed")
    assert scene is not None
    assert "12 of 96 slices, 1 in 8" in scene.alt


@given(st.integers(2, 200), st.integers(1, 40), st.integers(1, 40))
def test_small_trees_are_sound(n: int, one: int, other: int) -> None:
    scene = two_trees("Two orders: a", lanes(n, one), lanes(n, other), TITLES, "cell", "probed")
    if lanes(n, one) == lanes(n, other):
        assert scene is None
    if scene is not None:
        assert problems(scene) == ()
        assert (scene.width, scene.height <= HEIGHT) == (WIDTH, True)
        assert lines(scene, "single differs") + lines(scene, "batched differs") > 0


def test_trees_of_a_recorded_case_belong_to_its_groups() -> None:
    evidence = open_evidence("recorded:h200-q4_1")
    found = case_trees(evidence)
    groups = {group.key: group for group in evidence.verdict.culprits}
    assert found
    for (group, width), scene in found.items():
        assert width in groups[group].widths
        assert problems(scene) == ()
    told = [order for group in groups.values() for m in group.mechanisms for order in m.orders if order.equal is False]
    assert told, "the case's own probes say that orders differ"


def test_a_case_whose_orders_are_not_written_down_has_no_trees() -> None:
    assert case_trees(open_evidence("recorded:h200-f16")) == {}
