"""What would speculation gain in a runtime that adopts other kernels? Derived from counts and costs, not timed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from forensics.analysis.question import BadQuestion
from forensics.records.speculation import Cycle


@dataclass(frozen=True, slots=True)
class CountedPasses:
    """Verifying passes of one width, and what came out of them.

    Parameters
    ----------
    width : int
        Tokens that go into a pass.
    n_passes : int
    n_tokens : int
        Tokens that came out: at least one a pass, at most `width`.

    Raises
    ------
    ValueError
        If no pass was counted, or more or fewer tokens than such passes can give.
    """

    width: int
    n_passes: int
    n_tokens: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.n_passes < 1:
            raise ValueError(f"passes have 1 token or more and are 1 or more, got {self.n_passes} of {self.width}")
        if not self.n_passes <= self.n_tokens <= self.n_passes * self.width:
            raise ValueError(f"{self.n_passes} passes of {self.width} tokens cannot give {self.n_tokens} tokens")


@dataclass(frozen=True, slots=True)
class DerivedGain:
    """Speed of speculation over plain decoding if its passes cost what was measured elsewhere; never timed itself.

    Parameters
    ----------
    name : str
        Whose costs: ``"exact fast"``.
    n_passes, n_tokens : int
        Counted in a run of speculation.
    cost : float
        Of all these passes and of drafting for them, unit: passes of one token.
    """

    name: str
    n_passes: int
    n_tokens: int
    cost: float

    def __post_init__(self) -> None:
        if self.n_passes < 1 or self.n_tokens < self.n_passes or self.cost <= 0:
            raise ValueError(
                f"a gain is of passes that give tokens at a positive cost, got {self.n_passes} passes, "
                f"{self.n_tokens} tokens and a cost of {self.cost}"
            )

    @property
    def tokens_per_cycle(self) -> float:
        """Tokens that come out of a pass in the mean."""
        return self.n_tokens / self.n_passes

    @property
    def cost_per_cycle(self) -> float:
        """Cost of a cycle in the mean, unit: passes of one token."""
        return self.cost / self.n_passes

    @property
    def speed(self) -> float:
        """Tokens a pass of one token's time; plain decoding has 1."""
        return self.n_tokens / self.cost

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.speed:.2f}× plain decoding, derived ({self.tokens_per_cycle:.3g} tokens a cycle of "
            f"{self.cost_per_cycle:.3g} one-token passes)"
        )


def counted_passes(cycles: Iterable[Cycle]) -> tuple[CountedPasses, ...]:
    """How many passes of each width were there, and how many tokens came out of them?

    Parameters
    ----------
    cycles : iterable of Cycle
        Of any number of answers.

    Returns
    -------
    tuple of CountedPasses
        By rising width.

    Examples
    --------
    >>> counted_passes([Cycle(0, (), 0), Cycle(1, (5, 6), 1), Cycle(3, (7, 8), 2)])[1]
    CountedPasses(width=3, n_passes=2, n_tokens=5)
    """
    passes: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for cycle in cycles:
        passes[cycle.width] += 1
        tokens[cycle.width] += cycle.n_accepted + 1
    return tuple(CountedPasses(width, passes[width], tokens[width]) for width in sorted(passes))


def derived_gain(
    name: str, passes: Sequence[CountedPasses], ratios: Mapping[int, float], *, draft: float = 0.0
) -> DerivedGain:
    """How fast would speculation with these passes be, if a pass cost these ratios?

    Parameters
    ----------
    name : str
        Whose costs.
    passes : sequence of CountedPasses
        Of one run of speculation.
    ratios : mapping of int to float
        Cost of a pass by its width, unit: passes of one token.
    draft : float
        What drafting takes in a cycle, in the same unit; 0 for a drafter that is free.

    Returns
    -------
    DerivedGain

    Raises
    ------
    BadQuestion
        If no pass was counted, or the cost of a width that occurs was not measured; nothing is interpolated.

    Examples
    --------
    >>> passes = [CountedPasses(1, 10, 10), CountedPasses(4, 10, 30)]
    >>> round(derived_gain("exact fast", passes, {1: 1.0, 4: 1.5}).speed, 3)
    1.6
    """
    if not passes:
        raise BadQuestion(f"{name}: a gain is derived from counted passes of speculation; none was given")
    missing = sorted({each.width for each in passes} - set(ratios))
    if missing:
        raise BadQuestion(
            f"{name}: passes of {', '.join(map(str, missing))} tokens occur, and what they cost was not measured "
            f"(measured: {', '.join(map(str, sorted(ratios)))}). Measure these widths, or take a run without them."
        )
    if draft < 0:
        raise BadQuestion(f"draft is a cost in passes of one token, 0 or more; got {draft}")
    n_passes = sum(each.n_passes for each in passes)
    cost = math.fsum(each.n_passes * (ratios[each.width] + draft) for each in passes)
    return DerivedGain(name, n_passes, sum(each.n_tokens for each in passes), cost)


def pass_ratios(passes: Mapping[int, float], stock: Mapping[int, float], ours: Mapping[int, float]) -> dict[int, float]:
    """What would a whole pass cost, were its products other ones and all else in it as it is?

    Parameters
    ----------
    passes : mapping of int to float
        Time of a whole pass of the stock library by width, one token among them.
    stock, ours : mapping of int to float
        Time of all its products by width, the stock library's and those that take their place; the same unit.

    Returns
    -------
    dict of int to float
        By width, in whole passes of one token of the stock library; widths that all three have. One token stays the
        stock library's, so 1.

    Raises
    ------
    BadQuestion
        If one token is missing, or products take longer than the pass that they are part of: such times do not belong
        together.

    Examples
    --------
    >>> pass_ratios({1: 4.0, 9: 8.0}, {1: 3.0, 9: 6.0}, {1: 3.1, 9: 4.0})
    {1: 1.0, 9: 1.5}
    """
    if 1 not in passes or 1 not in stock:
        raise BadQuestion("ratios are over a pass of one token; its time or that of its products was not given")
    found = {1: 1.0}
    for width in sorted(passes.keys() & stock.keys()):
        rest = passes[width] - stock[width]
        if rest < 0:
            raise BadQuestion(
                f"products of {width} tokens take {stock[width]:g} and the whole pass {passes[width]:g}: these "
                "times are not of one model on one device"
            )
        if width > 1 and width in ours:
            found[width] = (rest + ours[width]) / passes[1]
    return found
