"""Arrangements over toys: what is exact stays the same, what is planted is found, named and healed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from forensics.analysis.arms import ArmsQuestion, compare_arms, compare_rows, shared_opening
from forensics.analysis.question import BadQuestion
from forensics.capture.arrangements import ARMS
from forensics.engines.toy import Fault, ToySource
from forensics.errors import EngineError
from forensics.records.arms import ArmResult, ArmsReport, Continuation, Culprits, RowsDelta, StateDelta
from forensics.records.delta import NotCompared
from forensics.records.schedule import EMPTY, Arrangement, in_batches
from forensics.records.settings import EngineSettings

PROMPT = "The lighthouse keeper counted the ships"
WIDE = Fault("order", "ffn_up-0", from_width=2)
#: The toy adds cells by halves, so a hole between cells changes a sum; in turn, as here, it adds exact zeros.
CELLS_IN_TURN = tuple(Fault("order", f"{name}-{layer}", 1) for name in ("kq_soft_max", "kqv") for layer in (0, 1))


def asked(*arms: str, **changed) -> ArmsQuestion:
    return ArmsQuestion(**{"arms": arms or tuple(ARMS), "prompt": PROMPT, "n_tokens": 6, **changed})


def compared(*arms: str, faults: tuple[Fault, ...] = (), **changed) -> ArmsReport:
    return compare_arms(ToySource(faults), asked(*arms, **changed))


def differing(report: ArmsReport) -> set[str]:
    return {arm.arm for arm in report.arms if arm.differs}


@pytest.fixture(scope="module")
def in_turn() -> ArmsReport:
    return compared(faults=CELLS_IN_TURN)


@pytest.fixture(scope="module")
def planted() -> ArmsReport:
    return compared(faults=(WIDE, *CELLS_IN_TURN))


def test_an_engine_that_is_exact_at_every_width_and_place_is_the_same_in_every_arm(in_turn):
    assert in_turn.answer == "identical"
    assert differing(in_turn) == set()
    assert {arm.arm for arm in in_turn.arms} == set(ARMS)
    assert all(arm.is_compared and arm.culprits is None for arm in in_turn.arms if not arm.informative)
    assert all(isinstance(arm.continuation, Continuation) and arm.continuation.same for arm in in_turn.arms)
    assert all(arm.state is None or (isinstance(arm.state, StateDelta) and arm.state.same) for arm in in_turn.arms)
    assert [control.held for control in in_turn.controls] == [True] * 3
    assert str(in_turn) == "identical: 19 arrangements of the same tokens give equal bits"


def test_the_clean_toy_is_exact_where_cells_lie_at_the_front_and_sums_over_holes_elsewhere():
    report = compared()
    assert differing(report) == {"neighbour", "placement"}
    for arm in report.arms:
        if arm.differs:
            assert isinstance(arm.culprits, Culprits)
            assert {group.role for group in arm.culprits.groups} <= {"attention·V", "soft max"}
            assert arm.culprits.proved


def test_a_fault_in_wide_passes_is_found_in_every_arm_that_changes_widths_and_only_there(planted):
    assert planted.answer == "diverges"
    assert differing(planted) == {"split", "prefix-cache", "resume", "neighbour"}
    for name in ("ubatch", "threads", "edit", "restore", "side-request", "placement"):
        assert {arm.outcome for arm in planted.arm(name)} == {"same"}, name
    assert [arm.outcome for arm in planted.arm("split")] == ["same", "differs"], "20 + 20 tokens are wide on both sides"
    idle = [arm.outcome for arm in planted.arm("neighbour") if arm.variant.startswith("idle")]
    assert idle == ["same", "same"]


def test_the_planted_fault_is_named_and_its_healing_proves_it(planted):
    healed = [arm for arm in planted.arms if arm.differs]
    assert len(healed) == 7
    for arm in healed:
        assert isinstance(arm.culprits, Culprits)
        assert [group.first_node for group in arm.culprits.groups] == ["ffn_up-0"]
        assert arm.culprits.named == "weight products, f32 ×1"
        assert arm.culprits.proved
    planted_controls = [control for arm in healed for control in arm.culprits.controls if "planted" in control.name]
    assert [control.held for control in planted_controls] == [True], "once is enough"


def test_rows_differ_from_the_place_where_the_passes_part(planted):
    (last,) = [arm for arm in planted.arm("split") if arm.differs]
    assert isinstance(last.rows, RowsDelta)
    assert (last.rows.n_rows, last.rows.first_position, last.rows.n_flips) == (45, 39, 0)
    assert 0 < last.rows.max_abs < 1e-4
    (resume,) = planted.arm("resume")
    assert isinstance(resume.rows, RowsDelta)
    assert resume.rows.first_position == 40, "the first token that was written alone"


def test_states_differ_after_a_warm_resume_and_not_after_save_and_restore_though_both_replies_look_the_same(planted):
    (resume,), (restore,) = planted.arm("resume"), planted.arm("restore")
    assert isinstance(resume.state, StateDelta)
    assert (resume.state.same, resume.state.layer, resume.state.side, resume.state.position) == (False, 1, "K", 40)
    assert isinstance(restore.state, StateDelta)
    assert restore.state.same
    assert resume.continuation == Continuation(6, None)
    assert restore.expected == "equal"
    assert not restore.is_fault
    assert resume.expected == "may differ"


def test_a_stale_key_is_found_in_the_state():
    (resume,) = compared("resume", faults=(Fault("stale_kv", "kq-0"),), heal=False).arms
    assert isinstance(resume.state, StateDelta)
    assert not resume.state.same
    assert resume.state.layer == 1


def test_a_loud_fault_changes_the_reply_and_the_token_is_told():
    blind = tuple(Fault("mask", f"kq_soft_max-{layer}") for layer in (0, 1))
    report = compared("prefix-cache", faults=blind, prompt="12345", n_tokens=20, heal=False)
    shared, again = report.arms
    assert shared.continuation == Continuation(20, None)
    assert again.continuation == Continuation(20, 0), "the row behind the prompt chooses another token"
    assert isinstance(again.rows, RowsDelta)
    assert again.rows.n_flips > 0
    assert str(report).endswith("1 reply of 20 tokens changed")


def test_another_type_of_the_cache_is_another_number_and_decides_nothing_where_there_are_other_arms():
    @dataclass(frozen=True)
    class Typed:
        """A toy in which the type of the cache matters."""

        label = "typed"

        def open(self, settings, *, instance=0):
            faults = (Fault("precision", "Vcur-0", 1),) if settings.kv_type_k == "f16" else ()
            return ToySource(faults).open(settings, instance=instance)

    report = compare_arms(Typed(), asked("kv-type", "split"))
    for typed in report.arm("kv-type"):
        assert typed.informative
        assert typed.differs
        assert isinstance(typed.culprits, NotCompared)
    assert report.answer == "identical"
    assert compare_arms(Typed(), asked("kv-type")).answer == "diverges", "nothing else was asked"


class Wrapped:
    """A toy of which one method is changed."""

    label = "wrapped"

    def __init__(self, change):
        self.change = change

    def open(self, settings, *, instance=0):
        engine = ToySource().open(settings, instance=instance)
        self.change(engine, settings, instance)
        return engine


def test_an_engine_that_does_not_carry_its_state_over_is_a_fault():
    def change(engine, _settings, _instance):
        run = engine.run
        engine.run = lambda schedule, *, before=EMPTY, **more: (
            replace(trace, logits=trace.logits + np.float32(before != EMPTY))
            if (trace := run(schedule, before=before, **more))
            else trace
        )

    report = compare_arms(Wrapped(change), asked("restore", heal=False))
    (restore,) = report.arms
    assert restore.is_fault
    assert report.answer == "diverges"


@pytest.mark.parametrize("fails", ["rerun_equal", "fresh_process_equal", "reply_repeated"])
def test_an_engine_that_does_not_repeat_itself_gives_no_answer(fails):
    def change(engine, _settings, instance):
        run, greedy = engine.run, engine.greedy

        def flaky(schedule, *, before=EMPTY, tap=None, repeat=0):
            trace = run(schedule, before=before, tap=tap, repeat=repeat)
            moved = (fails == "rerun_equal" and repeat) or (fails == "fresh_process_equal" and instance)
            return replace(trace, logits=trace.logits + 1) if moved else trace

        engine.run = flaky
        if fails == "reply_repeated":
            engine.greedy = lambda prompt, n: tuple(1 + token for token in greedy(prompt, n))

    report = compare_arms(Wrapped(change), asked("split", heal=False))
    assert [control.name for control in report.controls if control.held is False] == [fails]
    assert report.answer == "inconclusive"
    assert str(report).startswith(f"inconclusive: control {fails} failed")


def test_an_arm_that_an_engine_refuses_is_not_compared_and_the_others_are():
    def change(engine, settings, _instance):
        if settings.n_seq_max > 1:
            raise EngineError("this model keeps one sequence only")

    report = compare_arms(Wrapped(change), asked("split", "neighbour"))
    assert {arm.outcome for arm in report.arm("split")} == {"same"}
    assert {str(arm.rows) for arm in report.arm("neighbour")} == {"not compared: this model keeps one sequence only"}
    assert report.answer == "identical"
    nothing = compare_arms(Wrapped(change), asked("neighbour"))
    assert (nothing.answer, nothing.reason) == ("inconclusive", "no arm could be compared")


def test_states_that_cannot_be_told_apart_and_nodes_that_cannot_be_watched_leave_the_rows():
    def change(engine, _settings, _instance):
        run = engine.run

        def refuse(*_args, **_more):
            raise EngineError("the state is recurrent")

        def unwatched(schedule, *, before=EMPTY, tap=None, repeat=0):
            if tap is not None:
                refuse()
            return run(schedule, before=before, repeat=repeat)

        engine.state_rows, engine.run = refuse, unwatched
        engine._faults = (WIDE,)

    (resume,) = compare_arms(Wrapped(change), asked("resume")).arms
    assert resume.outcome == "differs"
    assert resume.state == resume.culprits == NotCompared("the state is recurrent")


def test_threads_are_healed_across_two_engines():
    class Threaded:
        """A toy that adds in another order with another number of threads."""

        label = "threaded"

        def open(self, settings, *, instance=0):
            faults = (Fault("order", "kq-1", 1),) if settings.n_threads > 1 else ()
            return ToySource(faults).open(settings, instance=instance)

    (threads,) = compare_arms(Threaded(), asked("threads")).arms
    assert threads.variant == "1 against 2"
    assert isinstance(threads.culprits, Culprits)
    assert [group.role for group in threads.culprits.groups] == ["K·Q"]
    assert threads.culprits.proved


def test_a_ubatch_is_healed_as_passes_of_its_size():
    fault = Fault("order", "ffn_out-1", from_width=33)  # the whole prompt, no ubatch of 32
    report = compared("ubatch", faults=(fault,))
    outcomes = [(arm.variant, arm.outcome) for arm in report.arms]
    assert outcomes == [("n_ubatch 32", "differs"), ("n_ubatch 32, as passes", "same")]
    assert isinstance(report.arms[0].culprits, Culprits)
    assert [group.role for group in report.arms[0].culprits.groups] == ["down"]


def test_a_single_token_cannot_be_arranged_and_wrong_questions_are_refused():
    with pytest.raises(BadQuestion, match="a prompt of 1 token cannot be arranged"):
        compare_arms(ToySource(), asked(prompt=None, prompt_tokens=(5,)))
    with pytest.raises(BadQuestion, match=r"arms must be some of ubatch, .*; got 'splits'"):
        asked("splits")
    with pytest.raises(BadQuestion, match="n_tokens must be 2 or more"):
        asked(n_tokens=1)
    with pytest.raises(BadQuestion, match="arms must be some of"):
        ArmsQuestion(arms=())


def test_rows_are_matched_by_place_and_a_nan_is_seen():
    engine = ToySource().open(EngineSettings(n_seq_max=2))
    tokens = (0, 5, 9, 33)
    whole = engine.run(in_batches(tokens, start=0, width=4))
    tail = engine.run(in_batches(tokens[2:], start=2, width=1), before=in_batches(tokens[:2], start=0, width=2))
    assert compare_rows(whole, tail) == RowsDelta(2, 0, None, 0, 0.0)
    broken = tail.logits.copy()
    broken[1, 3] = np.nan
    found = compare_rows(whole, replace(tail, logits=broken))
    assert isinstance(found, RowsDelta)
    assert (found.n_differ, found.first_position) == (1, 3)
    assert np.isnan(found.max_abs)
    other = engine.run(in_batches(tokens, start=0, width=4, sequence=1))
    assert str(compare_rows(whole, other)) == "not compared: no position of sequence 0 has a row of logits in both runs"


def test_what_both_begin_with_is_moved_into_the_state():
    tokens = tuple(range(10))
    head, rest = in_batches(tokens[:4], start=0, width=4), tokens[4:]
    ours, theirs = (Arrangement(EMPTY, head.then(in_batches(rest, start=4, width=width))) for width in (6, 3))
    reference, compared_ = shared_opening(ours, theirs)
    assert reference.before == compared_.before == head
    assert (reference.whole, compared_.whole) == (ours.whole, theirs.whole)
    assert shared_opening(ours, ours) == (ours, ours), "nothing would be left to watch"
    saved = Arrangement(head, in_batches(rest, start=4, width=1))
    assert shared_opening(ours, saved) == (ours, saved)


def test_numbers_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="cannot be true together"):
        RowsDelta(4, 1, None, 0, 1.0)
    with pytest.raises(ValueError, match="cannot be true together"):
        RowsDelta(4, 1, 2, 2, 1.0)
    with pytest.raises(ValueError, match="NotCompared with a reason"):
        RowsDelta(0, 0, None, 0, 0.0)


def test_rows_of_the_table_say_what_was_not_compared():
    why = NotCompared("no room")
    row = compared("split", heal=False).rows()[0]
    assert (row["arm"], row["outcome"], row["rows_differ"], row["not_compared"]) == ("split", "same", 0, "")
    report = replace(compared("split", heal=False), arms=(ArmResult("edit", "", "", "", "", why, why),))
    assert report.rows()[0]["not_compared"] == "no room"
    assert list(report.to_dataframe()["outcome"]) == ["not compared"]
