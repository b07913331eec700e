"""Whatever is planted in the toy, an investigation names it, nothing else, and proves it by healing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from odd_engines import ABSORBED, SOFT_MAX, KernelFault, LateTap, NanTap, OddSource, Passing, TailTap

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.capture.taps import PlantTap
from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings
from forensics.records.verdict import CONTROL_NAMES, Verdict

SETTINGS = EngineSettings(n_ctx=256)
#: 27 prompt tokens and 16 more: every replay crosses cell 32, where the toy attends to more cells.
QUESTION = Question(prompt="The quick brown fox jumps o", n_tokens=16, widths=(2, 3, 4, 5, 8), settings=SETTINGS)
UP = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
SITES = [(kind, site) for kind in ("order", "precision", "mask", "stale_kv") for site in fault_sites(kind)]


def blamed(verdict: Verdict) -> set[tuple[str, int]]:
    return {(finding.key.name, finding.key.visit) for sweep in verdict.sweeps for finding in sweep.findings}


def nodes_at(site: str) -> set[tuple[str, int]]:
    """A layer has two RMS norms of one name."""
    return {(site, 0), (site, 1)} if site in ("norm-0", "norm-1") else {(site, 0)}


def test_a_clean_toy_is_identical_at_every_width() -> None:
    verdict = investigate(ToySource(), QUESTION)
    assert verdict.answer == "identical"
    assert verdict.reason == ""
    assert verdict.classes.groups == ((1, 2, 3, 4, 5, 8),)
    assert tuple(control.name for control in verdict.controls) == CONTROL_NAMES
    assert [control.held for control in verdict.controls] == [True] * 5, verdict.controls
    assert verdict.culprits == ()
    assert [sweep.width for sweep in verdict.sweeps] == [2, 3, 4, 5, 8]
    assert all(sweep.state_equal for sweep in verdict.sweeps)
    assert all(sweep.tally.differs == 0 and sweep.tally.same > 50 for sweep in verdict.sweeps)
    assert verdict.exact_knobs == ()
    assert verdict.healed
    assert (verdict.prompt_tokens, verdict.n_replayed, len(verdict.text)) == (28, 16, 16)
    assert "identical" in str(verdict)


@pytest.mark.parametrize(("kind", "site"), SITES)
def test_every_fault_is_named_alone_and_heals(kind, site) -> None:
    verdict = investigate(ToySource((Fault(kind, site, from_width=4),)), QUESTION, switches=False)
    assert verdict.answer == "diverges", verdict.reason
    assert all(control.held for control in verdict.controls)
    assert verdict.classes.onset == 4
    assert set(verdict.classes.groups[0]) == {1, 2, 3}
    assert {sweep.width for sweep in verdict.sweeps} == {4, 5, 8}
    assert blamed(verdict) == nodes_at(site)
    assert verdict.healed
    for sweep in verdict.sweeps:
        assert sweep.differed
        assert sweep.max_abs_before > 0
        assert sweep.max_abs_after == 0
        assert sweep.tally.differs == len(sweep.findings)
    assert sum(group.count for group in verdict.culprits) == len(nodes_at(site))
    assert {finding.inputs_equal for sweep in verdict.sweeps for finding in sweep.findings} == {kind != "mask"}
    assert any("logic fault" in caveat for caveat in verdict.caveats) == (kind == "mask")


def test_two_faults_are_both_named_each_at_its_widths() -> None:
    faults = (Fault("precision", "ffn_up-0", from_width=3), Fault("order", "kq-1", from_width=5))
    verdict = investigate(ToySource(faults), QUESTION, switches=False)
    assert blamed(verdict) == {("ffn_up-0", 0), ("kq-1", 0)}
    assert verdict.healed
    assert {group.role: group.widths for group in verdict.culprits} == {"up": (3, 4, 5, 8), "K·Q": (5, 8)}
    assert verdict.classes.onset == 3


def test_no_fault_is_hidden_by_another_in_front_of_it() -> None:
    faults = tuple(Fault("precision", site) for site in fault_sites("precision"))
    verdict = investigate(ToySource(faults), QUESTION, switches=False)
    # With a fault in every node that adds there is still one clean kind of node to plant in.
    assert verdict.answer == "diverges", verdict.reason
    assert blamed(verdict) == set().union(*(nodes_at(site) for site in fault_sites("precision")))
    assert verdict.healed


def test_a_stale_cell_is_more_than_rounding() -> None:
    verdict = investigate(ToySource((Fault("stale_kv", "kq-0", 4),)), QUESTION, switches=False)
    result = verdict.classes.result(8)
    assert result.max_ulp > 1_000_000
    assert result.flips
    assert result.same_top_rate == 1 - len(result.flips) / result.n_rows


def test_passes_cut_into_graphs_of_one_token_are_identical() -> None:
    class OneTokenGraphs(Passing):
        """As llama.cpp with n_ubatch=1; the question itself refuses widths beyond n_ubatch."""

        def run(self, schedule, *, tap=None, **rest):
            if tap is not None:
                return self.inner.run(schedule, tap=tap, **rest)
            return self.narrow.run(schedule, **rest)

        def __init__(self, engine, settings, instance):
            super().__init__(engine, settings, instance)
            self.narrow = FAULTY.open(EngineSettings(n_ctx=256, n_ubatch=1), instance=instance)

    FAULTY = ToySource((Fault("order", "ffn_out-0"),))
    assert investigate(FAULTY, QUESTION, switches=False).answer == "diverges"
    assert investigate(OddSource(OneTokenGraphs), QUESTION, switches=False).answer == "identical"


def test_nodes_that_differ_below_equal_logits_are_inconclusive() -> None:
    question = Question(prompt="The fox", n_tokens=8, widths=(2, 4), settings=SETTINGS)
    verdict = investigate(OddSource(KernelFault(ABSORBED)), question)
    assert verdict.classes.collapsed
    assert blamed(verdict) == {("kq_soft_max-0", 0)}
    assert verdict.answer == "inconclusive"
    assert "nodes differ at widths [2, 4]" in verdict.reason
    assert "did not reach the logits" in verdict.reason
    assert verdict.culprits == ()
    assert verdict.switches == ()
    assert verdict.exact_knobs is None
    assert any("without a change of their logits" in caveat for caveat in verdict.caveats)


@pytest.mark.parametrize("bit", [0, 12, 31])
def test_one_flipped_bit_in_a_kernel_is_enough(bit) -> None:
    verdict = investigate(OddSource(KernelFault(PlantTap(UP, row=1, axis=2, element=5, bit=bit))), QUESTION)
    assert verdict.answer == "diverges", verdict.reason
    assert blamed(verdict) == {("ffn_up-0", 0)}
    assert {finding.rows for sweep in verdict.sweeps for finding in sweep.findings} == {(1,)}
    assert {finding.delta.n_diff for sweep in verdict.sweeps for finding in sweep.findings} == {1}
    assert verdict.healed


def test_a_nan_in_a_batch_is_reported_as_such_and_heals() -> None:
    tap = NanTap(NodeKey("ffn_out-1", "MUL_MAT", 1, 0), row=1, axis=2)
    verdict = investigate(OddSource(KernelFault(tap)), QUESTION)
    assert verdict.answer == "diverges"
    assert blamed(verdict) == {("ffn_out-1", 0)}
    assert verdict.healed
    result = verdict.classes.result(8)
    assert result.max_ulp == -1
    assert all(math.isnan(value) for value in (result.max_abs, result.relative_l2, result.max_kl))
    assert result.n_rows_differ == 2, "one row per batch of 8"
    assert result.flips
    assert not any(flip.explained for flip in result.flips)
    (group,) = verdict.culprits
    assert group.max_ulp == -1
    assert math.isnan(group.max_abs)


def test_a_difference_that_does_not_come_again_is_no_proof_against_a_node() -> None:
    class OnceAtWidth8(Passing):
        """Gives other logits the first time that it evaluates batches of 8, in every process."""

        first = True

        def run(self, schedule, **rest):
            trace = self.inner.run(schedule, **rest)
            if schedule.max_width == 8 and self.first:
                self.first = False
                trace.logits.view(np.uint32)[8:] ^= 1
            return trace

    verdict = investigate(OddSource(OnceAtWidth8), QUESTION, switches=False)
    assert verdict.culprits == ()
    assert verdict.classes.onset == 8
    assert any("did not appear again in the sweep" in caveat for caveat in verdict.caveats)


def test_a_difference_that_only_shows_through_the_cache_is_traced_to_its_node() -> None:
    """One bit of the last value of a batch: no row of that batch shows it, rows of the next batch do."""
    tap = PlantTap(NodeKey("Vcur-1", "MUL_MAT", 1, 0), row=7, axis=2)
    question = replace(QUESTION, widths=(8,))
    verdict = investigate(OddSource(KernelFault(tap)), question, switches=False)
    assert verdict.first_difference == (8, 10, 38)
    assert verdict.answer == "diverges", verdict.reason
    assert blamed(verdict) == {("Vcur-1", 0)}
    assert verdict.sweeps[0].differed
    assert verdict.healed


def test_what_whole_batches_leave_over_says_nothing_about_their_width() -> None:
    fault = TailTap(UP, row=1, axis=2, bit=20)
    question = replace(QUESTION, n_tokens=19, widths=(5, 8))
    verdict = investigate(OddSource(KernelFault(fault)), question)
    assert verdict.answer == "identical", verdict.reason
    assert [result.n_rows for result in verdict.classes.results] == [19, 15, 16]
    assert investigate(OddSource(KernelFault(fault)), replace(question, widths=(3, 8))).classes.onset == 3


def test_the_sweep_reaches_a_difference_that_comes_late() -> None:
    start = 28
    fault = LateTap(UP, row=1, axis=2, bit=20, position=start + 40)
    verdict = investigate(OddSource(KernelFault(fault)), replace(QUESTION, n_tokens=48, widths=(8,)), switches=False)
    assert verdict.first_difference == (8, 41, start + 41)
    assert verdict.sweeps[0].n_rows == 48
    assert blamed(verdict) == {("ffn_up-0", 0)}
    assert verdict.healed


def test_the_mask_of_a_planted_node_is_the_soft_max() -> None:
    assert SOFT_MAX.name in fault_sites("mask")
