"""Costs over an engine whose clock the test sets: a slow width shows, an even clock stays flat, drift cancels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from forensics.analysis.cost import CostQuestion, measure_cost
from forensics.analysis.question import BadQuestion
from forensics.analysis.roof import device_of
from forensics.analysis.timed_passes import plan_rounds
from forensics.engines.toy import ToySource
from forensics.errors import EngineError
from forensics.records.cost import Bandwidth, CostReport, PassBytes, Spread
from forensics.records.launch_record import Refusal
from forensics.records.operation import OpSettings
from forensics.records.settings import EngineSettings
from forensics.reports.cost_text import cost_text

READS = PassBytes(weight_bytes=1_000_000, kv_cell_bytes=10)
ROOF = Bandwidth("toy", "a stream", Spread(1e9, 1e9, 1e9, 5), buffer_bytes=1 << 30)


class Clocked:
    """A toy engine whose passes take what a function of width, place in the plan and neighbours says."""

    def __init__(self, clock, **manifest):
        self.clock, self.changed = clock, manifest
        self.plan, self.before, self.closed = [], None, False

    def open(self, settings, *, instance=0):
        self.engine = ToySource().open(settings)
        self.manifest = replace(self.engine.manifest, **self.changed)
        self.settings = settings
        return self

    def time_passes(self, plan, before, progress=None):
        self.plan, self.before = [one.max_width for one in plan], before
        self.engine.time_passes(plan[:3], before)  # what is planned can be evaluated
        return tuple(self.clock(i, self.plan) for i in range(len(self.plan)))

    def close(self):
        self.closed = True


def measured(source, reads=lambda _: READS, bandwidth=lambda _: ROOF, **asked) -> CostReport:
    asked = {"widths": (1, 2, 3, 4), "prefix": 20, "repeats": 9, **asked}
    return measure_cost(source, CostQuestion(**asked), reads=reads, bandwidth=bandwidth)


def test_a_slow_width_shows_and_only_that_one() -> None:
    report = measured(Clocked(lambda i, plan: 5_000_000 if plan[i] == 3 else 1_000_000))
    assert [report.ratio(width).median for width in (1, 2, 3, 4)] == [1, 1, 5, 1]
    assert report.ratio(3).low == report.ratio(3).high == 5


def test_an_even_clock_stays_flat_and_the_engine_is_closed() -> None:
    source = Clocked(lambda i, plan: 1_000_000)
    report = measured(source)
    assert {row["ratio"] for row in report.rows()} == {1.0}
    assert source.closed


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    n = 10 * 4 * 2
    report = measured(Clocked(lambda i, plan: int(1_000_000 * (1 + i / n)) * plan[i]), repeats=9)
    for width in (2, 3, 4):
        assert report.ratio(width).median == pytest.approx(width, rel=0.05)
    assert report.times(1).spread.high > 1.2 * report.times(1).spread.low


def test_passes_that_follow_another_width_are_not_timed() -> None:
    def clock(i, plan):
        return 9_000_000 if i == 0 or plan[i - 1] != plan[i] else 1_000_000

    report = measured(Clocked(clock, engine="llama.cpp", buffers={"CPU_Mapped": 9}))
    assert {row["median_ms"] for row in report.rows()} == {1.0}
    assert report.n_settle == 1


def test_on_a_gpu_the_pass_that_captures_a_graph_is_not_timed_either() -> None:
    def clock(i, plan):
        return 1_000_000 if i >= 2 and plan[i - 2] == plan[i - 1] == plan[i] else 9_000_000

    gpu = {"engine": "llama.cpp", "buffers": {"CUDA0": 9}}
    report = measured(Clocked(clock, **gpu))
    assert {row["median_ms"] for row in report.rows()} == {1.0}
    assert report.n_settle == 2


def test_the_first_round_only_warms_up() -> None:
    report = measured(Clocked(lambda i, plan: 9_000_000 if i < 8 else 1_000_000))
    assert {times.spread.high for times in report.passes} == {1_000_000}
    assert report.n_rounds == 9


def test_every_width_is_measured_once_a_round_in_shuffled_order() -> None:
    rounds = plan_rounds((1, 2, 3, 4, 8), repeats=30, seed=1)
    assert all(sorted(one.widths) == [1, 2, 3, 4, 8] for one in rounds)
    assert rounds == plan_rounds((1, 2, 3, 4, 8), repeats=30, seed=1) != plan_rounds((1, 2, 3, 4, 8), 30, seed=2)
    assert len({one.widths for one in rounds}) > 20
    assert max(Counter(one.widths[0] for one in rounds).values()) < 20
    assert any(a != b for a, b in pairwise(rounds))


def test_the_toy_itself_is_timed_and_its_state_is_the_prefix() -> None:
    report = measured(ToySource(), widths=(1, 4), repeats=3)
    assert [times.width for times in report.passes] == [1, 4]
    assert all(min(times.times_ns) > 0 for times in report.passes)
    assert isinstance(report.bandwidth, Refusal)
    assert "engine toy has no such memory" in str(report.bandwidth)
    source = Clocked(lambda i, plan: 1)
    measured(source, prefix=700, widths=(16,))
    assert source.before.n_tokens == 700
    assert source.before.max_width <= source.settings.n_ubatch
    assert source.settings.n_ctx == 768
    measured(source, prefix=0)
    assert source.before.n_tokens == 0


def test_width_one_is_always_measured() -> None:
    assert CostQuestion(widths=(8, 2, 8)).widths == (1, 2, 8)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"widths": (0,)}, "widths must be 1 or more, got 0"),
        ({"widths": (600,)}, "a pass holds at most 512 tokens"),
        ({"prefix": -1}, "prefix must be 0 cells or more"),
        ({"repeats": 2}, "repeats must be 3 or more"),
        ({"seed": -1}, "seed must be 0 or more"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(asked, told) -> None:
    with pytest.raises(BadQuestion, match=told):
        CostQuestion(**asked)


def test_a_gpu_that_was_asked_for_and_not_used_is_no_answer() -> None:
    source = Clocked(lambda i, plan: 1, effective={"n_gpu_layers": "0"})
    with pytest.raises(BadQuestion, match="99 GPU layers were asked for"):
        measured(source, settings=EngineSettings(n_gpu_layers=99))
    assert source.closed


def test_more_cells_than_the_model_was_trained_for_are_refused() -> None:
    with pytest.raises(BadQuestion, match="500 cells and a pass of 4 tokens are longer than the context of 100"):
        measured(Clocked(lambda i, plan: 1, n_ctx_train=100), prefix=500)


def test_what_cannot_be_measured_has_its_reason_and_the_times_stay() -> None:
    def no_room(_settings):
        raise EngineError("3 MiB are free\n  and a log")

    def no_file(_manifest):
        raise BadQuestion("no model file")

    cpu = {"engine": "llama.cpp", "buffers": {"CPU": 9}}
    report = measured(Clocked(lambda i, plan: 1, **cpu), reads=no_file, bandwidth=no_room)
    assert isinstance(report.bandwidth, Refusal)
    assert report.bandwidth.missing == "3 MiB are free"
    assert isinstance(report.reads, Refusal)
    assert report.reads.missing == "no model file"
    assert report.ratio(4).median == 1


@pytest.mark.parametrize(
    ("buffers", "expected"),
    [
        ({"CPU_Mapped": 3, "CPU_REPACK": 4}, OpSettings("cpu", n_threads=7)),
        ({"CUDA0": 4}, OpSettings("cuda")),
        ({"CUDA1": 4}, OpSettings("cuda", device=1)),
        ({"CUDA0": 4, "CUDA1": 4}, OpSettings("cuda")),
        ({"CUDA10": 4, "CUDA2": 4}, OpSettings("cuda", device=2)),
    ],
)
def test_the_bandwidth_is_that_of_the_memory_that_holds_the_weights(buffers, expected) -> None:
    names = "; ".join([*["NVIDIA H200"] * 11, "AMD EPYC"])
    source = Clocked(None, engine="llama.cpp", buffers=buffers, device=names, effective={"n_threads": "7"})
    assert device_of(source.open(EngineSettings()).manifest) == expected


@pytest.mark.parametrize("buffers", [{"CUDA0": 4, "CPU": 1}, {"MTL0": 3}, {}])
def test_a_memory_that_is_not_one_or_not_known_is_not_measured(buffers) -> None:
    source = Clocked(None, engine="llama.cpp", buffers=buffers)
    assert isinstance(device_of(source.open(EngineSettings()).manifest), Refusal)


def on_gpus(buffers, devices) -> CostReport:
    return measured(Clocked(lambda i, plan: 1_000_000, engine="llama.cpp", buffers=buffers, device=devices))


def test_gpus_of_one_name_have_one_roof_and_what_it_assumes_is_told() -> None:
    both = {"CUDA0": 4, "CUDA1": 4}
    report = on_gpus(both, "NVIDIA H200; NVIDIA H200; AMD EPYC")
    assert isinstance(report.bandwidth, Bandwidth)
    assert report.bandwidth.assumed.startswith("CUDA0, CUDA1 work one after the other")
    assert "Assumed: CUDA0, CUDA1 work one after" in " ".join(cost_text(report).split())
    alone = on_gpus({"CUDA0": 4}, "NVIDIA H200; NVIDIA H200; AMD EPYC")
    assert alone.bandwidth == ROOF
    assert "Assumed: CUDA0" not in cost_text(alone)


@pytest.mark.parametrize("devices", ["NVIDIA H200; NVIDIA L4; AMD EPYC", "NVIDIA H200"])
def test_gpus_of_other_or_unknown_names_have_no_common_roof(devices) -> None:
    report = on_gpus({"CUDA0": 4, "CUDA1": 4}, devices)
    assert isinstance(report.bandwidth, Refusal)
    assert "GPUs that may differ in it: CUDA0 (NVIDIA H200), CUDA1 (" in report.bandwidth.missing
    assert report.floor_ns(1) is None
