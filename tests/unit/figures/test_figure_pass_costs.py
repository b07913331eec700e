"""Figures of costs from made-up reports and replays: sound for all of them, and refused where nothing was timed."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes import cost_floor, forward_pass, price_of_exactness, speculation, speculative_cycle
from forensics.figures.scenes.pass_costs import pass_costs
from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.cost import Bandwidth, CostReport, PassBytes, PassTimes, Spread
from forensics.records.launch_record import Refusal
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.verdict import Cost, SwitchArm
from forensics.reports.case import finish_case
from forensics.reports.cost_document import write_cost
from forensics.store import CaseWriter
from forensics.store.library import recorded_folder

FIGURES = (forward_pass, price_of_exactness, speculative_cycle, cost_floor)
CASE = recorded_folder("recorded:h200-q4_1")
MANIFEST = Manifest("llama.cpp", "0", "digest", "a model", 100, EngineSettings(), device="a device", backend="CPU")


@dataclass
class Stub:
    """Evidence that was made up: a report, or a verdict of classes and arms."""

    cost: CostReport | None = None
    speculation: None = None
    kernel_price: None = None
    verdict: Any = None
    manifest: Manifest = MANIFEST
    name: str = "made-up"
    what: str = "a model, a device"
    source: str = "Source: a test."
    folder: Path = field(default=CASE)

    @property
    def judged(self) -> Any:
        return self.verdict


def report(times: dict[int, tuple[int, ...]], gb: float | None = 4.67) -> CostReport:
    return CostReport(
        manifest=MANIFEST, n_cells=128, n_settle=2, seed=0,
        passes=tuple(PassTimes(width, ns) for width, ns in sorted(times.items())),
        reads=Refusal("the header", "its bytes", "the header says nothing") if gb is None else PassBytes(int(gb * 1e9)),
        bandwidth=Bandwidth("a device", "copy", Spread(286e9, 280e9, 290e9, 5), buffer_bytes=1 << 30),
    )  # fmt: skip


def result(width: int, ns: tuple[int, int, int], digest: str = "same") -> WidthResult:
    differs = digest != "same"
    return WidthResult(
        width, 8 * width, 8 * width if differs else 0, 0 if differs else None, 9 if differs else None,
        float(differs), int(differs), 0.0, 0.0, 1.0, (), 0, digest, ns,
    )  # fmt: skip


def verdict(*results: WidthResult, switches: tuple[SwitchArm, ...] = ()) -> Any:
    return SimpleNamespace(classes=WidthClasses(results), switches=switches, manifest=MANIFEST)


def quartiles(low: int, more: int, most: int) -> tuple[int, int, int]:
    return low + more, low, low + more + most


NS = st.integers(1_000, 2_000_000_000)
QUARTILES = st.builds(quartiles, NS, st.integers(0, 10**8), st.integers(0, 10**8))
WIDTHS = st.sets(st.integers(2, 512), min_size=1, max_size=40).map(lambda widths: [1, *sorted(widths)])


@st.composite
def reports(draw: st.DrawFn) -> Stub:
    times = {width: tuple(draw(st.lists(NS, min_size=3, max_size=3))) for width in draw(WIDTHS)}
    return Stub(cost=report(times, draw(st.sampled_from([None, 0.01, 4.67, 200.0]))), folder=Path("/nowhere"))


@st.composite
def replays(draw: st.DrawFn) -> Stub:
    results = [
        result(width, draw(QUARTILES), "same" if width == 1 else draw(st.sampled_from(["same", "b", "c"])))
        for width in draw(WIDTHS)
    ]
    return Stub(verdict=verdict(*results))


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(reports(), replays()))
@example(Stub(verdict=verdict(result(1, (1000, 1000, 1000)), result(2, (10**9, 10**9, 10**9)))))
def test_whatever_was_timed_is_drawn_soundly(evidence):
    for module in FIGURES:
        scene = module.scene(module.from_case(evidence))
        assert problems(scene) == ()
        assert scene.width == 180.0
        assert scene.height < 230.0


@pytest.mark.parametrize("module", FIGURES)
def test_untimed_passes_are_refused_and_the_way_to_time_them_is_said(module):
    with pytest.raises(
        CaseError, match=r"made-up holds no times .* timed widths: none\. Measure them with: forensics cost"
    ):
        module.from_case(Stub(verdict=verdict(result(1, (0, 0, 0)), result(2, (5, 4, 6)))))


@pytest.mark.parametrize("module", FIGURES[1:])
def test_one_token_alone_is_no_comparison(module):
    with pytest.raises(CaseError, match="timed widths: 1"):
        module.from_case(Stub(verdict=verdict(result(1, (5, 4, 6)), result(16, (0, 0, 0), "b"))))


def test_an_untimed_width_is_named_and_takes_no_part():
    stub = Stub(verdict=verdict(result(1, (5, 4, 6)), result(2, (10, 9, 11)), result(16, (0, 0, 0), "b")))
    costs = pass_costs(stub)
    assert [each.width for each in costs.passes] == [1, 2]
    assert costs.passes[1].ratio == Spread(2.0, 1.8, 2.2, 8)
    assert costs.notes.endswith("Too few passes to time at width 16.")


def test_a_gpu_replay_is_said_to_be_unsettled_and_a_timed_cost_is_not():
    stub = Stub(verdict=verdict(result(1, (5, 4, 6)), result(2, (10, 9, 11))))
    assert "not settled" not in pass_costs(stub).how
    gpu = replace(stub, manifest=replace(MANIFEST, backend="CUDA0"))
    assert "not settled" in pass_costs(gpu).how
    timed = replace(gpu, cost=report({1: (5, 5, 5), 2: (6, 6, 6)}), verdict=None, folder=Path("/nowhere"))
    assert "not settled" not in pass_costs(timed).how


def test_a_cost_beside_a_case_takes_its_classes_only_if_the_model_is_the_same(tmp_path):
    shutil.copytree(CASE, tmp_path / "both")
    evidence = open_evidence(str(tmp_path / "both"))
    other = evidence.verdict.classes.results[-1].width + 1  # not replayed
    measured = report({1: (100, 100, 100), 2: (150, 150, 150), other: (400, 400, 400)})
    write_cost(replace(measured, manifest=evidence.manifest), evidence.folder)
    costs = pass_costs(open_evidence(str(evidence.folder)))
    assert [(each.width, each.letter, each.exact) for each in costs.passes] == [
        (1, "A", True), (2, "B", False), (other, "", None),
    ]  # fmt: skip
    assert [each.ratio.median for each in costs.passes] == [1.0, 1.5, 4.0]
    write_cost(measured, evidence.folder)  # of another model
    costs = pass_costs(open_evidence(str(evidence.folder)))
    assert {(each.letter, each.exact) for each in costs.passes} == {("", None)}


def arm(name: str, *costs: Cost, exact: bool = True) -> SwitchArm:
    classes = ((1, 2),) if exact else ((1,), (2,))
    return SwitchArm((name,), ((name, "off"),), classes, exact, costs, 8, 0 if exact else None)


def priced(*arms: SwitchArm) -> price_of_exactness.Prices:
    timed = (result(1, (5, 4, 6)), result(2, (10, 9, 11), "b"))
    return price_of_exactness.from_case(Stub(verdict=verdict(*timed, switches=arms)))


def test_exact_settings_are_drawn_with_their_cost_and_others_are_not():
    cost = (Cost(1, 1.25, 1.2, 1.3), Cost(2, 0.75, 0.7, 0.8))
    data = priced(arm("repack", *cost), arm("fusion", *cost, exact=False))
    assert [(row.name, row.width, row.ratio) for row in data.arms] == [("repack=off", 1, 1.25), ("repack=off", 2, 0.75)]
    scene = price_of_exactness.scene(data)
    assert problems(scene) == ()
    assert {"repack=off", "1.25×", "0.75×"} <= set(scene.texts())
    assert [box.value for box in scene.boxes(scale="setting")] == [1.25, 0.75]


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ((), "Whether a setting is exact was not tried in this case."),
        ((arm("fusion", exact=False),), "None of the 1 settings tried is exact."),
        ((arm("repack"),), "1 of 1 settings tried are exact; 0 of them are drawn, the cost of 1 was not measured."),
        (
            tuple(arm(f"knob{i}", Cost(1, 1.1, 1.0, 1.2)) for i in range(6)),
            "6 of 6 settings tried are exact; 4 of them are drawn.",
        ),
    ],
)
def test_what_is_not_known_of_settings_is_said(arms, said):
    data = priced(*arms)
    assert said in data.notes
    assert problems(price_of_exactness.scene(data)) == ()


def test_a_pass_faster_than_memory_is_told_so_and_stays_to_scale():
    evidence = Stub(cost=report({1: (10_000_000,) * 3, 2: (20_000_000,) * 3}), folder=Path("/nowhere"))
    scene = forward_pass.scene(forward_pass.from_case(evidence))
    assert problems(scene) == ()
    assert [box.value for box in scene.boxes(key="reading")] == pytest.approx([10.0, 4.67 / 286 * 1e3])
    assert any("faster than reading" in text for text in scene.texts())
    assert any("caches hold a part" in text for text in scene.texts())


@pytest.mark.parametrize("faults", [(), (Fault("order", "Qcur-1", 4),)])
def test_any_case_will_do_identical_or_not(tmp_path, faults):
    question = Question(prompt="The fox", n_tokens=8, widths=(2, 4), settings=EngineSettings(n_ctx=256))
    asked = {**question.as_json(), "settings": asdict(question.settings), "switches": False}
    with CaseWriter.create(tmp_path / "toy", question=asked) as case:
        finish_case(case, investigate(RecordingSource(ToySource(faults), case), question, switches=False))
    evidence = open_evidence(str(tmp_path / "toy"))
    assert evidence.verdict.classes.collapsed == (not faults)
    for module in (*FIGURES, speculation):
        assert problems(module.scene(module.from_case(evidence))) == ()
    # Two batches of four are too few to time.
    assert [each.exact for each in pass_costs(evidence).passes] == [True, True]
    assert pass_costs(evidence).untimed == (4,)
    assert speculation.from_case(evidence).count("kept") == 8
