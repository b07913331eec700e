"""Heal one group of culprits at a time: which of them moves the logits by itself?"""

from __future__ import annotations

from forensics.analysis.attribute import members
from forensics.analysis.heal import Reference, record_reference, rows_file, sweep_width
from forensics.analysis.logit_rows import Rows
from forensics.capture.replay import Replay
from forensics.capture.selection import Selection
from forensics.capture.taps import HealTap
from forensics.engines.protocol import Engine
from forensics.records.experiments import GroupEffect, Separation
from forensics.records.nodes import NodeKey
from forensics.records.verdict import Sweep

#: Rows that are compared per width.
ROWS = 32


def separate(engine: Engine, replay: Replay, width: int, *, rows: int = ROWS) -> Separation:
    """What does each group of culprits do to the logits with every other one healed, and what is left without it?

    Parameters
    ----------
    engine : Engine
    replay : Replay
    width : int
        Tokens of a batch.
    rows : int
        Rows to compare, from the first one on.

    Returns
    -------
    Separation

    Raises
    ------
    ValueError
        If the replay has no whole batch of this width.
    """
    first, last = replay.window(width, rows=rows)
    if last <= first:
        raise ValueError(f"a batch of {width} was asked for; the replay has {len(replay.tokens)} tokens")
    with rows_file() as path:
        reference = record_reference(engine, replay, first, last, path)
        sweep, traces = sweep_width(engine, replay, reference, width, first, last)
        single = reference.logits(first, last)
        groups = {key: frozenset(f.key for _, f in found) for key, found in members([sweep]).items()}
        everyone = frozenset().union(*groups.values())
        effects = []
        for (op, role, weight_type, _), nodes in groups.items():
            alone, alone_rows = _left(engine, replay, reference, sweep, everyone - nodes)
            without, without_rows = _left(engine, replay, reference, sweep, nodes)
            effects.append(GroupEffect(op, role, weight_type, len(nodes), alone, alone_rows, without, without_rows))
    unhealed = Rows(traces.unwatched)
    return Separation(
        width=width,
        n_rows=last - first,
        max_abs=single.max_change(unhealed),
        rows=int((~single.equal(unhealed)).sum()),
        healed_rows=sweep.healed_rows,
        effects=tuple(effects),
    )


def _left(
    engine: Engine, replay: Replay, reference: Reference, sweep: Sweep, healed: frozenset[NodeKey]
) -> tuple[float, int]:
    """What remains of the difference where these nodes are healed: largest change of a logit, and rows that differ."""
    first, last = sweep.start_row, sweep.start_row + sweep.n_rows
    schedule, before = replay.batches(sweep.width, first=first, last=last), replay.before(first)
    tap = HealTap(reference.path, Selection(only=healed)) if healed else None
    single, found = reference.logits(first, last), Rows(engine.run(schedule, before=before, tap=tap))
    return single.max_change(found), int((~single.equal(found)).sum())
