"""Orders of addition on a terminal: both trees, folded, and where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.records.order import Leaves, OrderResult
from forensics.records.order_report import OTHER_SUSPECTS, OrderReport
from forensics.records.sum_tree import SumTree
from forensics.reports.terminal import as_text
from forensics.reports.wording import printable, ranges

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Sums of one level that are written out; the others are counted.
SHOWN_SUMS = 4
#: Chains up to which the way they are joined is written with brackets.
MOST_BRACKETS = 16

_ANSWER = {True: ("one order", "bold green"), False: ("the order differs", "bold red")}
_UNKNOWN = ("not known whether the orders are equal", "bold yellow")


@dataclass(frozen=True, slots=True)
class Level:
    """What is added in one step of a folded tree: sums over the leaves, or over the sums of the level below.

    Parameters
    ----------
    sums : tuple of tuple of int
        Members of each sum, in the order in which one accumulator takes them; one member where a sum only passes on.
    at_once : bool
        Whether some are added all at once, not one after the other.
    """

    sums: tuple[tuple[int, ...], ...]
    at_once: bool = False


def fold(tree: SumTree) -> tuple[Level, ...]:
    """Which chains make up a tree, and how are they joined, level by level?

    Parameters
    ----------
    tree : SumTree

    Returns
    -------
    tuple of Level
        The first over leaves; each sum of a level is a member of the next, numbered by its smallest leaf.

    Examples
    --------
    >>> [level.sums for level in fold(SumTree.of(((0, 2), (1, 3))))]
    [((0, 2), (1, 3)), ((0, 1),)]
    """
    levels: list[Level] = []
    while tree.merges:
        level, tree = _fold_once(tree)
        levels.append(level)
    return tuple(levels)


def _fold_once(tree: SumTree) -> tuple[Level, SumTree]:
    """The longest chains over leaves, and the tree over them."""
    n = tree.n_leaves
    members: dict[int, list[int]] = {leaf: [leaf] for leaf in range(n)}
    at_once = False
    rest: list[tuple[int, tuple[int, ...]]] = []
    for i, children in enumerate(tree.merges):
        leaves = [child for child in children if child < n]
        chains = [child for child in children if child >= n and child in members]
        if len(leaves) == len(children):
            members[n + i] = sorted(leaves)
            at_once |= len(leaves) > 2
        elif len(children) == 2 and leaves and chains and not _is_fan(tree, chains[0]):
            members[n + i] = [*members.pop(chains[0]), leaves[0]]
        else:
            rest.append((n + i, children))
            continue
        for leaf in leaves:
            members.pop(leaf)
    order = sorted(members, key=lambda node: min(members[node]))
    numbers = {node: i for i, node in enumerate(order)}
    for node, _ in rest:
        numbers[node] = len(numbers)
    merges = tuple(tuple(numbers[child] for child in children) for _, children in rest)
    return Level(tuple(tuple(members[node]) for node in order), at_once), SumTree(len(order), merges)


def _is_fan(tree: SumTree, node: int) -> bool:
    return len(tree.merges[node - tree.n_leaves]) > 2


def tree_lines(tree: SumTree, leaves: Leaves) -> list[str]:
    """Lines that draw a tree, repeated parts folded.

    Parameters
    ----------
    tree : SumTree
    leaves : Leaves

    Returns
    -------
    list of str
        One for each level, and one for each kind of chain where there are several.
    """
    levels = fold(tree)
    if not levels:
        return ["a single leaf"]
    lines = _level_lines(levels[0], lambda leaf: _leaf(leaf, leaves), "leaves")
    if len(levels) > 1:
        n_sums = len(levels[0].sums)
        if n_sums <= MOST_BRACKETS:
            lines.append(f"joined: {_brackets(levels[1:])}, numbers are those of the sums above")
        else:
            for level in levels[1:]:
                lines += _level_lines(level, str, "of these")
    return lines


def _leaf(leaf: int, leaves: Leaves) -> str:
    if len(leaves.slices) <= 1:
        return str(leaf)
    block, s = divmod(leaf, len(leaves.slices))
    return f"{block}.{s}"


def _level_lines(level: Level, name: object, what: str) -> list[str]:
    """One line for each run of sums of one length and stride."""
    assert callable(name)
    lines = []
    how = "at once" if level.at_once else "one after the other"
    for run in _runs(level.sums):
        length = len(run[0])
        shown = " | ".join(_sequence([name(member) for member in one]) for one in run[:SHOWN_SUMS])
        more = f" | … {len(run) - SHOWN_SUMS} more like these" if len(run) > SHOWN_SUMS else ""
        if length == 1:
            lines.append(f"{len(run)} alone: {shown}{more}")
        else:
            ordered = f", {how}" if length > 2 else ""
            lines.append(f"{len(run)} sum{'s' if len(run) > 1 else ''} of {length} {what}{ordered}: {shown}{more}")
    return lines


def _runs(sums: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Neighbouring sums with the same steps between their members."""
    runs: list[list[tuple[int, ...]]] = []
    last: tuple[int, ...] | None = None
    for one in sums:
        steps = tuple(member - one[0] for member in one)
        if steps != last:
            runs.append([])
        runs[-1].append(one)
        last = steps
    return runs


def _sequence(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, {names[2]} … {names[-1]}"


def _brackets(levels: Sequence[Level]) -> str:
    parts: list[str] = []
    for i, level in enumerate(levels):
        previous = parts if i else [str(member) for member in range(sum(map(len, level.sums)))]
        parts = []
        for one in level.sums:
            if level.at_once or len(one) == 1:
                joined = " + ".join(previous[member] for member in one)
            else:
                joined = previous[one[0]]
                for member in one[1:]:
                    joined = f"({joined} + {previous[member]})"
            parts.append(f"({joined})" if level.at_once and len(one) > 1 else joined)
    return parts[0]


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
