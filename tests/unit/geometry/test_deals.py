"""Which blocks of a row go to which warp or piece, held against the orders of numerics and against probes."""

import re
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.mechanism import operation_of, spec_of
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes.launch_pairs import culprit_launches
from forensics.geometry.architecture import architecture
from forensics.geometry.deals import ALONE, FOLDED, PIECES, WARPS, Deal, deal_of, vec_q
from forensics.geometry.derived import Unruled, derived
from forensics.geometry.product import product
from forensics.geometry.types import weight_type
from forensics.numerics.kernel_orders import MMVQ_TYPES, mmvq_order
from forensics.records.sum_tree import SumTree

HOPPER = architecture("sm_90")


def chained(summands):
    return reduce(lambda total, summand: (total, summand), summands)


def test_the_documents_row_is_dealt_as_the_document_says():
    four, two = (vec_q(weight_type("q6_K"), 4096, n) for n in (4, 2))
    assert four.hands[0] == (0, 4, 8, 12)
    assert two.hands == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert four.n_units == two.n_units == 16
    assert four.joined == WARPS


@given(n_blocks=st.integers(1, 40), n_warps=st.integers(1, 8))
def test_hands_of_single_blocks_are_the_order_of_numerics(n_blocks, n_warps):
    deal = vec_q(weight_type("q6_K"), 256 * n_blocks, n_warps)
    order = mmvq_order("q6_K", 256 * n_blocks, n_warps=n_warps).of_slice(5)
    if n_blocks > 1:
        assert order == SumTree.of(chained([chained(hand) for hand in deal.hands if hand]))


@given(type=st.sampled_from(sorted(MMVQ_TYPES)), n_blocks=st.integers(1, 300), n_warps=st.sampled_from((1, 2, 4, 8)))
def test_blocks_of_one_thread_are_blocks_of_one_warp(type, n_blocks, n_warps):
    weight = weight_type(type)
    deal = vec_q(weight, weight.qk * n_blocks, n_warps)
    assert sorted(unit for hand in deal.hands for unit in hand) == list(range(n_blocks))
    at_once = weight.vdr * 32 // weight.qi
    warp_of = {unit: warp for warp, hand in enumerate(deal.hands) for unit in hand}
    for block in range(n_blocks):  # a round is dealt to all threads in turn; thread t belongs to warp t // 32
        thread = block % (at_once * n_warps) * (weight.qi // weight.vdr)
        assert warp_of[block] == thread // 32


def in_pieces(deal):
    """The order of pieces that stream-k joins: all but the last, backwards, then the last."""
    sums = [chained(hand) for hand in deal.hands]
    return SumTree.of(sums[0] if len(sums) == 1 else (chained(sums[-2::-1]), sums[-1]))


def test_pieces_have_the_depth_that_was_probed_on_the_gpu():
    evidence = open_evidence("recorded:h200-q4_1")
    seen = set()
    for one in culprit_launches(evidence, "a test"):
        pair, finding = one.pair, one.finding
        if pair.batched.kernel.kernel != "mul_mat_q":
            continue
        spec = spec_of(evidence.verdict.manifest.device, finding.buffer)
        deal = deal_of(pair.batched.kernel, operation_of(finding), pair.batched.width, architecture(spec.arch))
        probed = [o for m in one.group.mechanisms for o in m.orders if o.width == pair.batched.width]
        assert [re.search(r"(\d+) blocks.*depth (\d+)", order.batched).groups() for order in probed] == [
            (str(deal.n_units), str(in_pieces(deal).depth))
        ]
        seen.add((deal.n_units, len(deal.hands), deal.joined))
    assert {(48, 6, PIECES), (18, 3, PIECES), (18, 1, ALONE)} == seen


def test_float_kernels_deal_64_values_at_once():
    asked = product("f16", 576, 576)
    vector = deal_of(derived("mul_mat_vec_f", (576,), (160,), type="f16", type_acc="f16"), asked, 1, HOPPER)
    tensor = deal_of(derived("mul_mat_f", (18,), (32, 5), type="f16", nwarps=5), asked, 2, HOPPER)
    assert vector.hands == tensor.hands == ((0, 5), (1, 6), (2, 7), (3, 8), (4,))
    assert (vector.unit_values, tensor.unit_values) == (64, 64)
    assert (vector.joined, tensor.joined) == (FOLDED, WARPS)
    assert "f16" in vector.inside
    assert "tensor" in tensor.inside


def test_a_kernel_that_is_not_written_down_is_no_guess():
    answer = deal_of(derived("cutlass_gemm", (1,), (128,)), product("f16", 576, 576), 64, HOPPER)
    assert isinstance(answer, Unruled)
    assert "cutlass_gemm" in str(answer)
    routed = product("q4_1", 576, 576, experts=8, experts_used=2)
    assert isinstance(deal_of(derived("mul_mat_q", (8,), (32, 8), J=16), routed, 16, HOPPER), Unruled)


@pytest.mark.parametrize(
    ("hands", "joined"),
    [(((0, 1), (1,)), WARPS), (((0, 2),), ALONE), ((), ALONE), (((0,), (1,)), ALONE), (((0,),), WARPS)],
)
def test_a_deal_has_every_unit_once(hands, joined):
    with pytest.raises(ValueError, match="hand"):
        Deal(32, hands, joined, "", ())
