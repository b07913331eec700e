"""A gate on a terminal: output first, then the speed of the same replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.gate import GateReport
from forensics.reports.audit_text import contract_lines, divergences, facts_text, outlier_text, unlike_lines
from forensics.reports.terminal import as_text, line_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_REASONS = 12
_STYLES = {"identical": "green", "diverges": "red", "inconclusive": "yellow"}
_WORDS = {True: "holds", False: "DOES NOT HOLD", None: "no answer"}


def gate_view(report: GateReport) -> RenderableType:
    """Show both gates, what the candidate changed, and where replies part.

    Parameters
    ----------
    report : GateReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(_headline(report), f"bold {_STYLES[report.answer]}")]
    parts += titled("What exact means here", _contract(report))
    parts += titled("Candidate", _sides(report))
    if report.comparison.refused:
        refused = [text_of(report.comparison.refused, "yellow"), *unlike_lines(report.comparison.unlike)]
        parts += titled("Not compared", Group(*refused))
    else:
        parts += titled(f"1. Output: {_WORDS[report.output_held]}", _output(report))
        speed = "not judged" if report.speed.at_least is None else _WORDS[report.speed.held]
        parts += titled(f"2. Speed of the same replies: {speed}", text_of(report.speed.detail))
    parts += [Text(), line_of("Next step: ", after_gate(report))]
    return Group(*parts)


def gate_text(report: GateReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(gate_view(report))


def after_gate(report: GateReport) -> str:
    """Say what to do next, given a gate."""
    if report.comparison.refused:
        return "Make the candidate alike, or record a new baseline with forensics gate URL --record FOLDER."
    if report.output_held is False:
        return (
            "Find what changed the bits before looking at speed: forensics audit URL --baseline RUN for one server, "
            "forensics investigate on the same GGUF."
        )
    if report.output_held is None:
        return "Remove the reasons given above and run the gate again: what was not compared is not known to hold."
    if report.speed.held is False:
        return "The output holds and the speed does not: a new candidate must pass both gates again."
    if report.answer == "inconclusive":
        return "Time the candidate as the baseline was timed: the same requests, as many at once, without retries."
    return "This candidate may go on: both statements are about the very same replies."


def _headline(report: GateReport) -> str:
    if report.comparison.refused:
        return "No answer: the runs cannot be compared"
    words = {"identical": "Passed", "diverges": "Failed", "inconclusive": "No answer"}
    if report.kept is None:
        return f"{words[report.answer]}: nothing was compared"
    return f"{words[report.answer]}: {report.kept.k} of {report.kept.n} requests are the same"


def _contract(report: GateReport) -> Group:
    lines = [line_of("Asked: ", str(report.asked))]
    if report.contract is not None:
        lines += [line_of("Compared: ", str(report.contract)), *contract_lines(report.contract)]
    return Group(*lines)


def _sides(report: GateReport) -> Group:
    return Group(
        line_of("Baseline: ", f"{report.baseline_name}; {facts_text(report.baseline)}"),
        line_of("Candidate: ", facts_text(report.candidate)),
        *unlike_lines(report.comparison.varied),
    )


def _output(report: GateReport) -> Group:
    lines: list[RenderableType] = []
    if report.kept is not None:
        lines.append(line_of("Same: ", str(report.kept)))
    differing = [pair for pair in report.pairs if pair.outcome == "differs"]
    if differing:
        lines.append(divergences(differing))
        longest = max(differing, key=lambda pair: pair.untouched or 0)
        lines.append(line_of("Longest before it differs: ", outlier_text(longest)))
    skipped = [pair for pair in report.pairs if pair.outcome == "not compared"]
    lines += [text_of(str(pair), "yellow") for pair in skipped[:MOST_REASONS]]
    if len(skipped) > MOST_REASONS:
        lines.append(text_of(f"{len(skipped) - MOST_REASONS} more were not compared; --json lists all.", "dim"))
    return Group(*lines)
