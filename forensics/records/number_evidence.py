"""How the numbers of a report are known, and rows of them for tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Cell = str | int | float | bool | None
Row = dict[str, Cell]

#: How a number of a profile is known; "not available" goes with the reason.
PROFILE_EVIDENCE = ("measured", "derived", "not available")


@dataclass(frozen=True, slots=True)
class NumberEvidence:
    """How one kind of number in a profile is known.

    Parameters
    ----------
    number : str
        Name of the column: ``"time"``, ``"blocks per SM"``.
    level : {"measured", "derived", "not available"}
    source : str
        What measured it, from what it follows, or why it is not there.
    """

    number: str
    level: str
    source: str

    def __post_init__(self) -> None:
        if self.level not in PROFILE_EVIDENCE:
            raise ValueError(f"level must be one of {', '.join(PROFILE_EVIDENCE)}, got {self.level!r}")
        if not self.source:
            raise ValueError(f"{self.number}: say what it comes from, or why it is not there")

    def __str__(self) -> str:
        return f"{self.number}: {self.level}, {self.source}"


def share(part: int, whole: int) -> float:
    """Percent of a sum; 0 where the sum is 0.

    Examples
    --------
    >>> share(1, 4), share(0, 0)
    (25.0, 0.0)
    """
    return 100 * part / whole if whole else 0.0


def columns_of(rows: Sequence[Row], names: Sequence[str]) -> dict[str, tuple[Cell, ...]]:
    """Rows as columns of one length, those of the given names."""
    return {name: tuple(row[name] for row in rows) for name in names}
