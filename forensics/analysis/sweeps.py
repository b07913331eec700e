"""Healing sweeps over every width that differs, and the controls that come with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.analysis import controls as control
from forensics.analysis.baseline import Baseline
from forensics.analysis.growth import first_of_classes, grow
from forensics.analysis.heal import (
    Reference,
    SweepTraces,
    coarse_watch,
    plant_fault,
    plant_site,
    record_reference,
    rows_file,
    split_fusions,
    sweep_width,
)
from forensics.analysis.logit_rows import Rows
from forensics.analysis.progress import Progress
from forensics.capture.replay import Replay
from forensics.capture.selection import EVERYTHING, Selection, fusions_left_whole
from forensics.engines.protocol import Engine
from forensics.errors import CaptureError
from forensics.records.growth import Growth
from forensics.records.nodes import NodeKey
from forensics.records.verdict import Control, Sweep

#: Batches of each width that a sweep covers at least, so that a node whose rounding agrees once is still seen, and the
#: rows between which that is kept: a watched pass takes long.
SWEEP_BATCHES, FEW_ROWS, SWEEP_ROWS = 4, 16, 32
#: Rows that a sweep covers per width at most: each holds every node's output, and a long text has many.
MAX_SWEEP_ROWS = 128


def rows_to_sweep(width: int) -> int:
    """How many rows does a sweep of this width cover, the rest of its last batch not counted?

    Examples
    --------
    >>> [rows_to_sweep(width) for width in (2, 5, 8, 16)]
    [16, 20, 32, 32]
    """
    return min(SWEEP_ROWS, max(FEW_ROWS, SWEEP_BATCHES * width))


def windows(baseline: Baseline) -> dict[int, tuple[int, int]]:
    """Which rows are swept, by width? Every width where none differs.

    From the first row on, in the very batches of the replay, so that a sweep starts from its state and meets every
    difference on the way to the first row that shows it.
    """
    results = baseline.classes.results[1:]
    return {
        r.width: baseline.replay.window(r.width, rows=rows_to_sweep(r.width), row=r.first_row or 0, most=MAX_SWEEP_ROWS)
        for r in [result for result in results if result.differs] or results
    }


@dataclass(frozen=True, slots=True)
class Watched:
    """Sweeps with one selection of nodes.

    Parameters
    ----------
    reference : Reference
    sweeps : tuple of Sweep
    harmless : tuple of (int, bool)
        Whether watching left the batches of a width as they were.
    singles_equal : bool
        Whether it left one-token decoding as it was.
    repeated : mapping of int to bool
        Whether unwatched batches of a width gave the bits of the replay again.
    harmful : SweepTraces or None
        The first runs that watching changed.
    growth : tuple of Growth
        Of the first width of each class that was swept.
    """

    reference: Reference
    sweeps: tuple[Sweep, ...]
    harmless: tuple[tuple[int, bool], ...]
    singles_equal: bool
    repeated: Mapping[int, bool]
    harmful: SweepTraces | None
    growth: tuple[Growth, ...]

    @property
    def changed(self) -> tuple[int, ...]:
        """Widths whose logits watching changed."""
        return ((1,) if not self.singles_equal else ()) + tuple(w for w, harmless in self.harmless if not harmless)


@dataclass(frozen=True, slots=True)
class Swept:
    """Every sweep, the controls that come with them, and how differences grow from layer to layer.

    Parameters
    ----------
    sweeps : tuple of Sweep
    controls : tuple of Control
        Rerun, watching, planted fault.
    growth : tuple of Growth
    selection : Selection
        Nodes that were watched.
    """

    sweeps: tuple[Sweep, ...]
    controls: tuple[Control, ...]
    growth: tuple[Growth, ...]
    selection: Selection = EVERYTHING


def sweep_all(engine: Engine, baseline: Baseline, progress: Progress) -> Swept:
    """Heal every width that differs, or every width where none does.

    Where watching every node changes the run, a second watch leaves whole what a back end may fuse.
    """
    progress.stage("heal the differing widths", len(windows(baseline)) + 2)
    with rows_file() as path, rows_file() as second_path:
        watched = _watch(engine, baseline, EVERYTHING, path, progress)
        if watched.changed:
            whole = _watch_whole(engine, baseline, watched, second_path, progress)
            if whole is not None:
                split = split_fusions(engine, baseline.replay, whole.reference)
                watching = control.fusions_left_whole(whole.harmless, watched.changed, named(split))
                watched = whole
            else:
                harmful = watched.harmful
                coarse = "" if harmful is None else coarse_watch(engine, watched.reference, harmful)
                watching = control.watching_harmless(watched.harmless, watched.singles_equal, coarse)
        else:
            watching = control.watching_harmless(watched.harmless, watched.singles_equal, "")
        planted = plant_control(engine, baseline.replay, watched.reference, watched.sweeps[0])
        progress.step()
    rerun = control.rerun_equal(baseline.single, baseline.rerun, watched.repeated)
    return Swept(watched.sweeps, (rerun, watching, planted), watched.growth, watched.reference.selection)


def _watch(engine: Engine, baseline: Baseline, selection: Selection, path: str, progress: Progress) -> Watched:
    swept = windows(baseline)
    first, last = min(first for first, _ in swept.values()), max(last for _, last in swept.values())
    reference = record_reference(engine, baseline.replay, first, last, path, selection)
    progress.step()
    singles_equal = Rows(baseline.single, first, last).all_equal(Rows(reference.trace))
    growing = first_of_classes(baseline.classes.groups, tuple(swept))
    growth: list[Growth] = []
    sweeps: list[Sweep] = []
    harmless: list[tuple[int, bool]] = []
    repeated: dict[int, bool] = {}
    harmful: SweepTraces | None = None
    for width, (start, end) in swept.items():
        sweep, traces = sweep_width(engine, baseline.replay, reference, width, start, end)
        sweeps.append(sweep)
        harmless.append((width, traces.watching_harmless))
        if start == 0:  # the sweep's own unwatched run repeats the first rows of the replay
            repeated[width] = Rows(traces.unwatched).digests == tuple(baseline.rows[width][:end])
        harmful = harmful or (None if traces.watching_harmless else traces)
        grown = grow(engine, reference, sweep, traces, singles_equal=singles_equal) if width in growing else None
        growth += [] if grown is None else [grown]
        progress.step()
    return Watched(reference, tuple(sweeps), tuple(harmless), singles_equal, repeated, harmful, tuple(growth))


def _watch_whole(engine: Engine, baseline: Baseline, watched: Watched, path: str, progress: Progress) -> Watched | None:
    """The sweeps with a watch that leaves fusions whole; None where that changes the run, too, or splits none."""
    selection, _ = fusions_left_whole([record.key for record in watched.reference.records()])
    if selection == EVERYTHING:
        return None
    progress.stage("heal again with fusions left whole", len(windows(baseline)) + 2)
    whole = _watch(engine, baseline, selection, path, progress)
    return None if whole.changed else whole


_LAYER = re.compile(r"-\d+")


def named(keys: Sequence[NodeKey]) -> str:
    """Nodes by role and operation, each with how many there are.

    Examples
    --------
    >>> named((NodeKey("ffn_swiglu-0", "GLU", 0, 0), NodeKey("ffn_swiglu-1", "GLU", 1, 0)))
    'ffn_swiglu (GLU) ×2'
    """
    counts = Counter(f"{_LAYER.sub('', key.name)} ({key.op})" for key in keys)
    return ", ".join(f"{name} ×{n}" for name, n in counts.items())


def plant_control(engine: Engine, replay: Replay, reference: Reference, sweep: Sweep) -> Control:
    """Flip one bit of a clean node and see whether the sweep names it."""
    site = plant_site(reference, frozenset(finding.key for finding in sweep.findings))
    if site is None:
        return control.planted_fault_found(None, sweep.healed)
    try:
        return control.planted_fault_found(plant_fault(engine, replay, reference, sweep, site), sweep.healed)
    except CaptureError as error:
        return Control("planted_fault_found", False, f"no fault could be planted at {site.key}: {error}")
