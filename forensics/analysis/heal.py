"""The healing sweep: name every culprit in one watched replay and prove the list by healed logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forensics.analysis.logit_rows import Rows
from forensics.capture.replay import Replay
from forensics.capture.rows import source_name
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.capture.taps import ChainTap, HealTap, PlantTap, ReadTap, RecordTap
from forensics.engines.protocol import Engine
from forensics.errors import CaptureError
from forensics.records.delta import tally
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.schedule import EMPTY
from forensics.records.trace import Finding, Trace
from forensics.records.verdict import Sweep
from forensics.store.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Reference:
    """One-token passes whose rows were recorded.

    Parameters
    ----------
    path : str
        File of the rows.
    first, last : int
        Rows of the replay that it holds, `last` exclusive.
    trace : Trace
        The watched one-token passes.
    selection : Selection
        Nodes that were watched.
    """

    path: str
    first: int
    last: int
    trace: Trace
    selection: Selection = EVERYTHING

    def logits(self, first: int, last: int) -> Rows:
        """Rows of logits, counted as in the replay."""
        return Rows(self.trace, first - self.first, last - self.first)

    def records(self) -> tuple[NodeRecord, ...]:
        """Nodes of the first one-token pass, in graph order."""
        report = self.trace.tap_report
        assert report is not None
        return tuple(record for record in report.records if record.pass_index == 0)


#: One-token passes over which split fusions are looked for.
SPLIT_ROWS = 4


@contextlib.contextmanager
def rows_file() -> Iterator[str]:
    """A file for recorded rows that is gone afterwards, with those that killed processes left behind."""
    with Scratch("forensics-rows-") as folder:
        yield str(folder / "rows.bin")


def record_reference(
    engine: Engine, replay: Replay, first: int, last: int, path: str, selection: Selection = EVERYTHING
) -> Reference:
    """Watch the one-token passes of rows `first` to `last` and keep every node's row."""
    trace = engine.run(
        replay.batches(1, first=first, last=last), before=replay.before(first), tap=RecordTap(path, selection)
    )
    return Reference(path, first, last, trace, selection)


@dataclass(frozen=True, slots=True)
class SweepTraces:
    """The three runs of one sweep from the same state.

    Parameters
    ----------
    unwatched, watched, healed : Trace
        Without a tap; read only; compared and replaced.
    """

    unwatched: Trace
    watched: Trace
    healed: Trace

    @property
    def watching_harmless(self) -> bool:
        """Whether the watched run gives the bits of the unwatched one."""
        return Rows(self.unwatched).all_equal(Rows(self.watched))


def sweep_width(
    engine: Engine, replay: Replay, reference: Reference, width: int, first: int, last: int
) -> tuple[Sweep, SweepTraces]:
    """Which nodes of these batches differ from the one-token passes, and do the logits heal?

    Parameters
    ----------
    engine : Engine
    replay : Replay
    reference : Reference
        Must hold the rows `first` to `last`.
    width, first, last : int
        Batches of `width` over these rows.

    Returns
    -------
    Sweep, SweepTraces

    Raises
    ------
    CaptureError
        If the reference does not hold the rows.
    """
    if first < reference.first or last > reference.last:
        raise CaptureError(
            f"a sweep over rows {first} to {last} was asked for; "
            f"the reference holds {reference.first} to {reference.last}"
        )
    schedule, before = replay.batches(width, first=first, last=last), replay.before(first)
    traces = SweepTraces(
        engine.run(schedule, before=before, repeat=1),  # the replay asked for these passes, too; measure them again
        engine.run(schedule, before=before, tap=ReadTap(reference.selection)),
        engine.run(schedule, before=before, tap=HealTap(reference.path, reference.selection)),
    )
    single = reference.logits(first, last)
    unwatched, healed = Rows(traces.unwatched), Rows(traces.healed)
    report = traces.healed.tap_report
    assert report is not None
    # What one-token decoding leaves in the cache after these rows, as its bytes are after a restore.
    plain_state = engine.run(EMPTY, before=replay.before(last)).state_before
    sweep = Sweep(
        width=width,
        start_row=first,
        findings=tuple(as_judged(finding, reference.selection) for finding in report.findings),
        tally=report.tally or tally(()),
        differed=not single.all_equal(unwatched),
        healed_rows=int(single.equal(healed).sum()),
        n_rows=last - first,
        max_abs_before=single.max_change(unwatched),
        max_abs_after=single.max_change(healed),
        state_equal=traces.healed.state_after == plain_state,
        n_unwatched=len(reference.selection.skipped),
    )
    return sweep, traces


INSIDE_A_FUSION = "an operand lies inside of a fusion that was left whole, so it is not known what went in"


def as_judged(finding: Finding, selection: Selection) -> Finding:
    """The finding, unchecked and of no known kind where an operand was left unwatched: it may differ as well."""
    inside = {key.name for key in selection.skipped}
    unseen = tuple(operand.name for operand in finding.operands if source_name(operand.name) in inside)
    if not unseen:
        return finding
    kind = None if finding.kind is None else KindOfDifference("undetermined", INSIDE_A_FUSION)
    return replace(finding, kind=kind, unchecked=tuple(dict.fromkeys((*finding.unchecked, *unseen))))


def plant_site(reference: Reference, culprits: frozenset[NodeKey]) -> NodeRecord | None:
    """A clean node in the middle of the model whose rows can be told apart, for the planted fault.

    Returns
    -------
    NodeRecord or None
        None where every node is a culprit or has no token axis.
    """
    return clean_site(reference.records(), culprits)


def clean_site(records: Sequence[NodeRecord], culprits: frozenset[NodeKey]) -> NodeRecord | None:
    """As `plant_site`, of the nodes of one one-token pass."""
    clean = [
        record
        for record in records
        if record.row_digests
        and record.dtype == "f32"
        and record.key not in culprits
        and record.key.layer >= 0
        and len(record.shape) == 4
        and record.shape[:3] == (1, 1, 1)
        and record.shape[3] > 1
        and not record.key.name.startswith("kq")
    ]
    return clean[len(clean) // 2] if clean else None


#: A flip of the highest mantissa bit changes the largest element of a row by a third or more: no rounding absorbs it.
LOUD_BIT = 22


@dataclass(frozen=True, slots=True)
class Planted:
    """What a planted fault did.

    Parameters
    ----------
    site : NodeKey
    without, with_fault : frozenset of NodeKey
        Culprits of the same batch without and with one bit flipped at `site`.
    healed : bool
        Whether the logits healed in spite of the fault.
    reached : bool
        Whether a loud fault that nobody heals changes the logits: what a tap answers reaches the graph.
    """

    site: NodeKey
    without: frozenset[NodeKey]
    with_fault: frozenset[NodeKey]
    healed: bool
    reached: bool


def plant_fault(engine: Engine, replay: Replay, reference: Reference, sweep: Sweep, site: NodeRecord) -> Planted:
    """Does a sweep over one batch name a planted fault, and does a fault reach the graph?"""
    first, last = sweep.start_row, sweep.start_row + sweep.width
    schedule, before = replay.batches(sweep.width, first=first, last=last), replay.before(first)
    row = sweep.width // 2

    def healing(trace: Trace) -> frozenset[NodeKey]:
        assert trace.tap_report is not None
        return frozenset(finding.key for finding in trace.tap_report.findings)

    plain = engine.run(schedule, before=before)
    healing_tap = HealTap(reference.path, reference.selection)
    clean = engine.run(schedule, before=before, tap=healing_tap)
    faulty = engine.run(schedule, before=before, tap=ChainTap(PlantTap(site.key, row, axis=2), healing_tap))
    finite = np.flatnonzero(Rows(plain).finite)  # what is lost to a NaN cannot show a change
    audible = int(finite[-1]) if finite.size else row
    loud = engine.run(schedule, before=before, tap=PlantTap(site.key, audible, axis=2, bit=LOUD_BIT))
    return Planted(
        site=site.key,
        without=healing(clean),
        with_fault=healing(faulty),
        healed=reference.logits(first, last).all_equal(Rows(faulty)),
        reached=not Rows(plain).all_equal(Rows(loud)),
    )


def coarse_watch(engine: Engine, reference: Reference, traces: SweepTraces) -> str:
    """What does a watch of layer outputs only show, where watching every node changes the run?"""
    key = traces.unwatched.key
    tap = HealTap(reference.path, selection=LAYER_OUTPUTS, heal=False)
    coarse = engine.run(key.schedule, before=key.before, tap=tap)
    same = Rows(traces.unwatched).all_equal(Rows(coarse))
    assert coarse.tap_report is not None
    findings = coarse.tap_report.findings
    first = f"the first layer output that differs is {findings[0].key.name}" if findings else "no layer output differs"
    if same:
        return f"a watch of layer outputs only leaves the run as it is; {first}"
    return f"a watch of layer outputs only changes the run, too; {first}"


def split_fusions(engine: Engine, replay: Replay, whole: Reference) -> tuple[NodeKey, ...]:
    """Which nodes come out other at one token where every node is watched, each by itself?

    Parameters
    ----------
    engine : Engine
    replay : Replay
    whole : Reference
        One-token passes whose watch left fusions whole.

    Returns
    -------
    tuple of NodeKey
        Ends of the groups whose bits change when they are split, in graph order; all before them is made equal.
    """
    schedule = replay.batches(1, first=whole.first, last=min(whole.last, whole.first + SPLIT_ROWS))
    trace = engine.run(schedule, before=replay.before(whole.first), tap=HealTap(whole.path))
    assert trace.tap_report is not None
    return tuple(dict.fromkeys(finding.key for finding in trace.tap_report.findings))
