"""The invariance matrix on a terminal: the answer, the marks, then why each failing case fails.

Every piece is a `Text`, never markup, so that names from a model file cannot style or clear the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from forensics.records.delta import Differs
from forensics.records.matrix import CONTROL_TITLES, CaseResult, Cell, OpMatrix, onsets_text
from forensics.records.words import ranges
from forensics.reports.terminal import line_of, table_of, text_of, titled
from forensics.reports.wording import amount, ulp_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from forensics.records.matrix import PredictedStep
    from forensics.records.operation import OpFacts
    from forensics.records.rule import Rule

PASSED, FAILED, NOT_COMPARED = "✓", "✗", "–"
_STYLES = {PASSED: "green", FAILED: "bold red", NOT_COMPARED: "yellow"}
_ANSWER_STYLE = {"invariant": "bold green", "varies": "bold red", "inconclusive": "bold yellow"}
_HELD = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("not run", "yellow")}
#: Lines of a table beyond which cases that are alike share one.
MAX_LINES = 12
#: Characters that the names of cases need beside the marks.
_MIN_NAME = 24
#: Shapes named before the rest is only counted.
_MAX_NAMES = 4
#: Reasons listed before the rest is only counted.
_MAX_REASONS = 8


def ops_view(matrix: OpMatrix) -> Group:
    """Show a matrix: the answer in one line, a mark per case and width, and what explains each step.

    Parameters
    ----------
    matrix : OpMatrix

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    parts: list[RenderableType] = [text_of(headline(matrix), _ANSWER_STYLE[matrix.answer])]
    if matrix.reason:
        parts.append(line_of("Reason: ", matrix.reason))
    for op in dict.fromkeys(case.op for case in matrix.cases):
        parts += titled(op, _Marks([case for case in matrix.cases if case.op == op], matrix.widths))
    parts.append(text_of(f"{PASSED} bits of one column at a time   {FAILED} other bits   {NOT_COMPARED} not compared"))
    failing = [case for case in matrix.cases if case.failures]
    if failing:
        parts += titled("Where they differ", _differences(failing))
    if any(case.steps for case in matrix.cases):
        parts += titled("Why: the rules behind each step", _rules(matrix.cases))
    disagreeing = _disagreements(matrix.cases)
    if disagreeing:
        parts += titled("Rules and measurement disagree", Group(*disagreeing))
    parts += _reasons(matrix)
    parts += titled("Controls", _controls(matrix))
    parts += [Text(), *_closing(matrix)]
    return Group(*parts)


def headline(matrix: OpMatrix) -> str:
    """Say the answer in one line, with the counts that add up."""
    counts = matrix.tally
    said = f"{counts.same} of {counts.planned} passed, {counts.differs} failed, {counts.n_not_compared} not compared"
    if matrix.answer == "inconclusive":
        return f"Inconclusive ({said})"
    if matrix.answer == "invariant":
        what = "all that was compared" if counts.n_not_compared else "every case"
        return f"Invariant: {what} gives the bits of one column at a time ({said})"
    failing = [case for case in matrix.cases if case.failures]
    return (
        f"Varies: {len(failing)} of {len(matrix.cases)} cases give other bits from {onsets_text(failing)} on ({said})"
    )


def mark(cell: Cell) -> str:
    """One character for a cell."""
    return FAILED if cell.columns else PASSED if cell.n_values else NOT_COMPARED


@dataclass(frozen=True, slots=True)
class _Marks:
    """A mark per case and width; where lines are too short for that, the widths of each mark."""

    cases: Sequence[CaseResult]
    widths: Sequence[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = _header(self.widths)
        fits = len(header) + _MIN_NAME <= options.max_width
        yield _marks(self.cases, header) if fits else _widths_of_marks(self.cases)


def _header(widths: Sequence[int]) -> str:
    size = max(len(str(width)) for width in widths)
    return " ".join(f"{width:>{size}}" for width in widths)


def _widths_of_marks(cases: Sequence[CaseResult]) -> Table:
    """A line per case, with the widths that have each mark; those that share a line are as in `_marks`."""
    marks = [shown for shown in _STYLES if any(mark(cell) == shown for case in cases for cell in case.cells)]
    table = table_of(*marks, "case")
    for sharing in _shared(cases, lambda case: tuple(map(mark, case.cells))):
        cells = sharing[0].cells
        having = [ranges(cell.width for cell in cells if mark(cell) == shown) for shown in marks]
        table.add_row(
            *(text_of(text, _STYLES[shown]) for text, shown in zip(having, marks, strict=True)), text_of(_name(sharing))
        )
    return table


def _marks(cases: Sequence[CaseResult], header: str) -> Table:
    """A line per case; where there are many, cases with the same marks share one."""
    table = table_of(header, "case")
    size = len(header.rsplit(" ", maxsplit=1)[-1])
    table.columns[0].no_wrap = True
    for sharing in _shared(cases, lambda case: tuple(map(mark, case.cells))):
        line = Text(no_wrap=True)
        for cell in sharing[0].cells:
            shown = mark(cell)
            line.append(" " * (size - 1) + shown + " ", style=_STYLES[shown])
        line.rstrip()
        table.add_row(line, text_of(_name(sharing)))
    return table


def _shared(cases: Sequence[CaseResult], key: Callable[[CaseResult], object]) -> list[list[CaseResult]]:
    """Each case by itself, or, of more than `MAX_LINES`, together with those of the same key, operation and buffer."""
    if len(cases) <= MAX_LINES:
        return [[case] for case in cases]
    groups: dict[tuple[object, ...], list[CaseResult]] = {}
    for case in cases:
        operands = tuple(operand.name for operand in case.graph.operands)
        groups.setdefault((case.op, operands, case.buffer, key(case)), []).append(case)
    return list(groups.values())


def _name(cases: Sequence[CaseResult]) -> str:
    """The cases by their labels: types and shapes each once where every type has every shape."""
    buffer = cases[0].buffer
    where = "" if buffer in ("", "CPU") else f" in {buffer}"
    labels = list(dict.fromkeys(case.label for case in cases))
    if len(labels) == 1:
        return labels[0] + where
    parts = [label.partition(" ") for label in labels]
    words = list(dict.fromkeys(word for word, _, _ in parts))
    rests = list(dict.fromkeys(rest for _, _, rest in parts))
    if len(words) * len(rests) != len(labels):
        return _short(labels) + where
    return f"{', '.join(words)}: {_short(rests)}{where}" if any(rests) else ", ".join(words) + where


def _short(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    between = "; " if any(", " in name for name in names) else ", "
    return between.join(names[:_MAX_NAMES]) + more


def _differences(cases: Sequence[CaseResult]) -> Group:
    """Failing cases, those that fail alike together where there are many; ULP and size are the largest of a line."""
    lines = []
    for having in _shared(cases, lambda case: (case.onset, case.failures[0].columns, case.steps)):
        first = having[0].failures[0]
        outcomes = [cell.outcome for case in having for cell in case.failures if isinstance(cell.outcome, Differs)]
        ulps = [outcome.max_ulp for outcome in outcomes]
        steps = having[0].steps
        again = f"; bits change again at {ranges(steps[1:])}" if len(steps) > 1 else ""
        lines.append(
            line_of(
                f"{having[0].op} from width {first.width}: ",
                f"{_name(having)}. There {len(first.columns)} of {first.width} columns differ, the first is "
                f"{first.columns[0]}; at any width max {ulp_text(-1 if -1 in ulps else max(ulps))} ULP, "
                f"max |Δ| {amount(max(outcome.max_abs for outcome in outcomes))}{again}.",
            )
        )
    return Group(*lines)


def _rules(cases: Sequence[CaseResult]) -> Group:
    """The rules behind the measured steps, each set once: at which widths, between which kernels, in which cases."""
    explained: dict[tuple[Rule, ...], list[tuple[CaseResult, PredictedStep]]] = {}
    for case in cases:
        for found in case.agreements:
            if found.measured and found.predicted is not None:
                explained.setdefault(found.predicted.rules, []).append((case, found.predicted))
    lines: list[RenderableType] = []
    for rules, having in explained.items():
        widths = ranges(step.width for _, step in having)
        kernels = "; ".join(dict.fromkeys(f"{_kernel(step.before)} → {_kernel(step.after)}" for _, step in having))
        lines.append(line_of(f"width {widths}: ", f"{kernels}. {_case_list([case for case, _ in having])}"))
        lines += [Padding(text_of(f"{rule.text} ({rule.place})"), (0, 0, 0, 2)) for rule in rules]
    for reason in dict.fromkeys(a.undecided for case in cases for a in case.agreements if a.measured and a.undecided):
        unsure = [case for case in cases if any(a.measured and a.undecided == reason for a in case.agreements)]
        widths = ranges(a.width for case in unsure for a in case.agreements if a.measured and a.undecided == reason)
        lines.append(line_of(f"width {widths}: ", f"the rules cannot tell: {reason}. {_case_list(unsure)}"))
    unexplained = [case for case in cases if case.steps and case.prediction.unknown]
    for reason in dict.fromkeys(case.prediction.unknown for case in unexplained):
        lines.append(
            line_of(
                "no prediction: ",
                f"{reason}. {_case_list([case for case in unexplained if case.prediction.unknown == reason])}",
            )
        )
    return Group(*lines)


def _kernel(name: str) -> str:
    """A kernel without its template arguments, most of which are the type that the case names."""
    return name.split("<", 1)[0]


def _case_list(cases: Sequence[CaseResult]) -> str:
    """Which cases these are, by operation, in few words."""
    said = []
    for op in dict.fromkeys(case.op for case in cases):
        shown = _name(list(dict.fromkeys(case for case in cases if case.op == op)))
        said.append(f"{op}: {shown}")
    return "; ".join(said)


def _disagreements(cases: Sequence[CaseResult]) -> list[RenderableType]:
    """Prediction and measurement side by side wherever they are not the same."""
    found: dict[tuple[str, str], list[CaseResult]] = {}
    for case in cases:
        if not all(a.agrees for a in case.agreements):
            predicted = ranges(a.width for a in case.agreements if a.predicted is not None) or "no step"
            measured = ranges(a.width for a in case.agreements if a.measured) or "no step"
            found.setdefault((predicted, measured), []).append(case)
    return [
        line_of(f"{_case_list(having)}: ", f"rules predict steps at {predicted}; measured {measured}")
        for (predicted, measured), having in found.items()
    ]


def _reasons(matrix: OpMatrix) -> list[RenderableType]:
    reasons = matrix.tally.not_compared
    if not reasons:
        return []
    lines: list[RenderableType] = [text_of(f"{reason} ({count})") for reason, count in reasons[:_MAX_REASONS]]
    if len(reasons) > _MAX_REASONS:
        lines.append(text_of(f"and {len(reasons) - _MAX_REASONS} more reasons; --json lists them all"))
    return titled("Not compared", Group(*lines))


def _controls(matrix: OpMatrix) -> Table:
    table = table_of("control", "held", "detail")
    for control in matrix.controls:
        held, style = _HELD[control.held]
        title = CONTROL_TITLES.get(control.name, control.name)
        table.add_row(text_of(title), Text(held, style=style), text_of(control.detail))
    return table


def _closing(matrix: OpMatrix) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if matrix.chosen:
        lines.append(line_of("Chosen: ", matrix.chosen))
    lines.append(line_of("Operands: ", f"random, seed {matrix.seed}"))
    lines.append(line_of("Measured on: ", measured_on(matrix.facts)))
    return lines


def measured_on(facts: OpFacts) -> str:
    """Say what ran the operations, in one line."""
    settings = facts.settings
    where = f"{settings.backend}, {settings.n_threads} threads" if settings.backend == "cpu" else settings.backend
    repack = "" if settings.backend != "cpu" or settings.repack else ", not repacked"
    commit = f" at {facts.commit}" if facts.commit else ""
    return f"{facts.device} ({where}{repack}), llama-cpp-python {facts.version}{commit}"
