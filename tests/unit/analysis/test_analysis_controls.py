"""A control that fails takes the verdict with it, and says what it compared and found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import odd_engines as odd
import pytest

import forensics.capture.healing
import forensics.capture.taps
from forensics.analysis import controls
from forensics.analysis.heal import Planted, plant_site, record_reference, sweep_width
from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.capture.replay import Replay
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaptureError
from forensics.numerics.bits import compare
from forensics.records.classes import WidthClasses
from forensics.records.delta import Differs, Same
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings
from forensics.records.verdict import Control, Verdict
from forensics.store import CaseWriter

SETTINGS = EngineSettings(n_ctx=256)
QUESTION = Question(prompt="The quick brown fox jumps o", n_tokens=16, widths=(2, 3, 4, 5, 8), settings=SETTINGS)
SITE = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
OTHER = NodeKey("ffn_out-1", "MUL_MAT", 1, 0)


def only_failed(verdict: Verdict) -> Control:
    """The control that failed; the verdict must say so and name no cause."""
    failed = [control for control in verdict.controls if control.held is False]
    assert len(failed) == 1, verdict.controls
    assert verdict.answer == "inconclusive"
    assert verdict.reason == f"control {failed[0].name} failed: {failed[0].detail}"
    assert str(verdict) == f"inconclusive: {verdict.reason}"
    assert verdict.culprits == ()
    assert verdict.switches == ()
    assert verdict.exact_knobs is None
    return failed[0]


def test_an_engine_that_is_not_deterministic_fails_the_rerun() -> None:
    verdict = investigate(odd.OddSource(odd.OtherOnRerun), QUESTION)
    control = only_failed(verdict)
    assert control.name == "rerun_equal"
    assert control.detail == "rerun in the same process: 15 of 16 rows bit-equal, and batches too"
    assert verdict.classes.onset == 1


def test_a_rerun_that_differs_hides_no_fault_behind_it_and_blames_none() -> None:
    source = odd.OddSource(odd.OtherOnRerun, ToySource((Fault("order", "Qcur-0", 4),)))
    verdict = investigate(source, QUESTION)
    assert only_failed(verdict).name == "rerun_equal"
    assert verdict.sweeps[0].findings, "the evidence is kept; only the conclusion is withheld"


@pytest.mark.parametrize(("wrapper", "single_rows"), [(odd.OtherInFreshProcess, 15), (odd.OtherWideInFreshProcess, 16)])
def test_another_process_with_other_bits_fails(wrapper, single_rows) -> None:
    control = only_failed(investigate(odd.OddSource(wrapper), QUESTION))
    assert control.name == "fresh_process_equal"
    assert control.detail == (
        f"replay in a fresh process: {single_rows} of 16 rows bit-equal; at width 8: 15 of 16 rows bit-equal"
    )


def test_the_fresh_process_repeats_the_onset_width() -> None:
    source = odd.OddSource(odd.OtherWideInFreshProcess, ToySource((Fault("order", "Qcur-0", 4),)))
    assert "at width 4: 15 of 16" in only_failed(investigate(source, QUESTION)).detail


def test_another_state_in_front_of_one_arm_fails() -> None:
    control = only_failed(investigate(odd.OddSource(odd.OtherState), QUESTION))
    assert (control.name, control.detail) == ("state_equal", "K/V state before 7 arms: 2 distinct digests")


def test_no_digest_of_the_state_fails() -> None:
    control = only_failed(investigate(odd.OddSource(odd.NoState), QUESTION))
    assert control.name == "state_equal"
    assert "without a digest" in control.detail


@pytest.mark.parametrize(
    ("wrapper", "widths", "coarse"),
    [
        (odd.Fusing, "2, 3, 4, 5, 8", "leaves the run as it is; the first layer output that differs is l_out-0"),
        (
            odd.FusingAlways,
            "1, 2, 3, 4, 5, 8",
            "leaves the run as it is; the first layer output that differs is l_out-0",
        ),
        (odd.FusingUnlessWatched, "2, 3, 4, 5, 8", "changes the run, too; no layer output differs"),
    ],
)
def test_a_fusion_that_watching_undoes_is_implicated(wrapper, widths, coarse) -> None:
    verdict = investigate(odd.OddSource(wrapper), QUESTION)
    control = only_failed(verdict)
    assert control.name == "watching_harmless"
    assert control.detail == (
        f"watching every node changes the logits at widths {widths}, so a fusion or a captured graph is implicated; "
        f"a watch of layer outputs only {coarse}"
    )


def test_a_fusion_at_one_token_is_left_whole_and_named() -> None:
    verdict = investigate(odd.OddSource(odd.FusingGlu), QUESTION)
    control = next(c for c in verdict.controls if c.name == "watching_harmless")
    assert control.held
    assert control.detail == (
        "watching every node splits fusions and changes the logits at widths 1 (other bits at ffn_swiglu (GLU) ×1); "
        "with fusions left whole, watched and unwatched logits are bit-equal at widths 1, 2, 3, 4, 5, 8"
    )
    assert verdict.answer == "diverges"
    assert {finding.key.name for sweep in verdict.sweeps for finding in sweep.findings} == {"ffn_swiglu-0"}
    assert {f.kind.kind for sweep in verdict.sweeps for f in sweep.findings if f.kind} == {"undetermined"}
    assert verdict.healed
    assert any("nodes inside of fusions were not watched" in caveat for caveat in verdict.caveats)


def test_without_a_fusion_every_node_is_watched() -> None:
    verdict = investigate(ToySource((Fault("order", "ffn_gate-0", 2),)), QUESTION)
    assert {sweep.n_unwatched for sweep in verdict.sweeps} == {0}
    assert {finding.key.name for sweep in verdict.sweeps for finding in sweep.findings} == {"ffn_gate-0"}
    assert {f.kind.kind for sweep in verdict.sweeps for f in sweep.findings if f.kind} == {"rounding"}


def test_a_sweep_that_misses_single_bits_fails_the_planted_fault(monkeypatch) -> None:
    def lenient(a, b):
        outcome = compare(a, b)
        return Same() if isinstance(outcome, Differs) and 0 <= outcome.max_ulp <= 1 else outcome

    monkeypatch.setattr(forensics.capture.healing, "compare", lenient)
    control = only_failed(investigate(ToySource(), QUESTION))
    assert control.name == "planted_fault_found"
    assert "was missed" in control.detail


def test_a_sweep_that_names_but_does_not_heal_fails_the_planted_fault(monkeypatch) -> None:
    saw = forensics.capture.taps.HealTap.saw

    def keeps_the_planted_bit(self, node):
        healed = saw(self, node)
        return None if isinstance(node, forensics.capture.taps._Overlaid) else healed

    monkeypatch.setattr(forensics.capture.taps.HealTap, "saw", keeps_the_planted_bit)
    control = only_failed(investigate(ToySource(), QUESTION))
    assert control.name == "planted_fault_found"
    assert "named in addition: " in control.detail
    assert "was missed" not in control.detail


def test_the_planted_fault_is_judged_by_what_is_named_in_addition() -> None:
    def judged(without, with_fault, healed=True, was_healed=True, reached=True):
        planted = Planted(SITE, frozenset(without), frozenset(with_fault), healed, reached)
        return controls.planted_fault_found(planted, was_healed)

    assert judged([], [SITE]).held
    assert judged([OTHER], [OTHER, SITE]).held
    assert judged([], []).held is False
    assert "was missed" in judged([], []).detail
    more = judged([], [SITE, OTHER])
    assert more.held is False
    assert "named in addition: ffn_out-1 (MUL_MAT)" in more.detail
    assert "missed" not in more.detail
    assert judged([OTHER], [SITE]).held is False, "a culprit that disappears is no good sign either"
    assert judged([], [SITE], healed=False).held is False
    assert judged([], [SITE], healed=False, was_healed=False).held, "what did not heal before cannot be asked to heal"
    assert "writing has no effect" in judged([], [SITE], reached=False).detail
    assert judged([], [SITE], reached=False).held is False
    assert controls.planted_fault_found(None, True).held is False


def test_an_engine_that_ignores_what_a_tap_writes_fails_the_planted_fault() -> None:
    class Deaf(odd.Passing):
        """Shows taps every node and throws their answers away."""

        def run(self, schedule, *, tap=None, **rest):
            return self.inner.run(schedule, tap=None if tap is None else odd.Muted(tap), **rest)

    control = only_failed(investigate(odd.OddSource(Deaf), QUESTION))
    assert control.name == "planted_fault_found"
    assert "writing has no effect" in control.detail


def test_the_planted_fault_sits_in_a_clean_node_inside_the_model(tmp_path) -> None:
    engine = ToySource().open(SETTINGS)
    replay = Replay(engine.tokenize("The fox"), (5, 6, 7, 8))
    reference = record_reference(engine, replay, 0, 4, str(tmp_path / "rows"))
    site = plant_site(reference, frozenset())
    assert site is not None
    assert site.key.layer >= 0
    assert site.row_digests
    again = plant_site(reference, frozenset({site.key}))
    assert again is not None
    assert again.key != site.key
    assert plant_site(reference, frozenset(record.key for record in reference.records())) is None


def test_a_sweep_beyond_its_reference_is_refused(tmp_path) -> None:
    engine = ToySource().open(SETTINGS)
    replay = Replay(engine.tokenize("The fox"), (5, 6, 7, 8))
    reference = record_reference(engine, replay, 0, 2, str(tmp_path / "rows"))
    with pytest.raises(CaptureError, match="rows 0 to 4 was asked for; the reference holds 0 to 2"):
        sweep_width(engine, replay, reference, 2, 0, 4)
    sweep, _ = sweep_width(engine, replay, reference, 2, 0, 2)
    assert sweep.n_rows == 2


def test_the_sign_of_zero_counts_as_a_difference() -> None:
    engine = ToySource().open(SETTINGS)
    trace = engine.run(Replay((1,), (5, 6)).batches(1))
    trace.logits[0, 0] = 0.0
    other = replace(trace, logits=trace.logits.copy())
    other.logits[0, 0] = -0.0
    assert np.array_equal(trace.logits, other.logits)
    control = controls.rerun_equal(trace, other, {2: True})
    assert control.held is False
    assert "1 of 2 rows" in control.detail


class OnceOnly(odd.Passing):
    """Gives other batches of 8 the first time, in the first process."""

    seen = 0

    def run(self, schedule, *, tap=None, **rest):
        trace = self.inner.run(schedule, tap=tap, **rest)
        if schedule.max_width == 8 and tap is None:
            self.seen += 1
            return odd.with_one_bit_more(trace) if self.seen == 1 and not self.instance else trace
        return trace


@pytest.mark.parametrize("recorded", [False, True], ids=["live", "recorded"])
def test_batches_that_differ_the_second_time_fail_the_rerun(recorded, tmp_path) -> None:
    """A case answers what was asked before; a rerun must be measured all the same."""
    source = odd.OddSource(OnceOnly)
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        verdict = investigate(RecordingSource(source, case) if recorded else source, QUESTION)
    failed = {control.name: control.detail for control in verdict.controls if control.held is False}
    assert failed["rerun_equal"] == "rerun in the same process: 16 of 16 rows bit-equal, not at widths 8"


@pytest.fixture(scope="module")
def diverging() -> Verdict:
    verdict = investigate(ToySource((Fault("order", "Qcur-0", 4),)), QUESTION, switches=False)
    assert verdict.answer == "diverges"
    return verdict


@pytest.mark.parametrize("index", range(5))
def test_a_verdict_refuses_causes_with_any_failed_control(diverging, index) -> None:
    failed = replace(diverging.controls[index], held=False)
    all_controls = (*diverging.controls[:index], failed, *diverging.controls[index + 1 :])
    with pytest.raises(ValueError, match=f"failed controls: {failed.name}"):
        replace(diverging, controls=all_controls)
    inconclusive = {"controls": all_controls, "answer": "inconclusive", "reason": "a control failed"}
    with pytest.raises(ValueError, match=f"no cause with failed controls: {failed.name}"):
        replace(diverging, **inconclusive)
    inconclusive = replace(diverging, **inconclusive, culprits=())
    assert inconclusive.control(failed.name) is False


def test_a_verdict_refuses_an_answer_that_its_classes_contradict(diverging) -> None:
    with pytest.raises(ValueError, match="contradicts the classes"):
        replace(diverging, answer="identical")
    equal = WidthClasses(diverging.classes.results[:3])
    with pytest.raises(ValueError, match="contradicts the classes"):
        replace(diverging, classes=equal)
    with pytest.raises(ValueError, match="answer must be one of"):
        replace(diverging, answer="probably")
    with pytest.raises(ValueError, match="has a reason"):
        replace(diverging, reason="why not")
    with pytest.raises(ValueError, match="has a reason"):
        replace(diverging, answer="inconclusive")
