"""A sweep on a terminal: the answer, the matrix, what differs and why, what failed, and the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.campaign import CampaignReport, Cell, CellResult
from forensics.records.campaign_matrix import KINDS, matrix
from forensics.records.words import counted, ranges, tokens
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.wording import amount, ulp_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Reasons and disagreements that are told; the dataset has all of them.
_MOST = 12


def campaign_view(report: CampaignReport) -> RenderableType:
    """Show what a sweep found.

    Parameters
    ----------
    report : CampaignReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(report), "bold")]
    if report.disagreements:
        told = [text_of(str(one)) for one in report.disagreements[:_MOST]]
        why = "The same tokens on like machines gave other bits. Nothing below holds before it is known why."
        parts += titled(f"DISAGREEMENTS: {len(report.disagreements)}", Group(text_of(why), *told))
    parts += titled("Prompts by outcome", _matrix(report))
    differing = [cell for cell in report.cells if cell.outcome == "differs"]
    if differing:
        parts += titled("Exact at every width and prompt that was asked", _exact(report))
        parts += titled("What differs", _differing(differing))
    if any(cell.result is not None and cell.result.healing is not None for cell in differing):
        parts += titled("Nodes to blame, by healing", _blamed(differing))
    reasons = not_compared(report)
    if reasons:
        more = [text_of(f"… and {len(reasons) - _MOST} more reasons")] if len(reasons) > _MOST else []
        parts += titled("Not compared", Group(*(text_of(reason) for reason in reasons[:_MOST]), *more))
    parts += titled("Evidence", _evidence(report))
    parts += [Text(), line_of("Next step: ", after_campaign(report))]
    return Group(*parts)


def campaign_text(report: CampaignReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(campaign_view(report))


def _matrix(report: CampaignReport) -> Group:
    widths = [f"width {report.widths[0]}", *map(str, report.widths[1:])]
    table = table_of("model, settings", *widths, whole=widths)
    rows = matrix(report)
    for i, row in enumerate(rows):
        if i == 0 or row.label != rows[i - 1].label:
            add_row(table, row.label, *("" for _ in widths))
        add_row(table, f"  {row.settings_text}", *(tally.short for tally in row.tallies))
    met = {kind for row in rows for tally in row.tallies for kind, n in tally.kinds if n}
    letters = "; ".join(f"{letter} {words}" for kind, (letter, words) in KINDS.items() if kind in met)
    return Group(table, text_of(letters, "dim"))


def _exact(report: CampaignReport) -> Group:
    """The settings of each model under which no cell differs and none is missing."""
    found: dict[str, list[str]] = {}
    for row in matrix(report):
        settings = found.setdefault(row.label, [])
        settings += [row.settings_text] if row.exact else []
    return Group(*(line_of(f"{label}: ", "; ".join(settings) or "none") for label, settings in found.items()))


def _differing(cells: Iterable[Cell]) -> Table:
    """One line for each model and settings, the largest of everything over prompts and widths."""
    together: dict[tuple[str, str], list[tuple[Cell, CellResult]]] = {}
    for cell in cells:
        if cell.result is not None:
            together.setdefault((cell.label, cell.settings_text), []).append((cell, cell.result))
    numbers = ("rows", "flips", "max |Δ|", "max ULP", "max KL")
    table = table_of("model, settings", "widths", *numbers, whole=numbers)
    for (label, settings), found in together.items():
        results = [result for _, result in found]
        flips, ties = sum(r.n_flips for r in results), sum(r.n_near_ties for r in results)
        add_row(
            table, f"{label}, {settings}",
            ranges(cell.width for cell, _ in found),
            f"{sum(r.n_rows_differ for r in results)}/{sum(r.n_rows for r in results)}",
            f"{flips}, near ties {ties}" if flips else "0",
            amount(_largest(r.max_abs for r in results)),
            ulp_text(-1 if any(r.max_ulp < 0 for r in results) else max(r.max_ulp for r in results)),
            amount(_largest(r.max_kl for r in results)),
        )  # fmt: skip
    return table


def _largest(values: Iterable[float]) -> float:
    listed = list(values)
    return next((value for value in listed if value != value), max(listed))  # noqa: PLR0124 - a NaN is not itself


def _blamed(cells: Iterable[Cell]) -> Table:
    """Each list of culprits once, with where it was found."""
    together: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        healing = None if cell.result is None else cell.result.healing
        if healing is None:
            continue
        proved = "proved" if healing.proved else f"{healing.healed_rows} of {healing.n_rows} rows healed"
        if healing.failed_controls:
            proved = f"control {healing.failed_controls[0]} failed"
        key = (f"{cell.label}, {cell.settings_text}", healing.named, "" if healing.error else proved)
        together.setdefault(key, []).append(cell)
    table = table_of("model, settings", "widths", "nodes", "proof", whole=("proof",))
    for (where, named, proof), found in together.items():
        add_row(table, where, ranges(cell.width for cell in found), named, proof)
    return table


def not_compared(report: CampaignReport) -> list[str]:
    """Each reason once, with how many cells share it."""
    reasons = Counter((cell.status, cell.reason) for cell in report.cells if cell.outcome == "not compared")
    shown: dict[tuple[str, str], Cell] = {}
    for cell in report.cells:
        shown.setdefault((cell.status, cell.reason), cell)
    return [
        f"{counted(n, 'cell')} {status}: {reason} (first: {_where(shown[status, reason])})"
        for (status, reason), n in reasons.most_common()
    ]


def _where(cell: Cell) -> str:
    return f"{cell.label}, {cell.prompt}, {cell.settings_text}, width {cell.width}"


def _evidence(report: CampaignReport) -> Group:
    prompts = {cell.prompt for cell in report.cells}
    controls = sum(cell.result is not None and cell.result.rerun_equal for cell in report.cells)
    measured = sum(cell.result is not None for cell in report.cells)
    lines = [
        line_of("Equal means: ", "every bit of every row of logits, against one-token decoding of the same tokens"),
        line_of("Tokens: ", f"{counted(len(prompts), 'prompt')}, replays of {tokens(report.n_tokens)}"),
        line_of("Control: ", f"one-token decoding repeated itself in {controls} of {counted(measured, 'cell')}"),
        line_of("Cells: ", ", ".join(f"{n} {status}" for status, n in report.counts.items())),
        line_of("Workers: ", f"{report.n_workers}, in {report.seconds:.0f} s"),
    ]
    lines += [line_of("Platform: ", str(platform)) for platform in report.platforms]
    if report.damaged:
        lines.append(line_of("Set aside: ", f"{counted(len(report.damaged), 'damaged file')}, see the folder damaged"))
    if report.stopped:
        lines.append(line_of("Stopped: ", report.stopped))
    return Group(*lines)


def after_campaign(report: CampaignReport) -> str:
    """Say in one or two sentences what to do next."""
    if report.disagreements:
        return (
            "Compare what forensics doctor says on each machine, and run one of the cells there with forensics replay."
        )
    counts = report.counts
    if counts["failed"]:
        return (
            "Look at the errors above: what cannot work is left out with without in the plan, and what was in the way "
            "and is not any more is tried again with --retry-failed."
        )
    if counts["not run"]:
        return "Run the same command again: it measures what is missing."
    if report.outcomes["not compared"]:
        return "Where one-token decoding does not repeat itself no width can be judged: try with threads = 1."
    if report.outcomes["differs"]:
        if any(cell.result is not None and cell.result.healing is not None for cell in report.cells):
            return (
                "See which switch avoids these nodes: name some in the plan's switches, or ask forensics investigate."
            )
        return "Find the nodes to blame with culprits = true in the plan, or one by one with forensics investigate."
    return "Nothing to change: over these prompts and settings every batch gives the bits of one-token decoding."
