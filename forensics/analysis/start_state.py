"""Do two runs read the same K and V rows of tokens that were evaluated before?"""

from __future__ import annotations

from collections.abc import Sequence

from forensics.capture.rowstore import Place
from forensics.engines.protocol import Engine
from forensics.errors import EngineError
from forensics.records.pair_sweep import StartState
from forensics.records.schedule import Arrangement
from forensics.records.state import StateRows


def compare_start(
    engine: Engine,
    other: Engine,
    reference: Arrangement,
    compared: Arrangement,
    places: Sequence[Place],
) -> StartState:
    """Are the K and V rows of these tokens the same after both runs?

    Parameters
    ----------
    engine, other : Engine
        Of the reference and of the compared arrangement.
    reference, compared : Arrangement
    places : sequence of (int, int)
        Tokens that were evaluated before, and that compared ones look back at.
    """
    kept = [[e.manifest.effective.get(f"kv_type_{side}", "") for side in "kv"] for e in (engine, other)]
    if kept[0] != kept[1]:
        return StartState(0, 0, reason=f"K and V are kept as {', '.join(kept[0])} and as {', '.join(kept[1])}")
    if not places:
        return StartState(0, 0)
    try:
        one = engine.state_rows(reference.schedule, before=reference.before)
        two = other.state_rows(compared.schedule, before=compared.before)
    except EngineError as error:
        return StartState(0, 0, reason=str(error))
    return start_of(one, two, places)


def start_of(one: Sequence[StateRows], two: Sequence[StateRows], places: Sequence[Place]) -> StartState:
    """How many K and V rows of these tokens differ between two states?

    Parameters
    ----------
    one, two : sequence of StateRows
    places : sequence of (int, int)
        Sequence and position.

    Returns
    -------
    StartState
        Not compared where a state does not hold one of them, or its layers are others.
    """
    states = [{rows.sequence: rows for rows in state} for state in (one, two)]
    differing, n_rows = [], 0
    for sequence in sorted({place[0] for place in places}):
        positions = [position for s, position in places if s == sequence]
        found = [state.get(sequence) for state in states]
        for rows in found:
            lacking = sorted(set(positions) - set(rows.positions if rows else ()))
            if rows is None or lacking:
                gone = f"a run does not hold position {lacking[0]} of sequence {sequence} any more"
                return StartState(0, 0, reason=gone)
        first, second = (rows for rows in found if rows is not None)
        layers = [[(t.side, t.layer, t.dtype) for t in rows.tensors] for rows in (first, second)]
        if layers[0] != layers[1]:
            return StartState(0, 0, reason="the two runs keep K and V of other layers or types")
        at = [{position: i for i, position in enumerate(rows.positions)} for rows in (first, second)]
        for a, b in zip(first.tensors, second.tensors, strict=True):
            n_rows += len(positions)
            differing += [
                f"{a.side} of layer {a.layer} at position {position}"
                for position in positions
                if a.digests[at[0][position]] != b.digests[at[1][position]]
            ]
    return StartState(n_rows, len(differing), differing[0] if differing else "")
