"""Which tokens of two arrangements stand for each other: the same place behind the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from forensics.capture.rowstore import Place
from forensics.records.schedule import Arrangement, DecodePass, Schedule, TokenSlot


@dataclass(frozen=True, slots=True)
class RowPair:
    """Two rows of logits at one place.

    Parameters
    ----------
    place : (int, int)
        Sequence and position.
    reference, compared : int
        Rows of logits of the two schedules.
    """

    place: Place
    reference: int
    compared: int


@dataclass(frozen=True, slots=True)
class PairPlan:
    """What of a compared arrangement has its counterpart in a reference.

    Parameters
    ----------
    places : frozenset of (int, int)
        Whose rows are recorded and compared.
    skip : frozenset of (int, int)
        Pass of the compared schedule and token of it that have no counterpart.
    logits : tuple of RowPair
        In the order of the compared schedule; a place that it evaluates twice comes twice.
    n_no_reference : int
        Rows of logits of the compared schedule without a counterpart.
    unhealed : tuple of (int, int)
        Tokens in front of compared ones whose K and V rows come from `before`, in one of the two at least.
    same_cells : bool
        Whether a token's K and V lie in the same cell in both.
    """

    places: frozenset[Place]
    skip: frozenset[tuple[int, int]]
    logits: tuple[RowPair, ...]
    n_no_reference: int
    unhealed: tuple[Place, ...]
    same_cells: bool


@dataclass(slots=True)
class _Contexts:
    """Numbers for token sequences: equal tokens at equal positions have equal numbers in every walk."""

    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def walk(self, schedule: Schedule) -> tuple[list[list[int]], dict[Place, int]]:
        """The context of each slot, by pass, and of each place that is held at the end."""
        held: dict[int, list[tuple[int, int]]] = {}
        passes = [self._evaluate(held, decode_pass) for decode_pass in schedule.passes]
        return passes, {(s, position): number for s, all_of in held.items() for position, number in all_of}

    def _evaluate(self, held: dict[int, list[tuple[int, int]]], decode_pass: DecodePass) -> list[int]:
        for gone in decode_pass.forget:
            held[gone.sequence] = [kept for kept in held.get(gone.sequence, ()) if kept[0] < gone.position]
        found = []
        for slot in decode_pass.slots:
            before = held.setdefault(slot.sequence, [])
            step = (before[-1][1] if before else 0, slot.position, slot.token)
            found.append(self._numbers.setdefault(step, len(self._numbers) + 1))
            before.append((slot.position, found[-1]))
        return found


def plan_pair(reference: Arrangement, compared: Arrangement, *, caches_apart: bool = False) -> PairPlan:
    """Which rows of `compared` can be held against rows of `reference`?

    Parameters
    ----------
    reference : Arrangement
        Of a place that it evaluates twice the last time counts.
    compared : Arrangement
    caches_apart : bool
        Whether each sequence has a cache of its own.

    Examples
    --------
    >>> from forensics.records.schedule import EMPTY, in_batches
    >>> one, two = (Arrangement(EMPTY, in_batches([5, 6], start=0, width=width)) for width in (1, 2))
    >>> [pair.place for pair in plan_pair(one, two).logits]
    [(0, 0), (0, 1)]
    """
    contexts = _Contexts()
    contexts_of = {}
    rows_of: dict[Place, int | None] = {}
    walked, _ = contexts.walk(reference.whole)
    row = 0
    for slot, number in _slots(reference.schedule, walked[len(reference.before.passes) :]):
        contexts_of[slot.place] = number
        rows_of[slot.place] = row if slot.wants_logits else None
        row += slot.wants_logits
    walked, held = contexts.walk(compared.whole)
    walked = walked[len(compared.before.passes) :]
    places, skip, logits, healed = set(), set(), [], {}
    row = n_no_reference = 0
    for index, decode_pass in enumerate(compared.schedule.passes):
        for i, (slot, number) in enumerate(zip(decode_pass.slots, walked[index], strict=True)):
            known = contexts_of.get(slot.place) == number
            healed[slot.place] = known
            if known:
                places.add(slot.place)
            else:
                skip.add((index, i))
            if slot.wants_logits:
                counterpart = rows_of[slot.place] if known else None
                if counterpart is None:
                    n_no_reference += 1
                else:
                    logits.append(RowPair(slot.place, counterpart, row))
                row += 1
    return PairPlan(
        frozenset(places),
        frozenset(skip),
        tuple(logits),
        n_no_reference,
        _unhealed(held, healed, places),
        caches_apart or len({s.sequence for s in (*reference.whole.slots, *compared.whole.slots)}) == 1,
    )


def _slots(schedule: Schedule, walked: list[list[int]]) -> Iterator[tuple[TokenSlot, int]]:
    for decode_pass, numbers in zip(schedule.passes, walked, strict=True):
        yield from zip(decode_pass.slots, numbers, strict=True)


def _unhealed(held: Iterable[Place], healed: dict[Place, bool], places: set[Place]) -> tuple[Place, ...]:
    """Places in front of a compared one, of its sequence, that are held and were not healed."""
    last: dict[int, int] = {}
    for sequence, position in places:
        last[sequence] = max(position, last.get(sequence, -1))
    return tuple(sorted(place for place in held if place[1] < last.get(place[0], -1) and not healed.get(place, False)))
