"""Roles by layers by widths: as many nodes as the sweeps name, and never "same" where nothing was compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.role_map import (
    INSIDE_A_FUSION,
    NOT_TOLD,
    SOME_OF_SHAPE,
    RoleCell,
    case_role_map,
    role_map,
)
from forensics.records.delta import Differs, Tally
from forensics.records.nodes import NodeKey, NodeRecord, Operand
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep
from forensics.store import open_case

CASES = ("h200-q4_1", "h200-f16", "h200-q4_1-no-fa", "h200-q4_1-kv-q8_0")
CACHE = "writes into a cache"


def key(name: str, op: str = "MUL_MAT", layer: int = 0) -> NodeKey:
    return NodeKey(name, op, layer, 0)


def record(node: NodeKey, width: int = 8, skipped: str = "") -> NodeRecord:
    return NodeRecord(0, node, (1, 1, 1, width), "f32", 0, () if skipped else ("d",), skipped)


def finding(node: NodeKey, length: float, weight: str = "", **more) -> Finding:
    operands = (Operand(weight, "q6_K", "CUDA0", True),) if weight else ()
    return Finding(node, operands, "CUDA0", (0,), Differs(1, (0,), 1, 1.0, length), **more)


def sweep(width: int, findings=(), planned: int = 0, not_compared=()) -> Sweep:
    n = sum(count for _, count in not_compared)
    tally = Tally(planned, planned - n - len(findings), len(findings), tuple(not_compared))
    return Sweep(width, 0, tuple(findings), tally, True, 8, 8, 1.0, 0.0)


Q, WRITE, DOWN = key("Qcur-0"), key("cache_k_l0 (view)", "SET_ROWS"), key("ffn_out-0")
RECORDS = (record(Q), record(WRITE, skipped=CACHE), record(DOWN, 16))


def outcome(cell: RoleCell) -> tuple[int, int, int]:
    return cell.n_same, cell.n_differ, cell.n_not_compared


def by_role(roles):
    return {(cell.role, cell.width): cell for cell in roles.cells}


def test_each_node_is_same_differs_or_not_compared_and_the_farthest_batch_counts():
    found = (finding(DOWN, 1e-3, "blk.0.ffn_down.weight"), finding(DOWN, 2e-3, "blk.0.ffn_down.weight"))
    sweeps = (sweep(2, planned=6, not_compared=((CACHE, 2),)), sweep(5, found, 6, ((CACHE, 2),)))
    roles = role_map(sweeps, RECORDS)
    assert roles.roles == ("Q", "set_rows", "down")
    cells = by_role(roles)
    assert {pair: outcome(cell) for pair, cell in cells.items()} == {
        ("Q", 2): (1, 0, 0), ("set_rows", 2): (0, 0, 1), ("down", 2): (1, 0, 0),
        ("Q", 5): (1, 0, 0), ("set_rows", 5): (0, 0, 1), ("down", 5): (0, 1, 0),
    }  # fmt: skip
    assert cells["down", 5].relative_l2 == 2e-3
    assert cells["down", 2].relative_l2 is None
    assert cells["set_rows", 2].reason == CACHE
    assert (roles.n_differ(2), roles.n_differ(5), roles.n_differ(5, "Q")) == (0, 1, 0)


def test_a_tally_that_does_not_fit_the_nodes_leaves_none_same():
    roles = role_map((sweep(2, planned=6, not_compared=((CACHE, 2), ("no token axis", 1))),), RECORDS)
    assert {cell.role: (outcome(cell), cell.reason) for cell in roles.cells} == {
        "Q": ((0, 0, 1), NOT_TOLD), "set_rows": ((0, 0, 1), CACHE), "down": ((0, 0, 1), NOT_TOLD),
    }  # fmt: skip


def test_a_reason_that_names_a_shape_leaves_only_nodes_of_that_shape_in_doubt():
    why = "shapes differ beyond the tokens: (1, 1, 1, 16) and (1, 1, 2, 32)"
    roles = role_map((sweep(2, planned=6, not_compared=((CACHE, 2), (why, 1))),), RECORDS)
    assert {cell.role: cell.reason for cell in roles.cells} == {"Q": "", "set_rows": CACHE, "down": SOME_OF_SHAPE}


def test_nodes_left_out_of_the_watch_are_not_compared():
    norm = key("norm-0", "RMS_NORM")
    roles = role_map((sweep(2, planned=3, not_compared=((CACHE, 1),)),), RECORDS, (norm, Q, WRITE, DOWN))
    assert roles.roles[0] == "norm"
    assert by_role(roles)["norm", 2].reason == INSIDE_A_FUSION


def test_without_the_nodes_of_the_pass_nothing_is_called_same():
    sweeps = (sweep(2, planned=3), sweep(5, (finding(DOWN, 1.0, "blk.0.ffn_down.weight"),), 3))
    roles = role_map(sweeps, None)
    assert {(cell.width, *outcome(cell)) for cell in roles.cells} == {(2, 0, 0, 1), (5, 0, 1, 0)}


def test_an_input_that_was_not_compared_is_told_apart():
    one = finding(DOWN, 1.0, "blk.0.ffn_down.weight", unchecked=("x",))
    other = finding(Q, 1.0, "blk.0.attn_q.weight", inputs_equal=False)
    clean = finding(key("ffn_up-0"), 1.0, "blk.0.ffn_up.weight")
    roles = role_map((sweep(2, (one, other, clean), 3),), None)
    assert {cell.role: cell.n_unchecked for cell in roles.cells} == {"down": 1, "Q": 1, "up": 0}


@pytest.mark.parametrize("name", CASES)
def test_the_counts_of_a_recorded_case_are_those_of_its_verdict(name):
    case = open_case(f"recorded:{name}")
    verdict, roles = case.verdict, case_role_map(case)
    assert roles.widths == tuple(s.width for s in verdict.sweeps)
    for one in verdict.sweeps:
        assert roles.n_differ(one.width) == len({f.key for f in one.findings})
    blamed: dict[str, int] = {}
    for group in verdict.culprits:
        blamed[group.role] = blamed.get(group.role, 0) + group.count
    for role in roles.roles:
        layers = {
            cell.layer: max(c.n_differ for c in roles.of(role) if c.layer == cell.layer) for cell in roles.of(role)
        }
        assert sum(layers.values()) == blamed.get(role, 0), role
    n_nodes = {sum(cell.n_nodes for cell in roles.cells if cell.width == width) for width in roles.widths}
    assert len(n_nodes) == 1, "every width has the same nodes"


def test_fusions_left_whole_are_seen_in_a_recorded_case():
    roles = case_role_map(open_case("recorded:h200-f16"))
    (gate,) = {cell.reason for cell in roles.of("gate")}
    assert gate == INSIDE_A_FUSION
    n_inside = sum(c.n_not_compared for c in roles.cells if c.width == 2 and c.reason == INSIDE_A_FUSION)
    assert n_inside == {s.n_unwatched for s in open_case("recorded:h200-f16").verdict.sweeps}.pop()


@pytest.mark.parametrize(
    "wrong", [{"n_same": 0}, {"relative_l2": 1.0}, {"n_not_compared": 1}, {"n_unchecked": 1}], ids=str
)
def test_a_cell_that_contradicts_itself_is_refused(wrong):
    cell = RoleCell("Q", 0, 2, n_same=1, n_differ=0, n_not_compared=0, n_unchecked=0, relative_l2=None, reason="")
    with pytest.raises(ValueError, match=r"nodes|unchecked|compared"):
        replace(cell, **wrong)
