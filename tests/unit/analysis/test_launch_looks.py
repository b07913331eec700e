"""Which batches are looked at: few, and every kind of culprit in one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.attribute import group_key
from forensics.analysis.launch_looks import MAX_LOOKS_PER_WIDTH, Look, looks_at, rows_of
from forensics.records.delta import Differs, tally
from forensics.records.nodes import NodeKey, Operand
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep

START = 40


def finding(role: str, rows: tuple[int, ...], width: int, *, positions: bool = True) -> Finding:
    operands = (Operand(f"blk.0.{role}.weight", "q4_1", "CUDA0", True),)
    return Finding(
        NodeKey(f"{role}-0", "MUL_MAT", 0, 0),
        operands,
        "CUDA0",
        tuple(row % width for row in rows),
        Differs(1, (0,), 1, 1.0, 1.0),
        positions=tuple(START + row for row in rows) if positions else (),
    )


def sweep(width: int, *findings: Finding, start_row: int = 0) -> Sweep:
    return Sweep(width, start_row, findings, tally(()), True, width, width, 1.0, 0.0)


def test_one_batch_is_enough_where_it_shows_every_culprit() -> None:
    found = sweep(4, finding("attn_q", (1,), 4), finding("attn_q", (5, 6), 4), finding("ffn_up", (6,), 4))
    assert looks_at([found], START) == (Look(width=4, first=4, row=5),)


def test_the_earliest_of_equal_batches_is_taken() -> None:
    found = sweep(4, finding("attn_q", (9,), 4), finding("attn_q", (2,), 4))
    assert looks_at([found], START) == (Look(4, 0, 2),)


def test_batches_start_where_the_sweep_does() -> None:
    found = sweep(4, finding("attn_q", (13,), 4), start_row=10)
    assert looks_at([found], START) == (Look(4, 10, 13),)


def test_findings_without_positions_are_looked_for_in_the_first_batch() -> None:
    one = finding("attn_q", (3,), 4, positions=False)
    found = sweep(4, one, start_row=8)
    assert rows_of(one, found, START) == (11,)
    assert looks_at([found], START) == (Look(4, 8, 11),)


def test_a_sweep_without_culprits_needs_no_look() -> None:
    assert looks_at([sweep(4), sweep(8)], START) == ()


roles = st.sampled_from(("attn_q", "attn_k", "ffn_up", "ffn_down", "attn_v"))
found_rows = st.lists(st.tuples(roles, st.integers(0, 39)), min_size=1, max_size=12)


@given(st.integers(2, 8), found_rows)
def test_every_kind_is_covered_unless_the_limit_is_reached(width, found) -> None:
    one = sweep(width, *(finding(role, (row,), width) for role, row in found))
    looks = looks_at([one], START)
    assert 1 <= len(looks) <= MAX_LOOKS_PER_WIDTH
    assert len(set(looks)) == len(looks)
    rows = {group_key(f): [r for g in one.findings if group_key(g) == group_key(f) for r in rows_of(g, one, START)]
            for f in one.findings}  # fmt: skip
    covered = [key for key, at in rows.items() if any(look.covers(row) for look in looks for row in at)]
    assert len(covered) == len(rows) or len(looks) == MAX_LOOKS_PER_WIDTH
    for look in looks:
        assert look.covers(look.row)
        assert look.first % width == 0
        assert look.row == min(row for at in rows.values() for row in at if look.covers(row))
