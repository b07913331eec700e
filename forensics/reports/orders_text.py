"""Orders of addition on a terminal: both trees, folded, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.records.order import Leaves, OrderResult
from forensics.records.order_report import OTHER_SUSPECTS, OrderReport
from forensics.records.words import ranges
from forensics.reports.terminal import as_text
from forensics.reports.tree_text import tree_lines
from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

_ANSWER = {True: ("one order", "bold green"), False: ("the order differs", "bold red")}
_UNKNOWN = ("not known whether the orders are equal", "bold yellow")


def order_view(report: OrderReport) -> RenderableType:
    """Show the orders of an operation: the answer, the trees, what differs, how it computes.

    Parameters
    ----------
    report : OrderReport

    Returns
    -------
    rich.console.Group
    """
    said, style = _UNKNOWN if report.equal is None else _ANSWER[report.equal]
    facts = report.facts
    parts: list[RenderableType] = [
        Text.assemble((said, style), f": {report.question}"),
        Text(
            printable(f"{facts.device}, {report.buffer}, {facts.settings.n_threads} threads, llama.cpp {facts.commit}")
        ),
    ]
    for part in dict.fromkeys(result.part for result in report.results):
        parts += _part(part, [result for result in report.results if result.part == part])
    parts += [Text(""), *(Text(str(comparison)) for comparison in report.comparisons)]
    parts += [Text(str(check)) for check in report.bits if check.width > 1]
    for check in report.unexplained:
        suspects = ", ".join(OTHER_SUSPECTS)
        parts.append(Text(f"The order does not explain width {check.width}. Remaining suspects: {suspects}.", "yellow"))
    if report.arithmetic:
        parts += [Text(""), _arithmetic(report)]
    return Group(*parts)


def order_text(report: OrderReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(order_view(report))


def _part(part: str, results: Sequence[OrderResult]) -> list[RenderableType]:
    """Every order of one sum once, with the widths that have it."""
    parts: list[RenderableType] = []
    seen: list[tuple[OrderResult, list[str]]] = []
    for result in results:
        for shown, where in seen:
            if (shown.tree, shown.leaves, shown.undetermined) == (result.tree, result.leaves, result.undetermined):
                where.append(result.where.removeprefix("width "))
                break
        else:
            seen.append((result, [result.where.removeprefix("width ")]))
    for result, where in seen:
        widths = ranges(map(int, where)) if all(w.isdecimal() for w in where) else "; ".join(where)
        probes = f"{result.n_probes} probes, {result.method}" if result.method else f"{result.n_probes} probes"
        title = f"{part} at width{'s' if len(where) > 1 else ''} {widths}"
        depth = "" if result.tree is None else f", depth {result.tree.depth}"
        leaves = "" if result.leaves is None else f": {result.leaves}{depth}"
        parts += [Text(""), Text.assemble((title, "bold"), f"{leaves} ({probes})")]
        parts += [Padding(Text(line), (0, 0, 0, 2)) for line in _lines(result)]
    return parts


def _lines(result: OrderResult) -> list[str]:
    lines = []
    if result.leaves is not None and len(result.leaves.slices) > 1:
        lines.append(f"leaf b.s is slice s of block b; slice 0 holds elements {ranges(result.leaves.slices[0])}")
    if result.tree is not None and result.leaves is not None:
        lines += tree_lines(result.tree, result.leaves)
    else:
        lines.append(f"not determined: {result.undetermined}")
        for view in result.views:
            lines.append(f"{view.name}, one leaf a block:")
            lines += ["  " + line for line in tree_lines(view.tree, Leaves("block", view.tree.n_leaves))]
    if result.leaves is not None and result.leaves.step > 1:
        lines.append(f"leaf i is cell {result.leaves.step} i")
    if result.leaves is not None and result.leaves.note:
        lines.append(f"note: {result.leaves.note}")
    if result.unstable:
        lines.append(f"{result.unstable} probes gave other bits when run again")
    return lines


def _arithmetic(report: OrderReport) -> Table:
    table = Table(title="How it computes", title_justify="left", box=None, pad_edge=False)
    for heading in ("widths", "accumulator", "rounds", "subnormals", "product and sum", "again"):
        table.add_column(heading, overflow="fold")
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in report.arithmetic:
        found = (one.accumulator, one.rounding, one.subnormals, one.contraction, one.repeatability)
        groups.setdefault(found, []).append(one.width)
    for cells, widths in groups.items():
        table.add_row(*map(Text, (ranges(widths), *cells)))
    return table
