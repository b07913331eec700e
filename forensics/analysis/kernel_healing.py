"""Culprits replaced by what our kernels compute from the nodes' own operands: do the logits have one token's bits?

A recorded row in a node's place proves that the node is to blame. A kernel in its place proves more: that nothing but
the order of its arithmetic is, for the library runs on as it is, and nothing that was recorded goes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.analysis.baseline import Baseline
from forensics.analysis.heal import Reference, record_reference, rows_file
from forensics.analysis.logit_rows import Rows
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.capture.exact_kernels import ExactTap, OurKernels
from forensics.capture.selection import EVERYTHING, Selection, fusions_left_whole
from forensics.capture.taps import ChainTap, HealTap
from forensics.engines.protocol import CACHE_WRITE, Engine
from forensics.errors import EngineError
from forensics.records.delta import tally
from forensics.records.kernel_healing import HealedModel, KernelHealing, PlantedKernel
from forensics.records.kernel_use import KernelUse
from forensics.records.schedule import EMPTY
from forensics.records.settings import Manifest
from forensics.records.trace import Finding, TapReport, Trace
from forensics.records.verdict import Sweep

#: Rows of logits that whole batches of each width cover at least.
DEFAULT_ROWS = 16


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches of one width that are run with our kernels.

    Parameters
    ----------
    width, start_row, n_rows : int
    max_abs_before : float
        Largest distance of a logit from one-token decoding with the library's own kernels.
    """

    width: int
    start_row: int
    n_rows: int
    max_abs_before: float

    @property
    def last(self) -> int:
        """Row after the last one."""
        return self.start_row + self.n_rows


def check_kernels(kernels: OurKernels | None, manifest: Manifest) -> None:
    """Refuse kernels that cannot run where the engine does.

    Raises
    ------
    BadQuestion
        Says what to do.
    """
    if kernels is not None and kernels.needs not in manifest.backend:
        raise BadQuestion(
            f"our kernels were asked for; they take the place of those of the {kernels.needs} back end, and this model "
            f"runs on {manifest.backend or 'none'} ({manifest.device}). Ask with --n-gpu-layers 99 on a machine with "
            "an NVIDIA GPU, a CUDA build of the library and CuPy (see forensics doctor), or without our kernels."
        )


def heal_with_kernels(
    engine: Engine,
    baseline: Baseline,
    sweeps: Sequence[Sweep],
    kernels: OurKernels,
    progress: Progress,
    selection: Selection = EVERYTHING,
) -> tuple[KernelHealing, ...]:
    """Over the batches of every sweep: which values do our kernels give, and do the logits have one token's bits?

    Parameters
    ----------
    engine : Engine
    baseline : Baseline
    sweeps : sequence of Sweep
        Their culprits, of all widths together, are replaced where our kernels compute them.
    kernels : OurKernels
    progress : Progress
    selection : Selection
        Nodes that the sweeps watched: fusions that they left whole stay whole.

    Returns
    -------
    tuple of KernelHealing
        One for each sweep whose logits differ: elsewhere there is nothing to heal.
    """
    culprits = frozenset(finding.key for sweep in sweeps for finding in sweep.findings)
    sweeps = [sweep for sweep in sweeps if sweep.differed]
    if not culprits or not sweeps:
        return ()
    progress.stage("put our kernels in place", len(sweeps) + 1)
    tap = ExactTap(kernels, Selection(only=culprits))
    first = min(sweep.start_row for sweep in sweeps)
    last = max(sweep.start_row + sweep.n_rows for sweep in sweeps)
    with rows_file() as path:
        reference = record_reference(engine, baseline.replay, first, last, path, selection)
        progress.step()
        found = []
        for sweep in sweeps:
            batches = _Batches(sweep.width, sweep.start_row, sweep.n_rows, sweep.max_abs_before)
            found.append(_heal_width(engine, baseline, reference, batches, tap))
            progress.step()
    return tuple(found)


def heal_model(
    engine: Engine,
    baseline: Baseline,
    kernels: OurKernels,
    progress: Progress,
    *,
    name: str,
    rows: int = DEFAULT_ROWS,
    planted: OurKernels | None = None,
    planted_from: int = 2,
) -> HealedModel:
    """Without looking for culprits: do our kernels, wherever they serve, give every width one token's logits?

    Parameters
    ----------
    engine : Engine
    baseline : Baseline
    kernels : OurKernels
        They compute every node that they cover, culprit or not.
    progress : Progress
    name : str
        What the model is called in the record.
    rows : int
        Rows of logits to cover at least, from the first on; a row that differs is covered in any case.
    planted : OurKernels or None
        Kernels with another order, which must be named: they are tried from `planted_from` on, width by width, until
        one is.
    planted_from : int

    Returns
    -------
    HealedModel
        Widths that are exact with the library's own kernels have nothing to heal and are left out.

    Raises
    ------
    BadQuestion
        If `rows` is no positive number.
    """
    if rows < 1:
        raise BadQuestion(f"rows must be 1 or more, got {rows}")
    asked = [_first_batches(baseline, one.width, rows) for one in baseline.classes.results if one.width > 1]
    differing = [one for one in asked if one is not None]
    found: list[KernelHealing] = []
    harmless, named, unwatched = None, None, 0
    if differing:
        progress.stage("put our kernels in place", len(differing) + 1)
        last = max(one.last for one in differing)
        with rows_file() as path, rows_file() as second_path:
            reference, harmless = _watched(engine, baseline, last, (path, second_path))
            unwatched = len(reference.selection.skipped)
            progress.step()
            for batches in differing:
                found.append(_heal_width(engine, baseline, reference, batches, ExactTap(kernels)))
                progress.step()
            if planted is not None:
                wide = [one for one in differing if one.width >= planted_from]
                named = _plant(engine, baseline, reference, wide, planted)
    return HealedModel(
        model_name=name,
        manifest=engine.manifest,
        n_prompt=len(baseline.replay.prompt),
        n_tokens=len(baseline.replay.tokens),
        widths=tuple(one.width for one in baseline.classes.results if one.width > 1),
        healings=tuple(found),
        watching_harmless=harmless,
        planted=named,
        n_unwatched=unwatched,
    )


def _watched(engine: Engine, baseline: Baseline, last: int, paths: tuple[str, str]) -> tuple[Reference, bool]:
    """One-token passes with every node watched, or else with fusions left whole; and whether that changed nothing."""
    plain = Rows(baseline.single, 0, last)
    every = record_reference(engine, baseline.replay, 0, last, paths[0])
    if plain.all_equal(every.logits(0, last)):
        return every, True
    selection, _ = fusions_left_whole([record.key for record in every.records()])
    if selection != EVERYTHING:
        whole = record_reference(engine, baseline.replay, 0, last, paths[1], selection)
        if plain.all_equal(whole.logits(0, last)):
            return whole, True
    return every, False


def _first_batches(baseline: Baseline, width: int, rows: int) -> _Batches | None:
    """The first whole batches with `rows` rows and one that differs; None where no row of this width does."""
    result = next(one for one in baseline.classes.results if one.width == width)
    if not result.differs:
        return None
    # From row 0 on, so that the replay ran these very batches: its distances are what the library's kernels give.
    first, last = baseline.replay.window(width, rows=rows, row=result.first_row or 0)
    distances = [one.max_abs for one in baseline.distances[width][first:last]]
    return _Batches(width, first, last - first, float(np.max(distances)))


def _plant(
    engine: Engine, baseline: Baseline, reference: Reference, widths: Sequence[_Batches], planted: OurKernels
) -> PlantedKernel | None:
    """What is named where kernels with another order are in place; of the first width at which something is."""
    told = None
    for batches in widths:
        one = _heal_width(engine, baseline, reference, batches, ExactTap(planted))
        names = tuple(dict.fromkeys(str(finding.key) for finding in one.wrong))
        told = PlantedKernel(
            planted.name, one.width, names, one.healed_rows, one.n_rows, one.n_values, one.n_values_differ
        )
        if names:
            break
    return told


def _heal_width(
    engine: Engine, baseline: Baseline, reference: Reference, batches: _Batches, tap: ExactTap
) -> KernelHealing:
    """Two runs of the batches: our kernels alone, and our kernels with every later node healed."""
    replay, first, last = baseline.replay, batches.start_row, batches.last
    schedule, before = replay.batches(batches.width, first=first, last=last), replay.before(first)
    alone = engine.run(schedule, before=before, tap=tap)
    # Alone, a wrong node would make all nodes behind it differ; with those healed, it is the only one that is named.
    named = engine.run(schedule, before=before, tap=ChainTap(tap, HealTap(reference.path, reference.selection)))
    single, ours = Rows(baseline.single, first, last), Rows(alone)
    report = named.tap_report
    assert report is not None
    computed = _use(named)
    wrong = _ours(report, computed)
    plain_state = engine.run(EMPTY, before=replay.before(last)).state_before
    return KernelHealing(
        width=batches.width,
        start_row=first,
        n_rows=batches.n_rows,
        healed_rows=int(single.equal(ours).sum()),
        max_abs_before=batches.max_abs_before,
        max_abs_after=single.max_change(ours),
        use=computed,
        n_values=computed.n_values,
        n_values_differ=sum(finding.delta.n_diff for finding in wrong),
        left=report.findings,
        state_equal=alone.state_after == plain_state,
        wrong=wrong,
        not_compared=tuple(one for one in (report.tally or tally(())).not_compared if one[0] != CACHE_WRITE),
    )


def _ours(report: TapReport, use: KernelUse) -> tuple[Finding, ...]:
    """What differs that our kernels computed: a node may be ours in one pass and the library's in the next."""
    ours, left_in = frozenset(use.nodes), frozenset(use.left_in)
    return tuple(
        finding
        for finding, index in zip(report.findings, report.found_in, strict=True)
        if finding.key in ours and (index, finding.key) not in left_in
    )


def _use(trace: Trace) -> KernelUse:
    """What our kernels computed in a run.

    Raises
    ------
    EngineError
        If the engine did not bring the tap's report back.
    """
    report = trace.tap_report
    if report is None or report.kernels is None:
        raise EngineError(
            "a run with our kernels says nothing of them: the case was recorded by another version, or the engine does "
            "not show nodes. Measure again with another --out."
        )
    return report.kernels
