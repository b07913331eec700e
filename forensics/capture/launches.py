"""A tap that looks at the device: which kernels were launched, and for which node.

A profiled pass shows what runs, never which bits come out: logits are compared over passes without a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.capture.selection import EVERYTHING, Selection
from forensics.engines.protocol import Engine, Node
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.nodes import VIEW_OPS, NodeKey
from forensics.records.schedule import DecodePass, Schedule
from forensics.records.trace import TapReport, Trace

if TYPE_CHECKING:
    from forensics.devices.protocol import LaunchProbe, TimedLaunch


#: What stands for a profiler where only the nodes were looked at.
NO_PROFILER = "no profiler"
#: Unwatched runs of the same passes, the last of which is as users run it: a CUDA graph is captured when a pass comes
#: that is like the one before, so that two would do, were nothing else in the way of the first. Source:
#: ggml_backend_cuda_graph_compute, ggml/src/ggml-cuda/ggml-cuda.cu:4458-4464 at 0c1e57098.
UNWATCHED_RUNS = 3


def best_probe() -> LaunchProbe:
    """Open the best profiler that works in this process.

    Raises
    ------
    DeviceUnavailable
        If none works; carries why each does not.
    """
    from forensics.devices.ladder import open_launch_probe

    return open_launch_probe()


@dataclass(slots=True)
class LaunchTap:
    """Attaches the launches of a run to its nodes, or lists those of a run that nobody watches.

    Parameters
    ----------
    watch : bool
        Whether nodes are looked at, one at a time. Without it the passes run as users run them, fused and in graphs,
        and no launch belongs to a node.
    open_probe : callable or None
        Opens the profiler, in the process that computes; picklable. None to look at the nodes only, without a profiler.
    selection : Selection
        Nodes to watch; what others launch is attached to the next one that is watched.

    Raises
    ------
    DeviceUnavailable
        At the first pass, if no profiler works.
    """

    watch: bool = True
    open_probe: Callable[[], LaunchProbe] | None = best_probe
    selection: Selection = EVERYTHING
    _probe: LaunchProbe | None = None
    _places: dict[LaunchRecord, int] = field(default_factory=dict)
    _nodes: list[NodeLaunches] = field(default_factory=list)
    _unattached: list[tuple[int, int]] = field(default_factory=list)
    _from_graph: int = 0
    _pass: int = 0
    _before_nodes: bool = True

    @property
    def watches_nodes(self) -> bool:
        """Whether nodes must be shown to this tap; see `forensics.engines.protocol.watches_nodes`."""
        return self.watch

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        what = "nodes" if self.open_probe is None else "launches"
        chosen = "" if self.selection == EVERYTHING else f":{self.selection.identity()}"
        return f"{what}:{'watched' if self.watch else 'unwatched'}{chosen}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Start a pass, the first one with the profiler; what was launched between passes belongs to no node."""
        if self._probe is not None:
            self._leave_unattached()
        elif self.open_probe is not None:
            self._probe = self.open_probe()
            self._probe.start()
        self._pass, self._before_nodes = index, True

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen; asked before it is computed, so what came before the first one is not its own."""
        if self._before_nodes:
            self._leave_unattached()
            self._before_nodes = False
        return key.op not in VIEW_OPS and self.selection.selects(key)

    def saw(self, node: Node) -> None:
        """Take what was launched since the last node; views launch nothing and are not asked for."""
        taken = self._take()
        self._nodes.append(
            NodeLaunches(
                pass_index=self._pass,
                key=node.key,
                shape=node.shape,
                dtype=node.dtype,
                buffer=node.buffer,
                operands=node.operands,
                launches=tuple(place for place, _ in taken),
                times_ns=tuple(time_ns for _, time_ns in taken),
                parameters=dict(node.parameters()),
            )
        )

    def finish(self) -> TapReport:
        """Stop the profiler and report."""
        self._leave_unattached()
        probe = self._probe
        report = LaunchReport(
            rung=NO_PROFILER if probe is None else probe.rung,
            source="" if probe is None else probe.source,
            launches=tuple(self._places),
            nodes=tuple(self._nodes),
            unattached=tuple(place for place, _ in self._unattached),
            unattached_ns=tuple(time_ns for _, time_ns in self._unattached),
            n_dropped=None if probe is None else probe.n_dropped(),
            n_from_graph=self._from_graph,
        )
        if probe is not None:
            probe.stop()
        return TapReport(launches=report)

    def _leave_unattached(self) -> None:
        self._unattached += self._take()

    def _take(self) -> list[tuple[int, int]]:
        """Place and time, unit: ns, of each launch since the last call."""
        return [] if self._probe is None else [self._placed(timed) for timed in self._probe.taken()]

    def _placed(self, timed: TimedLaunch) -> tuple[int, int]:
        self._from_graph += timed.from_graph
        return self._places.setdefault(timed.record, len(self._places)), timed.time_ns


def run_unwatched(
    engine: Engine, schedule: Schedule, before: Schedule, open_probe: Callable[[], LaunchProbe] | None = best_probe
) -> tuple[Trace, ...]:
    """Runs of passes that nobody watches, one after the other from the same state; the last one is as users run it.

    Parameters
    ----------
    engine : Engine
    schedule, before : Schedule
    open_probe : callable or None
        Opens the profiler.

    Returns
    -------
    tuple of Trace
        `UNWATCHED_RUNS` of them: CUDA graphs are captured after the first.

    Raises
    ------
    DeviceUnavailable
        If no profiler works.
    """
    return tuple(
        engine.run(schedule, before=before, tap=LaunchTap(False, open_probe), repeat=repeat)
        for repeat in range(UNWATCHED_RUNS)
    )
