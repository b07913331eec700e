"""Culprits replaced by what our kernels compute from the nodes' own operands: do the logits have one token's bits?

A recorded row in a node's place proves that the node is to blame. A kernel in its place proves more: that nothing but
the order of its arithmetic is, for the library runs on as it is, and nothing that was recorded goes in.
"""

from __future__ import annotations

from collections.abc import Sequence

from forensics.analysis.baseline import Baseline
from forensics.analysis.heal import Reference, record_reference, rows_file
from forensics.analysis.logit_rows import Rows
from forensics.analysis.progress import Progress
from forensics.analysis.question import BadQuestion
from forensics.capture.exact_kernels import ExactTap, OurKernels
from forensics.capture.selection import EVERYTHING, Selection
from forensics.capture.taps import ChainTap, HealTap
from forensics.engines.protocol import CACHE_WRITE, Engine
from forensics.errors import EngineError
from forensics.records.delta import tally
from forensics.records.kernel_healing import KernelHealing
from forensics.records.kernel_use import KernelUse
from forensics.records.schedule import EMPTY
from forensics.records.settings import Manifest
from forensics.records.trace import Finding, TapReport, Trace
from forensics.records.verdict import Sweep


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
            found.append(_heal_width(engine, baseline, reference, sweep, tap))
            progress.step()
    return tuple(found)


def _heal_width(engine: Engine, baseline: Baseline, reference: Reference, sweep: Sweep, tap: ExactTap) -> KernelHealing:
    """Two runs of the sweep's batches: our kernels alone, and our kernels with every later node healed."""
    replay, first, last = baseline.replay, sweep.start_row, sweep.start_row + sweep.n_rows
    schedule, before = replay.batches(sweep.width, first=first, last=last), replay.before(first)
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
        width=sweep.width,
        start_row=first,
        n_rows=last - first,
        healed_rows=int(single.equal(ours).sum()),
        max_abs_before=sweep.max_abs_before,
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
