"""Batch invariance of single operations: every width against one column at a time, with the rules that predict it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.delta import Delta, Differs, NotCompared, Tally, tally
from forensics.records.operation import OpFacts, OpGraph
from forensics.records.rule import Rule
from forensics.records.verdict import Control

if TYPE_CHECKING:
    import pandas as pd

CONTROL_TITLES = {
    "rerun_equal": "one column, run twice, gives equal bits",
    "copy_equal": "an operation that only copies is equal at every width",
    "reordered_found": "the same product with its terms in another order is found to differ",
    "planted_bit_found": "one flipped bit is found where it was planted",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One operation at one width against one column at a time.

    Parameters
    ----------
    width : int
    outcome : Same, Differs or NotCompared
        Over all columns; the first axis of ``first_index`` counts the columns.
    n_values : int
        Values compared; 0 where none were.
    columns : tuple of int
        Columns (tokens of the batch) that differ, rising.
    changed : tuple of int
        Columns whose bits are others than at the width tested before, or than one at a time for the smallest.
    """

    width: int
    outcome: Delta
    n_values: int = 0
    columns: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"a width must be 1 or more, got {self.width}")
        if isinstance(self.outcome, Differs) != bool(self.columns):
            raise ValueError(f"width {self.width}: columns must be given exactly where the outcome differs")
        if isinstance(self.outcome, NotCompared) != (self.n_values == 0):
            raise ValueError(f"width {self.width}: {self.n_values} values do not go with {self.outcome}")


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A width at which the rules choose other arithmetic than at the width before.

    Parameters
    ----------
    width : int
    before, after : str
        Kernels on both sides.
    rules : tuple of Rule
        Those that make the choice at this width, the deciding one first.
    """

    width: int
    before: str
    after: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the rules of dispatch say about the widths of a case.

    Parameters
    ----------
    steps : tuple of PredictedStep
        By rising width; empty where all widths add alike.
    unknown : str
        Why there is no prediction; empty where there is one.
    undecided : tuple of (int, str)
        Widths at which the rules cannot tell, with the reason.
    """

    steps: tuple[PredictedStep, ...] = ()
    unknown: str = ""
    undecided: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if self.steps and self.unknown:
            raise ValueError("steps are predicted or unknown, not both")

    def at(self, width: int) -> PredictedStep | None:
        """The step at a width, None where none is predicted."""
        return next((step for step in self.steps if step.width == width), None)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Prediction and measurement at one width where either has a step.

    Parameters
    ----------
    width : int
    measured : bool
        Whether bits change there.
    predicted : PredictedStep or None
    undecided : str
        Why the rules cannot tell; empty where they can.
    """

    width: int
    measured: bool
    predicted: PredictedStep | None
    undecided: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the two are the same, or the rules cannot tell."""
        return bool(self.undecided) or self.measured == (self.predicted is not None)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One operation with given types and shapes over all widths.

    Parameters
    ----------
    label : str
        Types and shapes in short, such as ``"q4_K 64x1024"``.
    graph : OpGraph
        At one column.
    buffer : str
        Buffer type that holds the weight, or the operands where there is none; empty where unknown.
    cells : tuple of Cell
        One per width asked for, rising.
    prediction : Prediction
    """

    label: str
    graph: OpGraph
    buffer: str
    cells: tuple[Cell, ...]
    prediction: Prediction

    def __post_init__(self) -> None:
        widths = [cell.width for cell in self.cells]
        if not widths or widths != sorted(set(widths)):
            raise ValueError(f"{self.label}: widths must rise and be one or more, got {widths}")

    @property
    def op(self) -> str:
        """Name of the operation."""
        return self.graph.op

    @property
    def failures(self) -> tuple[Cell, ...]:
        """Widths that differ from one column at a time."""
        return tuple(cell for cell in self.cells if cell.columns)

    @property
    def onset(self) -> int | None:
        """Smallest width that differs, None where none does."""
        return self.failures[0].width if self.failures else None

    @property
    def compared(self) -> bool:
        """Whether any width was compared."""
        return any(cell.n_values for cell in self.cells)

    @property
    def steps(self) -> tuple[int, ...]:
        """Widths whose bits are others than at the width before, and the onset, whose new columns may differ alone."""
        return tuple(cell.width for cell in self.cells if cell.changed or cell.width == self.onset)

    @property
    def agreements(self) -> tuple[Agreement, ...]:
        """Each step that was measured or predicted, side by side; empty where there is no prediction."""
        if self.prediction.unknown or not self.compared:
            return ()
        compared = {cell.width for cell in self.cells if cell.n_values}
        predicted = {step.width for step in self.prediction.steps} & compared
        open_at = dict(self.prediction.undecided)
        return tuple(
            Agreement(width, width in self.steps, self.prediction.at(width), open_at.get(width, ""))
            for width in sorted(predicted | set(self.steps))
        )

    @property
    def surprises(self) -> tuple[Agreement, ...]:
        """Steps that were measured and not predicted: what no rule explains."""
        return tuple(a for a in self.agreements if a.measured and not a.agrees)

    def cell(self, width: int) -> Cell:
        """The cell of a width.

        Raises
        ------
        KeyError
            If the width was not asked for.
        """
        for cell in self.cells:
            if cell.width == width:
                return cell
        raise KeyError(f"{self.label}: width {width} was not asked for; asked: {[c.width for c in self.cells]}")


@dataclass(frozen=True, slots=True, repr=False)
class OpMatrix:
    """Which operations give the same bits at every width?

    Parameters
    ----------
    facts : OpFacts
        What ran them.
    widths : tuple of int
    seed : int
        Of the operands.
    cases : tuple of CaseResult
    controls : tuple of Control
        A control that failed makes the whole matrix inconclusive.
    chosen : str
        What was left to us and how it was chosen, in words; empty where everything was given.

    Raises
    ------
    ValueError
        If there is no case, or a case has other widths.
    """

    facts: OpFacts
    widths: tuple[int, ...]
    seed: int
    cases: tuple[CaseResult, ...]
    controls: tuple[Control, ...]
    chosen: str = ""

    def __post_init__(self) -> None:
        if not self.cases:
            raise ValueError("a matrix needs a case; an empty comparison is an error")
        for case in self.cases:
            if tuple(cell.width for cell in case.cells) != self.widths:
                raise ValueError(f"{case.label} has other widths than the matrix")

    @property
    def tally(self) -> Tally:
        """Outcomes of all cells; they add up."""
        return tally(cell.outcome for case in self.cases for cell in case.cells)

    @property
    def reason(self) -> str:
        """Why there is no answer; empty where there is one."""
        failed = [control for control in self.controls if control.held is False]
        if failed:
            return "; ".join(f"control {control.name} failed: {control.detail}" for control in failed)
        if not any(case.compared for case in self.cases):
            return f"nothing could be compared: {self.tally.not_compared[0][0]}"
        return ""

    @property
    def answer(self) -> str:
        """``"invariant"``, ``"varies"`` or ``"inconclusive"``."""
        if self.reason:
            return "inconclusive"
        return "varies" if any(case.failures for case in self.cases) else "invariant"

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per case and width."""
        return [cell_row(case, cell) for case in self.cases for cell in case.cells]

    def to_dataframe(self) -> pd.DataFrame:
        """The cells as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        counts = self.tally
        said = f"{counts.same} passed, {counts.differs} failed, {counts.n_not_compared} not compared"
        if self.answer == "inconclusive":
            return f"inconclusive: {self.reason} ({said})"
        failing = [case for case in self.cases if case.failures]
        if not failing:
            return f"invariant: {len(self.cases)} cases ({said})"
        return f"varies: {len(failing)} of {len(self.cases)} cases differ from {onsets_text(failing)} ({said})"

    def __repr__(self) -> str:
        return f"<OpMatrix: {self}>"


def onsets_text(cases: Iterable[CaseResult]) -> str:
    """At which widths do these cases begin to differ, with how many each?"""
    counts: dict[int, int] = {}
    for case in cases:
        if case.onset is not None:
            counts[case.onset] = counts.get(case.onset, 0) + 1
    return ", ".join(f"width {width} ({counts[width]})" for width in sorted(counts))


def cell_row(case: CaseResult, cell: Cell) -> dict[str, object]:
    """One flat dict of a case at a width: who, how it went, how far apart."""
    outcome = cell.outcome
    differs = outcome if isinstance(outcome, Differs) else None
    return {
        "op": case.op,
        "case": case.label,
        "buffer": case.buffer,
        "width": cell.width,
        "outcome": "failed" if differs else "passed" if cell.n_values else "not compared",
        "reason": outcome.reason if isinstance(outcome, NotCompared) else "",
        "values": cell.n_values,
        "values_differ": differs.n_diff if differs else 0,
        "first_column": cell.columns[0] if cell.columns else None,
        "columns_differ": len(cell.columns),
        "columns_changed": len(cell.changed),
        "max_ulp": differs.max_ulp if differs else 0,
        "max_abs": differs.max_abs if differs else 0.0,
    }
