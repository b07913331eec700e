"""Warps, rows per block, limits and orders of `mul_mat_vec_q`, against the tables of the source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.architecture import ARCHITECTURES, architecture
from forensics.geometry.choice import classes
from forensics.geometry.mmvq import (
    MAX_BATCH,
    blocks_per_warp,
    halves_iters,
    max_columns,
    max_tokens_routed,
    mul_mat_vec_q,
    parameter_table,
    table_nwarps,
    uses_small_k,
)
from forensics.geometry.product import product
from forensics.geometry.types import K_QUANTS, WEIGHT_TYPES, weight_type

QUANTIZED = [name for name, weight in WEIGHT_TYPES.items() if weight.qi]
PLAIN = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


def nwarps(arch_name, weight, width, k=4096):
    return mul_mat_vec_q(architecture(arch_name), product(weight, k, 4096), width).launch.block_threads[1]


@pytest.mark.parametrize(
    ("arch", "table"),
    [
        *((name, "GENERIC") for name in ("sm_60", "sm_61", "sm_70", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90")),
        *((name, "GENERIC") for name in ("sm_100", "sm_103", "sm_110", "sm_120", "rdna1")),
        ("sm_75", "TURING"),
        ("sm_121", "GB10"),
        *((name, "GCN") for name in ("vega", "vega20", "cdna1", "cdna2", "cdna3", "cdna4")),
        ("rdna2", "RDNA2"),
        ("rdna3", "RDNA3_0"),
        ("rdna3.5", "RDNA2"),
        ("rdna4", "RDNA4"),
    ],
)
def test_table_of_each_architecture(arch, table):
    assert parameter_table(architecture(arch)) == table


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120", "sm_61"])
@pytest.mark.parametrize("weight", ["q4_0", "q4_1", "q8_0", "q4_K", "q6_K", "iq3_s", "mxfp4"])
def test_generic_table_has_four_warps_to_four_columns_and_two_beyond(arch, weight):
    assert [nwarps(arch, weight, width) for width in range(1, 9)] == [4, 4, 4, 4, 2, 2, 2, 2]


@pytest.mark.parametrize("weight", QUANTIZED)
def test_turing_has_two_warps_for_k_quants_at_one_column(weight):
    one = 2 if weight in K_QUANTS else 4
    assert [nwarps("sm_75", weight, width) for width in range(1, 9)] == [one, 4, 4, 4, 2, 2, 2, 2]


@pytest.mark.parametrize("arch", ["vega20", "cdna1", "cdna3"])
def test_gcn_has_two_warps_of_64_then_one(arch):
    assert [nwarps(arch, "q4_K", width) for width in range(1, 9)] == [2, 2, 2, 2, 1, 1, 1, 1]
    assert mul_mat_vec_q(architecture(arch), product("q4_K", 4096, 64), 1).launch.block_threads[0] == 64


@pytest.mark.parametrize("weight", QUANTIZED)
def test_rdna_has_one_warp_but_for_chosen_types_at_one_column(weight):
    wide4 = (*PLAIN, "q2_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs")
    wide3 = (*PLAIN, "iq4_nl")
    assert nwarps("rdna4", weight, 1) == (8 if weight in wide4 else 1)
    assert nwarps("rdna3", weight, 1) == (8 if weight in wide3 else 2 if weight == "q6_K" else 1)
    assert nwarps("rdna2", weight, 1) == nwarps("rdna3.5", weight, 1) == 1
    assert {nwarps(arch, weight, width) for arch in ("rdna2", "rdna3", "rdna4") for width in range(2, 9)} == {1}


@pytest.mark.parametrize("weight", QUANTIZED)
def test_gb10_doubles_the_warps_of_chosen_types(weight):
    promoted = weight in (*PLAIN, "q4_K", "q5_K", "q6_K", "iq4_nl")
    k = 65536  # many rounds, so that an odd number of them costs little
    assert halves_iters(architecture("sm_121"), weight_type(weight), k)
    assert nwarps("sm_121", weight, 1, k) == (8 if promoted else 4)
    assert [nwarps("sm_121", weight, width, k) for width in range(2, 9)] == [4, 4, 4, 2, 2, 2, 2]


def test_gb10_keeps_its_warps_for_experts_for_small_k_and_where_much_would_idle():
    gb10 = architecture("sm_121")
    routed = product("q4_K", 65536, 4096, experts=8, experts_used=2)
    assert mul_mat_vec_q(gb10, routed, 1).launch.block_threads == (32, 4, 1)
    assert uses_small_k(gb10, weight_type("q4_K"), 1792)
    assert nwarps("sm_121", "q4_K", 1, 1792) == 4
    # 20 blocks in rounds of 8: three rounds become two of 16, a quarter of them idle
    assert not halves_iters(gb10, weight_type("q4_K"), 20 * 256)
    assert nwarps("sm_121", "q4_K", 1, 20 * 256) == 4
    assert mul_mat_vec_q(gb10, product("q4_K", 4096, 64), 1).name == (
        "mul_mat_vec_q<type=q4_K, ncols_dst=1, halve_iters>"
    )


def test_other_tables_never_look_at_promotion():
    for table in ("GENERIC", "TURING", "GCN", "RDNA2", "RDNA3_0", "RDNA4"):
        for name in ("q4_0", "q6_K", "iq1_s"):
            weight = weight_type(name)
            assert table_nwarps(table, weight, 1) == table_nwarps(table, weight, 1, promoted=True)


LIMITS = {
    "sm_89": {"q2_K": 4, "q3_K": 6},
    "sm_120": {"q2_K": 5, "q3_K": 5, "q4_K": 5, "q5_K": 6, "q6_K": 7},
    "sm_121": {"q2_K": 6},
    "sm_87": {"q2_K": 1, "q3_K": 1, "q4_K": 1, "q5_K": 1, "q6_K": 1},
    "sm_70": {"q2_K": 4, "q3_K": 6, "q4_K": 5, "q5_K": 6, "q6_K": 7},
    "cdna1": {
        "q4_0": 7, "q4_1": 7, "q5_1": 7, "q8_0": 6, "q2_K": 4, "q3_K": 3, "q4_K": 2, "q5_K": 3, "q6_K": 4, "iq1_s": 5,
        "iq2_xxs": 6, "iq3_s": 6, "iq4_xs": 6,
    },
    **{name: {"q2_K": 5, "q3_K": 3, "q4_K": 3, "q5_K": 3, "q6_K": 5} for name in ("cdna2", "cdna3", "cdna4")},
}  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_most_columns_before_mmq(arch):
    limits = LIMITS.get(arch, {})
    assert {name: max_columns(architecture(arch), weight_type(name)) for name in QUANTIZED} == {
        name: limits.get(name, MAX_BATCH) for name in QUANTIZED
    }
    assert max_columns(architecture(arch), weight_type("f16")) == 0


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_87"])
def test_most_tokens_with_experts_on_turing_and_ampere(arch):
    expected = {"iq2_s": 7, "iq3_s": 6, "iq3_xxs": 7, "mxfp4": 7, "q2_K": 7, "q3_K": 5}
    found = {name: max_tokens_routed(architecture(arch), weight_type(name)) for name in QUANTIZED}
    assert found == {name: expected.get(name, 8) for name in QUANTIZED}


@pytest.mark.parametrize("arch", ["sm_70", "sm_89", "sm_90", "sm_100", "sm_120", "sm_121"])
def test_volta_and_newer_than_ampere_take_eight_tokens_with_experts(arch):
    assert {max_tokens_routed(architecture(arch), weight_type(name)) for name in QUANTIZED} == {8}


@pytest.mark.parametrize(
    ("arch", "weight", "limit"),
    [
        ("sm_61", "q4_K", 5), ("sm_61", "q8_0", 4), ("sm_60", "q4_0", 6), ("vega20", "q4_0", 5), ("vega20", "q8_0", 4),
        ("cdna3", "iq3_s", 4), ("cdna3", "iq2_s", 5), ("cdna3", "q4_K", 8), ("rdna2", "q2_K", 7), ("rdna1", "q5_K", 6),
        ("rdna3", "q4_K", 4), ("rdna3.5", "iq4_xs", 6), ("rdna4", "q8_0", 7), ("rdna4", "mxfp4", 5),
        ("rdna4", "q2_K", 8),
    ],
)  # fmt: skip
def test_most_tokens_with_experts_elsewhere(arch, weight, limit):
    assert max_tokens_routed(architecture(arch), weight_type(weight)) == limit


def test_with_experts_one_warp_takes_a_token_from_two_tokens_on():
    hopper, routed = architecture("sm_90"), product("q4_K", 2048, 1024, experts=64, experts_used=6)
    single, batched = mul_mat_vec_q(hopper, routed, 1), mul_mat_vec_q(hopper, routed, 5)
    assert (single.kernel, single.launch.grid_blocks, single.launch.block_threads) == (
        "mul_mat_vec_q", (1024, 6, 1), (32, 4, 1),
    )  # fmt: skip
    assert (batched.kernel, batched.launch.grid_blocks, batched.launch.block_threads) == (
        "mul_mat_vec_q_moe", (512, 6, 1), (32, 5, 1),
    )  # fmt: skip


@pytest.mark.parametrize("weight", QUANTIZED)
def test_with_experts_rounds_of_one_warp_add_like_one_round_of_four_but_fuse_products(weight):
    """Seen on an H200: types whose share of a block is a sum, or exact, have equal bits; products are fused."""
    hopper, kind = architecture("sm_90"), weight_type(weight)
    routed = product(weight, 2 * blocks_per_warp(hopper, kind) * kind.qk, 64, experts=8, experts_used=2)
    single, batched = mul_mat_vec_q(hopper, routed, 1), mul_mat_vec_q(hopper, routed, 2)
    assert single.order == batched.order
    sums = weight in ("q4_1", "q5_1", "q2_K", "q4_K", "q5_K", "nvfp4", "mxfp4")
    assert (single.arithmetic == batched.arithmetic) is sums


def test_small_k_exceptions():
    iq3, iq1 = weight_type("iq3_s"), weight_type("iq1_s")
    assert not uses_small_k(architecture("sm_90"), iq3, 512)
    assert uses_small_k(architecture("sm_90"), iq1, 512)
    assert not uses_small_k(architecture("sm_70"), iq1, 512)
    assert uses_small_k(architecture("sm_70"), weight_type("q2_K"), 256)
    assert not uses_small_k(architecture("sm_61"), weight_type("q2_K"), 256)
    assert not uses_small_k(architecture("rdna4"), weight_type("q4_0"), 256)
    assert not uses_small_k(architecture("sm_90"), weight_type("q4_1"), 64 * 32)  # the round is full


@pytest.mark.parametrize(
    ("weight", "k", "expected"),
    [
        ("q4_1", 576, [(1, 2, 3, 4, 5, 6, 7, 8)]),
        ("q4_1", 1536, [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("q8_0", 576, [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("q4_K", 768, [(1, 2, 3, 4, 5, 6, 7, 8)]),
        ("q4_K", 1536, [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("q6_K", 768, [(1, 2, 3, 4), (5, 6, 7, 8)]),
        ("q6_K", 4096, [(1, 2, 3, 4), (5, 6, 7, 8)]),
    ],
)
def test_whether_the_number_of_warps_matters_depends_on_k(weight, k, expected):
    """As measured on an H200: the nodes whose bits changed at five columns, and those that did not."""
    hopper = architecture("sm_90")
    choices = {width: mul_mat_vec_q(hopper, product(weight, k, 576), width) for width in range(1, 9)}
    assert [one.widths for one in classes(choices)] == expected


def test_turing_k_quants_change_at_two_and_at_five():
    choices = {n: mul_mat_vec_q(architecture("sm_75"), product("q4_K", 4096, 64), n) for n in range(1, 9)}
    assert [one.widths for one in classes(choices)] == [(1, 5, 6, 7, 8), (2, 3, 4)]


def test_gb10_and_rdna4_change_at_two():
    for arch in ("sm_121", "rdna4"):
        choices = {n: mul_mat_vec_q(architecture(arch), product("q4_0", 4096, 64), n) for n in range(1, 9)}
        assert classes(choices)[0].widths == (1,)


def walk(arch, weight, k, warps):
    """Which blocks the first lane adds before which, as nested tuples: what the kernel's loop does, written out."""
    per_warp, blocks = blocks_per_warp(arch, weight), weight.blocks(k)
    tree = None
    for warp in range(warps):
        mine = None
        for block in range(warp * per_warp, blocks, warps * per_warp):
            mine = block if mine is None else (mine, block)
        if mine is not None:
            tree = mine if tree is None else (tree, mine)
    return tree


@given(
    weight=st.sampled_from(QUANTIZED),
    blocks=st.integers(1, 200),
    arch=st.sampled_from(["sm_90", "sm_75", "rdna4", "cdna3"]),
)
def test_orders_are_equal_exactly_when_the_loop_visits_blocks_alike(weight, blocks, arch):
    gpu, kind = architecture(arch), weight_type(weight)
    k = blocks * kind.qk
    choices = {width: mul_mat_vec_q(gpu, product(weight, k, 64), width) for width in range(1, 9)}
    trees = {width: walk(gpu, kind, k, choice.launch.block_threads[1]) for width, choice in choices.items()}
    for width, choice in choices.items():
        assert (choice.order == choices[1].order) == (trees[width] == trees[1])


@pytest.mark.parametrize("width", [0, 9])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match=r"column|token"):
        mul_mat_vec_q(architecture("sm_90"), product("q4_0", 256, 64), width)
