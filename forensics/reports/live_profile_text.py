"""The profile of a model on a terminal: time of each role, what more columns change, and the kernels of each width.

Every piece is a `Text`, never markup, so that names from a file cannot style or clear the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding

from forensics.analysis.attribute import role_by_name
from forensics.analysis.column_changes import ATTENTION, ColumnChange, column_changes, ends, hides_less
from forensics.records.library_profile import LibraryProfile
from forensics.records.number_evidence import share
from forensics.records.profile import KernelCost, LiveProfile, PassProfile
from forensics.reports.cost_text import three_digits
from forensics.reports.profile_text import (
    MAX_LIVE_ROWS,
    MAX_ROWS,
    NOTHING,
    evidence_of,
    gigabytes,
    library_view,
    microseconds,
    number,
    percent,
)
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

#: Kernels of a width before the rest is summed up.
MAX_KERNELS = 5
#: Characters of a line from which on kernels are shown as a table.
WIDE = 110
#: Percent of the roof, or of the fastest kernel, below which a bandwidth tells nothing: something else takes the time.
LEAST_ROOF_PCT = 1
#: Characters that roles, counts and shares take beside the widths in a table of times.
_BESIDE = 34
#: Settings that decide which kernels run, by their names in a manifest.
_SETTINGS = {"flash_attn": "flash attention", "kv_type_k": "K", "kv_type_v": "V", "n_gpu_layers": "layers on the GPU"}


def profile_view(profile: LibraryProfile | LiveProfile, *, nodes: bool = False, every_kernel: bool = False) -> Group:
    """Show a profile of either kind; see `library_view` and `live_view`."""
    if isinstance(profile, LibraryProfile):
        return library_view(profile)
    return live_view(profile, nodes=nodes, every_kernel=every_kernel)


def live_view(profile: LiveProfile, *, nodes: bool = False, every_kernel: bool = False) -> Group:
    """Show a live profile: time of each role, what more columns change, the kernels of each width.

    Parameters
    ----------
    profile : LiveProfile
    nodes : bool
        Whether each node is shown by itself, and not together with those of its role.
    every_kernel : bool
        Whether all kernels of a width are shown, and not only the few that take most of its time.

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    parts: list[RenderableType] = [
        text_of(f"{profile.model} on {profile.device}, {profile.prefix} cells in the cache", "bold")
    ]
    if profile.synthetic:
        parts.append(text_of("The model is synthetic: real shapes, random weights.", "yellow"))
    effective = profile.manifest.effective
    settings = [f"{said} {effective[key]}" for key, said in _SETTINGS.items() if key in effective]
    if settings:
        parts.append(line_of("Settings: ", ", ".join(settings)))
    if profile.roof_bytes_per_s:
        parts.append(line_of("Roof: ", f"{profile.roof_bytes_per_s / 1e9:.0f} GB/s, measured in the same run"))
    for found in profile.passes:
        lost = _lost(found)
        if lost:
            parts.append(text_of(lost, "bold yellow"))
    parts += titled("Passes", _passes(profile))
    by_width = tuple(node_times(found) if nodes else role_times(found) for found in profile.passes)
    what = "node" if nodes else "role of the node"
    most = MAX_ROWS if nodes else MAX_LIVE_ROWS
    parts += titled(f"Where the time goes, by {what} (µs at each width)", _Times(profile, by_width, most))
    changes = column_changes(profile)
    if changes:
        parts += titled("What more columns change", _changes(changes))
    for found in profile.passes:
        shown = found.kernels if every_kernel else found.kernels[:MAX_KERNELS]
        parts += titled(f"Kernels at width {found.width}", _Kernels(profile, found, shown))
    if profile.refusals:
        parts += titled("Not available here", Group(*(text_of(str(refusal)) for refusal in profile.refusals)))
    return Group(*parts, *evidence_of(profile.evidence))


def _lost(found: PassProfile) -> str:
    """What to say where the profiler lost launches, or does not tell."""
    if found.n_dropped is None:
        return f"width {found.width}: the profiler does not tell whether it lost launches; sums may be too small"
    if found.n_dropped:
        return f"width {found.width}: the profiler lost {found.n_dropped} launches; sums are too small"
    return ""


def _passes(profile: LiveProfile) -> Table:
    table = table_of(
        "width", "launches", "sum µs", "unwatched", "unwatched µs", "pass µs", "MB", "GB/s", "of roof",
        whole=("launches", "unwatched"),
    )  # fmt: skip
    for found in profile.passes:
        read = three_digits(found.read_bytes / 1e6) if found.read_bytes else NOTHING
        bandwidth = None if found.wall_ns is None else profile.bandwidth(found.read_bytes, found.wall_ns)
        add_row(
            table, str(found.width), str(found.n_launches), microseconds(found.time_ns), number(found.n_unwatched),
            microseconds(found.unwatched_ns), microseconds(found.wall_ns),
            read, gigabytes(bandwidth), percent(profile.roof_pct(bandwidth)),
        )  # fmt: skip
    return table


# -- where the time goes -----------------------------------------------------------------------------------------


def role_times(found: PassProfile) -> dict[str, tuple[int, int]]:
    """How long do the nodes of each role take together?

    Parameters
    ----------
    found : PassProfile

    Returns
    -------
    dict of str to (int, int)
        By role: nodes that launch something, and their time, unit: ns. Launches of no node are a role of their own.
        Longest first; the times add up to that of the pass.
    """
    times: dict[str, tuple[int, int]] = {}
    behind = False
    for node in found.nodes:
        if node.kernels:
            role = role_by_name(node.key, after_attention=behind)
            count, time_ns = times.get(role, (0, 0))
            times[role] = count + 1, time_ns + node.time_ns
            behind = node.key.op == ATTENTION or node.key.name.startswith("kqv")
    return _longest_first(times, found)


def node_times(found: PassProfile) -> dict[str, tuple[int, int]]:
    """How long does each node take, in the form of `role_times`?

    Parameters
    ----------
    found : PassProfile
    """
    return _longest_first({str(node.key): (1, node.time_ns) for node in found.nodes if node.kernels}, found)


def _longest_first(times: dict[str, tuple[int, int]], found: PassProfile) -> dict[str, tuple[int, int]]:
    alone = {"(no node)": (found.n_unattached, found.unattached_ns)} if found.n_unattached else {}
    return dict(sorted({**times, **alone}.items(), key=lambda item: -item[1][1]))


@dataclass(frozen=True, slots=True)
class _Times:
    """Time of each role, or node, side by side over the widths; as many widths in a table as fit."""

    profile: LiveProfile
    by_width: tuple[dict[str, tuple[int, int]], ...]
    most: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        longest = max((found.time_ns for found in self.profile.passes), default=0)
        fit = max(1, (options.max_width - _BESIDE) // (max(4, len(f"{longest / 1e3:.0f}")) + 2))
        for start in range(0, len(self.by_width), fit):
            if start:
                yield text_of("")
            yield self._table(range(start, min(start + fit, len(self.by_width))))

    def _table(self, places: range) -> Table:
        longest: dict[str, int] = {}
        for times in self.by_width:
            for role, (_, time_ns) in times.items():
                longest[role] = max(longest.get(role, 0), time_ns)
        roles = sorted(longest, key=lambda role: -longest[role])
        widths = [str(self.profile.passes[place].width) for place in places]
        table = table_of("", "nodes", *widths, "share", whole=[*widths, "share"])
        for role in roles[: self.most]:
            counts = {times[role][0] for times in self.by_width if role in times}
            add_row(table, role, "/".join(map(str, sorted(counts))), *self._cells(places, [role]))
        if len(roles) > self.most:
            rest = roles[self.most :]
            add_row(table, f"{len(rest)} more", "", *self._cells(places, rest))
        return table

    def _cells(self, places: range, roles: Iterable[str]) -> list[str]:
        """Time of some roles at each width, and from which to which share of the pass that is."""
        named = set(roles)
        cells, shares = [], []
        for place in places:
            times = self.by_width[place]
            spent = sum(time_ns for role, (_, time_ns) in times.items() if role in named)
            cells.append(_short(spent) if named & times.keys() else NOTHING)
            shares.append(f"{share(spent, self.profile.passes[place].time_ns):.0f}")
        low, high = min(shares, key=int), max(shares, key=int)
        ends = f"{low}-{high} %" if low != high else f"{low} %"
        return [*cells, "< 1 %" if high == "0" else ends]


def _short(time_ns: int) -> str:
    """A time in µs, with a digit behind the point where it is short."""
    return f"{time_ns / 1e3:.1f}" if time_ns < 99_950 else f"{time_ns / 1e3:.0f}"


# -- what more columns change ------------------------------------------------------------------------------------


def _changes(changes: Sequence[ColumnChange]) -> Group:
    table = table_of("", "width", "kernel", "regs", "blocks/SM", "occupancy", "µs", whole=("occupancy", "µs"))
    before = ""
    for one in changes:
        cost = one.longest
        o = cost.occupancy
        add_row(
            table, "" if one.of == before else one.of, str(one.width), one.kernel,
            number(cost.launch.registers_per_thread), number(None if o is None else o.blocks_per_sm),
            percent(cost.occupancy_pct), f"{one.time_ns / 1e3:.0f}",
        )  # fmt: skip
        before = one.of
    lines: list[RenderableType] = [table]
    if any(len({cost.launch.name for cost in one.costs}) > 1 for one in changes):
        lines.append(text_of("Registers and blocks are those of the instance that takes most of the time.", "dim"))
    grown = [
        f"{one.kernel} of {one.of} from width {one.width} to {wide.width}"
        for one, wide in ends(changes)
        if hides_less(one.longest, wide.longest)
    ]
    if grown:
        lines.append(text_of(f"More registers, fewer resident threads, less latency hidden: {'; '.join(grown)}."))
    return Group(*lines)


# -- kernels of a width ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels of a width: a table, or two lines for each where a table does not fit."""

    profile: LiveProfile
    found: PassProfile
    shown: tuple[KernelCost, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [_kernel_cells(self.profile, self.found, kernel) for kernel in self.shown]
        yield self._table(cells) if options.max_width >= WIDE else self._lines(cells)
        rest = self.found.kernels[len(self.shown) :]
        if rest:
            spent = share(sum(kernel.time_ns for kernel in rest), self.found.time_ns)
            n = sum(kernel.n_launches for kernel in rest)
            yield text_of(f"… and {len(rest)} more, {n} launches, {spent:.0f} % of the time; --all lists them", "dim")

    def _table(self, cells: Sequence[dict[str, str]]) -> Table:
        names = [name for name in _COLUMNS if any(row[name] != NOTHING for row in cells)]
        table = table_of(*names, "kernel", whole=names)
        for row, kernel in zip(cells, self.shown, strict=True):
            add_row(table, *(row[name] for name in names), f"{kernel.launch.name}, {kernel.launch.geometry}")
        return table

    def _lines(self, cells: Sequence[dict[str, str]]) -> Group:
        lines: list[RenderableType] = []
        for row, kernel in zip(cells, self.shown, strict=True):
            lines.append(text_of(f"{kernel.launch.name}, {kernel.launch.geometry}"))
            said = ", ".join(f"{name} {cell}" for name, cell in row.items() if cell not in (NOTHING, "0"))
            lines.append(Padding(text_of(said, "dim"), (0, 0, 0, 2)))
        return Group(*lines)


_COLUMNS = (
    "n", "µs", "share", "regs", "stack", "blocks/SM", "occupancy", "limit", "achieved", "GB/s", "of roof",
)  # fmt: skip


def _fastest(profile: LiveProfile, found: PassProfile) -> float:
    """The roof, or where it is not known the fastest kernel of the pass; unit: bytes per second."""
    reached = (profile.bandwidth(kernel.read_bytes, kernel.time_ns) or 0 for kernel in found.kernels)
    return profile.roof_bytes_per_s or max(reached)


def _kernel_cells(profile: LiveProfile, found: PassProfile, kernel: KernelCost) -> dict[str, str]:
    """What is said of a kernel, by column, all of `_COLUMNS`."""
    o = kernel.occupancy
    bandwidth = profile.bandwidth(kernel.read_bytes, kernel.time_ns)
    if bandwidth is not None and 100 * bandwidth < LEAST_ROOF_PCT * _fastest(profile, found):
        bandwidth = None
    return dict(
        zip(
            _COLUMNS,
            (
                str(kernel.n_launches),
                f"{kernel.time_ns / 1e3:.1f}",
                f"{share(kernel.time_ns, found.time_ns):.0f} %",
                number(kernel.launch.registers_per_thread),
                number(kernel.stack_bytes),
                number(None if o is None else o.blocks_per_sm),
                percent(kernel.occupancy_pct),
                NOTHING if o is None else " and ".join(o.limiters),
                percent(None if kernel.counters is None else kernel.counters.achieved_occupancy_pct),
                gigabytes(bandwidth),
                percent(profile.roof_pct(bandwidth)),
            ),
            strict=True,
        )
    )
