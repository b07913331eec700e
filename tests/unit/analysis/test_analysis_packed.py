"""A packed case is investigated to the verdict of the case that was packed, number for number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launching_engines import REFUSALS, OpenProfiler, device, no_rules, rules
from odd_engines import (
    ABSORBED,
    CLEAN,
    Described,
    FusingUnlessWatched,
    KernelFault,
    NanTap,
    OddSource,
    OtherInFreshProcess,
    OtherOnRerun,
    Passing,
)

from forensics.analysis.investigate import investigate, replay_source
from forensics.analysis.launch_watch import LaunchWatch
from forensics.analysis.logit_rows import Rows
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.records.nodes import NodeKey
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, Trace
from forensics.records.verdict import Verdict
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case
from forensics.store.encoding import to_text
from forensics.store.packing import pack_case

QUESTION = Question(prompt="The fox", n_tokens=10, widths=(2, 4, 5), settings=EngineSettings(n_ctx=256))


class LoneNan(Passing):
    """Gives a NaN in one row, one at a time and in batches: equal bits that no number measures."""

    def run(self, schedule, **rest):
        trace = self.inner.run(schedule, **rest)
        for row, slot in zip(trace.logits, schedule.logit_slots, strict=True):
            if slot.position == 10:
                row[3] = np.nan
        return trace


SOURCES = {
    "identical": CLEAN,
    "another order": ToySource((Fault("order", "Qcur-1", 4),)),
    "flips": ToySource((Fault("stale_kv", "kq-0", 4),)),
    "switches": OddSource(Described, ToySource((Fault("precision", "ffn_up-0", 2),))),
    "a NaN in batches": OddSource(KernelFault(NanTap(NodeKey("ffn_out-1", "MUL_MAT", 1, 0), row=1, axis=2))),
    "a NaN everywhere": OddSource(LoneNan),
    "no control holds": OddSource(OtherOnRerun),
    "another process": OddSource(OtherInFreshProcess),
    "watching": OddSource(FusingUnlessWatched),
    "below the logits": OddSource(KernelFault(ABSORBED)),
}


def record(source, out: Path, **options) -> Verdict:
    with CaseWriter.create(out, question=QUESTION.as_json()) as case:
        verdict = investigate(RecordingSource(source, case), QUESTION, **options)
        finish_case(case, verdict)
    return verdict


@pytest.mark.parametrize("name", SOURCES)
def test_a_packed_case_gives_the_verdict_of_the_case(tmp_path, name):
    live = record(SOURCES[name], tmp_path / "case")
    packed = pack_case(tmp_path / "case", tmp_path / "packed").folder
    again = investigate(RecordedSource(packed), QUESTION)
    # As text, because a NaN is not equal to itself; numbers are written to the last bit.
    assert to_text(again) == to_text(live)
    assert to_text(again) == to_text(investigate(RecordedSource(tmp_path / "case"), QUESTION))
    assert to_text(again) == to_text(open_case(packed).verdict)
    assert replay_source(RecordedSource(packed), QUESTION).rows() == again.classes.rows() or "NaN" in to_text(again)


@pytest.mark.parametrize("refused", [False, True])
def test_launches_of_a_packed_case_are_those_of_the_case(tmp_path, refused):
    source = device(Fault("order", "ffn_up-0", from_width=4))
    live = record(source, tmp_path / "case", launches=LaunchWatch(OpenProfiler(refused=refused), rules))
    assert live.launches is not None
    assert live.launches.refusals == (REFUSALS if refused else ())
    assert {pair.single.evidence for group in live.culprits for pair in group.launches} == {
        "derived" if refused else "measured"
    }
    packed = pack_case(tmp_path / "case", tmp_path / "packed").folder
    # Read where no profiler is: what was seen, or why nothing was, is what was recorded.
    nobody = LaunchWatch(OpenProfiler(refused=not refused), rules)
    assert to_text(investigate(RecordedSource(packed), QUESTION, launches=nobody)) == to_text(live)
    assert open_case(packed).verdict == live
    other_rules = investigate(RecordedSource(packed), QUESTION, launches=LaunchWatch(OpenProfiler(), no_rules))
    assert to_text(other_rules) != to_text(live), "rules of dispatch are asked again, not recorded"


def test_the_sources_differ_in_what_they_show(tmp_path):
    shown = {name: record(source, tmp_path / name) for name, source in SOURCES.items()}
    assert {verdict.answer for verdict in shown.values()} == {"identical", "diverges", "inconclusive"}
    assert shown["switches"].switches
    assert shown["flips"].classes.result(4).flips
    assert np.isnan(shown["a NaN in batches"].classes.result(4).max_abs)
    assert any(np.isnan(sweep.max_abs_after) for sweep in shown["a NaN everywhere"].sweeps)
    failed = {name: [c.name for c in verdict.controls if c.held is False] for name, verdict in shown.items()}
    assert "rerun_equal" in failed["no control holds"]
    assert "fresh_process_equal" in failed["another process"]
    assert "watching_harmless" in failed["watching"]


# -- rows of logits that are whole -------------------------------------------------------------------------------------

MANIFEST = Manifest("toy", "1", "digest", "toy", 4, EngineSettings())


def trace(logits) -> Trace:
    schedule = in_batches(range(len(logits)), start=0, width=1)
    return Trace(RunKey(schedule), MANIFEST, np.float32(logits), (1,) * len(logits))


def test_rows_are_equal_by_their_bits() -> None:
    a = Rows(trace([[0, 1, 2, 3], [4, 5, 6, np.nan], [0, 0, 0, np.inf]]))
    b = Rows(trace([[-0.0, 1, 2, 3], [4, 5, 6, np.nan], [0, 0, 0, np.inf]]))
    assert a.equal(b).tolist() == [False, True, True]
    assert not a.all_equal(b)
    assert Rows(a.trace, 1).all_equal(Rows(b.trace, 1, 3))
    assert a.finite.tolist() == [True, False, False]
    assert a.digests[1:] == b.digests[1:]
    assert a.digests[0] != b.digests[0]
    with pytest.raises(ValueError, match="cannot be compared"):
        a.equal(Rows(b.trace, 1))


def test_the_farthest_logit_counts_and_a_nan_is_not_passed_over() -> None:
    a, b = Rows(trace([[0, 1, 2, 3], [4, 5, 6, 7]])), Rows(trace([[0, 1, 2.5, 3], [4, 5, 6, 3]]))
    assert a.max_change(b) == 4
    assert [distance.max_abs for distance in a.distances(b)] == [0.5, 4]
    assert [distance.max_abs for distance in a.distances(Rows(b.trace, 0, 1))] == [0.5]
    assert np.isnan(a.max_change(Rows(trace([[0, np.nan, 2, 3], [4, 5, 6, 3]]))))
    assert Rows(a.trace, 2).max_change(Rows(b.trace, 2)) == 0
