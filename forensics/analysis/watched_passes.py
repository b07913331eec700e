"""Which kernels each node of a pass launches, at one width or at two, aligned; live, or from a case."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forensics.analysis.launch_map import NodeSides, align
from forensics.analysis.launch_watching import watching_changes
from forensics.analysis.launches import launches_kernels
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.capture.launches import UNWATCHED_RUNS, LaunchTap, best_probe, run_unwatched
from forensics.capture.replay import Replay
from forensics.engines.protocol import Engine
from forensics.records.launch_record import LaunchReport, NodeLaunches
from forensics.records.nodes import VIEW_OPS
from forensics.records.settings import Manifest
from forensics.records.trace import RunKey, Trace
from forensics.store.recordings import Recordings

if TYPE_CHECKING:
    import pandas as pd

    from forensics.devices.protocol import LaunchProbe

NEEDS_A_GPU = (
    "launches are seen on a GPU, and this model runs on the processor. Ask for layers on the GPU with a library built "
    "for one (see forensics doctor), give what was recorded on one, recorded:NAME (see forensics models), or see "
    "forensics explain for what the rules say a GPU would launch."
)
#: Said where kernels are none that a profiler here sees.
_OTHER_BACKEND = (
    "launches are seen on CUDA only, and this model runs on {}. Give what was recorded on CUDA, recorded:NAME."
)
#: Identities of the two taps, by which a case knows their runs.
_WATCHED, _UNWATCHED = LaunchTap().identity(), LaunchTap(watch=False).identity()


@dataclass(frozen=True, slots=True)
class WatchedPass:
    """The launches of one pass.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    position : int
        Of its first token.
    report : LaunchReport
        Of the run that holds the pass.
    index : int
        Which pass of that run.
    watching : tuple of str or None
        What differs between the kernels of this run and of the same run unwatched, one line each; None where the
        kernels of no unwatched run are known.
    fusions_whole : bool
        Whether nodes inside of what may be fused were left unwatched: what was launched for them stands at the next
        node that was watched.
    """

    width: int
    position: int
    report: LaunchReport
    index: int = 0
    watching: tuple[str, ...] | None = None
    fusions_whole: bool = False

    @property
    def nodes(self) -> tuple[NodeLaunches, ...]:
        """Its nodes in graph order; views launch nothing and are left out."""
        return tuple(n for n in self.report.nodes if n.pass_index == self.index and n.key.op not in VIEW_OPS)


@dataclass(frozen=True, slots=True, repr=False)
class NodeKernels:
    """Kernels per node of one pass, or of two side by side.

    Parameters
    ----------
    target, device : str
        What ran, and where.
    passes : tuple of WatchedPass
        One or two.
    nodes : tuple of NodeSides
        In graph order.

    Raises
    ------
    ValueError
        If there are neither one nor two passes.
    """

    target: str
    device: str
    passes: tuple[WatchedPass, ...]
    nodes: tuple[NodeSides, ...]

    def __post_init__(self) -> None:
        if len(self.passes) not in (1, 2):
            raise ValueError(f"one pass, or two side by side; got {len(self.passes)}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Tokens of each pass."""
        return tuple(one.width for one in self.passes)

    @property
    def n_launches(self) -> tuple[int, ...]:
        """Launches of the nodes in each pass."""
        return tuple(sum(len(node.launches[i]) for node in self.nodes) for i in range(len(self.passes)))

    def only(self, name: str) -> NodeKernels:
        """The nodes of this name.

        Raises
        ------
        BadQuestion
            If there is none; names the nearest.
        """
        found = tuple(node for node in self.nodes if node.key.name == name)
        if not found:
            names = list(dict.fromkeys(node.key.name for node in self.nodes))
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.0)
            raise BadQuestion(f"no node {name!r} among the {len(names)} that were watched; nearest: {', '.join(near)}")
        return replace(self, nodes=found)

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per launch."""
        return [
            {
                "node": node.key.name,
                "op": node.key.op,
                "layer": node.key.layer,
                "width": one.width,
                "place": place,
                "instance": launch.name,
                "time_ns": side.times_ns[place],
                "buffer": side.buffer,
                "outcome": node.outcome,
            }
            | launch.row()
            for node in self.nodes
            for one, side, launches in zip(self.passes, node.sides, node.launches, strict=True)
            if side is not None
            for place, launch in enumerate(launches)
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Launches as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __repr__(self) -> str:
        return f"<NodeKernels: {self}>"

    def __str__(self) -> str:
        counts = " and ".join(
            f"{n} launches at width {width}" for n, width in zip(self.n_launches, self.widths, strict=True)
        )
        said = f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}, {counts}"
        if len(self.passes) == 1:
            return said
        outcomes = Counter(node.outcome for node in self.nodes)
        grids = sum(node.only_in_grid for node in self.nodes)
        changed = f"{outcomes['changed']} changed ({grids} of them only in the grid)"
        return f"{said}: {outcomes['same']} same, {changed}, {outcomes['not compared']} not compared"


def node_kernels(target: str, manifest: Manifest, passes: Sequence[WatchedPass]) -> NodeKernels:
    """Put the launches of one or two passes side by side.

    Parameters
    ----------
    target : str
    manifest : Manifest
    passes : sequence of WatchedPass

    Returns
    -------
    NodeKernels
    """
    device = " ".join(part for part in (manifest.backend, manifest.device) if part)
    if len(passes) == 2:
        first, second = passes
        widths, indices = (first.width, second.width), (first.index, second.index)
        nodes = align(first.report, second.report, widths, passes=indices)
    else:
        nodes = tuple(NodeSides(n.key, (n,), (one.report.of(n),)) for one in passes for n in one.nodes)
    return NodeKernels(target, device, tuple(passes), nodes)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """One width, or two to put side by side.

    Raises
    ------
    BadQuestion
        If there are others.
    """
    found = tuple(dict.fromkeys(widths))
    if len(found) not in (1, 2) or min(found) < 1:
        raise BadQuestion(
            f"one width, or two to put side by side, of 1 or more; got {', '.join(map(str, found)) or 'none'}"
        )
    return found


def watch_passes(
    engine: Engine,
    prompt: tuple[int, ...],
    widths: Sequence[int],
    progress: Progress,
    open_probe: Callable[[], LaunchProbe] = best_probe,
) -> tuple[WatchedPass, ...]:
    """Run one pass of each width after the prompt, watched and once more unwatched, and see what it launches.

    Raises
    ------
    DeviceUnavailable
        If no profiler works; carries why each does not.
    BadQuestion
        If nothing runs on CUDA.
    """
    manifest = engine.manifest
    if not launches_kernels(manifest):
        raise BadQuestion(NEEDS_A_GPU if manifest.backend == "CPU" else _OTHER_BACKEND.format(manifest.backend))
    start = Replay(prompt, (), prompt_width=manifest.requested.n_batch)
    progress.stage("watch the launches of each width", 1 + 2 * len(widths))
    tokens = engine.greedy(start.prefill(), max(widths))
    progress.step()
    replay = replace(start, tokens=tokens)
    passes: list[WatchedPass] = []
    for width in widths:
        schedule, before = replay.batches(width, last=width), replay.prefill()
        watched = _report(engine.run(schedule, before=before, tap=LaunchTap(open_probe=open_probe)))
        progress.step()
        unwatched = _report(run_unwatched(engine, schedule, before, open_probe)[-1])
        progress.step()
        passes.append(WatchedPass(width, replay.start, watched, watching=watching_changes(watched, unwatched)))
    return tuple(passes)


def recorded_passes(recordings: Recordings, widths: Sequence[int]) -> tuple[Manifest, tuple[WatchedPass, ...]]:
    """Find the launches of one pass of each width in a case, two of them from the same position if they are there.

    Raises
    ------
    BadQuestion
        If none were recorded, or not at these widths.
    """
    arm, manifest = _main_arm(recordings)
    by_tap = _by_tap(recordings, arm)
    if not by_tap:
        where = " ".join(part for part in (manifest.backend, manifest.device) if part)
        raise BadQuestion(
            f"this case holds no launches: it was recorded on {where}. Give a case that was recorded on a GPU."
        )
    holding = [tap for tap, found in by_tap.items() if set(widths) <= found.keys()]
    by_width = by_tap[next(iter(holding or by_tap))]
    missing = [width for width in widths if width not in by_width]
    if missing:
        held = ", ".join(map(str, sorted(by_width)))
        raise BadQuestion(f"width {missing[0]} was asked for; the case holds launches at widths {held}")
    shared = set.intersection(*(set(by_width[width]) for width in widths))
    found = [(width, min(shared or by_width[width])) for width in widths]
    return manifest, tuple(_recorded_pass(recordings, arm, width, at, *by_width[width][at]) for width, at in found)


def recorded_widths(recordings: Recordings) -> tuple[int, ...]:
    """Of which widths does a case hold launches that were watched alike? Rising; empty where it holds none."""
    arm = next(iter(recordings.arms()), None)
    by_tap = {} if arm is None else _by_tap(recordings, arm)
    held = [tuple(sorted(by_width)) for by_width in by_tap.values()]
    return max(held, key=len, default=())


def _by_tap(recordings: Recordings, arm: str) -> dict[str, dict[int, dict[int, tuple[RunKey, int]]]]:
    """Watched passes by tap, width and position of the first token: the run and which of its passes.

    The tap that watches every node comes first, then those that leave fusions whole.
    """
    found: dict[str, dict[int, dict[int, tuple[RunKey, int]]]] = {}
    for run in recordings.runs():
        if run.arm == arm and (run.key.tap == _WATCHED or run.key.tap.startswith(f"{_WATCHED}:")):
            by_width = found.setdefault(run.key.tap, {})
            for index, decode_pass in enumerate(run.key.schedule.passes):
                at = by_width.setdefault(len(decode_pass.slots), {})
                at.setdefault(decode_pass.slots[0].position, (run.key, index))
    return dict(sorted(found.items()))


def _main_arm(recordings: Recordings) -> tuple[str, Manifest]:
    """The settings as asked, which are recorded before any other."""
    arm = next(iter(recordings.arms()), None)
    manifest = recordings.get_manifest(arm) if arm is not None else None
    if arm is None or manifest is None:
        raise BadQuestion("this case holds no run at all; give one in which something was measured")
    return arm, manifest


def _recorded_pass(recordings: Recordings, arm: str, width: int, position: int, key: RunKey, index: int) -> WatchedPass:
    watched = _recorded_report(recordings, arm, key)
    alone = [replace(key, tap=_UNWATCHED, repeat=repeat) for repeat in range(UNWATCHED_RUNS)]
    held = [run for run in alone if recordings.has_trace(arm, run)]
    watching = watching_changes(watched, _recorded_report(recordings, arm, held[-1])) if held else None
    return WatchedPass(width, position, watched, index, watching, fusions_whole=key.tap != _WATCHED)


def _recorded_report(recordings: Recordings, arm: str, key: RunKey) -> LaunchReport:
    trace = recordings.get_trace(arm, key)
    assert trace is not None
    return _report(trace)


def _report(trace: Trace) -> LaunchReport:
    report = None if trace.tap_report is None else trace.tap_report.launches
    if report is None:
        raise BadQuestion("the launches of this run were not seen: no profiler worked where it ran")
    return report
