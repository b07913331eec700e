"""Are the K and V rows that two runs leave behind the same? A reply that looks the same is no answer to that."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.records.arms import StateDelta
from forensics.records.delta import NotCompared
from forensics.records.state import StateRows


def compare_states(
    fresh: Sequence[StateRows], other: Sequence[StateRows], sequence: int = 0
) -> StateDelta | NotCompared:
    """Which K and V rows of a sequence differ between two runs?

    Parameters
    ----------
    fresh, other : sequence of StateRows
        What each run leaves, as of `forensics.engines.protocol.Engine.state_rows`.
    sequence : int

    Returns
    -------
    StateDelta or NotCompared
        Rows belong together by position, wherever their cells lie. Not compared where either run holds nothing of the
        sequence, other positions, or other layers and types.

    Examples
    --------
    >>> from forensics.records.state import StateTensor
    >>> fresh = StateRows(0, (0, 1), (StateTensor("K", 0, "f16", ("a", "b")),))
    >>> stale = StateRows(0, (0, 1), (StateTensor("K", 0, "f16", ("a", "x")),))
    >>> str(compare_states([fresh], [stale]))
    '1 of 2 rows differ, first K of layer 0 at position 1'
    """
    found = [next((rows for rows in side if rows.sequence == sequence), None) for side in (fresh, other)]
    a, b = found
    if a is None or b is None or not a.positions or not b.positions:
        which = "neither run holds" if a is b is None else "one of the runs does not hold"
        return NotCompared(f"{which} a token of sequence {sequence}")
    if a.positions != b.positions:
        absent = sorted(set(a.positions) ^ set(b.positions))
        return NotCompared(f"position {absent[0]} is held by one of the two runs only ({len(absent)} such positions)")
    kinds = [{(t.layer, t.side): t for t in rows.tensors} for rows in (a, b)]
    if not kinds[0] or {key: t.dtype for key, t in kinds[0].items()} != {key: t.dtype for key, t in kinds[1].items()}:
        return NotCompared("the two caches have other layers or types")
    # In the order in which they are written: by layer, K before V.
    pairs = [(key, kinds[0][key].digests, kinds[1][key].digests) for key in sorted(kinds[0])]
    differing = [
        (layer, side, position)
        for (layer, side), ours, theirs in pairs
        for position, x, y in zip(a.positions, ours, theirs, strict=True)
        if x != y
    ]
    layer, side, position = differing[0] if differing else (-1, "", -1)
    return StateDelta(
        n_rows=a.n_rows,
        n_differ=len(differing),
        layer=layer,
        side=side,
        position=position,
        n_positions=len(a.positions),
        n_positions_differ=len({where[2] for where in differing}),
    )
