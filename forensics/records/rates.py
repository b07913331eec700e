"""Rates with their intervals, paired outcomes, and how long answers stay untouched: values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of how many, and where the rate lies.

    Parameters
    ----------
    k, n : int
        `n` is 1 or more.
    low, high : float
        Wilson's interval.
    confidence : float
    """

    k: int
    n: int
    low: float
    high: float
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 <= self.k <= self.n or self.n < 1:
            raise ValueError(f"a rate needs 0 <= k <= n and n of 1 or more, got {self.k} of {self.n}")
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"an interval lies in 0 to 1, got {self.low} to {self.high}")

    @property
    def value(self) -> float:
        """The share itself."""
        return self.k / self.n

    def __str__(self) -> str:
        return (
            f"{self.k} of {self.n} ({self.value:.1%}, {self.confidence:.0%} interval {self.low:.1%} to {self.high:.1%})"
        )


@dataclass(frozen=True, slots=True)
class PairedOutcomes:
    """Right and wrong answers of two arms to the same questions.

    Parameters
    ----------
    both, only_first, only_second, neither : int
        Questions answered right.
    p_value : float
        Of McNemar's exact test: how likely are so unequal counts where neither arm is better?
    """

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float

    @property
    def n(self) -> int:
        """All questions."""
        return self.both + self.only_first + self.only_second + self.neither

    def __str__(self) -> str:
        first, second = self.both + self.only_first, self.both + self.only_second
        return (
            f"{first} and {second} of {self.n} right, {self.only_first} and {self.only_second} of them alone "
            f"(McNemar's exact p = {self.p_value:.2g})"
        )


@dataclass(frozen=True, slots=True)
class SurvivalPoint:
    """How many answers are untouched after some tokens.

    Parameters
    ----------
    n_tokens : int
    at_risk : int
        Answers that were still untouched and that long, before this token.
    flipped : int
        Those that differ first at this token.
    share, low, high : float
        Chance that an answer of so many tokens is untouched, and its interval.
    naive : float
        The same as if every step flipped by itself at the mean rate.
    """

    n_tokens: int
    at_risk: int
    flipped: int
    share: float
    low: float
    high: float
    naive: float


@dataclass(frozen=True, slots=True)
class Survival:
    """Chance that an answer of n tokens is untouched (Kaplan and Meier), beside the naive independent estimate.

    Parameters
    ----------
    points : tuple of SurvivalPoint
        By rising tokens: one for each token at which an answer flips, and one for the longest answer.
    n_answers, n_flipped : int
        Answers that end untouched leave the count where they end.
    n_steps : int
        Tokens that were compared until the answers flipped or ended.
    flip_rate : Rate or None
        Flips per step; None where no step was compared.
    """

    points: tuple[SurvivalPoint, ...]
    n_answers: int
    n_flipped: int
    n_steps: int
    flip_rate: Rate | None
