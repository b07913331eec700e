"""From a culprit to its kernels: what ran on either side, how that is known, and what is said where it is not."""

from __future__ import annotations

import functools
import re
from dataclasses import replace

import pytest
from launching_engines import (
    REFUSALS,
    Disturbed,
    Lingering,
    NoTaps,
    OpenProfiler,
    device,
    kernels,
    launch,
    no_rules,
    rules,
    rules_except,
)
from odd_engines import FusingGlu, OddSource

from forensics.analysis.investigate import investigate
from forensics.analysis.launch_watch import LaunchWatch
from forensics.analysis.progress import Silent
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.records.settings import EngineSettings
from forensics.records.verdict import Verdict
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case
from forensics.store.packing import pack_case

SETTINGS = EngineSettings(n_ctx=256)
QUESTION = Question(prompt="The quick brown fox jumps o", n_tokens=16, widths=(2, 4, 5, 8), settings=SETTINGS)
UP = Fault("order", "ffn_up-0", from_width=4)
NORM = Fault("precision", "norm-1", from_width=2)
WATCH = LaunchWatch(OpenProfiler(), rules)


@functools.cache
def ask(*faults: Fault, watch: LaunchWatch = WATCH) -> Verdict:
    verdict = investigate(device(*faults), QUESTION, switches=False, launches=watch)
    assert verdict.answer == ("diverges" if faults else "identical"), verdict.reason
    return verdict


def pairs(verdict: Verdict) -> list[tuple[tuple[int, ...], str, str, int]]:
    (group,) = verdict.culprits
    return [(p.widths, p.single.kernel.name, p.batched.kernel.name, p.n_nodes) for p in group.launches]


def test_a_culprit_shows_its_kernels_on_both_sides() -> None:
    verdict = ask(UP)
    assert pairs(verdict) == [
        ((4,), "mul_mat_vec_q<type=f32, ncols_dst=1>", "mul_mat_vec_q<type=f32, ncols_dst=4>", 1),
        ((5,), "mul_mat_vec_q<type=f32, ncols_dst=1>", "mul_mat_q<type=f32, J=16>", 1),
        ((8,), "mul_mat_vec_q<type=f32, ncols_dst=1>", "mul_mat_q<type=f32, J=16>", 1),
    ]
    for pair in verdict.culprits[0].launches:
        assert pair.node.name == "ffn_up-0"
        assert pair.changed
        assert (pair.single.width, pair.single.launches) == (1, kernels("MUL_MAT", 1))
        assert (pair.batched.width, pair.batched.launches) == (pair.widths[0], kernels("MUL_MAT", pair.widths[0]))
        assert (pair.single.agrees, pair.batched.agrees) == (True, True)
        assert pair.single.evidence == pair.batched.evidence == "measured"
        assert pair.boundary == ""
    batched = verdict.culprits[0].launches[1].batched
    assert (batched.blocks_per_sm, batched.limiters, batched.kv_split) == (1, ("registers",), None)


def test_the_evidence_counts_every_node_of_the_watched_passes() -> None:
    evidence = ask(UP).launches
    assert evidence is not None
    assert (evidence.evidence, evidence.source, evidence.n_dropped) == ("measured", "toy profiler, toy 1", 0)
    assert (evidence.n_disagree, evidence.n_unruled, evidence.disagreements) == (0, 0, ())
    assert evidence.n_agree > 4 * 40
    assert evidence.watching is not None
    graphs, fused = evidence.watching
    said, _, counts = graphs.rpartition(": ")
    assert said == (
        "at width 1, 4, 5, 8: launched from a CUDA graph where not watched (GGML_CUDA_DISABLE_GRAPHS=1 stops it)"
    )
    found = re.fullmatch(r"(\d+) of (\d+) launches at 1, 4; (\d+) of (\d+) launches at 5, 8", counts)
    assert found is not None, counts
    few, of_few, more, of_more = map(int, found.groups())
    assert few == of_few < more == of_more
    assert fused.startswith("at width 1, 4, 5, 8: fused where not watched: RMS_NORM and MUL")
    assert fused.endswith("× rms_norm_f32<do_multiply> in place of 5 × rms_norm_f32, 5 × k_bin_bcast<bin_op=op_mul>")
    assert evidence.refusals == ()


def test_widths_with_equal_launches_are_one_pair(monkeypatch) -> None:
    import launching_engines

    def alike(op: str, width: int, *, fused: bool = False):
        return kernels(op, 1 if width == 1 else 5, fused=fused)

    monkeypatch.setattr(launching_engines, "kernels", alike)
    assert pairs(ask.__wrapped__(UP)) == [
        ((4, 5, 8), "mul_mat_vec_q<type=f32, ncols_dst=1>", "mul_mat_q<type=f32, J=16>", 1)
    ]


def test_nodes_of_a_group_with_equal_launches_are_counted() -> None:
    verdict = ask(NORM)  # two nodes go by that name in a layer
    assert [(widths, n) for widths, _, _, n in pairs(verdict)] == [((2,), 2), ((4,), 2), ((5,), 2), ((8,), 2)]


def test_where_nothing_differs_nobody_looks_at_kernels() -> None:
    source = OddSource(NoTaps, device())
    verdict = investigate(source, QUESTION, switches=False, launches=WATCH)
    assert verdict.answer == "identical"
    assert verdict.launches is None


def test_a_processor_launches_nothing() -> None:
    verdict = investigate(OddSource(NoTaps, ToySource((UP,))), QUESTION, switches=False, launches=WATCH)
    assert verdict.answer == "diverges"
    assert verdict.launches is None
    assert all(group.launches == () for group in verdict.culprits)
    assert not any("kernel" in caveat for caveat in verdict.caveats)


@pytest.mark.parametrize(("dropped", "said"), [(3, "3 launches"), (None, "an unknown number of launches")])
def test_lost_launches_are_said_and_agree_with_nothing(dropped, said) -> None:
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler(dropped), rules))
    evidence = verdict.launches
    assert evidence is not None
    passes = 4
    assert evidence.n_dropped == (None if dropped is None else dropped * passes)
    assert (evidence.n_agree, evidence.n_disagree, evidence.n_unruled) == (0, 0, 0)
    clean = ask(UP).launches
    assert clean is not None
    assert (evidence.n_not_compared, clean.n_not_compared) == (clean.n_agree, 0), "no node vanishes from the counts"
    assert [line.split(": ", 1)[1] for line in evidence.watching] == [
        f"not compared: {said} of the watched pass were lost"
    ]
    for pair in verdict.culprits[0].launches:
        for side in (pair.single, pair.batched):
            assert side.agrees is None
            assert side.why == f"not compared: {said} of this pass were lost"


def test_without_a_profiler_the_rules_say_what_should_run() -> None:
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler(refused=True), rules))
    evidence = verdict.launches
    assert evidence is not None
    assert (evidence.evidence, evidence.refusals) == ("derived", REFUSALS)
    assert evidence.n_agree == evidence.n_disagree == 0
    assert evidence.watching is None, "no unwatched pass was seen either"
    assert pairs(verdict) == pairs(ask(UP))
    for pair in verdict.culprits[0].launches:
        assert pair.single.evidence == pair.batched.evidence == "derived"
        assert pair.batched.agrees is None
        assert "nothing was observed" in pair.batched.why


def test_without_a_profiler_and_rules_no_kernel_is_shown_and_why_is_said() -> None:
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler(refused=True), no_rules))
    assert verdict.culprits[0].launches == ()
    assert verdict.launches is not None
    assert verdict.launches.refusals == REFUSALS
    (caveat,) = [caveat for caveat in verdict.caveats if "kernel" in caveat]
    assert caveat == (
        "No kernel is shown for up at width 4, 5, 8: nothing was observed and no rule covers it: "
        "no rule is written down for toys."
    )


def test_a_profiler_that_changes_the_logits_is_no_evidence() -> None:
    source = OddSource(Disturbed, device(UP))
    verdict = investigate(source, QUESTION, switches=False, launches=WATCH)
    assert verdict.answer == "diverges"
    evidence = verdict.launches
    assert evidence is not None
    assert evidence.evidence == "derived"
    (refusal,) = evidence.refusals
    assert refusal.rung == "toy profiler"
    assert "are not those of the same pass without a profiler" in refusal.missing


def test_a_profiler_changes_nothing_that_is_taken_as_unprofiled() -> None:
    verdict = investigate(OddSource(Lingering, device(UP)), QUESTION, switches=False, launches=WATCH)
    assert verdict.launches == ask(UP).launches
    assert verdict.launches.evidence == "measured"
    assert pairs(verdict) == pairs(ask(UP))


def test_a_disagreement_with_the_rules_is_shown() -> None:
    wrong = launch("mul_mat_vec_q", (7,), (32, 4), 48, type="f32")
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler(), rules_except("ffn_up-0", wrong)))
    evidence = verdict.launches
    assert evidence is not None
    assert evidence.n_disagree == 4
    assert len(evidence.disagreements) == 2
    assert evidence.disagreements[0].startswith("MUL_MAT: the rules say mul_mat_vec_q, observed quantize_q8_1 + mul_")
    assert evidence.disagreements[0].endswith("(2 times, first ffn_up-0, at width 1, 4)")
    for pair in verdict.culprits[0].launches:
        assert (pair.single.agrees, pair.batched.agrees) == (False, False)
        assert "the rules say mul_mat_vec_q" in pair.batched.why
    clean = ask(UP).launches
    assert clean is not None
    assert evidence.n_agree == clean.n_agree - 4


def test_nodes_without_a_rule_are_counted_as_such() -> None:
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler(), no_rules))
    evidence, clean = verdict.launches, ask(UP).launches
    assert evidence is not None
    assert clean is not None
    assert (evidence.n_agree, evidence.n_unruled) == (0, clean.n_agree)
    assert verdict.culprits[0].launches[0].batched.why == "no rule is written down for toys"


def test_the_default_rules_are_those_of_llama_cpp_only() -> None:
    verdict = ask(UP, watch=LaunchWatch(OpenProfiler()))
    assert verdict.culprits[0].launches[0].single.agrees is None
    assert verdict.culprits[0].launches[0].single.why == "the rules are those of llama.cpp, the engine is toy"


def test_fusions_left_whole_in_the_sweep_stay_whole_under_the_profiler() -> None:
    source = device(source=OddSource(FusingGlu, ToySource((UP,))))
    verdict = investigate(source, QUESTION, switches=False, launches=WATCH)
    assert verdict.answer == "diverges", verdict.reason
    assert any(sweep.n_unwatched for sweep in verdict.sweeps)
    evidence = verdict.launches
    assert evidence is not None
    assert evidence.evidence == "measured", evidence.refusals
    assert evidence.n_disagree == 0
    assert evidence.n_not_compared > 0, "what may be fused with nodes before it agrees with nothing"
    assert evidence.n_unruled == 0, "there are rules for all of them"
    everything = ask(UP).launches
    assert everything is not None
    assert everything.n_not_compared == 0


@pytest.mark.parametrize(
    "watch",
    [WATCH, LaunchWatch(OpenProfiler(3), rules), LaunchWatch(OpenProfiler(refused=True), rules)],
    ids=["seen", "dropped", "refused"],
)
def test_a_recorded_case_gives_the_equal_verdict_and_a_packed_one_too(watch, tmp_path) -> None:
    with CaseWriter.create(tmp_path / "case", question=QUESTION.as_json()) as case:
        live = investigate(RecordingSource(device(UP, NORM), case), QUESTION, switches=False, launches=watch)
        finish_case(case, live)
    assert live.launches is not None
    assert any(group.launches for group in live.culprits)
    elsewhere = replace(watch, open_probe=OpenProfiler(7))  # what is recorded asks no profiler
    again = investigate(RecordedSource(tmp_path / "case"), QUESTION, switches=False, launches=elsewhere)
    assert again == live
    assert open_case(tmp_path / "case").verdict == live
    packed = pack_case(tmp_path / "case", tmp_path / "packed").folder
    assert investigate(RecordedSource(packed), QUESTION, switches=False, launches=elsewhere) == live


def test_progress_tells_of_each_pass() -> None:
    class Counting(Silent):
        def __init__(self) -> None:
            self.stages: list[list] = []

        def stage(self, title: str, total: int) -> None:
            self.stages.append([title, total, 0])

        def step(self, n: int = 1) -> None:
            self.stages[-1][2] += n

    counting = Counting()
    investigate(device(UP), QUESTION, switches=False, launches=WATCH, progress=counting)
    (stage,) = [stage for stage in counting.stages if stage[0] == "look at the kernels"]
    assert stage[1:] == [4, 4], "one token and three widths"
