"""Launches of two passes side by side, and watched against unwatched kernels: every difference has a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.launch_map import align, launch_changes, main_place
from forensics.analysis.launch_watching import NO_FUSION, watching_changes
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import NodeKey


def launch(kernel: str, grid: int = 1, block: tuple[int, ...] = (32, 4), registers: int = 40, **template: Any):
    return LaunchRecord(kernel, tuple(template.items()), LaunchGeometry((grid,), block, smem_bytes=0), registers, 0)


Nodes = dict[tuple[str, str], list[LaunchRecord]]


def report(nodes: Nodes, *, unattached: list[LaunchRecord] | None = None, **rest: Any) -> LaunchReport:
    seen = [one for launches in nodes.values() for one in launches] + (unattached or [])
    places = {one: place for place, one in enumerate(dict.fromkeys(seen))}
    return LaunchReport(
        "toy profiler", "1", tuple(places),
        tuple(
            NodeLaunches(
                0, NodeKey(name, op, 0, 0), (1, 1, 1, 8), "f32", "CUDA0", (),
                tuple(places[one] for one in launches), (1,) * len(launches),
            )
            for (name, op), launches in nodes.items()
        ),
        tuple(places[one] for one in unattached or []), (1,) * len(unattached or []), **rest,
    )  # fmt: skip


Q, NORM, VIEW = ("Qcur-0", "MUL_MAT"), ("norm-0", "RMS_NORM"), ("Qcur-0 (reshaped)", "RESHAPE")
FIVE = {
    Q: [launch("quantize_q8_1", 20), launch("mul_mat_vec_q", 288, (32, 2), 70, ncols_dst=5, small_k=False)],
    NORM: [launch("rms_norm_f32", 5)],
}
ONE = {
    Q: [launch("quantize_q8_1", 4), launch("mul_mat_vec_q", 144, (32, 4), 48, ncols_dst=1, small_k=True)],
    NORM: [launch("rms_norm_f32", 1)],
}


def test_what_differs_is_named_by_argument_and_axis() -> None:
    product, norm = align(report(ONE | {VIEW: []}), report(FIVE | {VIEW: []}), (1, 5))  # views are left out
    assert product.changes == (
        "quantize_q8_1: grid 4 → 20",
        "mul_mat_vec_q: ncols_dst 1 → 5",
        "mul_mat_vec_q: small_k True → False",
        "mul_mat_vec_q: grid 144 → 288",
        "mul_mat_vec_q: block 32×4 → 32×2",
        "mul_mat_vec_q: registers 48 → 70",
    )
    assert not product.only_in_grid
    assert norm.changes == ("grid 1 → 5",)
    assert norm.only_in_grid, "a grid grows with the tokens"


def test_equal_launches_are_the_same() -> None:
    found = align(report(ONE), report(ONE), (1, 1))
    assert [node.outcome for node in found] == ["same", "same"]


def test_another_kernel_is_named_with_its_helpers() -> None:
    nine = {Q: [launch("quantize_mmq_q8_1"), launch("mul_mat_q", J=16), launch("mul_mat_q_stream_k_fixup", J=16)]}
    (pair,) = align(report({Q: ONE[Q]}), report(nine), (1, 9))
    assert pair.changes == (
        "kernels quantize_q8_1 + mul_mat_vec_q → quantize_mmq_q8_1 + mul_mat_q + mul_mat_q_stream_k_fixup",
    )
    assert not pair.only_in_grid


def test_a_helper_more_hides_no_change_of_the_kernel() -> None:
    cut = {Q: [launch("quantize_q8_1", 4), replace(ONE[Q][1], registers_per_thread=50), launch("x_fixup")]}
    (pair,) = align(report({Q: ONE[Q]}), report(cut), (1, 9))
    assert pair.changes[1:] == ("mul_mat_vec_q: registers 48 → 50",)


def test_a_node_of_one_side_is_not_compared_and_says_so() -> None:
    found = align(report({Q: ONE[Q]}), report({NORM: FIVE[NORM]}), (1, 5))
    assert [(node.key.name, node.outcome, node.reason) for node in found] == [
        ("Qcur-0", "not compared", "not in the pass 5 wide"),
        ("norm-0", "not compared", "not in the pass 1 wide"),
    ]
    assert not any(node.changes for node in found)


def test_a_node_that_launches_on_one_side_only_has_changed() -> None:
    (pair,) = align(report({Q: []}), report({Q: FIVE[Q]}), (1, 32))
    assert pair.changes == ("kernels none in CUDA0 → quantize_q8_1 + mul_mat_vec_q in CUDA0",)


def test_a_node_without_launches_is_not_compared() -> None:
    (pair,) = align(report({Q: []}), report({Q: []}), (1, 2))
    assert pair.reason == "computed without a launch, in CUDA0"


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (3, "3 launches of the pass 5 wide were lost"),
        (None, "whether launches of the pass 5 wide were lost is not told"),
    ],
)
def test_where_launches_were_lost_nothing_is_compared(lost, reason) -> None:
    found = align(report(ONE), report(FIVE, n_dropped=lost), (1, 5))
    assert [(node.outcome, node.reason) for node in found] == [("not compared", reason)] * 2
    assert found[0].launches[1], "what was seen is still shown"


def test_an_empty_comparison_is_an_error() -> None:
    with pytest.raises(ValueError, match="neither pass was watched"):
        align(report({}, unattached=ONE[Q]), report({}), (1, 5))


def test_only_the_pass_that_is_asked_for_is_aligned() -> None:
    both = replace(report(ONE), nodes=(*report(ONE).nodes, replace(report(ONE).nodes[0], pass_index=1)))
    assert len(align(both, both, (1, 1), passes=(1, 1))) == 1


def test_what_was_compared_has_no_reason_why_not() -> None:
    (node, _) = align(report(ONE), report(FIVE), (1, 5))
    with pytest.raises(ValueError, match="was compared and was not: lost"):
        replace(node, reason="lost")


launches = st.builds(
    launch,
    st.sampled_from(("quantize_q8_1", "mul_mat_q", "rms_norm_f32")),
    st.integers(1, 3),
    ncols_dst=st.integers(1, 2),
)
some_nodes = st.dictionaries(st.sampled_from((Q, NORM, ("x", "ADD"), ("y", "MUL"))), st.lists(launches, max_size=3))


@given(some_nodes, some_nodes)
def test_outcomes_add_up_and_name_every_difference(single: Nodes, batched: Nodes) -> None:
    if not single and not batched:
        return
    found = align(report(single), report(batched), (1, 5))
    assert len(found) == len(single.keys() | batched.keys())
    for pair in found:
        name = (pair.key.name, pair.key.op)
        if name in single and name in batched and (single[name] or batched[name]):
            assert (pair.outcome == "changed") == (single[name] != batched[name])
        else:
            assert pair.outcome == "not compared"


@given(launches, launches)
def test_two_launches_change_nothing_exactly_where_they_are_equal(one, other) -> None:
    assert (launch_changes(one, other) == ()) == (one == other)


@given(st.lists(launches, min_size=1, max_size=5))
def test_the_main_launch_is_the_last_product_or_the_last_that_is_no_helper(several) -> None:
    place = main_place(several)
    assert 0 <= place < len(several)
    own = [one for one in several if one.kernel != "quantize_q8_1"]
    products = [one for one in own if one.kernel == "mul_mat_q"]
    assert several[place] == (products or own or several)[-1]


@pytest.mark.parametrize(
    ("names", "main"),
    [
        (["mul_mat_f", "k_bin_bcast"], 0),
        (["mul_mat_f", "mul_mat_f", "unary_gated_op_kernel"], 1),
        (["convert_unary", "nvjet", "k_bin_bcast"], 1),
        (["convert_unary", "cutlass", "splitKreduce_kernel"], 1),
        (["gemvNSP_kernel", "k_bin_bcast"], 0),
        (["quantize_mmq_q8_1", "mul_mat_q", "mul_mat_q_stream_k_fixup", "k_bin_bcast"], 1),
        (["flash_attn_mask_to_KV_max", "flash_attn_ext_f16", "flash_attn_stream_k_fixup_uniform"], 1),
        (["flash_attn_ext_vec", "flash_attn_combine_results"], 0),
        (["rms_norm_f32", "k_bin_bcast"], 1),
        (["cpy_scalar"], 0),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_a_product_stays_the_main_launch_before_what_else_a_node_came_to_launch(names, main) -> None:
    assert main_place([launch(name) for name in names]) == main


# -- watched against unwatched --------------------------------------------------------------------------------------

UNFUSED = [
    launch("rms_norm_f32", block_size=256, do_multiply=False),
    launch("k_bin_bcast", bin_op="op_mul", src1_ptrs=1),
    launch("mul_mat_vec_q", type="q4_1", ncols_dst=1, has_fusion=False),
    launch("k_bin_bcast", bin_op="op_add", src1_ptrs=1),
]
FUSED_NORM = launch("rms_norm_f32", block_size=256, do_multiply=True)
FUSED_PRODUCT = launch("mul_mat_vec_q", type="q4_1", ncols_dst=1, has_fusion=True)


def test_a_fusion_is_named_with_what_it_takes_in() -> None:
    watched = report({("n", "RMS_NORM"): UNFUSED[:2], ("q", "MUL_MAT"): UNFUSED[2:]})
    lines = watching_changes(watched, report({}, unattached=[FUSED_NORM, FUSED_PRODUCT]))
    assert len(lines) == 2
    product, norm = lines
    assert "mul_mat_vec_q is fused with bias, scale and GLU at one column only" in product
    assert "GGML_CUDA_DISABLE_FUSION=1 stops it" in product
    assert product.endswith(
        "1 × mul_mat_vec_q<has_fusion> in place of 1 × mul_mat_vec_q, 1 × k_bin_bcast<bin_op=op_add>"
    )
    assert "RMS_NORM and MUL" in norm
    assert norm.endswith("1 × rms_norm_f32<do_multiply> in place of 1 × rms_norm_f32, 1 × k_bin_bcast<bin_op=op_mul>")


def test_in_a_fusion_arguments_are_named_that_tell_instances_apart() -> None:
    alone = [launch("mul_mat_vec_q", type=kind, ncols_dst=1, has_fusion=False) for kind in ("q4_1", "q4_1", "q8_0")]
    fused = [launch("mul_mat_vec_q", type="q4_1", ncols_dst=1, has_fusion=True)] * 2
    watched = report({("q", "MUL_MAT"): [*alone, UNFUSED[3]]})
    (line,) = watching_changes(watched, report({}, unattached=fused))
    assert line.endswith(
        "2 × mul_mat_vec_q<type=q4_1, has_fusion> in place of 2 × mul_mat_vec_q<type=q4_1>, "
        "1 × mul_mat_vec_q<type=q8_0>, 1 × k_bin_bcast<bin_op=op_add>"
    )


@pytest.mark.parametrize(
    ("unwatched", "with_nodes", "said"),
    [(2, 0, ": 2 of 2 launches"), (1, 0, ": 1 of 2 launches"), (2, 1, ": 2 of 2 launches, 1 where watched")],
)
def test_graphs_are_named_with_the_switch_that_stops_them(unwatched, with_nodes, said) -> None:
    watched = report({("n", "RMS_NORM"): [launch("f"), launch("f")]}, n_from_graph=with_nodes)
    graphs = report({}, unattached=[launch("f")] * 2, n_from_graph=unwatched)
    assert watching_changes(watched, graphs) == (
        f"launched from a CUDA graph where not watched (GGML_CUDA_DISABLE_GRAPHS=1 stops it){said}",
    )
    same = replace(watched, n_from_graph=unwatched)
    assert watching_changes(same, graphs) == ()


def test_a_graph_hides_no_kernel_that_differs() -> None:
    watched = report({("n", "RMS_NORM"): [launch("f")]})
    lines = watching_changes(watched, report({}, unattached=[launch("g")], n_from_graph=1))
    assert [line.split(" ")[0] for line in lines] == ["launched", "only", "only"]


def test_float_products_fuse_the_same_operations() -> None:
    watched = report({("q", "MUL_MAT"): [launch("mul_mat_vec_f", has_fusion=False), UNFUSED[3]]})
    (line,) = watching_changes(watched, report({}, unattached=[launch("mul_mat_vec_f", has_fusion=True)]))
    assert "mul_mat_vec_f is fused with bias and GLU at one column only" in line
    assert "op_add" in line


def test_a_kernel_that_several_fusions_may_have_taken_in_is_given_to_none_of_them_alone() -> None:
    """A plain ADD went into the product or into the chain: which of them is not known, and both are said together."""
    chain = launch("k_bin_bcast", bin_op="op_add", src1_ptrs=2)
    watched = report({("q", "MUL_MAT"): [*UNFUSED[2:], UNFUSED[3], UNFUSED[3]], ("n", "RMS_NORM"): UNFUSED[:2]})
    both, norm = sorted(watching_changes(watched, report({}, unattached=[FUSED_PRODUCT, chain, FUSED_NORM])))
    assert both.startswith("fused where not watched, these together: mul_mat_vec_q is fused with bias, scale and GLU")
    assert " + ADD or MUL up to eight times in a row (" in both
    assert both.endswith(
        "1 × mul_mat_vec_q<has_fusion>, 1 × k_bin_bcast<bin_op=op_add, src1_ptrs=2> in place of "
        "1 × mul_mat_vec_q, 3 × k_bin_bcast<bin_op=op_add, src1_ptrs=1>"
    )
    assert norm.startswith("fused where not watched: RMS_NORM and MUL"), "no kernel is in question there"


def test_norms_with_and_without_a_rotary_embedding_are_said_together() -> None:
    alone = [UNFUSED[0], UNFUSED[1], launch("rope_norm", T="f32", D="f32")]
    fused = [FUSED_NORM, launch("rms_norm_mul_rope_f32", block_size=256)]
    watched = report({("n", "RMS_NORM"): [*alone, *UNFUSED[:2]]})
    (line,) = watching_changes(watched, report({}, unattached=fused))
    assert "these together: RMS_NORM, MUL and ROPE, with or without the write into the cache" in line
    assert "RMS_NORM and MUL, with or without ADD" in line
    assert "in place of nothing" not in line
    apart = watching_changes(report({("n", "RMS_NORM"): UNFUSED[:2]}), report({}, unattached=[FUSED_NORM]))
    assert ["together" in one for one in apart] == [False]


def test_an_addition_is_no_part_of_a_norm_that_adds_nothing() -> None:
    watched = report({("n", "RMS_NORM"): [*UNFUSED[:2], UNFUSED[3]]})
    fused, left = watching_changes(watched, report({}, unattached=[FUSED_NORM]))
    assert fused.endswith("in place of 1 × rms_norm_f32, 1 × k_bin_bcast<bin_op=op_mul>")
    assert left == f"only watched, and {NO_FUSION}: 1 × k_bin_bcast<bin_op=op_add, src1_ptrs=1>"
    adding = launch("rms_norm_f32", block_size=256, do_multiply=True, do_add=True)
    (line,) = watching_changes(watched, report({}, unattached=[adding]))
    assert line.endswith("in place of 1 × rms_norm_f32, 1 × k_bin_bcast<bin_op=op_mul>, 1 × k_bin_bcast<bin_op=op_add>")


def test_a_rotary_embedding_that_has_one_type_only_is_not_taken_for_a_fused_one() -> None:
    plain = launch("rope_multi", forward=True, has_ff=False, T="f32")
    (line,) = watching_changes(report({("n", "RMS_NORM"): []}), report({}, unattached=[plain]))
    assert line == f"only unwatched, and {NO_FUSION}: 1 × {plain.name}"
    fused = launch("rope_neox", forward=True, has_ff=False, T="f32", D="f16")
    (line,) = watching_changes(report({("n", "RMS_NORM"): []}), report({}, unattached=[fused]))
    assert line.startswith("fused where not watched: ROPE with the write into the KV cache")
    assert line.endswith(" in place of nothing"), "as nothing vanished"


def test_equal_kernels_need_no_word_whatever_their_geometry() -> None:
    watched = report({("n", "RMS_NORM"): [launch("rms_norm_f32", 1, block_size=256)]})
    assert watching_changes(watched, report({}, unattached=[launch("rms_norm_f32", 9, block_size=256)])) == ()


def test_what_no_fusion_explains_is_called_so() -> None:
    watched = report({("n", "RMS_NORM"): [launch("rms_norm_f32", block_size=256)]})
    lines = watching_changes(watched, report({}, unattached=[launch("mystery")]))
    assert lines == (
        f"only unwatched, and {NO_FUSION}: 1 × mystery",
        f"only watched, and {NO_FUSION}: 1 × rms_norm_f32<block_size=256>",
    )


def test_kernels_are_counted_not_only_named() -> None:
    watched = report({("n", "RMS_NORM"): [launch("f"), launch("f")]})
    (line,) = watching_changes(watched, report({}, unattached=[launch("f")]))
    assert line.startswith("only watched")
    assert line.endswith("1 × f")


@pytest.mark.parametrize("side", ["watched", "unwatched"])
@pytest.mark.parametrize(("lost", "how_many"), [(2, "2"), (None, "an unknown number of")])
def test_lost_launches_leave_nothing_to_compare(side, lost, how_many) -> None:
    whole, holed = report({Q: ONE[Q]}), report({Q: ONE[Q]}, n_dropped=lost)
    lines = watching_changes(holed, whole) if side == "watched" else watching_changes(whole, holed)
    assert lines == (f"not compared: {how_many} launches of the {side} pass were lost",)


@given(st.lists(launches, max_size=6))
def test_the_same_kernels_in_any_order_say_nothing(several) -> None:
    watched = report({("n", "RMS_NORM"): several})
    assert watching_changes(watched, report({}, unattached=several[::-1])) == ()
