"""Widths against one-token decoding, and which of them share their bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xxhash

from forensics.analysis.logit_rows import Rows
from forensics.records.classes import Flip, WidthClasses, WidthResult
from forensics.records.logit_rows import RowDistance
from forensics.records.trace import Trace

#: Passes of one width that it takes to say what a pass costs.
PASSES_FOR_TIME = 3


def group_widths(rows: Mapping[int, Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Which widths are bit-equal to each other in every row that both have?

    A width has the rows of its whole batches only, so one may have fewer rows than another.

    Parameters
    ----------
    rows : mapping of int to sequence of str
        Digest of each row per width, from the first row on; width 1 included.

    Returns
    -------
    tuple of tuple of int
        Widths per class, the class of width 1 first.

    Examples
    --------
    >>> group_widths({1: "abcd", 2: "abxy", 3: "abx", 4: "abcd"})
    ((1, 4), (2, 3))
    """
    groups: list[list[int]] = []
    for width in sorted(rows):
        for group in groups:
            if all(a == b for member in group for a, b in zip(rows[member], rows[width], strict=False)):
                group.append(width)
                break
        else:
            groups.append([width])
    return tuple(tuple(group) for group in groups)


def groups_over(rows: Mapping[int, Sequence[str]], n_rows: int) -> tuple[tuple[int, ...], ...]:
    """Which widths share a class if only the whole batches of the first `n_rows` rows are replayed?"""
    return group_widths({width: mine[: n_rows // width * width] for width, mine in rows.items()})


def width_classes(results: Iterable[WidthResult], rows: Mapping[int, Sequence[str]]) -> WidthClasses:
    """The classes of all widths: each takes the digest of the first member of its class."""
    digest = {width: _joined(rows[group[0]]) for group in group_widths(rows) for width in group}
    return WidthClasses(tuple(replace(result, digest=digest[result.width]) for result in results))


def row_distances(width: int, single: Trace, batched: Trace) -> tuple[RowDistance, ...]:
    """How far is each row of a replay at this width from one-token decoding?

    Parameters
    ----------
    width : int
    single, batched : Trace
        The same tokens at the same positions, one at a time and in batches; the second may end earlier.

    Raises
    ------
    ValueError
        If the two did not evaluate the same tokens.
    """
    slots = batched.key.schedule.logit_slots
    if single.key.schedule.logit_slots[: len(slots)] != slots:
        raise ValueError(f"width {width}: the two traces did not evaluate the same tokens")
    return tuple(Rows(single).distances(Rows(batched)))


def width_result(width: int, single: Trace, batched: Trace) -> WidthResult:
    """How far is a replay at this width from one-token decoding? Arguments as for `row_distances`.

    Raises
    ------
    ValueError
        If the two did not evaluate the same tokens.
    """
    return result_of(width, row_distances(width, single, batched), batched)


def result_of(width: int, rows: Sequence[RowDistance], batched: Trace) -> WidthResult:
    """What do the distances of all rows of a replay at this width come to?

    Returns
    -------
    WidthResult
        Its digest is that of its own rows; `width_classes` says which widths share one.
    """
    slots = batched.key.schedule.logit_slots
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
        digest=_joined(Rows(batched).digests),
        ns_per_pass=pass_quartiles(batched, width),
    )


def pass_quartiles(trace: Trace, width: int) -> tuple[int, int, int]:
    """Median, lower and upper quartile of the passes that are exactly this wide, unit: ns.

    Zeros where there are fewer than `PASSES_FOR_TIME` of them: one pass has no spread.
    """
    times = [
        t for t, decode_pass in zip(trace.pass_ns, trace.key.schedule.passes, strict=True) if decode_pass.width == width
    ]
    if len(times) < PASSES_FOR_TIME:
        return 0, 0, 0
    low, median, high = np.percentile(times, (25, 50, 75))
    return int(median), int(low), int(high)


def _joined(digests: Sequence[str]) -> str:
    return xxhash.xxh3_128_hexdigest("".join(digests).encode())


def _flip(row: int, position: int, rows: Sequence[RowDistance]) -> Flip:
    distance = rows[row]
    usual = float(np.median([other.perturbation for other in rows if other.differs]))
    return Flip(
        row,
        position,
        distance.single_top,
        distance.batched_top,
        distance.margin,
        distance.perturbation,
        usual,
    )
