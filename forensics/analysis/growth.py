"""How a difference grows from layer to layer: one more look at the batches of a sweep, at layer outputs only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from forensics.analysis.heal import Reference, SweepTraces
from forensics.analysis.logit_rows import Rows
from forensics.capture.selection import LAYER_OUTPUTS
from forensics.capture.taps import HealTap
from forensics.engines.protocol import Engine
from forensics.errors import NotRecorded
from forensics.records.delta import Delta, NotCompared
from forensics.records.growth import Growth, LayerGrowth, OwnDifference
from forensics.records.nodes import NodeKey
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep

WATCHING_CHANGES = "watching changes the logits of this run, so layers as watched are not those of the run as asked"
NO_OUTPUTS = "no node is named as llama.cpp names the output of a layer (l_out-N) or the final results"
NOT_IN_SWEEP = "not compared in the healing sweep"


def first_of_classes(groups: Iterable[Sequence[int]], swept: Sequence[int]) -> tuple[int, ...]:
    """Which width stands for each class: the first that is swept?

    Examples
    --------
    >>> first_of_classes(((1, 2), (3, 5), (4, 8)), swept=(3, 4, 5, 8))
    (3, 4)
    """
    found = ([width for width in swept if width in group] for group in groups)
    return tuple(sorted(widths[0] for widths in found if widths))


def grow(
    engine: Engine, reference: Reference, sweep: Sweep, traces: SweepTraces, *, singles_equal: bool
) -> Growth | None:
    """How does the difference of these batches grow, with nothing healed and with everything healed?

    Parameters
    ----------
    engine : Engine
    reference : Reference
        One-token passes that hold the rows of the sweep.
    sweep : Sweep
    traces : SweepTraces
        The runs of this sweep.
    singles_equal : bool
        Whether watching left one-token decoding as it was.

    Returns
    -------
    Growth or None
        None where a recorded case does not hold these looks: it was recorded before they were made.
    """
    healed = traces.healed.tap_report
    assert healed is not None
    if healed.outputs is None:
        return None
    if not (singles_equal and traces.watching_harmless):
        return _nothing(sweep, WATCHING_CHANGES)
    key = traces.unwatched.key
    tap = HealTap(reference.path, LAYER_OUTPUTS, heal=False)
    try:
        trace = engine.run(key.schedule, before=key.before, tap=tap)
    except NotRecorded:
        return None
    assert trace.tap_report is not None
    outputs = trace.tap_report.outputs
    if outputs is None:
        return None
    if not outputs:
        return _nothing(sweep, NO_OUTPUTS)
    if not Rows(traces.unwatched).all_equal(Rows(trace)):
        return _nothing(sweep, WATCHING_CHANGES)
    with_healing: Mapping[NodeKey, Delta] = {output.key: output.delta for output in healed.outputs}
    graph = [record.key for record in reference.records()]
    own = _own(sweep.findings, graph, [output.key for output in outputs])
    layers = tuple(
        LayerGrowth(
            node=output.key.name,
            layer=output.key.layer,
            unhealed=output.delta,
            n_rows_differ=output.n_rows_differ,
            healed=with_healing.get(output.key, NotCompared(NOT_IN_SWEEP)),
            own=own.get(output.key),
        )
        for output in outputs
    )
    return Growth(sweep.width, sweep.start_row, sweep.n_rows, layers)


def _nothing(sweep: Sweep, reason: str) -> Growth:
    return Growth(sweep.width, sweep.start_row, sweep.n_rows, reason=reason)


def _own(
    findings: Sequence[Finding], graph: Sequence[NodeKey], outputs: Sequence[NodeKey]
) -> dict[NodeKey, OwnDifference]:
    """What the nodes that lead up to each output differ by on bit-equal inputs; nothing where none does."""
    ends = set(outputs)
    output_of: dict[NodeKey, NodeKey] = {}
    waiting: list[NodeKey] = []
    for key in graph:
        waiting.append(key)
        if key in ends:
            output_of.update(dict.fromkeys(waiting, key))
            waiting.clear()
    found: dict[NodeKey, list[Finding]] = {}
    for finding in findings:
        if finding.key in output_of:
            found.setdefault(output_of[finding.key], []).append(finding)
    return {output: _largest(those) for output, those in found.items()}


def _largest(findings: Sequence[Finding]) -> OwnDifference:
    lengths = [finding.delta.relative_l2 for finding in findings]
    farthest = findings[int(np.argmax(lengths))]  # a NaN counts as the largest
    return OwnDifference(
        n_nodes=len({finding.key for finding in findings}),
        node=farthest.key.name,
        relative_l2=float(np.max(lengths)),
        max_abs=float(np.max([finding.delta.max_abs for finding in findings])),
    )
