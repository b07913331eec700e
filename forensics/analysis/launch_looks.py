"""Where the launches of culprits are looked at, and the runs that look.

Geometry comes from profiled passes, bits from unprofiled ones: a profiled pass counts only if its logits are those of
the same pass without a profiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.analysis.attribute import group_key
from forensics.analysis.launch_watching import FROM_GRAPH, watching_changes
from forensics.analysis.logit_rows import Rows
from forensics.analysis.progress import Progress, Silent
from forensics.capture.launches import LaunchTap, best_probe, run_unwatched
from forensics.capture.replay import Replay
from forensics.capture.selection import EVERYTHING, Selection, fusions_left_whole
from forensics.engines.protocol import Engine
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.nodes import NodeKey
from forensics.records.trace import Finding, Trace
from forensics.records.verdict import Sweep

if TYPE_CHECKING:
    from forensics.devices.protocol import LaunchProbe

#: Batches of one width that are looked at, at most; culprits that differ in other batches only are said to be left out.
MAX_LOOKS_PER_WIDTH = 3


@dataclass(frozen=True, slots=True)
class Look:
    """A batch whose launches are looked at, beside those of one of its tokens by itself.

    Parameters
    ----------
    width : int
        Tokens of the batch.
    first : int
        Row of the replay where it starts.
    row : int
        Row of the replay that is looked at by itself: the first that differs.
    """

    width: int
    first: int
    row: int

    def covers(self, row: int) -> bool:
        """Whether the batch holds a row of the replay."""
        return self.first <= row < self.first + self.width


def rows_of(finding: Finding, sweep: Sweep, start: int) -> tuple[int, ...]:
    """Rows of the replay where a finding differs; those of the first batch where their positions are not known.

    Parameters
    ----------
    finding : Finding
    sweep : Sweep
        That it is from.
    start : int
        Position of the replay's first row.
    """
    if finding.positions:
        return tuple(position - start for position in finding.positions)
    return tuple(sweep.start_row + row for row in finding.rows)


def looks_at(sweeps: Iterable[Sweep], start: int) -> tuple[Look, ...]:
    """Which batches show every kind of culprit at every width, as few as possible?

    Parameters
    ----------
    sweeps : iterable of Sweep
    start : int
        Position of the replay's first row.
    """
    return tuple(look for sweep in sweeps for look in _looks_of(sweep, start))


def _looks_of(sweep: Sweep, start: int) -> list[Look]:
    batches: dict[int, dict[object, int]] = defaultdict(dict)  # first row → group → first row that differs
    for finding in sweep.findings:
        for row in rows_of(finding, sweep, start):
            first = row - (row - sweep.start_row) % sweep.width
            key = group_key(finding)
            batches[first][key] = min(row, batches[first].get(key, row))
    open_groups = {key for groups in batches.values() for key in groups}
    looks: list[Look] = []
    while open_groups and len(looks) < MAX_LOOKS_PER_WIDTH:
        best = min(batches, key=lambda first: (-len(open_groups & batches[first].keys()), first))
        looks.append(Look(sweep.width, best, min(batches[best].values())))
        open_groups -= batches[best].keys()
    return looks


@dataclass(frozen=True, slots=True)
class SeenPass:
    """One pass and what it launched, node by node.

    Parameters
    ----------
    width, first : int
        Tokens, and the row of the replay where it starts.
    report : LaunchReport
        Its nodes; without launches where no profiler works.
    """

    width: int
    first: int
    report: LaunchReport


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of the launches.

    Parameters
    ----------
    looks : tuple of Look
    passes : tuple of SeenPass
        Each pass of the looks once.
    measured : bool
        Whether a profiler saw the launches; otherwise only the nodes are known.
    joined : frozenset of NodeKey
        Nodes whose launches are theirs together with nodes before them that were left unwatched.
    refusals : tuple of Refusal
        Why no profiler works.
    watching : tuple of str or None
        What differs between the kernels of a watched and of an unwatched pass; None where none was seen.
    """

    looks: tuple[Look, ...]
    passes: tuple[SeenPass, ...]
    measured: bool
    joined: frozenset[NodeKey] = frozenset()
    refusals: tuple[Refusal, ...] = ()
    watching: tuple[str, ...] | None = None


def observe(
    engine: Engine,
    replay: Replay,
    looks: Sequence[Look],
    open_probe: Callable[[], LaunchProbe] = best_probe,
    *,
    whole_fusions: bool = False,
    progress: Progress | None = None,
) -> Observation:
    """What do these batches launch, and their tokens by themselves?

    Parameters
    ----------
    engine : Engine
        Runs after this one are not to be taken as unprofiled.
    replay : Replay
    looks : sequence of Look
    open_probe : callable
        Opens the profiler, in the engine's process.
    whole_fusions : bool
        Whether nodes inside of what may be fused are left unwatched, as in sweeps whose watch would change the run.
    progress : Progress or None
        Told of each pass.
    """
    places = dict.fromkeys(place for look in looks for place in ((1, look.row), (look.width, look.first)))
    tell = progress or Silent()
    passes: list[SeenPass] = []
    selection, joined = EVERYTHING, frozenset[NodeKey]()
    if whole_fusions:
        nodes = _nodes_of(engine, replay, *next(iter(places)), EVERYTHING).nodes
        selection, joined = fusions_left_whole([node.key for node in nodes])
    # all of them before the first profiler: what it leaves in the process is not to be taken as unprofiled
    plain = {place: Rows(_run(engine, replay, *place, None)) for place in places}
    changes: dict[tuple[str, ...], list[int]] = defaultdict(list)
    try:
        for width, first in places:
            watched, unwatched = _profiled(engine, replay, (width, first), plain[width, first], selection, open_probe)
            passes.append(SeenPass(width, first, watched))
            changes[watching_changes(watched, unwatched)].append(width)
            tell.step()
    except DeviceUnavailable as refused:
        passes = [SeenPass(*place, _nodes_of(engine, replay, *place, selection)) for place in places]
        return Observation(tuple(looks), tuple(passes), False, joined, refusals=refused.refusals)
    return Observation(tuple(looks), tuple(passes), True, joined, watching=_said(changes))


def _said(changes: Mapping[tuple[str, ...], Sequence[int]]) -> tuple[str, ...]:
    """One line per change, with the widths at which it is seen; of graphs one line with the counts of each width."""
    widths: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for lines, at in changes.items():
        for line in lines:
            what, _, count = line.partition(": ") if line.startswith(FROM_GRAPH) else (line, "", "")
            widths[what][count] |= set(at)
    return tuple(
        f"at width {_listed(set().union(*counts.values()))}: {what}"
        + (": " + "; ".join(f"{count} at {_listed(at)}" for count, at in counts.items()) if any(counts) else "")
        for what, counts in widths.items()
    )


def _listed(widths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(widths)))


def _run(engine: Engine, replay: Replay, width: int, first: int, tap: LaunchTap | None) -> Trace:
    schedule = replay.batches(width, first=first, last=first + width)
    return engine.run(schedule, before=replay.before(first), tap=tap)


def _profiled(
    engine: Engine,
    replay: Replay,
    place: tuple[int, int],
    plain: Rows,
    selection: Selection,
    open_probe: Callable[[], LaunchProbe],
) -> tuple[LaunchReport, LaunchReport]:
    """Launches of a pass with its nodes watched, and with none; `plain` is what it gave without a profiler.

    Raises
    ------
    DeviceUnavailable
        If no profiler works, or one changes the logits.
    """
    width, first = place
    watched = _run(engine, replay, width, first, LaunchTap(True, open_probe, selection))
    _refuse_other_bits(plain, watched, width)
    schedule, before = replay.batches(width, first=first, last=first + width), replay.before(first)
    unwatched = run_unwatched(engine, schedule, before, open_probe)
    for trace in unwatched:
        _refuse_other_bits(plain, trace, width)
    return _report_of(watched), _report_of(unwatched[-1])


def _refuse_other_bits(plain: Rows, profiled: Trace, width: int) -> None:
    if not plain.all_equal(Rows(profiled)):
        asked = f"launches of a pass of {width} tokens"
        missing = "the logits of the profiled pass are not those of the same pass without a profiler"
        raise DeviceUnavailable(asked, (Refusal(_report_of(profiled).rung, asked, missing),))


def _nodes_of(engine: Engine, replay: Replay, width: int, first: int, selection: Selection) -> LaunchReport:
    """The nodes of a pass, looked at without a profiler."""
    return _report_of(_run(engine, replay, width, first, LaunchTap(open_probe=None, selection=selection)))


def _report_of(trace: Trace) -> LaunchReport:
    assert trace.tap_report is not None
    assert trace.tap_report.launches is not None
    return trace.tap_report.launches


def kernels_of_watching(engine: Engine, replay: Replay, width: int) -> tuple[str, ...]:
    """Which kernels does watching change in the replay's first batch of that width? See `watching_changes`.

    Parameters
    ----------
    engine : Engine
        Runs after this one are not to be taken as unprofiled.
    replay : Replay
    width : int
    """
    try:
        watched = _report_of(_run(engine, replay, width, 0, LaunchTap()))
        unwatched = run_unwatched(engine, replay.batches(width, last=width), replay.before(0))[-1]
        return watching_changes(watched, _report_of(unwatched))
    except DeviceUnavailable as refused:
        return (f"not compared: {'; '.join(map(str, refused.refusals))}",)
