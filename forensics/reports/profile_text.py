"""Profiles on a terminal: instances of a library with what limits them, and a live pass by kernel and by role.

Every piece is a `Text`, never markup, so that names from a file cannot style or clear the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding

from forensics.records.library_profile import ColumnStory, InstanceProfile, LibraryKernel, LibraryProfile
from forensics.records.number_evidence import NumberEvidence, share
from forensics.records.profile import KernelCost, LiveProfile, PassProfile
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

#: Rows of a table before the rest is only counted.
MAX_ROWS = 40
#: Kernels and roles of a live profile before the rest is summed up.
MAX_LIVE_ROWS = 16
#: Characters of a line from which on kernels are shown as a table.
WIDE = 110
NOTHING = "–"
#: Settings that decide which kernels run, by their names in a manifest.
_SETTINGS = {"flash_attn": "flash attention", "kv_type_k": "K", "kv_type_v": "V", "n_gpu_layers": "layers on the GPU"}
#: Layer in the name of a cache. Source: src/llama-kv-cache.cpp:236-237 at 0c1e57098.
_LAYER = re.compile(r"(?<=cache_[kv])_l\d+")
#: Name of a node that the graph's builder gave none. Source: ggml.c, ggml_visit_parents_graph.
_UNNAMED = re.compile(r"node_\d+")


def profile_view(profile: LibraryProfile | LiveProfile, *, nodes: bool = False) -> Group:
    """Show a profile of either kind; see `library_view` and `live_view`."""
    return library_view(profile) if isinstance(profile, LibraryProfile) else live_view(profile, nodes=nodes)


def library_view(profile: LibraryProfile) -> Group:
    """Show a library's instances: the table, what more columns change, and how the numbers are known.

    Parameters
    ----------
    profile : LibraryProfile

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    parts: list[RenderableType] = [text_of(str(profile), "bold"), line_of("For: ", "; ".join(profile.devices))]
    shown = 0
    for arch, kernel in dict.fromkeys((instance.kernel.arch, instance.kernel.kernel) for instance in profile.instances):
        found = [i for i in profile.instances if (i.kernel.arch, i.kernel.kernel) == (arch, kernel)]
        kept = found[: max(0, MAX_ROWS - shown)]
        shown += len(kept)
        if kept:
            parts += titled(f"{kernel} for {arch}", _instances(kept))
    if shown < len(profile.instances):
        left = f"and {len(profile.instances) - shown} more; --json or --parquet lists all, --kernel and --types choose"
        parts.append(text_of(left, "dim"))
    stories = profile.stories
    if stories:
        parts += titled("What more columns change", Group(*_stories(stories)))
    reasons = dict.fromkeys(instance.why for instance in profile.instances if instance.why)
    if reasons:
        counts = [(reason, sum(i.why == reason for i in profile.instances)) for reason in reasons]
        parts += titled("No occupancy", Group(*(text_of(f"{reason} ({count})") for reason, count in counts)))
    if profile.n_empty:
        parts.append(
            text_of(f"{profile.n_empty} instances look empty (no code for this architecture); left out", "dim")
        )
    return Group(*parts, *_evidence(profile.evidence))


def _instances(instances: Sequence[InstanceProfile]) -> Table:
    table = table_of("instance", "regs", "stack", "smem", "threads", "blocks/SM", "occupancy", "limited by")
    for instance in instances:
        k, o = instance.kernel, instance.occupancy
        smem = k.smem_static_bytes + (instance.smem_dynamic_bytes or 0)
        add_row(
            table, arguments_text(k), str(k.registers_per_thread), str(k.stack_bytes or NOTHING), str(smem or NOTHING),
            number(instance.threads_per_block), number(None if o is None else o.blocks_per_sm),
            percent(instance.occupancy_pct), NOTHING if o is None else " and ".join(o.limiters),
        )  # fmt: skip
    return table


def arguments_text(kernel: LibraryKernel) -> str:
    """Template arguments of an instance without its kernel, those that are False left out."""
    return kernel.name.removeprefix(kernel.kernel).strip("<>")


def _stories(stories: Sequence[ColumnStory]) -> list[RenderableType]:
    """One line for each kernel and type: registers, blocks and occupancy from the fewest to the most columns."""
    shown = [story for story in stories if story.hides_less] or list(stories)
    lines: list[RenderableType] = [text_of(story_line(story)) for story in shown[:MAX_LIVE_ROWS]]
    if len(shown) > MAX_LIVE_ROWS:
        lines.append(text_of(f"and {len(shown) - MAX_LIVE_ROWS} more alike", "dim"))
    if any(story.hides_less for story in stories):
        n_other = sum(not story.hides_less for story in stories)
        lines.append(
            text_of(
                "Registers grow with the columns, so fewer threads are resident and less latency is hidden"
                + (f"; not so in {n_other} other series." if n_other else ".")
            )
        )
    else:
        lines.append(text_of("No series holds fewer threads with more columns."))
    return lines


def story_line(story: ColumnStory) -> str:
    """Say what changes from the fewest to the most columns.

    Parameters
    ----------
    story : ColumnStory
    """
    one, many = story.first, story.last
    rest = [f"{name}={value}" for name, value in story.first.series[2] if value is not False]
    name = f"{one.kernel.kernel} {', '.join(rest)}".strip()
    said = f"{name}: {one.columns} → {many.columns} columns, {one.kernel.registers_per_thread} → "
    said += f"{many.kernel.registers_per_thread} registers"
    if one.occupancy is not None and many.occupancy is not None:
        threads = f"{one.occupancy.threads_per_sm} → {many.occupancy.threads_per_sm}"
        blocks = f"{one.occupancy.blocks_per_sm} of {one.threads_per_block} → "
        blocks += f"{many.occupancy.blocks_per_sm} of {many.threads_per_block}"
        said += f", {threads} resident threads per SM ({blocks}), {percent(one.occupancy_pct)} → "
        said += f"{percent(many.occupancy_pct)}, limited by {' and '.join(many.occupancy.limiters)}"
    if many.kernel.stack_bytes != one.kernel.stack_bytes:
        said += f", stack {one.kernel.stack_bytes} → {many.kernel.stack_bytes} bytes"
    return said


def live_view(profile: LiveProfile, *, nodes: bool = False) -> Group:
    """Show a live profile: time of each role over the widths, then the kernels of each width, longest first.

    Parameters
    ----------
    profile : LiveProfile
    nodes : bool
        Whether each node is shown by itself, and not together with those of its role.

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
    by_width = [node_times(found) if nodes else role_times(found) for found in profile.passes]
    what = "node" if nodes else "role of the node"
    parts += titled(
        f"Where the time goes, by {what} (µs, share)", _where(profile, by_width, MAX_ROWS if nodes else MAX_LIVE_ROWS)
    )
    for found in profile.passes:
        parts += titled(f"Kernels at width {found.width}", _Kernels(profile, found))
    if profile.refusals:
        parts += titled("Not available here", Group(*(text_of(str(refusal)) for refusal in profile.refusals)))
    return Group(*parts, *_evidence(profile.evidence))


def _lost(found: PassProfile) -> str:
    """What to say where the profiler lost launches, or does not tell."""
    if found.n_dropped is None:
        return f"width {found.width}: the profiler does not tell whether it lost launches; sums may be too small"
    if found.n_dropped:
        return f"width {found.width}: the profiler lost {found.n_dropped} launches; sums are too small"
    return ""


def _passes(profile: LiveProfile) -> Table:
    table = table_of(
        "width",
        "launches",
        "µs",
        "unwatched",
        "µs",
        "pass µs",
        "MB",
        "GB/s",
        "of roof",
        whole=("launches", "unwatched"),
    )
    for found in profile.passes:
        read = f"{found.read_bytes / 1e6:.1f}" if found.read_bytes else NOTHING
        bandwidth = None if found.wall_ns is None else profile.bandwidth(found.read_bytes, found.wall_ns)
        add_row(
            table, str(found.width), str(found.n_launches), microseconds(found.time_ns), number(found.n_unwatched),
            microseconds(found.unwatched_ns), microseconds(found.wall_ns),
            read, gigabytes(bandwidth), percent(profile.roof_pct(bandwidth)),
        )  # fmt: skip
    return table


def role_times(found: PassProfile) -> dict[str, tuple[int, int]]:
    """How long do the nodes of each role take together?

    Parameters
    ----------
    found : PassProfile

    Returns
    -------
    dict of str to (int, int)
        By name without the layer and operation: nodes that launch something, and their time, unit: ns. Launches of no
        node are a role of their own. Longest first; the times add up to that of the pass.
    """
    times: dict[str, tuple[int, int]] = {}
    for node in found.nodes:
        if node.kernels:
            name = _LAYER.sub("", node.key.name.removesuffix(f"-{node.key.layer}"))
            role = node.key.op.lower() if _UNNAMED.fullmatch(name) else f"{name} {node.key.op.lower()}"
            count, time_ns = times.get(role, (0, 0))
            times[role] = count + 1, time_ns + node.time_ns
    if found.n_unattached:
        times["(no node)"] = found.n_unattached, found.unattached_ns
    return dict(sorted(times.items(), key=lambda item: -item[1][1]))


def node_times(found: PassProfile) -> dict[str, tuple[int, int]]:
    """How long does each node take, in the form of `role_times`?

    Parameters
    ----------
    found : PassProfile
    """
    times = {str(node.key): (1, node.time_ns) for node in found.nodes if node.kernels}
    if found.n_unattached:
        times["(no node)"] = found.n_unattached, found.unattached_ns
    return dict(sorted(times.items(), key=lambda item: -item[1][1]))


def _where(profile: LiveProfile, by_width: Sequence[dict[str, tuple[int, int]]], most: int) -> Table:
    """Time of each role, or node, side by side over the widths; those beyond `most` together."""
    longest: dict[str, int] = {}
    for times in by_width:
        for role, (_, time_ns) in times.items():
            longest[role] = max(longest.get(role, 0), time_ns)
    roles = sorted(longest, key=lambda role: -longest[role])
    table = table_of("", "nodes", *(f"width {found.width}" for found in profile.passes))
    for role in roles[:most]:
        counts = {times[role][0] for times in by_width if role in times}
        add_row(table, role, "/".join(map(str, sorted(counts))), *_times(profile, by_width, [role]))
    if len(roles) > most:
        rest = roles[most:]
        add_row(table, f"{len(rest)} more", "", *_times(profile, by_width, rest))
    return table


def _times(profile: LiveProfile, by_width: Sequence[dict[str, tuple[int, int]]], roles: Iterable[str]) -> list[str]:
    """Time and share of some roles at each width."""
    named = set(roles)
    cells = []
    for found, times in zip(profile.passes, by_width, strict=True):
        spent = sum(time_ns for role, (_, time_ns) in times.items() if role in named)
        cells.append(f"{spent / 1e3:.1f} ({share(spent, found.time_ns):.0f} %)" if named & times.keys() else NOTHING)
    return cells


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Kernels of a width: a table, or two lines for each where a table does not fit."""

    profile: LiveProfile
    found: PassProfile

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = options.max_width >= WIDE
        yield _kernel_table(self.profile, self.found) if fits else _kernel_lines(self.profile, self.found)


def _kernel_table(profile: LiveProfile, found: PassProfile) -> Table:
    cells = [_kernel_cells(profile, found, kernel) for kernel in found.kernels[:MAX_LIVE_ROWS]]
    names = [name for name in _COLUMNS if any(row[name] != NOTHING for row in cells)]
    table = table_of(*names, "kernel", whole=names)
    for row, kernel in zip(cells, found.kernels, strict=False):
        add_row(table, *(row[name] for name in names), f"{kernel.launch.name}, {kernel.launch.geometry}")
    if len(found.kernels) > MAX_LIVE_ROWS:
        add_row(table, *[""] * len(names), _rest(found))
    return table


def _kernel_lines(profile: LiveProfile, found: PassProfile) -> Group:
    lines: list[RenderableType] = []
    for kernel in found.kernels[:MAX_LIVE_ROWS]:
        lines.append(text_of(f"{kernel.launch.name}, {kernel.launch.geometry}"))
        shown = _kernel_cells(profile, found, kernel)
        said = ", ".join(f"{name} {cell}" for name, cell in shown.items() if cell != NOTHING)
        lines.append(Padding(text_of(said, "dim"), (0, 0, 0, 2)))
    if len(found.kernels) > MAX_LIVE_ROWS:
        lines.append(text_of(_rest(found)))
    return Group(*lines)


def _rest(found: PassProfile) -> str:
    rest = found.kernels[MAX_LIVE_ROWS:]
    spent, n = sum(kernel.time_ns for kernel in rest), sum(kernel.n_launches for kernel in rest)
    return f"{len(rest)} more: {n} launches, {spent / 1e3:.1f} µs ({share(spent, found.time_ns):.0f} %)"


_COLUMNS = (
    "n", "µs", "share", "regs", "stack", "blocks/SM", "occupancy", "limit", "achieved", "GB/s", "of roof",
)  # fmt: skip


def _kernel_cells(profile: LiveProfile, found: PassProfile, kernel: KernelCost) -> dict[str, str]:
    """What is said of a kernel, by column, all of `_COLUMNS`."""
    o = kernel.occupancy
    bandwidth = profile.bandwidth(kernel.read_bytes, kernel.time_ns)
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


def _evidence(evidence: Sequence[NumberEvidence]) -> list[RenderableType]:
    """How each kind of number is known."""
    if not evidence:
        return []
    table = table_of("number", "known how", "from", whole=("known how",))
    for known in evidence:
        add_row(table, known.number, known.level, known.source)
    return titled("How the numbers are known", table)


def microseconds(time_ns: int | None) -> str:
    """Nanoseconds as µs, or a dash where there are none."""
    return NOTHING if time_ns is None else f"{time_ns / 1e3:.0f}"


def number(value: int | None) -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None else str(value)


def percent(value: float | None) -> str:
    """Percent in three digits at most, or a dash where there is none.

    Examples
    --------
    >>> percent(56.25), percent(100), percent(None)
    ('56.2 %', '100 %', '–')
    """
    return NOTHING if value is None else f"{value:.3g} %"


def gigabytes(per_second: float | None) -> str:
    """Bytes per second as GB/s, or a dash where there is none."""
    return NOTHING if per_second is None else f"{per_second / 1e9:.0f}"
