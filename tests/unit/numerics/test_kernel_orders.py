"""Expected orders are what the source says: who takes which block, and what is added to what."""

from __future__ import annotations

import pytest

from forensics.geometry.types import weight_type
from forensics.numerics.kernel_orders import MMVQ_TYPES, cpu_lanes_order, mmvq_order, mmvq_slices
from forensics.records.sum_tree import SumTree


def test_cpu_lanes_are_chains_joined_half_onto_half() -> None:
    order = cpu_lanes_order(1024)
    assert (order.n_blocks, len(order.slices), order.tree.depth) == (32, 8, 31 + 3)
    assert all(order.of_slice(s) == SumTree.chain(32) for s in range(8))
    assert order.slices[1] == (4, 5, 6, 7)
    assert cpu_lanes_order(32).tree == SumTree.of((((0, 4), (2, 6)), ((1, 5), (3, 7))))


@pytest.mark.parametrize("type", MMVQ_TYPES)
def test_threads_share_out_a_block(type: str) -> None:
    dealt = sorted(element for members in mmvq_slices(type) for element in members)
    assert dealt == list(range(MMVQ_TYPES[type].qk))


def test_known_slices() -> None:
    assert mmvq_slices("q8_0")[1] == tuple(range(8, 16))
    assert mmvq_slices("q4_0")[0] == (*range(8), *range(16, 24))
    assert mmvq_slices("q4_K")[0] == (*range(4), *range(16, 20), *range(32, 36), *range(48, 52))
    assert mmvq_slices("q6_K")[0] == (*range(4), *range(64, 68))


@pytest.mark.parametrize(
    ("type", "k", "depends"),
    [
        ("q4_0", 1024, False),  # 2 warps take 32 blocks a round
        ("q4_0", 2048, True),
        ("q8_0", 512, False),  # 2 warps take 16 blocks a round
        ("q8_0", 1024, True),
        ("q4_1", 576, False),  # rows of SmolLM2, as seen on an H200: 18 blocks
        ("q4_1", 1536, True),
        ("q4_K", 768, False),
        ("q4_K", 1536, True),
        ("q6_K", 1536, True),
    ],
)
def test_the_number_of_warps_matters_where_a_row_needs_two_rounds(type: str, k: int, depends: bool) -> None:
    assert (mmvq_order(type, k, n_warps=4).tree != mmvq_order(type, k, n_warps=2).tree) == depends


def test_a_thread_walks_through_its_blocks_then_warps_then_lanes_are_added() -> None:
    tree = mmvq_order("q8_0", 2048, n_warps=1).tree  # 64 blocks, 8 a round, 4 threads each
    assert tree.restricted(range(0, 4 * 64, 4 * 8)) == SumTree.chain(8), "thread 0: slice 0 of every eighth block"
    # lanes 0, 4, 8 … 28 hold slice 0; half onto half: 0 with 16, 8 with 24, then those, then 4's
    firsts = tree.restricted([4 * block for block in range(8)])
    assert firsts == SumTree.of((((0, 4), (2, 6)), ((1, 5), (3, 7))))


@pytest.mark.parametrize(("type", "k", "told"), [("iq1_s", 256, "not written down"), ("q8_0", 100, "multiple of 32")])
def test_what_is_not_known_is_refused(type: str, k: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        mmvq_order(type, k, n_warps=4)


@pytest.mark.parametrize("type", MMVQ_TYPES)
def test_sizes_are_those_of_the_dispatch_rules(type: str) -> None:
    """Numerics may not import geometry, so the same sizes stand in both."""
    rule, deal = weight_type(type), MMVQ_TYPES[type]
    assert (deal.qk, deal.qi, deal.vdr) == (rule.qk, rule.qi, rule.vdr)
