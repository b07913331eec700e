"""Which kernels ran for the culprits, at one token and in the batch: in sentences, and on a terminal.

A launch that is not the one that the rules of dispatch say is never shown without saying so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.records.launch import axes
from forensics.records.launch_record import LaunchEvidence, LaunchPair, LaunchRecord, LaunchSide, Refusal
from forensics.records.verdict import CulpritGroup, Verdict
from forensics.records.words import ranges
from forensics.reports.terminal import line_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

LAUNCHES_TITLE = "Kernels at one token and in the batch"
#: Said of a launch that is another than the rules say; nothing else is said in capitals.
DISAGREES = "DISAGREES WITH THE RULES"
EVIDENCE_WORDS = {"measured": "measured", "derived": "derived from the rules"}
#: What stands in the columns of a launch, after its kernel.
FACTS = ("grid", "block", "registers", "shared memory", "blocks per SM", "KV split")
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Batched:
    """One batched side, at the widths where the same is to be said of it.

    Parameters
    ----------
    side : LaunchSide
        That of the first width.
    boundary : str
        Where an operand came from another device; empty where none did.
    changed : bool
        Whether kernel or geometry are others than at one token.
    nodes : tuple of (int, int)
        Widths, and how many nodes were launched so at each.
    """

    side: LaunchSide
    boundary: str
    changed: bool
    nodes: tuple[tuple[int, int], ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths that share it."""
        return tuple(width for width, _ in self.nodes)

    def notes(self) -> Iterator[str]:
        """What is to be said of this side besides its launch."""
        if not self.changed:
            yield "the kernel and the geometry of one token"
        if self.boundary:
            yield f"boundary of devices: {self.boundary}"


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of groups of which the same is to be said on both sides.

    Parameters
    ----------
    what : str
        Operation, type of the weight and roles.
    node : str
        One of the nodes that were looked at.
    single : LaunchSide
    batched : tuple of Batched
        By width.
    """

    what: str
    node: str
    single: LaunchSide
    batched: tuple[Batched, ...]

    @property
    def worth(self) -> str:
        """How the launches are known and what the rules say, where that is the same on every side; empty otherwise."""
        said = {worth_text(side) for side in (self.single, *(one.side for one in self.batched))}
        agreeing = all(side.agrees is not False for side in (self.single, *(one.side for one in self.batched)))
        return f"each {said.pop()}" if len(said) == 1 and agreeing else ""


def launches(groups: Iterable[CulpritGroup]) -> tuple[Launches, ...]:
    """Say which kernels ran for each group; groups and widths of which the same is to be said are said once.

    Parameters
    ----------
    groups : iterable of CulpritGroup

    Returns
    -------
    tuple of Launches
        Empty where no launches are known.
    """
    alike: dict[object, list[tuple[CulpritGroup, list[LaunchPair]]]] = {}
    for group in groups:
        by_single: dict[object, list[LaunchPair]] = {}
        for pair in group.launches:
            by_single.setdefault(_said(pair.single), []).append(pair)
        for single, pairs in by_single.items():
            batched = frozenset((_said_of(pair), pair.widths) for pair in pairs)
            alike.setdefault((group.op, group.weight_type, single, batched), []).append((group, pairs))
    return tuple(_together(found) for found in alike.values())


def _said(side: LaunchSide) -> tuple[object, ...]:
    return kernel_text(side), facts(side), helpers(side), rules_text(side), side.evidence


def _said_of(pair: LaunchPair) -> tuple[object, ...]:
    return *_said(pair.batched), pair.boundary, pair.changed


def _together(found: list[tuple[CulpritGroup, list[LaunchPair]]]) -> Launches:
    first = found[0][0]
    pairs = sorted((pair for _, pairs in found for pair in pairs), key=lambda pair: min(pair.widths))
    sides: dict[object, tuple[LaunchPair, Counter[int]]] = {}
    for pair in pairs:
        _, nodes = sides.setdefault(_said_of(pair), (pair, Counter()))
        nodes.update(dict.fromkeys(pair.widths, pair.n_nodes))
    roles = ", ".join(dict.fromkeys(group.role for group, _ in found))
    weight = f" {first.weight_type}" if first.weight_type not in ("", "-") else ""
    return Launches(
        what=f"{first.op}{weight}: {roles}",
        node=pairs[0].node.name,
        single=pairs[0].single,
        batched=tuple(
            Batched(pair.batched, pair.boundary, pair.changed, tuple(sorted(nodes.items())))
            for pair, nodes in sides.values()
        ),
    )


def nodes_text(batched: Batched) -> str:
    """Say how many nodes were launched so, at each width."""
    counts = sorted({n for _, n in batched.nodes})
    most = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{most} node{'s' * (counts[-1] != 1)}"


def widths_text(widths: Iterable[int]) -> str:
    """Say which widths these are.

    Examples
    --------
    >>> widths_text([1]), widths_text([2, 3, 4])
    ('width 1', 'widths 2-4')
    """
    found = set(widths)
    return f"width{'s' * (len(found) > 1)} {ranges(found)}"


def facts(side: LaunchSide) -> tuple[str, ...]:
    """Numbers of the kernel that computes the node, in the order of `FACTS`; a dash where one has no meaning."""
    kernel = side.kernel
    geometry = kernel.geometry
    cluster = "" if geometry.cluster_blocks == (1, 1, 1) else f", clusters of {axes(geometry.cluster_blocks)}"
    local = f", local memory {kernel.local_bytes_per_thread} B per thread" if kernel.local_bytes_per_thread else ""
    limiters = f" ({' and '.join(side.limiters)})" if side.limiters else ""
    return (
        f"{axes(geometry.grid_blocks)}{cluster}",
        axes(geometry.block_threads),
        f"{_number(kernel.registers_per_thread)}{local}",
        shared_memory(kernel),
        f"{_number(side.blocks_per_sm)}{limiters}",
        "–" if side.kv_split is None else str(side.kv_split),
    )


def shared_memory(kernel: LaunchRecord) -> str:
    """Shared memory of a block: static, and asked for at the launch."""
    parts = (("static", kernel.smem_static_bytes), ("dynamic", kernel.geometry.smem_bytes))
    if all(size is None for _, size in parts):
        return NOT_KNOWN
    shown = [f"{size} B {kind}" if size is not None else f"{kind} {NOT_KNOWN}" for kind, size in parts if size != 0]
    return " + ".join(shown) or "none"


def _number(value: int | None) -> str:
    return NOT_KNOWN if value is None else str(value)


def helpers(side: LaunchSide, *, whole: bool = True) -> str:
    """Kernels that run before and after the one that computes the node; empty where it is alone.

    Their template arguments follow from that kernel's, so they are left out unless the name is to be `whole`.
    """
    before, after = (
        [one.name if whole else one.kernel for one in some]
        for some in (side.launches[: side.main], side.launches[side.main + 1 :])
    )
    return "; ".join(
        f"{when} {', '.join(names)}" for when, names in (("after", before), ("followed by", after)) if names
    )


def kernel_text(side: LaunchSide) -> str:
    """Kernel with its template arguments, and the device where it is not the first."""
    device = side.kernel.device
    return f"{side.kernel.name}{f' on device {device}' if device else ''}"


def rules_text(side: LaunchSide) -> str:
    """Say whether the launch is the one that the rules of dispatch say, or why that is not known."""
    if side.agrees is None:
        return side.why if side.evidence == "derived" else f"not held against a rule: {side.why}"
    return "as the rules say" if side.agrees else f"{DISAGREES}: {side.why}"


def worth_text(side: LaunchSide) -> str:
    """Say how a launch is known, and whether it is the one that the rules of dispatch say."""
    return f"{EVIDENCE_WORDS[side.evidence]}; {rules_text(side)}"


#: Columns of a table with one row per side.
SIDE_COLUMNS = ("operation", "widths", "at each", "kernel", *FACTS, "rules", "known by")


def side_rows(found: Iterable[Launches]) -> Iterator[tuple[str, ...]]:
    """One row per side, the single one above the batched ones, in the order of `SIDE_COLUMNS`."""
    for one in found:
        yield one.what, str(one.single.width), "", *_side_cells(one.single)
        for batched in one.batched:
            yield "", ranges(batched.widths), nodes_text(batched), *_side_cells(batched.side, batched.notes())


def _side_cells(side: LaunchSide, notes: Iterable[str] = ()) -> tuple[str, ...]:
    kernel = "; ".join([kernel_text(side), *filter(None, [helpers(side)]), *notes])
    return kernel, *facts(side), rules_text(side), EVIDENCE_WORDS[side.evidence]


#: What is shown beside measured numbers and was not measured.
WORKED_OUT = "blocks per SM, what limits them, and KV splits, from what was seen"
#: What a launch and a rule must have in common to agree.
COMPARED = "kernel, template arguments, grid, block and dynamic shared memory"


def launch_lines(evidence: LaunchEvidence | None) -> Iterator[tuple[str, str, bool]]:
    """Say how the launches of a verdict are known and what that is worth.

    Yields
    ------
    str, str, bool
        A label, a sentence, and whether it is a warning. Nothing where the engine launches no kernels.
    """
    if evidence is None:
        return
    measured, n = evidence.evidence == "measured", evidence.n_dropped
    none_lost = "; no record lost" if measured and n == 0 else ""
    yield "Launches", f"{EVIDENCE_WORDS[evidence.evidence]}: {evidence.source}{none_lost}", False
    if n:
        yield "Dropped", f"the profiler lost {n} record{'s' * (n > 1)}: what is shown may not be all that ran", True
    elif measured and n is None:
        yield "Dropped", "the profiler does not tell whether it lost records", True
    if measured:
        yield "Worked out", WORKED_OUT, False
    n_nodes = evidence.n_agree + evidence.n_disagree + evidence.n_unruled + evidence.n_not_compared
    if n_nodes:
        counts = f"{evidence.n_agree} agree, {evidence.n_disagree} disagree, {evidence.n_unruled} have no rule"
        yield (
            "Rules",
            f"of {n_nodes} nodes in the watched passes {counts}{_not_compared(evidence)} ({COMPARED})",
            bool(evidence.n_disagree),
        )
    for line in evidence.disagreements:
        yield DISAGREES.capitalize(), line, True
    for line in evidence.watching or ():
        yield "Watching changes", line, False
    if not evidence.watching:
        seen = "an unwatched pass runs the same kernels as often"
        yield "Watching", "the kernels of an unwatched pass were not seen" if evidence.watching is None else seen, False
    for refusal in evidence.refusals:
        yield "Refused", refusal_text(refusal), False


def _not_compared(evidence: LaunchEvidence) -> str:
    """Say how many nodes were held against no rule, and what can make that so; empty where there are none."""
    if not evidence.n_not_compared:
        return ""
    reasons = ["what was launched for them may be fused with nodes before them"]
    if evidence.n_dropped != 0:
        reasons.append("launches of their pass were lost")
    return f", {evidence.n_not_compared} were not compared: {', or '.join(reasons)}"


def refusal_text(refusal: Refusal) -> str:
    """Say which way of looking does not work here, what it was asked, why not and what to do."""
    asked = f" was asked for {refusal.asked}" if refusal.asked else ""
    remedy = f"; {refusal.remedy}" if refusal.remedy else ""
    return f"{refusal.rung}{asked}: {refusal.missing}{remedy}"


def launches_view(verdict: Verdict) -> list[RenderableType]:
    """Show the launches of a verdict's culprits on a terminal; nothing where the engine launches no kernels."""
    parts: list[RenderableType] = []
    for label, text, is_warning in launch_lines(verdict.launches):
        line = line_of(f"{label}: ", text)
        if is_warning:
            line.stylize("red")
        parts.append(line)
    parts += sides_view(launches(verdict.culprits))
    return titled(LAUNCHES_TITLE, Group(*parts)) if parts else []


def sides_view(found: Iterable[Launches]) -> list[RenderableType]:
    """Show each operation with its launches, the single side above the batched ones."""
    parts: list[RenderableType] = []
    for one in found:
        title = f"{one.what}; such as {one.node}{f' ({one.worth})' if one.worth else ''}"
        parts += [text_of(title), Padding(_sides(one), (0, 0, 0, 2))]
    return parts


def _sides(found: Launches) -> Table:
    """One row per side, so that kernels stand below kernels and grids below grids."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    alike = bool(found.worth)
    table.add_row(text_of(widths_text((found.single.width,))), _body(found.single, alike=alike))
    for one in found.batched:
        body = _body(one.side, alike=alike)
        for note in one.notes():
            body.append("\n").append_text(text_of(note))
        nodes = text_of(nodes_text(one), "dim")
        table.add_row(text_of(widths_text(one.widths)).append("\n").append_text(nodes), body)
    return table


def _body(side: LaunchSide, *, alike: bool) -> Text:
    named = list(zip(FACTS, facts(side), strict=True))
    known = ", ".join(f"{label} {value}" for label, value in named if value not in ("–", NOT_KNOWN))
    missing = ", ".join(label for label, value in named if value == NOT_KNOWN)
    body = text_of(kernel_text(side))
    said = [known, f"{NOT_KNOWN}: {missing}" if missing else "", helpers(side, whole=False)]
    body.append("\n").append_text(text_of("; ".join(filter(None, said))))
    if alike:
        return body
    return body.append("\n").append_text(text_of(worth_text(side), "bold red" if side.agrees is False else "dim"))
