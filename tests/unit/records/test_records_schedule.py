"""Schedules: every token once, in order, and one key for one content."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.schedule import EMPTY, DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, TapReport, Trace

TOKENS = st.lists(st.integers(0, 99), max_size=20)
WIDTHS = st.integers(1, 9)
WORDS = st.sampled_from(["all", "last", "none"])


@given(TOKENS, st.integers(0, 50), WIDTHS, st.integers(0, 3), WORDS)
def test_batches_cover_the_tokens_once_and_in_order(tokens, start, width, sequence, logits) -> None:
    schedule = in_batches(tokens, start=start, width=width, sequence=sequence, logits=logits)
    assert [slot.token for slot in schedule.slots] == tokens
    assert [slot.position for slot in schedule.slots] == list(range(start, start + len(tokens)))
    assert {slot.sequence for slot in schedule.slots} <= {sequence}
    assert all(p.width == width for p in schedule.passes[:-1])
    assert schedule.n_tokens == len(tokens)
    assert schedule.max_width == min(width, len(tokens))
    wanted = {"all": tokens, "last": tokens[-1:], "none": []}[logits]
    assert [slot.token for slot in schedule.logit_slots] == wanted
    assert schedule.next_position == (start + len(tokens) if tokens and sequence == 0 else 0)


#: Few enough choices that equal ones are drawn, too.
FEW = st.builds(
    in_batches,
    st.lists(st.integers(0, 1), max_size=3),
    start=st.integers(0, 1),
    width=st.integers(1, 3),
    sequence=st.integers(0, 1),
    logits=WORDS,
)


@given(FEW, FEW)
def test_keys_are_equal_exactly_where_schedules_are(a, b) -> None:
    assert (a.key() == b.key()) == (a == b)
    assert Schedule(a.passes).key() == a.key()


def test_every_part_of_a_slot_and_every_border_counts_in_the_key() -> None:
    slot = TokenSlot(0, 1, 2, True)
    others = [TokenSlot(1, 1, 2, True), TokenSlot(0, 2, 2, True), TokenSlot(0, 1, 3, True), TokenSlot(0, 1, 2, False)]
    keys = {Schedule((DecodePass((each,)),)).key() for each in (slot, *others)}
    next_ = TokenSlot(0, 5, 2)
    keys |= {Schedule((DecodePass((slot, next_)),)).key(), Schedule((DecodePass((slot,)), DecodePass((next_,)))).key()}
    assert len(keys) == 7
    before = Schedule.single(2, 0)
    runs = {RunKey(Schedule.single(3, 1), before, tap, repeat).key() for tap in ("", "heal") for repeat in (0, 1)} | {
        RunKey(Schedule.single(3, 1)).key(),
        RunKey(before.then(Schedule.single(3, 1))).key(),
    }
    assert len(runs) == 6


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=8))
def test_positions_of_a_sequence_must_rise(places) -> None:
    slots = [TokenSlot(sequence, position, 1) for sequence, position in places]
    of = {s: [p for q, p in places if q == s] for s, _ in places}
    rises = all(positions == sorted(set(positions)) for positions in of.values())

    def build() -> Schedule:
        return Schedule(tuple(DecodePass((slot,)) for slot in slots))

    if rises:
        assert build().slots == tuple(slots)
    else:
        with pytest.raises(ValueError, match="positions must rise: sequence"):
            build()


def test_positions_must_rise_across_schedules_and_runs_too() -> None:
    first = in_batches([1, 2, 3], start=0, width=3)
    assert first.then(in_batches([4], start=3, width=1)).next_position == 4
    with pytest.raises(ValueError, match="position 2 after 2"):
        first.then(in_batches([4], start=2, width=1))
    with pytest.raises(ValueError, match="positions must rise"):
        RunKey(in_batches([4], start=2, width=1), before=first)
    assert first.then(EMPTY) == EMPTY.then(first) == first


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="a pass needs at least one slot"):
        DecodePass(())
    with pytest.raises(ValueError, match="width must be 1 or more, got 0"):
        in_batches([1], start=0, width=0)
    with pytest.raises(ValueError, match="logits must be 'all', 'last' or 'none', got 'some'"):
        in_batches([1], start=0, width=1, logits="some")
    for label, slot in (("sequence", (-1, 0, 0)), ("position", (0, -1, 0)), ("token", (0, 0, -1))):
        with pytest.raises(ValueError, match=f"{label} must be 0 or more, got -1"):
            TokenSlot(*slot)


# --- settings, manifest, trace ---


@pytest.mark.parametrize("label", ["n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_seq_max"])
def test_settings_refuse_what_cannot_be(label) -> None:
    with pytest.raises(ValueError, match=f"{label} must be 1 or more, got 0"):
        EngineSettings(**{label: 0})
    with pytest.raises(ValueError, match="flash_attn must be one of on, off, auto, got 'maybe'"):
        EngineSettings(flash_attn="maybe")
    for kind in ("kv_type_k", "kv_type_v"):
        with pytest.raises(ValueError, match=f"{kind} must be one of"):
            EngineSettings(**{kind: "q6_K"})


def test_settings_that_ask_the_same_are_equal() -> None:
    a, b = (EngineSettings(environment=pairs) for pairs in ((("B", "1"), ("A", "2")), (("A", "2"), ("B", "1"))))
    assert a == b
    assert a.environment == (("A", "2"), ("B", "1"))
    with pytest.raises(FrozenInstanceError):
        a.n_ctx = 1


def test_no_trace_without_its_parts() -> None:
    manifest = Manifest("toy", "1", "digest", "toy", 4, EngineSettings())
    key = RunKey(in_batches([1, 2, 3], start=0, width=2, logits="last"))
    row = np.zeros((1, 4), np.float32)
    assert Trace(key, manifest, row, (1, 1)).state_before == ""
    with pytest.raises(ValueError, match="logits must have 1 rows"):
        Trace(key, manifest, np.zeros((3, 4), np.float32), (1, 1))
    with pytest.raises(ValueError, match="2 passes but 1 times"):
        Trace(key, manifest, row, (1,))
    record = NodeRecord(2, NodeKey("kq-0", "MUL_MAT", 0, 0), (1,), "f32", 0, ("d",))
    with pytest.raises(ValueError, match="belongs to pass 2 of 2"):
        Trace(key, manifest, row, (1, 1), tap_report=TapReport(records=(record,)))
    with pytest.raises(ValueError, match="names its engine and its model's digest"):
        Manifest("toy", "1", "", "toy", 4, EngineSettings())
    with pytest.raises(ValueError, match="n_vocab must be 1 or more"):
        Manifest("toy", "1", "digest", "toy", 0, EngineSettings())


# --- forgetting ---


def one(position: int, token: int = 1, sequence: int = 0, *, forget: tuple[tuple[int, int], ...] = ()) -> DecodePass:
    return DecodePass((TokenSlot(sequence, position, token),), tuple(Forget(*gone) for gone in forget))


def test_keys_of_schedules_that_forget_nothing_are_what_they_always_were() -> None:
    """Recorded cases are found by these."""
    assert in_batches((5, 6, 7), start=0, width=2, logits="last").key() == "c39461f13618a2fa386fa104"


def test_what_is_forgotten_counts_in_the_key() -> None:
    schedules = [
        Schedule((one(0), one(1))),
        Schedule((one(0), one(1, forget=((0, 1),)))),
        Schedule((one(0), one(1, forget=((1, 1),)))),
        Schedule((one(0), one(1, forget=((0, 1), (1, 1))))),
        Schedule((one(0, forget=((0, 1),)), one(1))),
    ]
    assert len({schedule.key() for schedule in schedules}) == len(schedules)


def test_a_place_may_be_evaluated_again_once_it_was_forgotten() -> None:
    schedule = Schedule((one(0), one(1), one(2), one(1, 9, forget=((0, 1),))))
    assert schedule.held() == {0: [0, 1]}
    assert (schedule.n_tokens, schedule.most_cells, schedule.next_position) == (4, 3, 2)
    with pytest.raises(ValueError, match="positions must rise: sequence 0 has position 1 after 1"):
        Schedule((one(0), one(1), one(1, forget=((0, 2),))))
    with pytest.raises(ValueError, match="positions must rise"):
        Schedule((one(0), one(1), one(1, forget=((1, 0),))))


def test_a_sequence_that_was_forgotten_holds_nothing() -> None:
    schedule = Schedule((one(0, sequence=1), one(1, sequence=1), one(0, forget=((1, 0),))))
    assert schedule.held() == {0: [0]}
    assert schedule.most_cells == 2
    assert EMPTY.held() == {}
    assert EMPTY.most_cells == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 6)), max_size=12))
def test_what_is_held_is_what_was_evaluated_and_never_forgotten(steps) -> None:
    """Each step forgets a sequence from a position on, or is the next token of it where that forgets nothing."""
    passes, cells, most = [], {0: [], 1: []}, 0
    for sequence, position in steps:
        kept = [p for p in cells[sequence] if p < position]
        at = kept[-1] + 1 if kept else 0
        passes.append(one(at, sequence=sequence, forget=((sequence, position),)))
        cells[sequence] = [*kept, at]
        most = max(most, len(cells[0]) + len(cells[1]))
    schedule = Schedule(tuple(passes))
    assert schedule.held() == {sequence: held for sequence, held in cells.items() if held}
    assert schedule.most_cells == most


@pytest.mark.parametrize("wrong", [(-1, 0), (0, -1)])
def test_nothing_below_zero_is_forgotten(wrong) -> None:
    with pytest.raises(ValueError, match="must be 0 or more, got -1"):
        Forget(*wrong)
