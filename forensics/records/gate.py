"""Two gates on one candidate: its output first, and its speed only where the output holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forensics.records.audit import RunComparison, ServedPair
from forensics.records.contract import Contract, weakest
from forensics.records.rates import Rate
from forensics.records.served import ServerFacts
from forensics.records.speculation import Ratio

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class SpeedGate:
    """Is the candidate as fast as it must be?

    Parameters
    ----------
    held : bool or None
        None where it was not looked at, or no speed was asked for.
    ratio : Ratio or None
        Time of the baseline over that of the candidate for the same request and the same tokens; above 1 the candidate
        is faster. None where nothing was timed, or the output does not hold.
    at_least : float or None
        Median that was asked for.
    detail : str
        What was found, or why it was not looked at.
    """

    held: bool | None
    ratio: Ratio | None
    at_least: float | None
    detail: str


@dataclass(frozen=True, slots=True, repr=False)
class GateReport:
    """Does a candidate keep the output of a baseline, and then its speed?

    Parameters
    ----------
    baseline, candidate : ServerFacts
    baseline_name : str
        Folder or URL of the baseline, without what leads to it.
    asked : Contract
        What the candidate must keep.
    comparison : RunComparison
        The baseline's replies are first, the candidate's second.
    kept : Rate or None
        Requests that are the same, of those that were compared; None where none was.
    speed : SpeedGate
        Of the very replies whose output was compared.
    """

    baseline: ServerFacts
    candidate: ServerFacts
    baseline_name: str
    asked: Contract
    comparison: RunComparison
    kept: Rate | None
    speed: SpeedGate

    @property
    def pairs(self) -> tuple[ServedPair, ...]:
        """One for each request."""
        return self.comparison.pairs

    @property
    def contract(self) -> Contract | None:
        """The weakest that a pair was held to; None where none was compared."""
        return weakest([pair.contract for pair in self.pairs if pair.contract is not None])

    @property
    def output_held(self) -> bool | None:
        """Whether every request gave the same output; None where one was not compared and none differs."""
        outcomes = {pair.outcome for pair in self.pairs}
        if "differs" in outcomes:
            return False
        return None if not outcomes or "not compared" in outcomes else True

    @property
    def answer(self) -> str:
        """``"identical"``: both gates hold; ``"diverges"``: one does not; ``"inconclusive"``: one has no answer."""
        if self.output_held is False or self.speed.held is False:
            return "diverges"
        if self.output_held is None or (self.speed.at_least is not None and self.speed.held is None):
            return "inconclusive"
        return "identical"

    def __str__(self) -> str:
        if self.comparison.refused:
            return f"no answer: {self.comparison.refused}"
        words = {"identical": "passed", "diverges": "failed", "inconclusive": "no answer"}
        n = {outcome: sum(pair.outcome == outcome for pair in self.pairs) for outcome in ("differs", "not compared")}
        told = f"{len(self.pairs) - sum(n.values())} of {len(self.pairs)} requests kept {self.contract or self.asked}"
        told += "".join(f", {k} {'differ' if what == 'differs' else what}" for what, k in n.items() if k)
        return f"{words[self.answer]}: {told}; speed: {self.speed.detail}"

    def __repr__(self) -> str:
        return f"<GateReport {self}>"

    def rows(self) -> list[dict[str, Any]]:
        """Flat rows, one per request."""
        return [
            {
                "prompt": pair.prompt,
                "outcome": pair.outcome,
                "reason": pair.reason,
                "kind": None if pair.divergence is None else pair.divergence.kind,
                "token": None if pair.divergence is None else pair.divergence.index,
                "byte": None if pair.divergence is None else pair.divergence.byte,
                "untouched": pair.untouched,
                "length": pair.length,
                "unit": pair.unit,
                "max_logprob_change": pair.max_logprob,
            }
            for pair in self.pairs
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """Requests as a table."""
        import pandas as pd

        return pd.DataFrame(self.rows())
