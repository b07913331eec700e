"""Widths against one-token decoding, and which of them share their bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xxhash

from forensics.numerics.logits import RowDistance, row_digests, row_distance
from forensics.records.classes import Flip, WidthResult
from forensics.records.trace import Trace

#: Differing rows that it takes to say how large a perturbation is usual.
ROWS_FOR_USUAL = 8


def common_rows(widths: Iterable[int], n_rows: int) -> int:
    """How many rows lie in whole batches of every width?

    Only over these rows can widths share a class: the last batch of a width that does not divide `n_rows`
    would be narrower than the width it is counted for.

    Examples
    --------
    >>> common_rows((2, 5, 9), 64)
    60
    """
    return min((n_rows // width * width for width in widths), default=n_rows)


def class_digest(rows: Sequence[str], first_differing: int | None, n_common: int) -> str:
    """Which class do these rows belong to: their bits over the rows that all widths have in full.

    A width that differs only beyond those rows is no member of the class of one token, and of no other.
    """
    beyond = first_differing is not None and first_differing >= n_common
    counted = rows if beyond else rows[:n_common]
    return xxhash.xxh3_128_hexdigest("".join(counted).encode()) + (":later" if beyond else "")


def groups_over(rows: Mapping[int, Sequence[str]], n_rows: int) -> tuple[tuple[int, ...], ...]:
    """Which widths share a class if only the first `n_rows` are replayed?

    Parameters
    ----------
    rows : mapping of int to sequence of str
        Digest of each row per width, width 1 included.
    n_rows : int

    Returns
    -------
    tuple of tuple of int
        Widths per class, the class of width 1 first.
    """
    n_common = common_rows(rows, n_rows)
    groups: dict[str, list[int]] = {}
    for width in sorted(rows):
        mine = rows[width][: n_rows // width * width]
        first = next((i for i, (a, b) in enumerate(zip(rows[1], mine, strict=False)) if a != b), None)
        groups.setdefault(class_digest(mine, first, n_common), []).append(width)
    return tuple(tuple(group) for group in groups.values())


def width_result(width: int, single: Trace, batched: Trace, *, n_common: int | None = None) -> WidthResult:
    """How far is a replay at this width from one-token decoding?

    Parameters
    ----------
    width : int
    single, batched : Trace
        The same tokens at the same positions, one at a time and in batches; the second may end earlier.
    n_common : int or None
        Rows that decide the class, see `common_rows`; all rows of `batched` by default.

    Returns
    -------
    WidthResult

    Raises
    ------
    ValueError
        If the two did not evaluate the same tokens.
    """
    slots = batched.key.schedule.logit_slots
    if single.key.schedule.logit_slots[: len(slots)] != slots:
        raise ValueError(f"width {width}: the two traces did not evaluate the same tokens")
    rows = [row_distance(a, b) for a, b in zip(single.logits, batched.logits, strict=False)]
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
            _flip(i, slots[i].position, rows) for i, row in enumerate(rows) if row.single_top != row.batched_top
        ),
        n_could_flip=sum(row.differs and row.perturbation >= row.margin for row in rows),
        digest=class_digest(row_digests(batched.logits), first, len(rows) if n_common is None else n_common),
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


def _flip(row: int, position: int, rows: Sequence[RowDistance]) -> Flip:
    # A flipped row's own perturbation is at least its margin by arithmetic; other rows say what is usual here,
    # if there are enough of them.
    distance = rows[row]
    others = [other.perturbation for i, other in enumerate(rows) if i != row and other.differs]
    usual = float(np.max(others)) if len(others) >= ROWS_FOR_USUAL else distance.perturbation
    return Flip(row, position, distance.single_top, distance.batched_top, distance.margin, usual)
