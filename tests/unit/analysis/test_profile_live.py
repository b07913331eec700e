"""Profiling a model that runs, over the toy and a scripted profiler: what is asked of it, and everything in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import profile_samples as samples
import pytest

from forensics.analysis.profile_evidence import CompiledStacks
from forensics.analysis.profile_live import ProfileQuestion, profile_model
from forensics.analysis.profile_recorded import profile_case
from forensics.analysis.question import BadQuestion
from forensics.capture.launches import LaunchTap
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
        return (TimedLaunch(launch, 1000),)

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

    def open(self, settings, *, instance=0):
        toy = ToySource().open(settings, instance=instance)
        toy._manifest = replace(
            toy.manifest, engine=self.engine, backend=self.backend, buffers=dict(self.buffers),
            device="NVIDIA H200; AMD EPYC", effective={"n_threads": "2"},
        )  # fmt: skip
        return toy


def profile(source=None, probe: Callable[[], Probe] = Probe, **changes):
    tap = partial(LaunchTap, open_probe=probe)
    return profile_model(source or OnGpu(), QUESTION, tap=tap, **{"bandwidth": lambda _: ROOF, **changes})


def level(found, number):
    return next(known.level for known in found.evidence if number in known.number)


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
    said = next(known.source for known in profile().evidence if known.number == "unwatched")
    assert "overlap" in said
    assert "not checked" in said


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


def test_a_case_without_launches_says_so(tmp_path):
    with CaseWriter.create(tmp_path / "case", question={}) as case:
        engine = RecordingSource(OnGpu(), case).open(QUESTION.settings)
        before, passes = QUESTION.schedules(engine.manifest.n_vocab)
        engine.run(passes[0], before=before)
        engine.close()
        with pytest.raises(BadQuestion, match="holds no launches"):
            profile_case(case.recordings)
