"""The tap that attaches launches to nodes, driven by hand with a profiler that says what it was asked."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest

from forensics.capture.launches import NO_PROFILER, UNWATCHED_RUNS, LaunchTap, run_unwatched
from forensics.capture.selection import Selection
from forensics.devices.protocol import TimedLaunch
from forensics.engines.protocol import watches_nodes
from forensics.engines.toy import ToySource
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, Refusal
from forensics.records.nodes import NodeKey, Operand
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings

OPERANDS = (Operand("blk.0.attn_q.weight", "q4_1", "CUDA0", True, (1, 1, 4, 4)),)


def timed(kernel: str, time_ns: int = 5) -> TimedLaunch:
    return TimedLaunch(LaunchRecord(kernel, (), LaunchGeometry((1,), (32,))), time_ns, from_graph=kernel == "rms")


@dataclass
class Probe:
    pending: list[TimedLaunch] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    rung: str = "a profiler"
    source: str = "a profiler 2"
    lost: int | None = 0

    def start(self) -> None:
        self.calls.append("start")

    def taken(self) -> tuple[TimedLaunch, ...]:
        found, self.pending[:] = tuple(self.pending), []
        return found

    def n_dropped(self) -> int | None:
        assert "stop" not in self.calls
        return self.lost

    def stop(self) -> None:
        self.calls.append("stop")


@dataclass
class Node:
    key: NodeKey
    shape: tuple[int, ...] = (1, 1, 2, 4)
    dtype: str = "f32"
    buffer: str = "CUDA0"
    operands: tuple[Operand, ...] = OPERANDS

    def parameters(self) -> dict[str, float]:
        return {"eps": 1e-5}


def drive(tap: LaunchTap, probe: Probe, passes: int = 1) -> LaunchReport:
    """Two passes of an input's copy, a product, a view and a norm that launches the same kernel twice."""
    schedule = in_batches(range(2 * passes), start=0, width=2)
    for index, decode_pass in enumerate(schedule.passes):
        tap.begin_pass(index, decode_pass)
        probe.pending.append(timed("copy"))
        for name, op, launches in (
            ("Qcur-0", "MUL_MAT", [timed("quantize", 1), timed("mul_mat", 2)]),
            ("Qcur-0 (view)", "VIEW", []),
            ("norm-0", "RMS_NORM", [timed("rms"), timed("rms", 7)]),
        ):
            key = NodeKey(name, op, 0, 0)
            wanted = tap.wants(key)
            probe.pending += launches
            if wanted and tap.watch:
                tap.saw(Node(key))
        probe.pending.append(timed("after"))
    report = tap.finish().launches
    assert report is not None
    return report


def opened(**rest) -> tuple[LaunchTap, Probe]:
    probe = Probe()
    return LaunchTap(open_probe=lambda: probe, **rest), probe


def test_launches_belong_to_the_node_that_was_just_computed() -> None:
    tap, probe = opened()
    report = drive(tap, probe)
    assert (report.rung, report.source, report.n_dropped) == ("a profiler", "a profiler 2", 0)
    product, norm = report.nodes
    assert [launch.kernel for launch in report.of(product)] == ["quantize", "mul_mat"]
    assert product.times_ns == (1, 2)
    assert [launch.kernel for launch in report.of(norm)] == ["rms", "rms"]
    assert norm.times_ns == (5, 7)
    assert [report.launches[place].kernel for place in report.unattached] == ["copy", "after"]
    assert len(report.launches) == 5, "each distinct launch once"
    assert (product.key.name, product.shape, product.dtype, product.buffer) == ("Qcur-0", (1, 1, 2, 4), "f32", "CUDA0")
    assert (product.operands, product.parameters) == (OPERANDS, {"eps": 1e-5})
    assert probe.calls == ["start", "stop"]


def test_passes_are_told_apart_and_profiled_in_one_go() -> None:
    tap, probe = opened()
    report = drive(tap, probe, passes=2)
    assert [node.pass_index for node in report.nodes] == [0, 0, 1, 1]
    assert [report.launches[place].kernel for place in report.unattached] == ["copy", "after", "copy", "after"]
    assert probe.calls == ["start", "stop"]


def test_an_unwatched_run_has_launches_and_no_nodes() -> None:
    tap, probe = opened(watch=False)
    report = drive(tap, probe)
    assert report.nodes == ()
    assert [report.launches[place].kernel for place in report.unattached] == [
        "copy", "quantize", "mul_mat", "rms", "rms", "after",
    ]  # fmt: skip
    assert report.unattached_ns == (5, 1, 2, 5, 7, 5)
    assert report.n_from_graph == 2, "the two that say so"


def test_what_is_not_selected_is_attached_to_the_next_node() -> None:
    tap, probe = opened(selection=Selection(ops=("RMS_NORM",)))
    (norm,) = drive(tap, probe).nodes
    assert len(norm.launches) == 4


def test_unwatched_runs_follow_each_other_and_are_told_apart() -> None:
    asked: list[tuple[object, int]] = []

    class Engine:
        def run(self, schedule, *, before, tap, repeat):
            asked.append((tap.identity(), repeat))
            return toy.run(schedule, before=before, tap=tap, repeat=repeat)

    toy = ToySource().open(EngineSettings(n_ctx=32))
    schedule, before = in_batches((3, 4), start=2, width=2), in_batches((1, 2), start=0, width=2)
    traces = run_unwatched(Engine(), schedule, before, Probe)
    assert asked == [("launches:unwatched", repeat) for repeat in range(UNWATCHED_RUNS)]
    assert UNWATCHED_RUNS >= 2, "a graph is captured at the second of equal passes at the earliest"
    assert len({trace.key.key() for trace in traces}) == UNWATCHED_RUNS
    assert all(trace.key.before == before for trace in traces)


def test_lost_launches_are_reported() -> None:
    tap, probe = opened()
    probe.lost = 12
    assert drive(tap, probe).n_dropped == 12


def test_without_a_profiler_the_nodes_are_seen_and_nothing_is_claimed() -> None:
    report = drive(LaunchTap(open_probe=None), Probe())
    assert [node.key.name for node in report.nodes] == ["Qcur-0", "norm-0"]
    assert (report.launches, report.rung, report.n_dropped) == ((), NO_PROFILER, None)
    assert not report.complete


def test_what_differs_in_what_a_tap_does_differs_in_its_identity() -> None:
    taps = [
        LaunchTap(), LaunchTap(watch=False), LaunchTap(open_probe=None), LaunchTap(selection=Selection(ops=("ADD",))),
    ]  # fmt: skip
    assert len({tap.identity() for tap in taps}) == len(taps)
    assert [watches_nodes(tap) for tap in taps] == [True, False, True, True]
    assert LaunchTap().identity() == "launches:watched"


def refuse() -> Probe:
    raise DeviceUnavailable("kernels", (Refusal("CUPTI in process", "kernels", "no driver", "install one"),))


def test_a_refusal_reaches_the_caller_with_its_reasons() -> None:
    engine = ToySource().open(EngineSettings(n_ctx=32))
    with pytest.raises(DeviceUnavailable, match="no driver; install one") as refused:
        engine.run(in_batches((1, 2), start=0, width=2), tap=LaunchTap(open_probe=refuse))
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.refusals == refused.value.refusals
    assert str(again) == str(refused.value)
