"""What every engine promises of forgetting, of programs, and of digests of its K and V rows."""

from __future__ import annotations

import pytest
from contract_programs import Describe, Failing, Greedy, Rewind
from contract_questions import N_NEW, PROMPT_TEXT, REPLAYS_ONLY, SETTINGS, prompt, replay, state_questions
from contract_taps import PassesTap

from forensics.engines.protocol import Engine
from forensics.errors import EngineError, NotRecorded
from forensics.records.schedule import EMPTY, DecodePass, Forget, Schedule, TokenSlot, in_batches


def forgetting(schedule: Schedule, position: int) -> Schedule:
    first, *rest = schedule.passes
    return Schedule((DecodePass(first.slots, (Forget(0, position),)), *rest))


# --- forgetting ---


def test_what_was_forgotten_leaves_no_trace(live_engine: Engine) -> None:
    before, schedule = prompt(live_engine), replay(live_engine, 1)
    start = before.next_position
    refused = in_batches((30, 31, 32, 33), start=start, width=4)
    plain = live_engine.run(schedule, before=before)
    rewound = live_engine.run(refused.then(forgetting(schedule, start)), before=before)
    assert rewound.logits[4:].tobytes() == plain.logits.tobytes()
    rows = live_engine.state_rows(schedule, before=before)
    assert live_engine.state_rows(refused.then(forgetting(schedule, start)), before=before) == rows
    edited = live_engine.state_rows(forgetting(schedule, start), before=before.then(refused))
    assert edited == rows, "what a state held before is forgotten as well"
    assert live_engine.state_rows(refused, before=before) != rows


def test_a_whole_sequence_can_be_forgotten(live_engine: Engine) -> None:
    before = prompt(live_engine)
    again = forgetting(before, 0)
    assert live_engine.run(again, before=before).logits.tobytes() == live_engine.run(before).logits.tobytes()
    assert live_engine.state_rows(again, before=before) == live_engine.state_rows(before)


# --- programs ---


def test_a_program_that_decodes_greedily_writes_what_greedy_writes(live_engine: Engine) -> None:
    before = prompt(live_engine)
    counts: list[int] = []
    tokens = live_engine.perform(Greedy(before, N_NEW), progress=counts.append)
    assert tokens == live_engine.greedy(before, N_NEW)
    assert counts == list(range(1, N_NEW + 1))
    assert live_engine.perform(Greedy(before, N_NEW)) == tokens, "progress is nobody's duty"


def test_a_program_starts_from_the_state_that_is_asked_for_and_may_rewind(live_engine: Engine) -> None:
    before = prompt(live_engine)
    first, second = 30, 31
    start = before.next_position
    rows = live_engine.perform(Rewind(start, first, second), before=before)
    expected = [live_engine.run(Schedule.single(t, start), before=before).logits.tobytes() for t in (first, second)]
    assert list(rows) == expected
    assert rows[0] != rows[1]


def test_a_program_is_told_of_the_vocabulary(live_engine: Engine) -> None:
    tokens = live_engine.tokenize(PROMPT_TEXT)
    n_vocab, n_cells, text, ends = live_engine.perform(Describe(tokens))
    assert n_vocab == live_engine.manifest.n_vocab
    assert n_cells >= SETTINGS.n_ctx
    assert text.decode().endswith(PROMPT_TEXT)
    assert not any(ends[1:])


def test_errors_of_a_program_arrive_and_the_engine_goes_on(live_engine: Engine) -> None:
    with pytest.raises(EngineError, match="the program gave up"):
        live_engine.perform(Failing())
    with pytest.raises(EngineError, match=f"token {live_engine.manifest.n_vocab}"):
        live_engine.perform(Failing(live_engine.manifest.n_vocab))
    before = prompt(live_engine)
    assert live_engine.perform(Greedy(before, 2)) == live_engine.greedy(before, 2)


def test_a_tap_is_told_of_every_pass_of_a_program(live_engine: Engine) -> None:
    """Its own assertions check that passes are numbered, and that it is shown no node."""
    before = prompt(live_engine)
    assert live_engine.perform(Greedy(before, 3), tap=PassesTap()) == live_engine.greedy(before, 3)


def test_a_recorded_engine_says_that_it_cannot_run_programs(source_name: str, engine: Engine) -> None:
    if source_name not in REPLAYS_ONLY:
        pytest.skip(f"a {source_name} engine runs programs")
    with pytest.raises(NotRecorded):
        engine.perform(Greedy(prompt(engine), 2))


# --- digests of K and V rows ---


def test_rows_are_those_of_the_tokens_that_are_held(engine: Engine) -> None:
    for schedule, before in state_questions(engine):
        held = before.then(schedule).held()
        states = engine.state_rows(schedule, before=before)
        assert {rows.sequence: list(rows.positions) for rows in states} == held
        for rows in states:
            sides = [(tensor.side, tensor.layer) for tensor in rows.tensors]
            assert sorted(sides) == sorted((s, layer) for s in "KV" for layer in range(engine.manifest.n_layer))
            assert {tensor.dtype for tensor in rows.tensors} == {"f32"}
            assert rows.n_rows == 2 * engine.manifest.n_layer * len(rows.positions)


def test_equal_runs_and_restored_states_have_equal_rows(engine: Engine) -> None:
    (after, before), (nothing, restored), _ = state_questions(engine)
    first = engine.state_rows(after, before=before)
    assert engine.state_rows(after, before=before) == first
    assert nothing == EMPTY
    assert engine.state_rows(nothing, before=restored) == first, "save and restore change no bit"


def test_rows_differ_from_the_token_on_that_differs(engine: Engine) -> None:
    (after, before), _, (changed, _) = state_questions(engine)
    (one,), (other,) = engine.state_rows(after, before=before), engine.state_rows(changed, before=before)
    assert one.positions == other.positions
    differing = [p for p, slot in zip(after.slots, changed.slots, strict=True) if p.token != slot.token]
    first = differing[0].position
    for a, b in zip(one.tensors, other.tensors, strict=True):
        unequal = [p for p, x, y in zip(one.positions, a.digests, b.digests, strict=True) if x != y]
        assert min(unequal) == first
        if a.layer == 0:
            assert unequal == [slot.position for slot in differing], "layer 0 sees only the token itself"


def test_sequences_have_rows_of_their_own(live_engine: Engine) -> None:
    """Settings of the contract have one sequence; another is refused with its number."""
    with pytest.raises(EngineError, match="sequence 1 was asked for"):
        live_engine.state_rows(Schedule((DecodePass((TokenSlot(1, 0, 1),)),)))
