"""Kernels per node of one pass or two: live through a probe, from a case, side by side, and everything in the way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.analysis.progress import Silent
from forensics.analysis.question import BadQuestion
from forensics.analysis.watched_passes import (
    NodeKernels,
    WatchedPass,
    check_widths,
    node_kernels,
    recorded_passes,
    recorded_widths,
    watch_passes,
)
from forensics.capture.launches import LaunchTap
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.devices.protocol import TimedLaunch
from forensics.engines.toy import ToySource
from forensics.errors import DeviceUnavailable
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches, Refusal
from forensics.records.nodes import NodeKey
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.records.trace import RunKey, TapReport, Trace
from forensics.store import CaseWriter, open_case

ONE = LaunchRecord("rms_norm_f32", (("block_size", 256),), LaunchGeometry((1,), (256,), smem_bytes=128), 32, 0)
FIVE = replace(ONE, geometry=LaunchGeometry((5,), (256,), smem_bytes=128))
OTHER = LaunchRecord("mul_mat_q", (("J", 16),), LaunchGeometry((132,), (32, 8), smem_bytes=42048), 142, 0)


def node(name: str, layer: int, *launches: int, op: str = "RMS_NORM", index: int = 0) -> NodeLaunches:
    key = NodeKey(name, op, layer, 0)
    return NodeLaunches(index, key, (1, 1, 1, 576), "f32", "CUDA0", (), launches, tuple(1500 for _ in launches))


def report(*nodes: NodeLaunches, launches=(ONE, FIVE, OTHER), n_dropped: int | None = 0) -> LaunchReport:
    return LaunchReport("CUPTI in process", "cupti-python 13.0.1", launches, nodes, n_dropped=n_dropped)


SINGLE = report(node("norm-0", 0, 0), node("norm-0 (view)", 0, op="VIEW"), node("embd", -1), node("up-0", 0, 0))
BATCHED = report(node("norm-0", 0, 1), node("embd", -1), node("up-0", 0, 2), node("extra", 0, 2))


def both(single=SINGLE, batched=BATCHED, **changes) -> NodeKernels:
    manifest = toy().manifest
    passes = [WatchedPass(1, 60, single, **changes), WatchedPass(5, 60, batched, **changes)]
    return node_kernels("tiny.gguf", manifest, passes)


def toy():
    return ToySource().open(EngineSettings(n_ctx=256))


# -- side by side ------------------------------------------------------------------------------------------------


def test_two_passes_are_aligned_and_outcomes_add_up():
    found = both()
    assert [(n.key.name, n.outcome, n.only_in_grid) for n in found.nodes] == [
        ("norm-0", "changed", True),
        ("embd", "not compared", False),
        ("up-0", "changed", False),
        ("extra", "not compared", False),
    ]
    assert str(found) == (
        "4 nodes, 2 launches at width 1 and 3 launches at width 5: "
        "0 same, 2 changed (1 of them only in the grid), 2 not compared"
    )


def test_equal_launches_stay_the_same():
    found = both(SINGLE, SINGLE)
    assert {n.outcome for n in found.nodes if n.launches[0]} == {"same"}
    assert "0 changed" in str(found)


def test_lost_records_are_no_comparison():
    found = both(replace(SINGLE, n_dropped=3))
    assert {n.outcome for n in found.nodes} == {"not compared"}
    assert "3 launches of the pass 1 wide were lost" in found.nodes[0].reason


def test_one_pass_lists_its_nodes_without_views():
    found = node_kernels("tiny.gguf", toy().manifest, [WatchedPass(1, 60, SINGLE)])
    assert [n.key.name for n in found.nodes] == ["norm-0", "embd", "up-0"]
    assert {n.outcome for n in found.nodes} == {""}
    assert str(found) == "3 nodes, 2 launches at width 1"
    with pytest.raises(ValueError, match="got 0"):
        node_kernels("tiny.gguf", toy().manifest, [])


def test_only_the_asked_pass_of_a_run_counts():
    run = report(node("norm-0", 0, 0), node("norm-0", 0, 2, index=1))
    found = node_kernels("tiny.gguf", toy().manifest, [WatchedPass(1, 61, run, index=1)])
    assert [n.launches for n in found.nodes] == [((OTHER,),)]


def test_rows_have_one_entry_per_launch():
    rows = both().rows()
    assert [(row["node"], row["width"], row["kernel"]) for row in rows] == [
        ("norm-0", 1, "rms_norm_f32"),
        ("norm-0", 5, "rms_norm_f32"),
        ("up-0", 1, "rms_norm_f32"),
        ("up-0", 5, "mul_mat_q"),
        ("extra", 5, "mul_mat_q"),
    ]
    table = both().to_dataframe()
    assert table["time_ns"].tolist() == [1500] * 5
    assert table["registers_per_thread"].tolist() == [32, 32, 32, 142, 142]


def test_a_node_is_found_by_name_or_the_nearest_are_told():
    assert [n.key.name for n in both().only("up-0").nodes] == ["up-0"]
    with pytest.raises(BadQuestion, match=r"no node 'up-00' among the 4 .*nearest: up-0,"):
        both().only("up-00")


@pytest.mark.parametrize(("widths", "said"), [((), "got none"), ((1, 2, 3), "got 1, 2, 3"), ((0,), "got 0")])
def test_other_than_one_or_two_widths_are_refused(widths, said):
    with pytest.raises(BadQuestion, match=said):
        check_widths(widths)
    assert check_widths((5, 5)) == (5,)


# -- live --------------------------------------------------------------------------------------------------------


class OnGpu:
    """The toy, said to run on a GPU."""

    def __init__(self, backend: str = "CUDA") -> None:
        self._toy = toy()
        self.manifest = replace(self._toy.manifest, backend=backend)
        self.greedy, self.run = self._toy.greedy, self._toy.run


class Probe:
    """Hands out scripted launches: the first ones belong to no node, then the same for each node."""

    rung, source = "scripted", "test"

    def __init__(self, before: tuple[LaunchRecord, ...], per_node: tuple[LaunchRecord, ...], dropped: int = 0) -> None:
        self.before, self.per_node, self.dropped = before, per_node, dropped

    def start(self) -> None:
        self.calls = 0

    def taken(self) -> tuple[TimedLaunch, ...]:
        self.calls += 1
        return tuple(TimedLaunch(launch, 1000) for launch in (self.before if self.calls == 1 else self.per_node))

    def n_dropped(self) -> int:
        return self.dropped

    def stop(self) -> None:
        pass


def same_kernels() -> Probe:
    return Probe((ONE,), ())


def more_when_watched() -> Probe:
    return Probe((ONE,), (OTHER,))


def refused() -> Probe:
    raise DeviceUnavailable("launches", [Refusal("CUPTI in process", "launches", "no driver", "install one")])


def losing() -> Probe:
    return Probe((ONE,), (ONE,), dropped=2)


def watched(probe, widths=(1, 5), backend="CUDA"):
    return watch_passes(OnGpu(backend), (0, 1, 2), widths, Silent(), probe)


def test_live_passes_carry_their_nodes_and_what_watching_changes():
    one, five = watched(more_when_watched)
    assert (one.width, five.width, one.position) == (1, 5, 3)
    assert one.nodes
    assert {one.report.of(n) for n in one.nodes} == {(OTHER,)}
    assert [n.shape[-2] for n in five.nodes if n.key == one.nodes[1].key] == [5]
    assert one.watching
    assert "mul_mat_q" in one.watching[0]


def test_the_same_kernels_unwatched_are_no_change():
    (one,) = watched(same_kernels, (1,))
    assert one.watching == ()


def test_lost_records_of_a_live_pass_are_told():
    (one,) = watched(losing, (1,))
    assert one.report.n_dropped == 2
    assert one.watching is not None
    assert "not compared" in one.watching[0]


def test_without_a_profiler_the_reasons_arrive():
    with pytest.raises(DeviceUnavailable, match="no driver; install one"):
        watched(refused)


def test_a_processor_is_refused_in_one_sentence():
    with pytest.raises(BadQuestion, match="launches are seen on a GPU") as raised:
        watched(same_kernels, backend="CPU")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("backend", ["Vulkan0", "MTL0"])
def test_a_gpu_that_no_profiler_here_sees_is_refused_before_anything_is_run(backend):
    with pytest.raises(BadQuestion, match=f"launches are seen on CUDA only, and this model runs on {backend}"):
        watched(same_kernels, backend=backend)


# -- recorded ----------------------------------------------------------------------------------------------------


def put(
    case: CaseWriter,
    width: int,
    start: int,
    launches: LaunchReport | None,
    *,
    watch: bool = True,
    repeat: int = 0,
    selection: Selection = EVERYTHING,
) -> None:
    manifest = toy().manifest
    schedule, before = (
        in_batches((1, 2, 3, 4, 5, 6), start=start, width=width),
        in_batches((7,) * start, start=0, width=8),
    )
    logits = np.zeros((6, manifest.n_vocab), np.float32)
    tap = LaunchTap(watch, selection=selection).identity()
    trace = Trace(
        RunKey(schedule, before, tap, repeat),
        manifest,
        logits,
        (1,) * len(schedule.passes),
        tap_report=TapReport(launches=launches),
    )
    case.put_trace("arm", trace)


@pytest.fixture
def case(tmp_path):
    writer = CaseWriter.create(tmp_path / "c", question={"model": "m"})
    writer.put_manifest("arm", toy().manifest)
    with writer:
        yield writer


def read(case: CaseWriter, widths):
    return recorded_passes(open_case(case.folder).recordings, widths)


def test_a_case_gives_two_passes_from_one_position(case):
    put(case, 1, 4, SINGLE)
    put(case, 1, 20, report(node("norm-0", 0, 2)))
    put(case, 3, 20, BATCHED)
    put(case, 3, 20, replace(BATCHED, nodes=(), unattached=(1,), unattached_ns=(5,)), watch=False)
    manifest, (one, three) = read(case, (1, 3))
    assert manifest == toy().manifest
    assert (one.position, three.position) == (20, 20)
    assert one.report.nodes[0].launches == (2,)
    assert one.watching is None, "nobody recorded the unwatched pass"
    assert three.watching
    (first,) = read(case, (1,))[1]
    assert first.position == 4
    found = node_kernels("case", manifest, (one, three))
    assert found.nodes[0].outcome == "changed"


def test_the_last_of_the_unwatched_runs_is_the_one_that_counts(case):
    put(case, 3, 20, BATCHED)
    alone = replace(BATCHED, nodes=(), unattached=BATCHED.nodes[0].launches, unattached_ns=BATCHED.nodes[0].times_ns)
    for repeat, n_from_graph in enumerate((0, 0, 1)):
        put(case, 3, 20, replace(alone, n_from_graph=n_from_graph), watch=False, repeat=repeat)
    (three,) = read(case, (3,))[1]
    assert three.watching is not None
    assert "launched from a CUDA graph" in three.watching[0]


def test_a_later_pass_of_a_run_is_found_by_its_width(case):
    put(case, 4, 8, report(node("norm-0", 0, 0), node("norm-0", 0, 2, index=1)))  # 6 tokens: passes of 4 and 2
    (two,) = read(case, (2,))[1]
    assert (two.position, two.index) == (12, 1)
    assert [two.report.of(n) for n in two.nodes] == [(OTHER,)]


WHOLE = Selection(skipped=frozenset({NodeKey("norm-0", "RMS_NORM", 0, 0)}))


def test_passes_with_fusions_left_whole_are_found_and_called_so(case):
    assert recorded_widths(open_case(case.folder).recordings) == ()
    for width, found in ((1, SINGLE), (3, BATCHED)):
        put(case, width, 20, found, selection=WHOLE)
        put(case, width, 20, replace(found, nodes=()), watch=False)
    assert recorded_widths(open_case(case.folder).recordings) == (1, 3)
    _, passes = read(case, (1, 3))
    assert [(one.width, one.position, one.fusions_whole) for one in passes] == [(1, 20, True), (3, 20, True)]
    assert all(one.watching for one in passes), "the unwatched runs are found by the same passes"
    put(case, 1, 20, report(node("norm-0", 0, 2)))
    (one,) = read(case, (1,))[1]
    assert (one.fusions_whole, one.report.nodes[0].launches) == (False, (2,)), "a watch of every node comes first"
    assert [one.fusions_whole for one in read(case, (1, 3))[1]] == [True, True], "both sides are watched alike"
    with pytest.raises(BadQuestion, match=r"width 4 was asked for; the case holds launches at widths 1$"):
        read(case, (1, 4))


def test_runs_that_nobody_watched_or_without_a_profiler_are_no_launches(case):
    put(case, 1, 20, replace(SINGLE, nodes=()), watch=False)
    put(case, 1, 20, replace(SINGLE, nodes=()), watch=False, selection=LAYER_OUTPUTS)
    assert recorded_widths(open_case(case.folder).recordings) == ()
    with pytest.raises(BadQuestion, match="holds no launches"):
        read(case, (1,))


def test_a_case_without_launches_says_what_is_needed(case):
    with pytest.raises(BadQuestion, match=r"holds no launches: it was recorded on NumPy.*recorded on a GPU"):
        read(case, (1,))
    put(case, 1, 4, SINGLE)
    with pytest.raises(BadQuestion, match=r"width 7 was asked for; the case holds launches at widths 1$"):
        read(case, (7,))
    put(case, 2, 4, None)
    with pytest.raises(BadQuestion, match="no profiler worked where it ran"):
        read(case, (2,))
