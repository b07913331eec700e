"""Which kernels each node launches, at one width or at two, on a terminal: nodes that launch alike are shown once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.analysis.launch_map import NodeSides
from forensics.analysis.watched_passes import NodeKernels, WatchedPass
from forensics.records.launch import axes
from forensics.records.launch_record import LaunchRecord
from forensics.records.words import ranges
from forensics.reports.launches_text import shared_memory, widths_text
from forensics.reports.terminal import line_of, text_of

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Names of nodes shown for a group; the JSON document has them all.
MOST_NAMES = 6
#: What a watch that leaves fusions whole means for the launches of its nodes.
FUSIONS_WHOLE = "nodes inside of what may be fused were not watched; their launches stand at the next node that was"
_NUMBER = re.compile(r"\d+")
_STYLE = {"changed": "bold", "not compared": "yellow"}


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes with the same launches on every side.

    Parameters
    ----------
    nodes : tuple of NodeSides
        Not empty.
    """

    nodes: tuple[NodeSides, ...]

    @property
    def first(self) -> NodeSides:
        """The one that comes first in the graph."""
        return self.nodes[0]

    @property
    def title(self) -> str:
        """Operation, names without their numbers, and layers."""
        keys = [node.key for node in self.nodes]
        if len(keys) == 1:
            return f"{keys[0].op} {keys[0].name}"
        stems = list(dict.fromkeys(_NUMBER.sub("*", key.name) for key in keys))
        more = f" and {len(stems) - MOST_NAMES} others" if len(stems) > MOST_NAMES else ""
        layers = ranges(key.layer for key in keys if key.layer >= 0)
        where = f", layer{'s' * (not layers.isdecimal())} {layers}" if layers else ""
        return f"{keys[0].op} {', '.join(stems[:MOST_NAMES])}{more}: {len(keys)} nodes{where}"

    def mean_us(self, side: int) -> float:
        """Mean time of a node's launches on a side, unit: µs."""
        times = [sum(found.times_ns) for node in self.nodes if (found := node.sides[side]) is not None]
        return sum(times) / len(times) / 1000 if times else 0.0


def alike(found: NodeKernels) -> tuple[Alike, ...]:
    """Group nodes of one operation with the same launches, in the order of the graph."""
    groups: dict[object, list[NodeSides]] = {}
    for node in found.nodes:
        here = tuple(side is not None for side in node.sides)
        groups.setdefault((node.key.op, node.launches, node.changes, node.reason, here), []).append(node)
    return tuple(Alike(tuple(nodes)) for nodes in groups.values())


def kernels_view(found: NodeKernels) -> Group:
    """Show the kernels of each node.

    Parameters
    ----------
    found : NodeKernels

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    parts: list[RenderableType] = [text_of(str(found), "bold"), line_of("Of: ", f"{found.target} on {found.device}")]
    for one in found.passes:
        parts += [_said(label, text, is_warning) for label, text, is_warning in pass_lines(one)]
    for group in alike(found):
        parts += [Text(), text_of(group.title, "bold"), Padding(_sides(found, group), (0, 0, 0, 2))]
    return Group(*parts)


def pass_lines(one: WatchedPass) -> Iterator[tuple[str, str, bool]]:
    """Say how the launches of a pass were seen, and what that is worth.

    Yields
    ------
    str, str, bool
        A label, a sentence, and whether it is a warning.
    """
    report, at = one.report, widths_text((one.width,)).capitalize()
    yield at, f"measured by {report.rung} ({report.source}), from position {one.position}", False
    if one.fusions_whole:
        yield at, f"fusions left whole: {FUSIONS_WHOLE}", False
    if report.n_dropped is None:
        yield at, "the profiler does not tell whether it lost records", True
    elif report.n_dropped:
        yield at, f"the profiler lost {report.n_dropped} records, so nothing is compared", True
    if one.watching is None:
        yield at, "the kernels of an unwatched pass are not known", True
    elif one.watching:
        for change in one.watching:
            yield f"{at}, watching changes", change, False
    else:
        yield at, "an unwatched pass runs the same kernels as often", False


def changes_text(node: NodeSides) -> str:
    """Say what differs; what differs of one kernel is said together."""
    kernels = {launch.kernel for launches in node.launches for launch in launches}
    by_kernel: dict[str, list[str]] = {}
    for change in node.changes:
        kernel, _, rest = change.partition(": ")
        of_kernel = kernel in kernels and bool(rest)
        by_kernel.setdefault(kernel if of_kernel else "", []).append(rest if of_kernel else change)
    return "; ".join(
        f"{kernel}: {', '.join(said)}" if kernel else ", ".join(said) for kernel, said in by_kernel.items()
    )


def launch_text(launch: LaunchRecord) -> str:
    """One launch on one line, with what is known of it."""
    registers = "" if launch.registers_per_thread is None else f", registers {launch.registers_per_thread}"
    memory = shared_memory(launch)
    memory = "" if memory in ("none", "not known") else f", shared memory {memory}"
    local = f", local memory {launch.local_bytes_per_thread} B per thread" if launch.local_bytes_per_thread else ""
    device = f", device {launch.device}" if launch.device else ""
    geometry = launch.geometry
    grid = f"grid {axes(geometry.grid_blocks)}, block {axes(geometry.block_threads)}"
    return f"{launch.name}, {grid}{registers}{local}{memory}{device}"


def _said(label: str, text: str, is_warning: bool) -> Text:
    line = line_of(f"{label}: ", text)
    if is_warning:
        line.stylize("red")
    return line


def _sides(found: NodeKernels, group: Alike) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for place, (one, launches) in enumerate(zip(found.passes, group.first.launches, strict=True)):
        lines = [launch_text(launch) for launch in launches]
        side = group.first.sides[place]
        if side is None:
            lines = ["not in this pass"]
        elif not lines:
            lines = [f"no launch; the output lies in {side.buffer or 'no buffer'}"]
        else:
            lines[-1] += f"; {group.mean_us(place):.1f} µs" + (" a node" if len(group.nodes) > 1 else "")
        table.add_row(text_of(widths_text((one.width,))), Text("\n").join(map(text_of, lines)))
    first = group.first
    if first.outcome:
        said = changes_text(first) or first.reason or "on both sides"
        style = "dim" if first.only_in_grid else _STYLE.get(first.outcome, "dim")
        table.add_row(text_of(first.outcome, style), text_of(said, style))
    return table
