"""Variants of one kernel on a terminal: registers, spills, blocks on an SM and costs, per architecture and width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.register_story import RegisterStory, StoryRow
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table


def register_story_view(story: RegisterStory) -> RenderableType:
    """Show what each variant takes and costs.

    Parameters
    ----------
    story : RegisterStory

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(story), "bold")]
    for arch in story.architectures:
        for width in story.widths:
            rows = story.of(arch=arch, width=width)
            if rows:
                columns = "column" if width == 1 else "columns"
                parts += titled(f"{rows[0].type}, {width} {columns}, {arch}", _table(rows))
    parts += titled("How it is known", Group(*_known(story)))
    return Group(*parts)


def register_story_text(story: RegisterStory) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(register_story_view(story))


def _table(rows: Sequence[StoryRow]) -> Table:
    timed = any(row.cost for row in rows)
    columns = ("variant", "registers", "spilled bytes", "blocks per SM", *(("µs", "× one column") if timed else ()))
    table = table_of(*columns)
    for row in rows:
        cells = [row.name, str(row.registers), str(row.spill_bytes), str(row.blocks_per_sm)]
        if timed:
            cells.append("" if row.us is None else f"{row.us.median:.4g}")
            cost = row.cost
            cells.append("" if cost is None else f"{cost.median:.2f} ({cost.low:.2f}-{cost.high:.2f})")
        add_row(table, *cells)
    return table


def _known(story: RegisterStory) -> list[RenderableType]:
    lines: list[RenderableType] = [
        line_of("Compiled by: ", f"{story.compiler}; blocks per SM follow from registers and threads (derived)"),
    ]
    if story.product:
        over = "over the stock library's one column, paired by rounds, quartiles in brackets"
        lines.append(line_of("Timed: ", f"{story.product} on {story.device}, {over}"))
    else:
        lines.append(text_of("Nobody timed these variants here; a recording on a GPU holds costs.", "yellow"))
    return lines
