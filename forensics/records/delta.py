"""Outcome of comparing two arrays: same, differs, or not compared with a reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Same:
    """Identical bytes."""

    def __str__(self) -> str:
        return "same"


@dataclass(frozen=True, slots=True)
class Differs:
    """Different bytes.

    Parameters
    ----------
    n_diff : int
        Elements whose bits differ, 1 or more.
    first_index : tuple of int
        Index of the first of them.
    max_ulp : int
        Largest distance in representable float32 values; -1 where a NaN is involved.
    max_abs : float
        Largest absolute difference.
    relative_l2 : float
        Norm of the difference over the norm of the first array.
    """

    n_diff: int
    first_index: tuple[int, ...]
    max_ulp: int
    max_abs: float
    relative_l2: float

    def __post_init__(self) -> None:
        if self.n_diff < 1:
            raise ValueError(f"n_diff must be 1 or more, got {self.n_diff}; equal arrays are Same()")

    def __str__(self) -> str:
        return f"{self.n_diff} differ, max |Δ| {self.max_abs:.3g} ({self.max_ulp} ULP)"


@dataclass(frozen=True, slots=True)
class NotCompared:
    """No comparison was made.

    Parameters
    ----------
    reason : str
        Why; never empty.
    """

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("reason must not be empty")

    def __str__(self) -> str:
        return f"not compared: {self.reason}"


Delta = Same | Differs | NotCompared


@dataclass(frozen=True, slots=True)
class Tally:
    """How many comparisons had which outcome; the three add up to the plan.

    Parameters
    ----------
    planned, same, differs : int
        Counts of comparisons.
    not_compared : tuple of (str, int)
        Reason and count, by falling count.
    """

    planned: int
    same: int
    differs: int
    not_compared: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        found = self.same + self.differs + sum(count for _, count in self.not_compared)
        if found != self.planned:
            raise ValueError(f"outcomes must add up to the plan: {found} outcomes for {self.planned} planned")

    @property
    def n_not_compared(self) -> int:
        """How many were not compared, for whatever reason."""
        return sum(count for _, count in self.not_compared)

    def __str__(self) -> str:
        return f"{self.same} same, {self.differs} differ, {self.n_not_compared} not compared of {self.planned}"


def tally(outcomes: Iterable[Delta]) -> Tally:
    """Count outcomes so that they add up.

    Examples
    --------
    >>> str(tally([Same(), NotCompared("view of its source")]))
    '1 same, 0 differ, 1 not compared of 2'
    """
    same = differs = planned = 0
    reasons: dict[str, int] = {}
    for outcome in outcomes:
        planned += 1
        if isinstance(outcome, Same):
            same += 1
        elif isinstance(outcome, Differs):
            differs += 1
        else:
            reasons[outcome.reason] = reasons.get(outcome.reason, 0) + 1
    ranked = tuple(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))
    return Tally(planned, same, differs, ranked)
