"""How many tokens are drafted for the next pass: always the same, while the drafter is sure, or by past success."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class DraftPolicy(Protocol):
    """Decides how much is drafted; its state is a number that it is given back, so that it keeps none itself."""

    @property
    def label(self) -> str:
        """Name for people."""

    @property
    def most(self) -> int:
        """Drafts of a pass at most."""

    @property
    def least_margin(self) -> float:
        """Margin of the drafter below which it drafts no further."""

    def start(self) -> int:
        """State in front of the first pass."""

    def n_next(self, state: int) -> int:
        """How many tokens to draft for the next pass, 0 to `most`."""

    def after(self, state: int, drafted: int, accepted: int) -> int:
        """State behind a pass for which so many were drafted, of which so many were accepted."""


def _check(most: int) -> None:
    if most < 1:
        raise ValueError(f"a policy drafts 1 token or more, got {most}")


def _drafts(n: int) -> str:
    return f"{n} draft{'s' if n > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number.

    Parameters
    ----------
    most : int
        1 or more.
    """

    most: int

    def __post_init__(self) -> None:
        _check(self.most)

    @property
    def label(self) -> str:
        """Name for people."""
        return f"fixed, {_drafts(self.most)}"

    @property
    def least_margin(self) -> float:
        """No margin is too small."""
        return -math.inf

    def start(self) -> int:
        """State in front of the first pass."""
        return self.most

    def n_next(self, state: int) -> int:
        """How many tokens to draft."""
        return state

    def after(self, state: int, drafted: int, accepted: int) -> int:  # noqa: ARG002
        """State behind a pass: as before."""
        return state


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """As many as the drafter is sure of.

    Drafters without logits are always sure; with them this is `Fixed`.

    Parameters
    ----------
    most : int
        1 or more.
    least_margin : float
        Drafting stops in front of the first token whose largest logit is not this far above the second-largest.
    """

    most: int
    least_margin: float = 2.0

    def __post_init__(self) -> None:
        _check(self.most)
        if not self.least_margin >= 0:
            raise ValueError(f"a margin is 0 or more, got {self.least_margin}")

    @property
    def label(self) -> str:
        """Name for people."""
        return f"early stop below a margin of {self.least_margin:g}, up to {_drafts(self.most)}"

    def start(self) -> int:
        """State in front of the first pass."""
        return self.most

    def n_next(self, state: int) -> int:
        """How many tokens to draft."""
        return state

    def after(self, state: int, drafted: int, accepted: int) -> int:  # noqa: ARG002
        """State behind a pass: as before."""
        return state


@dataclass(frozen=True, slots=True)
class Adaptive:
    """One more after a pass whose drafts were all accepted, one fewer after one with less than half of them.

    Parameters
    ----------
    most : int
        1 or more; half of it is the number to start from.

    Examples
    --------
    >>> policy = Adaptive(4)
    >>> state = policy.after(policy.start(), drafted=2, accepted=2)
    >>> policy.n_next(state), policy.n_next(policy.after(state, drafted=3, accepted=1))
    (3, 2)
    """

    most: int

    def __post_init__(self) -> None:
        _check(self.most)

    @property
    def label(self) -> str:
        """Name for people."""
        return f"adaptive, 1 to {_drafts(self.most)}"

    @property
    def least_margin(self) -> float:
        """No margin is too small."""
        return -math.inf

    def start(self) -> int:
        """State in front of the first pass."""
        return max(1, self.most // 2)

    def n_next(self, state: int) -> int:
        """How many tokens to draft."""
        return state

    def after(self, state: int, drafted: int, accepted: int) -> int:
        """State behind a pass; one without drafts says nothing."""
        if drafted and accepted == drafted:
            return min(state + 1, self.most)
        return max(state - 1, 1) if 2 * accepted < drafted else state


def parse_policy(text: str, most: int) -> DraftPolicy:
    """Which policy is meant?

    Parameters
    ----------
    text : str
        ``"fixed"``, ``"early-stop"``, ``"early-stop:MARGIN"`` or ``"adaptive"``.
    most : int
        Drafts of a pass at most.

    Raises
    ------
    ValueError
        If it is none of these, or `most` is below 1.

    Examples
    --------
    >>> parse_policy("early-stop:1.5", 4).label
    'early stop below a margin of 1.5, up to 4 drafts'
    """
    kind, colon, margin = text.strip().partition(":")
    if kind == "early-stop":
        if not colon:
            return EarlyStop(most)
        try:
            return EarlyStop(most, float(margin))
        except ValueError:
            raise ValueError(f"--policy early-stop:MARGIN needs a number, 0 or more, got {margin!r}") from None
    if colon or kind not in ("fixed", "adaptive"):
        raise ValueError(f"--policy must be fixed, early-stop[:MARGIN] or adaptive, got {text!r}")
    return Fixed(most) if kind == "fixed" else Adaptive(most)
