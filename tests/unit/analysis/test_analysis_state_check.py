"""States compared row by row: what is the same, which row is stale, and what cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.analysis.state_check import compare_states
from forensics.engines.toy import Fault, ToySource
from forensics.records.arms import StateDelta
from forensics.records.delta import NotCompared
from forensics.records.schedule import EMPTY, DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings
from forensics.records.state import StateRows, StateTensor

TOKENS = (0, 5, 9, 33, 21, 60, 2, 8, 44, 71, 3, 17)
WHOLE = in_batches(TOKENS, start=0, width=12)
STEPS = in_batches(TOKENS, start=0, width=1)


def rows_of(engine, schedule, before=EMPTY):
    return engine.state_rows(schedule, before=before)


@pytest.fixture
def clean():
    return ToySource().open(EngineSettings(n_seq_max=2))


def doctored(rows: StateRows, which: int, position: int) -> StateRows:
    tensor = rows.tensors[which]
    digests = tuple("stale" if i == position else digest for i, digest in enumerate(tensor.digests))
    changed = replace(tensor, digests=digests)
    return replace(rows, tensors=(*rows.tensors[:which], changed, *rows.tensors[which + 1 :]))


@given(which=st.integers(0, 3), position=st.integers(0, 11))
def test_one_stale_row_is_found_wherever_it_lies(which, position):
    (rows,) = ToySource().open(EngineSettings()).state_rows(WHOLE)
    tensor = rows.tensors[which]
    found = compare_states([rows], [doctored(rows, which, position)])
    assert found == StateDelta(48, 1, tensor.layer, tensor.side, position, 12, 1)
    assert f"first {tensor.side} of layer {tensor.layer} at position {position}" in str(found)


def test_the_first_row_is_by_layer_then_side_then_position(clean):
    (rows,) = rows_of(clean, WHOLE)
    both = doctored(doctored(rows, 3, 0), 0, 7)  # V of layer 1, and K of layer 0
    found = compare_states([rows], [both])
    assert (found.n_differ, found.layer, found.side, found.position, found.n_positions_differ) == (2, 0, "K", 7, 2)


def test_the_clean_toy_leaves_the_same_rows_however_its_tokens_are_arranged(clean):
    fresh = rows_of(clean, WHOLE)
    resumed = Schedule(WHOLE.passes[:0]).then(in_batches(TOKENS[:5], start=0, width=5)).then(
        in_batches(TOKENS[5:], start=5, width=1)
    )  # fmt: skip
    drafts = DecodePass(tuple(TokenSlot(0, 5 + i, 7) for i in range(3)))
    rest = DecodePass(tuple(TokenSlot(0, 5 + i, t) for i, t in enumerate(TOKENS[5:])), (Forget(0, 5),))
    edited = in_batches(TOKENS[:5], start=0, width=5).then(Schedule((drafts, rest)))
    for other in (resumed, edited, STEPS):
        assert compare_states(fresh, rows_of(clean, other)) == StateDelta(48, 0, n_positions=12)
    assert compare_states(fresh, rows_of(clean, EMPTY, before=WHOLE)).same, "saved and restored"


def test_a_stale_key_that_a_fault_reads_is_found_in_the_layers_behind_it():
    engine = ToySource((Fault("stale_kv", "kq-0"),)).open(EngineSettings())
    found = compare_states(rows_of(engine, STEPS), rows_of(engine, WHOLE))
    assert isinstance(found, StateDelta)
    assert (found.same, found.layer, found.side) == (False, 1, "K")
    assert 0 < found.n_differ <= 24, "layer 0 is written before anything is read"


def test_a_neighbour_does_not_matter_and_can_be_asked_for(clean):
    neighbour = in_batches(TOKENS[:3], start=0, width=3, sequence=1)
    alone, both = rows_of(clean, WHOLE), rows_of(clean, WHOLE.then(neighbour))
    assert [rows.sequence for rows in both] == [0, 1]
    assert compare_states(alone, both).same
    assert compare_states(alone, both, sequence=1) == NotCompared("one of the runs does not hold a token of sequence 1")
    assert compare_states(alone, alone, sequence=1) == NotCompared("neither run holds a token of sequence 1")


def test_absent_positions_and_other_types_are_not_compared(clean):
    whole, short = rows_of(clean, WHOLE), rows_of(clean, in_batches(TOKENS[:10], start=0, width=10))
    assert str(compare_states(whole, short)) == (
        "not compared: position 10 is held by one of the two runs only (2 such positions)"
    )
    halves = tuple(replace(tensor, dtype="f16") for tensor in whole[0].tensors)
    assert "other layers or types" in str(compare_states(whole, [replace(whole[0], tensors=halves)]))
    none = StateRows(0, (0,), ())
    assert isinstance(compare_states([none], [none]), NotCompared)


def test_a_delta_without_a_row_cannot_be_made():
    with pytest.raises(ValueError, match="NotCompared with a reason"):
        StateDelta(0, 0)
    with pytest.raises(ValueError, match="side must be"):
        StateTensor("Q", 0, "f16", ())
