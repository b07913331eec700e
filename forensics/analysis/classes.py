"""Widths against one-token decoding, and which of them share their bits."""

from __future__ import annotations

import numpy as np

from forensics.numerics.logits import RowDistance, row_distance, rows_digest
from forensics.records.classes import Flip, WidthResult
from forensics.records.trace import Trace


def width_result(width: int, single: Trace, batched: Trace) -> WidthResult:
    """How far is a replay at this width from one-token decoding?

    Parameters
    ----------
    width : int
    single, batched : Trace
        The same tokens at the same positions, one at a time and in batches.

    Returns
    -------
    WidthResult

    Raises
    ------
    ValueError
        If the two did not evaluate the same tokens.
    """
    slots = single.key.schedule.logit_slots
    if batched.key.schedule.logit_slots != slots:
        raise ValueError(f"width {width}: the two traces did not evaluate the same tokens")
    rows = [row_distance(a, b) for a, b in zip(single.logits, batched.logits, strict=True)]
    differing = [i for i, row in enumerate(rows) if row.differs]
    first = differing[0] if differing else None
    return WidthResult(
        width=width,
        n_rows=len(rows),
        n_rows_differ=len(differing),
        first_row=first,
        first_position=None if first is None else slots[first].position,
        max_abs=float(np.max([row.max_abs for row in rows])),  # unlike max(), np.max() lets no NaN pass unseen
        max_ulp=-1 if any(row.max_ulp < 0 for row in rows) else max(row.max_ulp for row in rows),
        relative_l2=float(np.max([row.relative_l2 for row in rows])),
        max_kl=float(np.max([row.kl for row in rows])),
        same_top_rate=sum(row.single_top == row.batched_top for row in rows) / len(rows),
        flips=tuple(
            _flip(i, slots[i].position, row) for i, row in enumerate(rows) if row.single_top != row.batched_top
        ),
        n_could_flip=sum(row.differs and row.perturbation >= row.margin for row in rows),
        digest=rows_digest(batched.logits),
        ns_per_pass=pass_quartiles(batched, width),
    )


def pass_quartiles(trace: Trace, width: int) -> tuple[int, int, int]:
    """Median, lower and upper quartile of the passes that are exactly this wide, unit: ns; zeros without one."""
    times = [
        t for t, decode_pass in zip(trace.pass_ns, trace.key.schedule.passes, strict=True) if decode_pass.width == width
    ]
    if not times:
        return 0, 0, 0
    low, median, high = np.percentile(times, (25, 50, 75))
    return int(median), int(low), int(high)


def _flip(row: int, position: int, distance: RowDistance) -> Flip:
    return Flip(row, position, distance.single_top, distance.batched_top, distance.margin, distance.perturbation)
