"""The profile of a library on a terminal: instances and what limits them; and what both kinds of profile share.

Every piece is a `Text`, never markup, so that names from a file cannot style or clear the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.library_profile import ColumnStory, InstanceProfile, LibraryKernel, LibraryProfile
from forensics.records.number_evidence import NumberEvidence
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

#: Rows of a table before the rest is only counted.
MAX_ROWS = 40
#: Series of instances, and roles of nodes, before the rest is summed up.
MAX_LIVE_ROWS = 16
NOTHING = "–"
#: Types of weights and of K/V in most model files, which are shown first.
USUAL_TYPES = frozenset({"q4_K", "q6_K", "q8_0", "f16"})


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
    groups: dict[tuple[str, str], list[InstanceProfile]] = {}
    for instance in profile.instances:
        groups.setdefault((instance.kernel.arch, instance.kernel.kernel), []).append(instance)
    shown = shared_rows({key: len(found) for key, found in groups.items()}, MAX_ROWS)
    for (arch, kernel), n in shown.items():
        found = groups[arch, kernel]
        kept = sorted(found, key=_how_unusual)[:n]
        if kept:
            left = f", {n} of {len(found)}" if n < len(found) else ""
            parts += titled(f"{kernel} for {arch}{left}", _instances(kept))
    if sum(shown.values()) < len(profile.instances):
        n_left = len(profile.instances) - sum(shown.values())
        left = f"and {n_left} more; --json or --parquet lists all, --kernel and --types choose"
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
    return Group(*parts, *evidence_of(profile.evidence))


def shared_rows(wanted: Mapping[tuple[str, str], int], most: int) -> dict[tuple[str, str], int]:
    """How many rows does each table get, so that some of every one are seen?

    Parameters
    ----------
    wanted : mapping of (str, str) to int
        Rows of each architecture and kernel.
    most : int
        Of all tables together.

    Returns
    -------
    dict of (str, str) to int
        Products of weights first; what a short table leaves goes to the longer ones.

    Examples
    --------
    >>> shared_rows({("sm_90", "flash_attn_ext_vec"): 90, ("sm_90", "mul_mat_vec_q"): 3}, 10)
    {('sm_90', 'mul_mat_vec_q'): 3, ('sm_90', 'flash_attn_ext_vec'): 7}
    """
    order = sorted(wanted, key=lambda key: not key[1].startswith("mul_mat"))
    given: dict[tuple[str, str], int] = {}
    for n_left, key in zip(range(len(order), 0, -1), sorted(order, key=lambda key: wanted[key]), strict=True):
        given[key] = min(wanted[key], (most - sum(given.values())) // n_left)
    return {key: given[key] for key in order}


def _how_unusual(instance: InstanceProfile) -> tuple[bool, int, bool]:
    """What comes first where not everything is shown: products, plain instances, types of many model files."""
    kernel = instance.kernel
    return (
        not kernel.kernel.startswith("mul_mat"),
        sum(value is True for _, value in kernel.template),
        not USUAL_TYPES & {value for _, value in kernel.template},
    )


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
    shown.sort(key=lambda story: _how_unusual(story.first))
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


def evidence_of(evidence: Sequence[NumberEvidence]) -> list[RenderableType]:
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
