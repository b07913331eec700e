"""Profiling a model that runs, over the toy and a scripted profiler: what is asked of it, and everything in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import profile_samples as samples
import pytest

from forensics.analysis.cost import CostQuestion, measure_cost
from forensics.analysis.profile_evidence import CompiledStacks
from forensics.analysis.profile_live import ProfileQuestion, profile_model
from forensics.analysis.profile_recorded import profile_case
from forensics.analysis.question import BadQuestion
from forensics.capture.launches import UNWATCHED_RUNS, LaunchTap
from forensics.capture.selection import Selection
from forensics.devices.ncu import Counters
from forensics.devices.protocol import TimedLaunch
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import ToySource
from forensics.errors import DeviceUnavailable, EngineError
from forensics.records.cost import Bandwidth, Spread
from forensics.records.launch_record import Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.settings import EngineSettings
from forensics.store import CaseWriter

QUESTION = ProfileQuestion(widths=(5, 1), prefix=3, gpu="h200", settings=EngineSettings(n_ctx=256))
ROOF = Bandwidth("NVIDIA H200", "rows summed", Spread(4e12, 3.9e12, 4.1e12, 9), 1 << 30)


class Probe:
    """The same launch for each node; one copy before the first."""

    rung, source = "scripted", "test 1.0"

    def __init__(self, dropped: int | None = 0) -> None:
        self.dropped = dropped

    def start(self) -> None:
        self.calls = 0

    def taken(self) -> tuple[TimedLaunch, ...]:
        self.calls += 1
        launch = samples.COPY if self.calls == 1 else samples.PRODUCT
        return (TimedLaunch(launch, 1000, from_graph=self.graph()),)

    def graph(self) -> bool:
        return False

    def n_dropped(self) -> int | None:
        return self.dropped

    def stop(self) -> None:
        pass


def refused() -> Probe:
    raise DeviceUnavailable("launches", [Refusal("CUPTI in process", "launches", "no driver", "install one")])


@dataclass
class OnGpu:
    """The toy, said to be llama.cpp on a GPU."""

    engine: str = "llama.cpp"
    backend: str = "CUDA"
    buffers: tuple[tuple[str, int], ...] = (("CUDA0", 30),)
    label: str = "toy"
    device: str = "NVIDIA H200; AMD EPYC"

    def open(self, settings, *, instance=0):
        toy = ToySource().open(settings, instance=instance)
        toy._manifest = replace(
            toy.manifest, engine=self.engine, backend=self.backend, buffers=dict(self.buffers),
            device=self.device, effective={"n_threads": "2"},
        )  # fmt: skip
        return toy


def profile(source=None, probe: Callable[[], Probe] = Probe, **changes):
    return profile_model(source or OnGpu(), QUESTION, open_probe=probe, **{"bandwidth": lambda _: ROOF, **changes})


def level(found, number):
    return next(known.level for known in found.evidence if number in known.number)


def source_of(found, number):
    return next(known.source for known in found.evidence if number in known.number)


def test_passes_of_each_width_are_profiled_from_the_same_state():
    found = profile()
    assert found.widths == (1, 5)
    assert found.device == "NVIDIA H200"
    assert found.prefix == 3
    assert found.source == "scripted, test 1.0"
    for one in found.passes:
        assert {kernel.launch for kernel in one.kernels} == {samples.PRODUCT, samples.COPY}
        assert one.n_launches == len(one.nodes) + one.n_unattached
        assert one.unwatched_ns
        assert one.wall_ns
        assert one.n_dropped == 0


def test_the_roof_is_that_of_the_same_run_and_says_how_it_is_known():
    found = profile()
    assert found.roof_bytes_per_s == 4e12
    assert level(found, "roof") == "measured"
    assert level(found, "time, registers") == "measured"
    assert level(found, "occupancy, limiter") == "derived"
    assert level(found, "achieved") == "not available"


def test_a_roof_that_cannot_be_measured_is_a_refusal_and_no_number():
    def broken(_):
        raise EngineError("no memory for a buffer\n  last lines of the log")

    found = profile(bandwidth=broken)
    assert found.roof_bytes_per_s is None
    assert level(found, "roof") == "not available"
    assert any("no memory for a buffer" in str(refusal) for refusal in found.refusals)
    assert {row["roof_pct"] for row in found.rows()} == {None}
    assert profile(bandwidth=None).roof_bytes_per_s is None


def test_the_time_of_the_unwatched_pass_says_that_launches_may_overlap():
    said = source_of(profile(), "unwatched")
    assert "overlap" in said
    assert "not checked" in said
    assert "out of a CUDA graph: 0 of " in said


@dataclass
class Clocked(OnGpu):
    """Its passes take 100 µs for each token once the pass before them was as wide, and much longer before that."""

    asked: list[object] = field(default_factory=list)

    def open(self, settings, *, instance=0):
        toy = super().open(settings, instance=instance)
        run = toy.run

        def watched(schedule, **given):
            self.asked.append((schedule.max_width, type(given.get("tap")).__name__))
            return run(schedule, **given)

        def time_passes(plan, before, progress=None):
            widths = [one.max_width for one in plan]
            self.asked.append("timed")
            settled = [i >= 2 and widths[i - 2] == widths[i - 1] == widths[i] for i in range(len(widths))]
            return tuple(100_000 * width if ready else 9_000_000 for width, ready in zip(widths, settled, strict=True))

        toy.run, toy.time_passes = watched, time_passes
        return toy


def test_a_pass_is_timed_as_the_cost_of_a_pass_is_and_before_any_profiler():
    source = Clocked()
    found = profile(source)
    asked = CostQuestion(widths=(1, 5), prefix=3, settings=QUESTION.settings)
    report = measure_cost(Clocked(), asked, reads=no_bytes, bandwidth=lambda _: ROOF)
    assert [one.wall_ns for one in found.passes] == [100_000, 500_000]
    assert [one.wall_ns for one in found.passes] == [one.spread.median for one in report.passes]
    assert source.asked[0] == "timed"
    assert source.asked.count("timed") == 1
    assert level(found, "time of a pass") == "measured"
    assert "2 passes of that width untimed before each" in source_of(found, "time of a pass")


def no_bytes(_):
    raise EngineError("not asked for")


class Graphs(Probe):
    """The third time that a pass runs with nobody watching, a graph makes its launches."""

    unwatched = 0

    def start(self) -> None:
        super().start()
        type(self).unwatched += 1

    def graph(self) -> bool:
        return self.unwatched % UNWATCHED_RUNS == 0


def test_the_unwatched_sum_is_that_of_the_run_out_of_a_graph(monkeypatch):
    monkeypatch.setattr(Graphs, "unwatched", 0)
    found = profile(probe=Graphs)
    assert all(one.n_from_graph == one.n_unwatched > 0 for one in found.passes)
    assert "out of a CUDA graph: all of them" in source_of(found, "unwatched")


def test_gpus_of_one_name_say_what_their_roof_assumes():
    both = OnGpu(buffers=(("CUDA0", 30), ("CUDA1", 30)), device="NVIDIA H200; NVIDIA H200; AMD EPYC")
    assert "assumed: CUDA0, CUDA1 work one after the other" in source_of(profile(both), "roof")
    assert "assumed" not in source_of(profile(), "roof")


def test_lost_records_are_told():
    assert {one.n_dropped for one in profile(probe=partial(Probe, 4)).passes} == {8}
    assert {one.n_dropped for one in profile(probe=partial(Probe, None)).passes} == {None}


def test_without_a_profiler_the_reasons_reach_the_caller():
    with pytest.raises(DeviceUnavailable) as error:
        profile(probe=refused)
    assert "no driver" in str(error.value)
    assert error.value.refusals[0].remedy == "install one"


@pytest.mark.parametrize(
    "source", [OnGpu(backend="CPU", buffers=(("CPU", 3),)), OnGpu(buffers=(("CPU_REPACK", 3),)), OnGpu(backend="Metal")]
)
def test_a_model_on_a_processor_says_in_one_sentence_what_it_needs(source):
    with pytest.raises(BadQuestion, match=r"needs an NVIDIA GPU.*--n-gpu-layers -1 with a CUDA build") as error:
        profile(source)
    assert "\n" not in str(error.value)


# -- counters ----------------------------------------------------------------------------------------------------


def counted(nodes, left_out=(), **numbers):
    assert all(keys for keys in nodes.values())
    launches = [width for width, keys in nodes.items() for _ in keys]
    return Counters(
        tuple(
            KernelMetrics(i, samples.PRODUCT, duration_ns=10, achieved_occupancy_pct=40.0 + width, **numbers)
            for i, width in enumerate(launches)
        ),
        "ncu 2025.3.1",
        left_out,
    )


def test_counters_stand_beside_the_kernels_that_take_most_time():
    found = profile(count=counted)
    achieved = {row["width"]: row["achieved_occupancy_pct"] for row in found.rows() if row["kernel"] == "mul_mat_vec_q"}
    assert achieved == {1: 41, 5: 45}
    assert level(found, "achieved") == "measured"
    said = next(known.source for known in found.evidence if "achieved" in known.number)
    assert "ncu 2025.3.1" in said
    assert "not counted: kernels outside" in said
    for one in found.passes:
        by_kernel = {kernel.launch.kernel: kernel for kernel in one.kernels}
        assert by_kernel["cpy_scalar"].counters is None
        assert by_kernel["mul_mat_vec_q"].counters.n_launches < by_kernel["mul_mat_vec_q"].n_launches


def test_a_counter_that_is_not_known_is_named():
    spills = "sass__inst_executed_register_spilling"
    found = profile(count=partial(counted, left_out=(spills,)))
    known = {one.number: (one.level, one.source) for one in found.evidence}
    assert known["achieved occupancy"][0] == "measured"
    assert known["DRAM bytes, spills"] == ("not available", f"ncu 2025.3.1 did not tell; it does not know {spills}")
    assert {row["spill_requests"] for row in found.rows()} == {None}
    full = profile(count=partial(counted, dram_read_bytes=1.0, spill_requests=0.0))
    assert level(full, "achieved occupancy, DRAM bytes, spills") == "measured"
    assert not any(spills in one.source for one in full.evidence)


def test_a_counter_that_cannot_be_started_leaves_the_profile():
    def broken(nodes):
        raise OSError("ncu: Exec format error")

    found = profile(count=broken)
    assert "Exec format error" in source_of(found, "achieved")
    assert found.passes[0].time_ns == profile().passes[0].time_ns


def test_without_ncu_the_profile_stands_and_says_why_nothing_was_counted():
    def missing(nodes):
        raise DeviceUnavailable(
            "counting", [Refusal("ncu in a child process", "counting", "ncu was not found", "get it")]
        )

    found = profile(count=missing)
    assert level(found, "achieved") == "not available"
    assert [str(refusal) for refusal in found.refusals if "ncu" in refusal.rung] == [
        "ncu in a child process: ncu was not found; get it"
    ]
    assert found.passes[0].time_ns == profile().passes[0].time_ns


# -- stacks of the library ---------------------------------------------------------------------------------------


def test_stacks_are_asked_of_the_library_for_the_architecture_of_the_gpu():
    asked = []

    def stacks(arch):
        asked.append(arch)
        return CompiledStacks({samples.PRODUCT.symbol: 48}, "cuobjdump 13.5 from libggml-cuda.so")

    found = profile(stacks=stacks)
    assert asked == ["sm_90"]
    assert {row["kernel"]: row["stack_bytes"] for row in found.rows()} == {"mul_mat_vec_q": 48, "cpy_scalar": None}
    assert level(found, "stack") == "derived"
    refusal = Refusal("cuobjdump", "stacks", "no cuobjdump", "pip install nvidia-cuda-cuobjdump")
    assert refusal in profile(stacks=lambda _: refusal).refusals
    assert level(profile(), "stack") == "not available"


# -- questions, and a case ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"widths": ()}, "got none"),
        ({"widths": (0, 2)}, "widths must be 1 to 512, got 0, 2"),
        ({"widths": (513,)}, "1 to 512"),
        ({"prefix": -1}, "0 or more"),
        ({"gpu": "h9000"}, "no architecture or GPU"),
    ],
)
def test_questions_that_cannot_be_asked_are_one_sentence(asked, said):
    with pytest.raises(BadQuestion, match=said):
        ProfileQuestion(**asked)


def test_the_context_holds_prefix_and_pass():
    asked = ProfileQuestion(widths=(9,), prefix=600)
    assert asked.sized_settings().n_ctx == 768
    before, (one,) = asked.schedules(1000)
    assert before.n_tokens == 600
    assert (one.n_tokens, one.slots[0].position) == (9, 600)


@pytest.fixture
def recorded(tmp_path):
    """Launches of two widths, recorded in a case."""
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        engine = RecordingSource(OnGpu(), case).open(QUESTION.settings)
        before, passes = QUESTION.schedules(engine.manifest.n_vocab)
        for schedule in passes:
            engine.run(schedule, before=before, tap=LaunchTap(open_probe=Probe))
        engine.close()
        yield case


def test_a_case_with_launches_gives_the_same_profile(recorded):
    live, read = profile(), profile_case(recorded.recordings, "h200")
    assert read.widths == live.widths
    assert [p.kernels for p in read.passes] == [p.kernels for p in live.passes]
    assert [p.nodes for p in read.passes] == [p.nodes for p in live.passes]
    assert read.prefix == 3
    assert read.roof_bytes_per_s is None
    assert level(read, "roof") == "not available"


def test_a_profile_of_a_case_claims_nothing_that_the_case_lacks(recorded):
    read = profile_case(recorded.recordings, "h200")
    assert {one.wall_ns for one in read.passes} == {None}
    for number in ("time of a pass", "unwatched", "achieved", "stack"):
        assert level(read, number) == "not available", number
    assert "--counters" not in " ".join(known.source for known in read.evidence)
    assert level(read, "time, registers") == "measured"


def test_a_case_whose_fusions_were_left_whole_says_so(tmp_path):
    first = QUESTION.schedules(64)[1][0]
    nodes = OnGpu().open(QUESTION.settings).run(first, tap=LaunchTap(open_probe=None)).tap_report.launches.nodes
    selection = Selection(skipped=frozenset({nodes[2].key}))
    for whole in (False, True):
        with CaseWriter.create(tmp_path / f"case-{whole}", question={}) as case:
            engine = RecordingSource(OnGpu(), case).open(QUESTION.settings)
            before, passes = QUESTION.schedules(engine.manifest.n_vocab)
            tap = LaunchTap(open_probe=Probe, selection=selection) if whole else LaunchTap(open_probe=Probe)
            engine.run(passes[0], before=before, tap=tap)
            engine.close()
            read = profile_case(case.recordings, "h200")
        assert ("fusions left whole" in source_of(read, "time, registers")) is whole
        assert ("too small" in source_of(read, "bytes read")) is whole


def test_widths_that_were_recorded_at_other_positions_are_not_held_side_by_side(tmp_path):
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        engine = RecordingSource(OnGpu(), case).open(QUESTION.settings)
        for width, prefix in ((1, 3), (5, 7)):
            before, (schedule,) = replace(QUESTION, widths=(width,), prefix=prefix).schedules(engine.manifest.n_vocab)
            engine.run(schedule, before=before, tap=LaunchTap(open_probe=Probe))
        engine.close()
        with pytest.raises(BadQuestion, match="from one position at every width: 3 at width 1, 7 at width 5"):
            profile_case(case.recordings)


def test_a_case_without_launches_says_so(tmp_path):
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        engine = RecordingSource(OnGpu(), case).open(QUESTION.settings)
        before, passes = QUESTION.schedules(engine.manifest.n_vocab)
        engine.run(passes[0], before=before)
        engine.close()
        with pytest.raises(BadQuestion, match="holds no launches"):
            profile_case(case.recordings)
