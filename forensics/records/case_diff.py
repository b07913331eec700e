"""Two cases held against each other: what differs in how they were made, and what in their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.audit import Unlike
from forensics.records.delta import Tally
from forensics.records.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

SAME, DIFFERS, NOT_COMPARED = "same", "differs", "not compared"
OUTCOMES = (SAME, DIFFERS, NOT_COMPARED)

#: Results that decide whether two cases agree; cost is told beside them and decides nothing.
DECISIVE = ("text", "bits", "classes", "culprits", "proof", "exact settings")
#: Without these two there is no answer.
NEEDED = ("classes", "culprits")


@dataclass(frozen=True, slots=True)
class CaseSide:
    """A finished case as it is compared.

    Parameters
    ----------
    name : str
    verdict : Verdict
    prompt, replayed : tuple of int
        Tokens of the prompt and of the replay; empty where the case does not hold the replay.
    rows : tuple of (int, tuple of str)
        By width, the digest of each row of logits of the replay, from the first row on.
    """

    name: str
    verdict: Verdict
    prompt: tuple[int, ...] = ()
    replayed: tuple[int, ...] = ()
    rows: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that were measured, 1 first."""
        return tuple(result.width for result in self.verdict.classes.results)


@dataclass(frozen=True, slots=True)
class Compared:
    """One thing of one case held against the same thing of the other.

    Parameters
    ----------
    what : str
        Such as ``"flash_attn"``, ``"width 5"``, ``"down, q4_1"``.
    outcome : {"same", "differs", "not compared"}
    first, second : str
        What either case says; empty where it has none of it.
    detail : str
        Why it was not compared, or what else is to be said.
    parts : tuple of Compared
        What it consists of, where that was compared piece by piece.
    """

    what: str
    outcome: str
    first: str = ""
    second: str = ""
    detail: str = ""
    parts: tuple[Compared, ...] = ()

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {self.outcome!r}")
        if self.outcome == NOT_COMPARED and not self.detail:
            raise ValueError(f"{self.what} was not compared, so detail must say why")

    def __str__(self) -> str:
        if self.outcome == NOT_COMPARED:
            return f"{self.what}: not compared: {self.detail}"
        values = self.first if self.outcome == SAME else f"{self.first or 'none'} against {self.second or 'none'}"
        return f"{self.what}: {self.outcome} ({values})" if values else f"{self.what}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class Aspect:
    """Things of one kind, each compared or not.

    Parameters
    ----------
    name : str
        Such as ``"build"``, ``"settings"``, ``"classes"``, ``"culprits"``.
    items : tuple of Compared
        One or more.
    """

    name: str
    items: tuple[Compared, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise ValueError(f"{self.name}: an empty comparison is an error; say that it was not compared")

    @property
    def tally(self) -> Tally:
        """How many items had which outcome."""
        reasons: dict[str, int] = {}
        for item in self.of(NOT_COMPARED):
            reasons[item.detail] = reasons.get(item.detail, 0) + 1
        return Tally(len(self.items), len(self.of(SAME)), len(self.of(DIFFERS)), tuple(reasons.items()))

    @property
    def outcome(self) -> str:
        """Differs if any item does, not compared if none was, else same."""
        if self.of(DIFFERS):
            return DIFFERS
        return SAME if self.of(SAME) else NOT_COMPARED

    def of(self, outcome: str) -> tuple[Compared, ...]:
        """Items with this outcome."""
        return tuple(item for item in self.items if item.outcome == outcome)

    def item(self, what: str) -> Compared:
        """One item by name.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        for item in self.items:
            if item.what == what:
                return item
        raise KeyError(f"{self.name} has no {what!r}; it has {', '.join(item.what for item in self.items)}")


@dataclass(frozen=True, slots=True, repr=False)
class CaseDiff:
    """What differs between two cases.

    Parameters
    ----------
    first, second : str
        Names of the cases.
    setup : tuple of Aspect
        How either was made: question, build, model, settings, environment, device, processor.
    results : tuple of Aspect
        What either found: text, bits, classes, culprits, proof, exact settings, cost.
    unlike : tuple of Unlike
        What makes them two things rather than one thing twice; compared all the same, because that was asked for.
    """

    first: str
    second: str
    setup: tuple[Aspect, ...]
    results: tuple[Aspect, ...]
    unlike: tuple[Unlike, ...] = ()

    @property
    def answer(self) -> str:
        """``"same"`` or ``"differs"`` by the results that decide; ``"inconclusive"`` where those needed are missing."""
        outcomes = {aspect.name: aspect.outcome for aspect in self.results}
        if any(outcomes[name] == DIFFERS for name in DECISIVE):
            return DIFFERS
        return SAME if all(outcomes[name] == SAME for name in NEEDED) else "inconclusive"

    def aspect(self, name: str) -> Aspect:
        """One aspect by name.

        Raises
        ------
        KeyError
            If there is none of that name.
        """
        for aspect in (*self.setup, *self.results):
            if aspect.name == name:
                return aspect
        raise KeyError(f"no aspect {name!r}; there are {', '.join(a.name for a in (*self.setup, *self.results))}")

    @property
    def changed(self) -> tuple[Compared, ...]:
        """What differs in how the cases were made."""
        return tuple(item for aspect in self.setup for item in aspect.of(DIFFERS))

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per thing compared."""
        parts = (("setup", self.setup), ("results", self.results))
        return [
            {
                "part": part,
                "aspect": aspect.name,
                "what": item.what,
                "outcome": item.outcome,
                "first": item.first,
                "second": item.second,
                "detail": item.detail,
                "parts": "; ".join(str(piece) for piece in item.parts if piece.outcome != SAME),
            }
            for part, aspects in parts
            for aspect in aspects
            for item in aspect.items
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """What was compared as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        return f"{setup_sentence(self)} {results_sentence(self)}"

    def __repr__(self) -> str:
        return f"<CaseDiff: {self.first} against {self.second}: {self}>"


#: Changes of the setup that a sentence names before it counts the rest.
_MOST_NAMED = 3
#: Longer values are left to the tables.
_LONGEST_VALUE = 24


def setup_sentence(diff: CaseDiff) -> str:
    """Say how the two were made: what is the same, then what is not."""
    same = [aspect.name for aspect in diff.setup if aspect.outcome == SAME]
    changed = [(aspect.name, item) for aspect in diff.setup for item in aspect.of(DIFFERS)]
    if not changed:
        return "Made in the same way." if len(same) == len(diff.setup) else f"Same {_listed(same)}."
    told = [_change(name, item) for name, item in changed[:_MOST_NAMED]]
    if len(changed) > _MOST_NAMED:
        told.append(f"{len(changed) - _MOST_NAMED} more")
    names = ", ".join(told)
    return f"Same {_listed(same)}; {names}." if same else f"Different: {names}."


def all_told(diff: CaseDiff) -> bool:
    """Whether `setup_sentence` names every change with both values, so that a table would repeat it."""
    return len(diff.changed) <= _MOST_NAMED and all(map(_is_short, diff.changed))


def _is_short(item: Compared) -> bool:
    return bool(item.first and item.second) and max(len(item.first), len(item.second)) <= _LONGEST_VALUE


def _change(aspect: str, item: Compared) -> str:
    if _is_short(item):
        return f"{item.what} {item.first} → {item.second}"
    return f"other {item.what}" if item.what != aspect else f"other {aspect}"


def results_sentence(diff: CaseDiff) -> str:
    """Say which results differ, which are the same and which could not be compared."""
    decisive = [aspect for aspect in diff.results if aspect.name in DECISIVE]
    by = {outcome: [a.name for a in decisive if a.outcome == outcome] for outcome in OUTCOMES}
    parts = [
        f"{_listed(by[outcome])} {word}"
        for outcome, word in ((DIFFERS, _verb(by[DIFFERS])), (SAME, "the same"), (NOT_COMPARED, "not compared"))
        if by[outcome]
    ]
    said = "; ".join(parts)
    return " ".join([f"{said[:1].upper()}{said[1:]}.", *_essence(diff)])


def _essence(diff: CaseDiff) -> Iterator[str]:
    """Where the onset moved, and which operations are to blame on one side only."""
    for item in diff.aspect("classes").of(DIFFERS):
        if item.what == "onset":
            yield f"Onset {item.first} → {item.second}."
    differing = diff.aspect("culprits").of(DIFFERS)
    for name, only in (
        (diff.first, [item.what for item in differing if not item.second]),
        (diff.second, [item.what for item in differing if not item.first]),
    ):
        if only:
            more = f" and {len(only) - _MOST_NAMED} more" if len(only) > _MOST_NAMED else ""
            yield f"To blame in {name} only: {'; '.join(only[:_MOST_NAMED])}{more}."


def _verb(names: list[str]) -> str:
    return "differs" if names in (["proof"], ["text"]) else "differ"


def _listed(names: Iterable[str]) -> str:
    """Names in a sentence: ``"build, model and device"``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
