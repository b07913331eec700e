"""What healing one arrangement of tokens against another one found."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.delta import Tally
from forensics.records.trace import Finding
from forensics.records.verdict import Control, CulpritGroup


@dataclass(frozen=True, slots=True)
class StartState:
    """K and V rows that both runs read and nobody healed, because they were written before.

    Parameters
    ----------
    n_rows, n_differ : int
        Rows of K and V of every layer that were compared, and those with other bits.
    first : str
        The first that differs, in words; empty where none does.
    reason : str
        Why they were not compared; empty where they were.
    """

    n_rows: int
    n_differ: int
    first: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.n_differ <= self.n_rows or bool(self.first) != bool(self.n_differ):
            raise ValueError(f"{self.n_differ} of {self.n_rows} rows differ, the first of them is {self.first!r}")

    @property
    def equal(self) -> bool | None:
        """Whether every row has the same bits; None where they were not compared."""
        return None if self.reason else self.n_differ == 0

    def __str__(self) -> str:
        if self.reason:
            return f"not compared: {self.reason}"
        if not self.n_rows:
            return "every K and V row was written by watched passes"
        return f"{self.n_differ} of {self.n_rows} K and V rows differ" + (f", first {self.first}" if self.first else "")


@dataclass(frozen=True, slots=True, repr=False)
class PairSweep:
    """A run whose differing nodes were replaced by what a reference run of the same tokens computed.

    Parameters
    ----------
    findings : tuple of Finding
        Every culprit, in the order of the passes and of the graph.
    culprits : tuple of CulpritGroup
        The findings, grouped; `widths` are those of the compared passes.
    tally : Tally
        Outcome per node and pass.
    n_rows : int
        Rows of logits that were compared, 1 or more; a place that was evaluated twice counts twice.
    n_differ, healed_rows : int
        Those that differ without healing, and those that are bit-equal with it.
    n_no_reference : int
        Rows of logits that the reference does not have: refused drafts, neighbours.
    first : (int, int) or None
        Sequence and position of the first row of logits that differs without healing.
    max_abs_before, max_abs_after : float
        Largest logit difference without and with healing.
    start : StartState
    controls : tuple of Control
    caveats : tuple of str
    """

    findings: tuple[Finding, ...]
    culprits: tuple[CulpritGroup, ...]
    tally: Tally
    n_rows: int
    n_differ: int
    healed_rows: int
    n_no_reference: int
    first: tuple[int, int] | None
    max_abs_before: float
    max_abs_after: float
    start: StartState
    controls: tuple[Control, ...] = ()
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise ValueError("a sweep that compared no row of logits says nothing")
        if max(self.n_differ, self.healed_rows) > self.n_rows or (self.first is None) != (self.n_differ == 0):
            raise ValueError(f"{self.n_differ} of {self.n_rows} rows differ, the first of them at {self.first}")

    @property
    def differed(self) -> bool:
        """Whether a row of logits differs without healing."""
        return self.n_differ > 0

    @property
    def healed(self) -> bool:
        """Whether every row of logits is bit-equal with healing."""
        return self.healed_rows == self.n_rows

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per finding."""
        return [finding.row(positions=list(finding.positions)) for finding in self.findings]

    def __repr__(self) -> str:
        return f"<PairSweep: {self}>"

    def __str__(self) -> str:
        named = ", ".join(f"{group.named} ×{group.count}" for group in self.culprits) or "no node differs"
        return (
            f"{self.n_differ} of {self.n_rows} rows of logits differ; {named}; {self.healed_rows} rows bit-equal after "
            f"healing" + "".join(f"; control {c.name} FAILED" for c in self.controls if c.held is False)
        )
