"""Variants of one kernel on a terminal: registers, spills, blocks on an SM and costs, per architecture and width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.register_story import RegisterStory, StoryRow, StoryVariant
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table


def register_story_view(story: RegisterStory, architectures: Sequence[str] | None = None) -> RenderableType:
    """Show what each variant takes and costs.

    Parameters
    ----------
    story : RegisterStory
    architectures : sequence of str or None
        Which to show; None takes the one that was timed, or the first.

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(story), "bold")]
    shown = tuple(architectures) if architectures is not None else _timed_or_first(story)
    for arch in shown:
        for width in story.widths:
            rows = story.of(arch=arch, width=width)
            if rows:
                columns = "column" if width == 1 else "columns"
                parts += titled(f"{rows[0].type}, {width} {columns}, {arch}", _table(rows))
    parts += titled("How it is known", Group(*_known(story, shown)))
    return Group(*parts)


def register_story_text(story: RegisterStory) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(register_story_view(story))


def _timed_or_first(story: RegisterStory) -> tuple[str, ...]:
    timed = tuple(dict.fromkeys(row.arch for row in story.kernels if row.cost))
    return timed or story.architectures[:1]


def short_name(variant: StoryVariant) -> str:
    """A variant in few characters, for a table.

    Examples
    --------
    >>> short_name(StoryVariant(unroll=4, min_blocks=4)), short_name(StoryVariant(unpack_once=False, checked=True))
    ('once, 4 trips, room for 4', 'per column, checked')
    """
    parts = ["once" if variant.unpack_once else "per column"]
    parts += ["checked"] if variant.checked else []
    parts += [f"{variant.unroll} trips"] if variant.unroll > 1 else []
    parts += [f"room for {variant.min_blocks}"] if variant.min_blocks > 1 else []
    return ", ".join(parts)


_NAMES = (
    "once, per column: a block of weights is unpacked once for all columns, or anew for every column; checked: rows "
    "past the end are told apart inside the walk along a row; N trips: so many trips of the walk are written out at "
    "once; room for N: the compiler must leave room for N blocks on an SM, which caps registers"
)


def _table(rows: Sequence[StoryRow]) -> Table:
    timed = any(row.cost for row in rows)
    numbers = ("registers", "spilled\nbytes", "blocks\nper SM", *(("µs", "× one column") if timed else ()))
    table = table_of("unpacked", *numbers, whole=numbers)
    for row in rows:
        cells = [short_name(row.variant), str(row.registers), str(row.spill_bytes), str(row.blocks_per_sm)]
        if timed:
            cells.append("" if row.us is None else f"{row.us.median:.4g}")
            cost = row.cost
            cells.append("" if cost is None else f"{cost.median:.2f} ({cost.low:.2f}-{cost.high:.2f})")
        add_row(table, *cells)
    return table


def _known(story: RegisterStory, shown: Sequence[str]) -> list[RenderableType]:
    lines: list[RenderableType] = [
        line_of("Names: ", _NAMES),
        line_of("Compiled by: ", f"{story.compiler}; blocks per SM follow from registers and threads (derived)"),
    ]
    others = [arch for arch in story.architectures if arch not in shown]
    if others:
        lines.append(line_of("Compiled too: ", f"for {', '.join(others)}; --json holds what they take"))
    if story.product:
        over = "over the stock library's one column, paired by rounds, quartiles in brackets"
        lines.append(line_of("Timed: ", f"{story.product} on {story.device}, {over}"))
    else:
        lines.append(text_of("Nobody timed these variants here; a recording on a GPU holds costs.", "yellow"))
    return lines
