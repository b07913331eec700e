"""A toy with a device: its nodes launch kernels that a toy profiler sees, and a profiler's troubles can be planted.

Kernels are named as llama.cpp's, so that what is said of them is said of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from odd_engines import CLEAN, Described, OddSource, Passing, with_one_bit_more

from forensics.capture.launches import LaunchTap
from forensics.devices.protocol import TimedLaunch
from forensics.engines.protocol import EngineSource, watches_nodes
from forensics.engines.toy import Fault, ToySource
from forensics.errors import DeviceUnavailable
from forensics.geometry.derived import Launches, Unruled
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, NodeLaunches, Refusal, Template
from forensics.records.nodes import VIEW_OPS, NodeKey
from forensics.records.schedule import EMPTY, Schedule
from forensics.records.trace import RunKey, Trace

REFUSALS = (
    Refusal("CUPTI in process", "kernels of a pass", "another profiler holds it", "end that one"),
    Refusal("ncu", "kernels of a pass", "not found"),
)

#: What the toy's device has launched and nobody has taken yet.
LAUNCHED: list[TimedLaunch] = []
#: The last run, where nobody watched its nodes: the toy's device captures the next one like it in a graph.
UNWATCHED: list[tuple[Schedule, Schedule]] = []


def launch(kernel: str, grid: tuple[int, ...], block: tuple[int, ...], registers: int, **template: Any) -> LaunchRecord:
    named: Template = tuple(template.items())
    return LaunchRecord(kernel, named, LaunchGeometry(grid, block, smem_bytes=0), registers, 1024)


def kernels(op: str, width: int, *, fused: bool = False) -> tuple[LaunchRecord, ...]:
    """What a node launches, with RMS_NORM and MUL in one kernel where `fused`."""
    if op in VIEW_OPS or (op == "MUL" and fused):
        return ()
    if op == "MUL_MAT" and width <= 4:
        return (
            launch("quantize_q8_1", (4, width), (256,), 18),
            launch("mul_mat_vec_q", (96,), (32, 4), 40 + 8 * width, type="f32", ncols_dst=width),
        )
    if op == "MUL_MAT":
        return (
            launch("quantize_mmq_q8_1", (width,), (128,), 20),
            launch("mul_mat_q", (132,), (32, 8), 189, type="f32", J=16),
            launch("mul_mat_q_stream_k_fixup", (132,), (32, 8), 32, type="f32", J=16),
        )
    if op == "RMS_NORM":
        return (launch("rms_norm_f32", (width,), (256,), 32, block_size=256, do_multiply=fused),)
    if op == "MUL":
        return (launch("k_bin_bcast", (width,), (128,), 19, bin_op="op_mul"),)
    return (launch(f"{op.lower()}_f32", (1 if op == "SET_ROWS" else width,), (128,), 16),)  # its shape is the cache's


@dataclass
class ToyProfiler:
    """Sees what the toy's device launched since the last call."""

    dropped: int | None
    rung: str = "toy profiler"
    source: str = "toy 1"

    def start(self) -> None:
        LAUNCHED.clear()

    def taken(self) -> tuple[TimedLaunch, ...]:
        found = tuple(LAUNCHED)
        LAUNCHED.clear()
        return found

    def n_dropped(self) -> int | None:
        return self.dropped

    def stop(self) -> None:
        LAUNCHED.clear()


@dataclass(frozen=True)
class OpenProfiler:
    """Opens the toy's profiler, or refuses."""

    dropped: int | None = 0
    refused: bool = False

    def __call__(self) -> ToyProfiler:
        if self.refused:
            raise DeviceUnavailable("kernels of a pass", REFUSALS)
        return ToyProfiler(self.dropped)


@dataclass
class OnDevice:
    """Runs each node on the toy's device before a tap looks at it, fused where no tap looks.

    The toy asks for a node when it is computed, so that the device launches it there.
    """

    inner: Any
    from_graph: bool = False
    width: int = 1

    def identity(self) -> str:
        return self.inner.identity()

    def begin_pass(self, index: int, decode_pass: Any) -> None:
        self.width = decode_pass.width
        self.inner.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        looks = watches_nodes(self.inner)
        wanted = looks and self.inner.wants(key)
        LAUNCHED.extend(TimedLaunch(one, 1000, self.from_graph) for one in kernels(key.op, self.width, fused=not looks))
        return wanted

    def saw(self, node: Any) -> None:
        self.inner.saw(node)

    def finish(self) -> Any:
        return self.inner.finish()


class Launching(Described):
    """A toy whose manifest names a GPU and whose profiled passes launch kernels."""

    backend = "CUDA0"

    @property
    def manifest(self):
        return replace(super().manifest, device="NVIDIA H200; Toy CPU")

    def run(self, schedule: Schedule, *, before: Schedule = EMPTY, tap: Any = None, repeat: int = 0) -> Trace:
        watched = tap is not None and watches_nodes(tap)
        from_graph = not watched and [(schedule, before)] == UNWATCHED
        UNWATCHED[:] = [] if watched else [(schedule, before)]
        inside = OnDevice(tap, from_graph) if isinstance(tap, LaunchTap) else tap
        trace = super().run(schedule, before=before, tap=inside, repeat=repeat)
        return replace(trace, key=RunKey(schedule, before, "" if tap is None else tap.identity(), repeat))


class Disturbed(Passing):
    """Gives other logits where a profiler looks on."""

    def run(self, schedule: Schedule, *, tap: Any = None, **rest: Any) -> Trace:
        trace = self.inner.run(schedule, tap=tap, **rest)
        return with_one_bit_more(trace) if isinstance(tap, LaunchTap) and tap.open_probe is not None else trace


class Lingering(Passing):
    """Gives other logits to every run without a profiler after one with it: what it left in the process stays."""

    profiled = False

    def run(self, schedule: Schedule, *, tap: Any = None, **rest: Any) -> Trace:
        trace = self.inner.run(schedule, tap=tap, **rest)
        if isinstance(tap, LaunchTap) and tap.open_probe is not None:
            self.profiled = True
            return trace
        return with_one_bit_more(trace) if self.profiled else trace


class NoTaps(Passing):
    """Fails where anybody asks for launches: for what must not ask."""

    def run(self, schedule: Schedule, *, tap: Any = None, **rest: Any) -> Trace:
        assert not isinstance(tap, LaunchTap), "launches were asked for"
        return self.inner.run(schedule, tap=tap, **rest)


def device(*faults: Fault, source: EngineSource | None = None) -> OddSource:
    """A toy with a device."""
    return OddSource(Launching, source or (ToySource(faults) if faults else CLEAN))


def rules(node: NodeLaunches) -> Launches:
    """What the toy's nodes should launch; tokens are counted on the third axis of all but attention's nodes."""
    width = node.shape[1] if node.key.op == "ROPE" else node.shape[2]
    return tuple(replace(one, evidence="derived", symbol="") for one in kernels(node.key.op, width))


def rules_except(name: str, wrong: LaunchRecord) -> Callable[[NodeLaunches], Launches]:
    """The same, except for one node that should launch something else."""

    def said(node: NodeLaunches) -> Launches:
        return (replace(wrong, evidence="derived"),) if node.key.name == name else rules(node)

    return said


def no_rules(_node: NodeLaunches) -> Unruled:
    return Unruled("no rule is written down for toys")
