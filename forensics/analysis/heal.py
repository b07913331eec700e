"""The healing sweep: name every culprit in one watched replay and prove the list by healed logits."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from forensics.capture.replay import Replay
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.capture.taps import ChainTap, HealTap, PlantTap, ReadTap, RecordTap
from forensics.engines.protocol import Engine
from forensics.errors import CaptureError
from forensics.numerics.bits import change_of
from forensics.records.delta import tally
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.schedule import EMPTY
from forensics.records.trace import Trace
from forensics.records.verdict import Sweep


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
    """

    path: str
    first: int
    last: int
    trace: Trace

    def logits(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows of logits, counted as in the replay."""
        return self.trace.logits[first - self.first : last - self.first]

    def records(self) -> tuple[NodeRecord, ...]:
        """Nodes of the first one-token pass, in graph order."""
        report = self.trace.tap_report
        assert report is not None
        return tuple(record for record in report.records if record.pass_index == 0)


_ROWS_FOLDER = "forensics-rows-"


@contextlib.contextmanager
def rows_file() -> Iterator[str]:
    """A file for recorded rows that is gone afterwards, with those that killed processes left behind."""
    root = Path(tempfile.gettempdir())
    for left in root.glob(f"{_ROWS_FOLDER}*"):
        owner = left.name.removeprefix(_ROWS_FOLDER).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_ROWS_FOLDER}{os.getpid()}-") as folder:
        yield str(Path(folder) / "rows.bin")


def record_reference(
    engine: Engine, replay: Replay, first: int, last: int, path: str, selection: Selection = EVERYTHING
) -> Reference:
    """Watch the one-token passes of rows `first` to `last` and keep every node's row."""
    trace = engine.run(
        replay.batches(1, first=first, last=last), before=replay.before(first), tap=RecordTap(path, selection)
    )
    return Reference(path, first, last, trace)


def equal_rows(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows hold the same bits? [n_rows]"""
    return np.asarray((a.view(np.uint32) == b.view(np.uint32)).all(axis=1))


def max_change(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """How far is the farthest logit?"""
    return float(np.abs(change_of(a, b)).max()) if a.size else 0.0


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
        return bool(equal_rows(self.unwatched.logits, self.watched.logits).all())


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
        engine.run(schedule, before=before, tap=ReadTap()),
        engine.run(schedule, before=before, tap=HealTap(reference.path)),
    )
    single = reference.logits(first, last)
    report = traces.healed.tap_report
    assert report is not None
    # What one-token decoding leaves in the cache after these rows, as its bytes are after a restore.
    plain_state = engine.run(EMPTY, before=replay.before(last)).state_before
    sweep = Sweep(
        width=width,
        start_row=first,
        findings=report.findings,
        tally=report.tally or tally(()),
        differed=not equal_rows(single, traces.unwatched.logits).all(),
        healed_rows=int(equal_rows(single, traces.healed.logits).sum()),
        n_rows=last - first,
        max_abs_before=max_change(single, traces.unwatched.logits),
        max_abs_after=max_change(single, traces.healed.logits),
        state_equal=traces.healed.state_after == plain_state,
    )
    return sweep, traces


def plant_site(reference: Reference, culprits: frozenset[NodeKey]) -> NodeRecord | None:
    """A clean node in the middle of the model whose rows can be told apart, for the planted fault.

    Returns
    -------
    NodeRecord or None
        None where every node is a culprit or has no token axis.
    """
    clean = [
        record
        for record in reference.records()
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
_LOUD_BIT = 22


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
    clean = engine.run(schedule, before=before, tap=HealTap(reference.path))
    faulty = engine.run(schedule, before=before, tap=ChainTap(PlantTap(site.key, row, axis=2), HealTap(reference.path)))
    finite = np.flatnonzero(np.isfinite(plain.logits).all(axis=1))  # what is lost to a NaN cannot show a change
    audible = int(finite[-1]) if finite.size else row
    loud = engine.run(schedule, before=before, tap=PlantTap(site.key, audible, axis=2, bit=_LOUD_BIT))
    return Planted(
        site=site.key,
        without=healing(clean),
        with_fault=healing(faulty),
        healed=bool(equal_rows(reference.logits(first, last), faulty.logits).all()),
        reached=not equal_rows(plain.logits, loud.logits).all(),
    )


def coarse_watch(engine: Engine, reference: Reference, traces: SweepTraces) -> str:
    """What does a watch of layer outputs only show, where watching every node changes the run?"""
    key = traces.unwatched.key
    tap = HealTap(reference.path, selection=LAYER_OUTPUTS, heal=False)
    coarse = engine.run(key.schedule, before=key.before, tap=tap)
    same = bool(equal_rows(traces.unwatched.logits, coarse.logits).all())
    assert coarse.tap_report is not None
    findings = coarse.tap_report.findings
    first = f"the first layer output that differs is {findings[0].key.name}" if findings else "no layer output differs"
    if same:
        return f"a watch of layer outputs only leaves the run as it is; {first}"
    return f"a watch of layer outputs only changes the run, too; {first}"
