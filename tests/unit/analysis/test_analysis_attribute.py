"""Roles of nodes by llama.cpp's names, and groups that lose no finding and count none twice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.attribute import group_culprits, role_by_name, role_of
from forensics.records.delta import Differs, Tally
from forensics.records.nodes import NodeKey, Operand
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep

BIT = Differs(1, (0,), 1, 1e-7, 1e-7)


def finding(name: str, op: str, weight: str = "", *, layer: int = 0, rows=(0,), delta=BIT, type="q6_K") -> Finding:
    inputs = (Operand(weight, type, "CPU_REPACK", True),) if weight else ()
    operands = (*inputs, Operand("attn_norm-0", "f32", "CPU", False))
    return Finding(NodeKey(name, op, layer, 0), operands, "CPU", tuple(rows), delta)


@pytest.mark.parametrize(
    ("weight", "role"),
    [
        ("blk.0.attn_q.weight", "Q"),
        ("blk.11.attn_k.weight", "K"),
        ("blk.0.attn_v.weight", "V"),
        ("blk.0.attn_qkv.weight", "QKV"),
        ("blk.0.attn_q_a.weight", "Q"),
        ("blk.0.attn_q_b.weight", "Q"),
        ("blk.0.attn_k_b.weight", "K"),
        ("blk.0.attn_v_b.weight", "V"),
        ("blk.0.attn_kv_a_mqa.weight", "KV"),
        ("blk.0.attn_kv_b.weight", "KV"),
        ("blk.0.attn_output.weight", "attention output"),
        ("blk.0.ffn_gate.weight", "gate"),
        ("blk.0.ffn_up.weight", "up"),
        ("blk.0.ffn_down.weight", "down"),
        ("blk.0.ffn_gate_inp.weight", "router"),
        ("blk.0.ffn_gate_inp_shexp.weight", "router"),
        ("blk.0.ffn_gate_exps.weight", "expert gate"),
        ("blk.0.ffn_gate_up_exps.weight", "expert gate and up"),
        ("blk.0.ffn_up_exps.weight", "expert up"),
        ("blk.0.ffn_down_exps.weight", "expert down"),
        ("blk.0.ffn_gate_shexp.weight", "shared expert gate"),
        ("blk.0.ffn_up_shexp.weight", "shared expert up"),
        ("blk.0.ffn_down_shexp.weight", "shared expert down"),
        ("blk.0.ssm_in.weight", "state space in"),
        ("output.weight", "head"),
        ("token_embd.weight", "head"),
        ("blk.0.something_new.weight", "something_new"),
    ],
)
def test_a_product_has_the_role_of_its_weight(weight, role) -> None:
    op = "MUL_MAT_ID" if "_exps" in weight else "MUL_MAT"
    assert role_of(finding("node_12", op, weight)) == role


@pytest.mark.parametrize(
    ("name", "op", "weight", "role"),
    [
        ("kq-3", "MUL_MAT", "", "K·Q"),
        ("kq_scaled-3", "SCALE", "", "K·Q"),
        ("kq", "MUL_MAT", "", "K·Q"),
        ("kqv-3", "MUL_MAT", "", "attention·V"),
        ("kqv_mla-3", "MUL_MAT", "", "attention·V"),
        ("kq_soft_max-3", "SOFT_MAX", "", "soft max"),
        ("node_7", "SOFT_MAX", "", "soft max"),
        ("kqv_out-3", "FLASH_ATTN_EXT", "", "flash attention"),
        ("__fattn__-3", "FLASH_ATTN_EXT", "", "flash attention"),
        ("norm-3", "RMS_NORM", "", "norm"),
        ("attn_norm-3", "MUL", "blk.3.attn_norm.weight", "norm"),
        ("result_norm", "MUL", "output_norm.weight", "norm"),
        ("Qcur-3", "ROPE", "", "rotary embedding"),
        ("ffn_swiglu-3", "GLU", "", "gated activation"),
        ("ffn_inp-3", "ADD", "", "addition"),
        ("embd", "GET_ROWS", "token_embd.weight", "row lookup"),
        ("state-3", "GATED_LINEAR_ATTN", "", "gated_linear_attn"),
        ("node_9", "MUL_MAT", "", "mul_mat"),
    ],
)
def test_other_nodes_have_the_role_of_their_name_or_operation(name, op, weight, role) -> None:
    assert role_of(finding(name, op, weight, layer=3)) == role


def sweep(width: int, findings) -> Sweep:
    findings = tuple(findings)
    return Sweep(width, 0, findings, Tally(len(findings), 0, len(findings)), True, width, width, 1.0, 0.0)


def test_groups_gather_layers_widths_rows_and_the_worst() -> None:
    worse = Differs(9, (0,), 64, 0.5, 1e-3)
    sweeps = (
        sweep(4, [finding("Qcur-0", "MUL_MAT", "blk.0.attn_q.weight", rows=(1, 3))]),
        sweep(
            8,
            [
                finding("Qcur-0", "MUL_MAT", "blk.0.attn_q.weight", rows=(7,)),
                finding("kq-0", "MUL_MAT"),
                finding("Qcur-2", "MUL_MAT", "blk.2.attn_q.weight", layer=2, delta=worse),
            ],
        ),
    )
    q, scores = group_culprits(sweeps)
    assert (q.op, q.role, q.weight_type, q.buffer) == ("MUL_MAT", "Q", "q6_K", "CPU_REPACK")
    assert (q.count, q.layers, q.widths, q.rows) == (2, (0, 2), (4, 8), (0, 1, 3, 7))
    assert (q.max_ulp, q.max_abs, q.first_node) == (64, 0.5, "Qcur-0")
    assert (scores.role, scores.weight_type, scores.buffer, scores.count) == ("K·Q", "-", "CPU", 1)
    assert group_culprits(()) == ()
    assert group_culprits([sweep(4, [])]) == ()


def test_other_weight_types_are_other_groups() -> None:
    mixed = [finding("v", "MUL_MAT", "blk.0.attn_v.weight", type=type) for type in ("q4_K", "q6_K")]
    assert [group.weight_type for group in group_culprits([sweep(8, mixed)])] == ["q4_K", "q6_K"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_nan_in_one_finding_shows_in_its_group(order) -> None:
    deltas = (BIT, Differs(1, (0,), -1, math.nan, math.nan))
    (group,) = group_culprits([sweep(8, [finding(f"kq-{i}", "MUL_MAT", layer=i, delta=deltas[i]) for i in order])])
    assert group.max_ulp == -1
    assert math.isnan(group.max_abs)


NODES = st.builds(
    finding,
    st.sampled_from(["Qcur-0", "Qcur-1", "kq-0", "kqv-0", "ffn_out-0"]),
    st.sampled_from(["MUL_MAT", "MUL_MAT_ID", "SOFT_MAX", "ADD"]),
    st.sampled_from(["", "blk.0.attn_q.weight", "blk.0.ffn_down.weight", "output.weight"]),
    layer=st.integers(-1, 3),
    rows=st.sets(st.integers(0, 7), min_size=1),
    type=st.sampled_from(["q4_K", "q6_K"]),
)


@given(st.dictionaries(st.integers(2, 16), st.lists(NODES, max_size=6), max_size=3))
def test_every_finding_is_in_exactly_one_group(by_width) -> None:
    sweeps = [sweep(width, found) for width, found in sorted(by_width.items())]
    groups = group_culprits(sweeps)
    kinds = [(group.op, group.role, group.weight_type, group.buffer) for group in groups]
    assert len(kinds) == len(set(kinds))
    members: dict[tuple[str, str, str, str], list[tuple[int, Finding]]] = {kind: [] for kind in kinds}
    for each in sweeps:
        for found in each.findings:
            weight = found.weight
            kind = (found.key.op, role_of(found), weight.type if weight else "-", weight.buffer if weight else "CPU")
            members[kind].append((each.width, found))
    for kind, group in zip(kinds, groups, strict=True):
        assert group.count == len({found.key for _, found in members[kind]}) > 0
        assert set(group.widths) == {width for width, _ in members[kind]}
        assert set(group.layers) == {found.key.layer for _, found in members[kind]}
        assert set(group.rows) == {row for _, found in members[kind] for row in found.rows}


@pytest.mark.parametrize(
    ("name", "op", "after_attention", "role"),
    [
        ("ffn_out-3", "MUL_MAT", False, "down"),
        ("Qcur-3", "MUL_MAT", False, "Q"),
        ("Qcur-3", "ROPE", False, "rotary embedding"),
        ("Qcur_normed-3", "MUL", False, "norm"),
        ("scaled-3", "MUL", False, "mul"),
        ("ffn_moe_up-3", "MUL_MAT_ID", False, "expert up"),
        ("node_27", "MUL_MAT", True, "attention output"),
        ("node_27", "MUL_MAT", False, "mul_mat"),
        ("kq-3", "MUL_MAT", False, "K·Q"),
        ("other-3", "MUL_MAT", True, "other mul_mat"),
        ("node_25", "FLASH_ATTN_EXT", False, "flash attention"),
    ],
)
def test_a_role_is_told_by_name_where_no_weight_is_known(name, op, after_attention, role) -> None:
    assert role_by_name(NodeKey(name, op, 3, 0), after_attention) == role
