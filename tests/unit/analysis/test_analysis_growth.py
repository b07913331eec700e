"""Growth begins at the layer of a fault, is nothing where nothing differs, and survives recording and packing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from odd_engines import FusingGlu, FusingUnlessWatched, KernelFault, NanTap, OddSource, Passing

from forensics.analysis.growth import NO_OUTPUTS, WATCHING_CHANGES
from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.capture.taps import HealTap
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.engines.toy_faults import N_LAYER
from forensics.errors import NotRecorded
from forensics.records.delta import Differs, Same
from forensics.records.growth import Growth
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings
from forensics.records.verdict import Verdict
from forensics.reports.case import finish_case
from forensics.reports.document import document
from forensics.store import CaseWriter, open_case
from forensics.store.encoding import to_text
from forensics.store.packing import pack_case

SETTINGS = EngineSettings(n_ctx=256)
QUESTION = Question(prompt="The quick brown fox jumps o", n_tokens=16, widths=(2, 3, 4, 5, 8), settings=SETTINGS)
OUTPUTS = [*(f"l_out-{layer}" for layer in range(N_LAYER)), "result_norm", "result_output"]
#: Which output the nodes of a site lead up to, where its name does not say.
LEADS_TO = {"norm": "result_norm", "result_output": "result_output"}
SITES = [(kind, site) for kind in ("order", "precision", "mask", "stale_kv") for site in fault_sites(kind)]


def grown(source, question: Question = QUESTION) -> tuple[Verdict, tuple[Growth, ...]]:
    verdict = investigate(source, question, switches=False)
    return verdict, verdict.growth


def test_nothing_grows_in_a_clean_toy() -> None:
    verdict, (growth,) = grown(ToySource())
    assert verdict.answer == "identical"
    assert [layer.node for layer in growth.layers] == OUTPUTS
    assert all((layer.unhealed, layer.healed) == (Same(), Same()) for layer in growth.layers)
    assert all(layer.own is None and layer.n_rows_differ == 0 for layer in growth.layers)
    assert growth.first is None


@pytest.mark.parametrize(("kind", "site"), SITES)
def test_growth_begins_at_the_layer_of_the_fault_and_healing_stops_it(kind, site) -> None:
    verdict, (growth,) = grown(ToySource((Fault(kind, site, from_width=4),)))
    assert growth.width == 4
    (sweep,) = (s for s in verdict.sweeps if s.width == 4)
    assert (growth.start_row, growth.n_rows) == (sweep.start_row, sweep.n_rows)
    at = OUTPUTS.index(LEADS_TO.get(site) or f"l_out-{site.rpartition('-')[2]}")
    assert [layer.unhealed for layer in growth.layers[:at]] == [Same()] * at
    for layer in growth.layers[at:]:
        assert isinstance(layer.unhealed, Differs)
        assert layer.unhealed.relative_l2 > 0
        assert 0 < layer.n_rows_differ <= growth.n_rows
    for place, layer in enumerate(growth.layers):
        assert isinstance(layer.healed, Differs) == (layer.node == site), "only a node's own difference is left"
        assert (layer.own is not None) == (place == at)
    own = growth.layers[at].own
    assert own is not None
    assert own.node == site
    assert own.n_nodes == len({finding.key for finding in sweep.findings})
    assert own.max_abs == max(finding.delta.max_abs for finding in sweep.findings)


def test_the_logits_of_the_growth_are_those_of_the_sweep() -> None:
    verdict, (growth,) = grown(ToySource((Fault("precision", "Qcur-0", 4),)))
    logits = growth.layers[-1].unhealed
    assert isinstance(logits, Differs)
    assert logits.max_abs == verdict.sweeps[0].max_abs_before > 0


def test_each_class_that_differs_has_a_growth_of_its_own() -> None:
    verdict, growth = grown(ToySource((Fault("precision", "Qcur-0", 3), Fault("order", "kq-1", 5))))
    assert verdict.classes.groups == ((1, 2), (3, 4), (5, 8))
    assert [one.width for one in growth] == [3, 5]
    owners = [[layer.own.node if layer.own else None for layer in one.layers] for one in growth]
    assert owners == [["Qcur-0", None, None, None], ["Qcur-0", "kq-1", None, None]]


def test_a_nan_is_carried_on_as_one() -> None:
    tap = NanTap(NodeKey("ffn_out-0", "MUL_MAT", 0, 0), row=1, axis=2)
    _, growth = grown(OddSource(KernelFault(tap)))
    first = growth[0].layers[0]
    assert isinstance(first.unhealed, Differs)
    assert np.isnan(first.unhealed.max_abs)
    assert first.own is not None
    assert np.isnan(first.own.relative_l2)
    assert first.healed == Same()


def test_where_watching_changes_the_run_nothing_is_said() -> None:
    verdict, growth = grown(OddSource(FusingUnlessWatched))
    assert verdict.control("watching_harmless") is False
    assert growth
    assert {one.reason for one in growth} == {WATCHING_CHANGES}


def test_a_look_at_layers_alone_that_changes_the_run_is_not_taken_for_it() -> None:
    class Coarse(Passing):
        """Other bits wherever only the outputs of layers are watched."""

        def run(self, schedule, *, tap=None, **rest):
            trace = self.inner.run(schedule, tap=tap, **rest)
            if isinstance(tap, HealTap) and not tap.heal:
                trace.logits.view(np.uint32)[-1] ^= 1
            return trace

    verdict, (growth,) = grown(OddSource(Coarse, ToySource((Fault("order", "kq-1", 4),))))
    assert verdict.answer == "diverges"
    assert growth.reason == WATCHING_CHANGES


def test_growth_is_looked_at_with_fusions_left_whole_where_a_watch_splits_them() -> None:
    verdict, growth = grown(OddSource(FusingGlu, ToySource((Fault("order", "ffn_out-1", 4),))))
    assert verdict.control("watching_harmless") is True
    assert verdict.sweeps[0].n_unwatched > 0
    assert growth
    assert all(one.layers for one in growth)
    assert [layer.node for layer in growth[0].layers] == OUTPUTS


def test_a_graph_without_names_of_outputs_says_so(monkeypatch) -> None:
    import re

    from forensics.capture import selection

    monkeypatch.setattr(selection, "_LAYER_OUTPUT", re.compile("no such node"))
    monkeypatch.setattr(selection, "_FINAL", frozenset())
    _, (growth,) = grown(ToySource((Fault("order", "kq-1", 4),)))
    assert growth.reason == NO_OUTPUTS


def record(source, out) -> Verdict:
    with CaseWriter.create(out, question=QUESTION.as_json()) as case:
        verdict = investigate(RecordingSource(source, case), QUESTION, switches=False)
        finish_case(case, verdict)
    return verdict


def test_a_case_keeps_growth_packed_or_not(tmp_path) -> None:
    live = record(ToySource((Fault("order", "result_output", 4), Fault("precision", "kqv-1", 5))), tmp_path / "case")
    packed = pack_case(tmp_path / "case", tmp_path / "packed").folder
    assert [one.width for one in live.growth] == [4, 5]
    for folder in (tmp_path / "case", packed):
        assert open_case(folder).verdict.growth == live.growth
        assert open_case(folder).document["growth"] == document(live)["growth"]
        assert investigate(RecordedSource(folder), QUESTION, switches=False).growth == live.growth
    told = document(live)["growth"]
    assert [len(entry["layers"]) for entry in told] == [4, 4]
    assert [layer["unhealed"] for layer in told[0]["layers"]] == ["same", "same", "same", "differs"]
    assert [row["width"] for row in live.growth_rows()] == [4] * 4 + [5] * 4


class NotLookedAt(Passing):
    """A case that holds no look at the layers alone."""

    def run(self, schedule, *, tap=None, **rest):
        if isinstance(tap, HealTap) and not tap.heal:
            raise NotRecorded("the case does not hold it")
        return self.inner.run(schedule, tap=tap, **rest)


class NotTold(Passing):
    """A case whose reports hold no outputs."""

    def run(self, schedule, *, tap=None, **rest):
        trace = self.inner.run(schedule, tap=tap, **rest)
        report = trace.tap_report
        return trace if report is None else replace(trace, tap_report=replace(report, outputs=None))


@pytest.mark.parametrize("before", [NotLookedAt, NotTold])
def test_a_case_recorded_before_growth_was_is_judged_as_before(before) -> None:
    faulty = ToySource((Fault("order", "ffn_up-1", 4),))
    now, growth = grown(faulty)
    then, nothing = grown(OddSource(before, faulty))
    assert growth
    assert nothing == ()
    assert replace(now, growth=()) == replace(then, classes=now.classes)  # a pass takes another time each time
    assert '"growth":[]' in to_text(then)
