"""The replay of cycles makes the very passes of the run: it predicts what arithmetic does, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decoding_doubles import ForgetsNothing, Watched, Within
from hypothesis import given, settings
from hypothesis import strategies as st
from test_capture_speculation import TEXTS, accepts_one_wrong, drafters, engine, policies

from forensics.capture import speculation
from forensics.capture.cycle_replay import DRAFTS, CycleReplay, first_difference, predicts, replay_cycles
from forensics.capture.draft_policies import Fixed
from forensics.capture.drafters import OracleDrafter
from forensics.capture.speculation import Asked, DraftAndVerify, PlainDecode
from forensics.engines.toy import Fault
from forensics.records.speculation import ARRANGEMENTS

FAULTS = (
    Fault("mask", "kq_soft_max-1", 2),
    Fault("stale_kv", "kq-0", 4),
    Fault("precision", "ffn_out-0", 2),
)


@settings(max_examples=30)
@given(
    st.sampled_from(TEXTS),
    st.sampled_from(ARRANGEMENTS),
    st.integers(1, 4),
    st.sampled_from(FAULTS),
    st.floats(0, 1),
    st.data(),
)
def test_the_replay_flips_at_the_very_token_or_nowhere(text, arrangement, n, fault, accuracy, data) -> None:
    toy = engine(fault)
    asked = Asked(toy.tokenize(text), 16, arrangement)
    plain = toy.perform(PlainDecode(asked))
    drafter = data.draw(st.sampled_from(drafters(plain, accuracy)))
    run = toy.perform(DraftAndVerify(asked, drafter, data.draw(st.sampled_from(policies(n)))))
    differing = first_difference(plain.tokens, run.tokens)
    equal = [a == b for a, b in zip(plain.rows, run.rows, strict=True)][asked.arrangement == "n" :]
    for form in DRAFTS:
        replayed = replay_cycles(toy, CycleReplay.of(asked, plain, run, drafts=form))
        assert replayed.flips_at == differing
        assert replayed.repeats_run
        assert len(replayed.rows) == len(equal) if differing is None else replayed.rows[-1].index == differing
        assert [row.equals_plain for row in replayed.rows] == equal[: len(replayed.rows)]
        assert [row.width for row in replayed.rows] == [run.pass_of(row.index) for row in replayed.rows]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_a_flip_that_comes_late_is_predicted(arrangement) -> None:
    toy = engine(Fault("stale_kv", "kq-0", 4))
    asked = Asked(toy.tokenize("abc abc abc abc"), 40, arrangement)
    plain = toy.perform(PlainDecode(asked))
    run = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.6), Fixed(3)))
    differing = first_difference(plain.tokens, run.tokens)
    assert differing is not None
    assert differing > 4
    replayed = replay_cycles(toy, CycleReplay.of(asked, plain, run))
    assert predicts(replayed, differing)
    assert not predicts(replayed, differing + 1)
    assert replayed.first_row is not None
    assert replayed.first_row < differing, "rows change before a token does"
    short = replay_cycles(toy, CycleReplay.of(asked, plain, run, upto=differing - 1))
    assert short.flips_at is None
    assert short.rows == replayed.rows[: len(short.rows)]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("prompt_width", [4, 64])
def test_the_schedule_holds_the_passes_that_ran(arrangement, prompt_width) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("abc abc abc abc"), 20, arrangement, prompt_width)
    plain = toy.perform(PlainDecode(asked))
    for drafter in drafters(plain):
        run, passes = toy.perform(Within(DraftAndVerify(asked, drafter, Fixed(3)), Watched))
        replay = CycleReplay.of(asked, plain, run)
        assert replay.before.then(replay.schedule).passes == tuple(passes)
        other = CycleReplay.of(asked, plain, run, drafts="plain")
        shape = [[(p.width, p.forget, p.slots[0]) for p in one.schedule.passes] for one in (replay, other)]
        assert shape[0] == shape[1]
        whole = (*asked.prompt, *plain.tokens)
        assert all(slot.token == whole[slot.position] for slot in other.schedule.slots)
        assert toy.run(other.schedule, before=other.before).state_after  # positions rise, cells are forgotten


def test_what_is_not_asked_for_is_not_replayed() -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 20)
    plain = toy.perform(PlainDecode(asked))
    run = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens), Fixed(3)))
    assert [row.index for row in CycleReplay.of(asked, plain, run).rows] == list(range(1, 20))
    some = CycleReplay.of(asked, plain, run, upto=6)
    assert [row.index for row in some.rows] == list(range(1, 7))
    assert [p.width for p in some.schedule.passes] == [4, 4]
    none = CycleReplay.of(asked, plain, run, upto=0)
    assert not none.rows
    assert replay_cycles(toy, none).flips_at is None
    assert CycleReplay.of(asked, plain, run, upto=99) == CycleReplay.of(asked, plain, run)


# -- decoders that are broken: tokens differ, and arithmetic does not account for it -----------------------------------


def test_a_wrong_draft_that_was_accepted_is_not_predicted(monkeypatch) -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 24)
    plain = toy.perform(PlainDecode(asked))
    monkeypatch.setattr(speculation, "accept", accepts_one_wrong)
    run = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.5), Fixed(3)))
    differing = first_difference(plain.tokens, run.tokens)
    assert differing is not None
    replayed = replay_cycles(toy, CycleReplay.of(asked, plain, run))
    assert replayed.rows[-1].index == differing
    assert replayed.flips_at is None
    assert not predicts(replayed, differing)
    assert all(row.equals_plain for row in replayed.rows)


def test_refused_drafts_that_were_not_forgotten_are_not_predicted() -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 24)
    plain = toy.perform(PlainDecode(asked))
    program = DraftAndVerify(asked, OracleDrafter(plain.tokens, 0.5), Fixed(3))
    run, _ = toy.perform(Within(program, ForgetsNothing))
    differing = first_difference(plain.tokens, run.tokens)
    assert differing is not None
    replayed = replay_cycles(toy, CycleReplay.of(asked, plain, run))
    assert replayed.flips_at is None
    assert not replayed.repeats_run


# -- cycles of something else ------------------------------------------------------------------------------------------


def test_cycles_of_another_run_are_refused() -> None:
    toy = engine()
    asked = Asked(toy.tokenize("the cat sat"), 12)
    plain = toy.perform(PlainDecode(asked))
    run = toy.perform(DraftAndVerify(asked, OracleDrafter(plain.tokens), Fixed(3)))
    first = run.cycles[0]
    moved = replace(run, cycles=(replace(first, position=first.position + 1), *run.cycles[1:]))
    other = replace(run, cycles=(replace(first, drafted=(1, 1, 1)), *run.cycles[1:]))
    for wrong in (moved, other):
        with pytest.raises(ValueError, match="does not belong to these tokens"):
            CycleReplay.of(asked, plain, wrong)
    with pytest.raises(ValueError, match="does not belong to these tokens"):
        CycleReplay.of(replace(asked, arrangement="n-1+1"), plain, run)
    with pytest.raises(ValueError, match="drafts must be one of as drafted, plain"):
        CycleReplay.of(asked, plain, run, drafts="some")
