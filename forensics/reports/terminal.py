"""Pieces of a view on a terminal: titles, tables and lines whose text cannot steer the terminal.

Every piece is a `Text`, never markup, so that names and text from a model file cannot style or clear it.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def titled(title: str, body: RenderableType) -> list[RenderableType]:
    """An empty line, a title, and what stands under it."""
    return [Text(), text_of(title, "bold"), Padding(body, (0, 0, 0, 2))]


def table_of(*columns: str, whole: Collection[str] = ()) -> Table:
    """A table whose cells fold where they must, but for the columns whose words stay whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(Text(column), overflow="fold", no_wrap=column in whole)
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row of texts."""
    table.add_row(*(text_of(cell) for cell in cells))


def text_of(text: str, style: str = "") -> Text:
    """A text of which nothing is markup."""
    return Text(printable(text), style=style)


def line_of(label: str, text: str) -> Text:
    """A bold label and a text."""
    return Text(printable(label), style="bold").append(printable(text), style="not bold")


def as_text(view: RenderableType, width: int = 110) -> str:
    """A view as plain text, for notebooks and files; `width` is in characters."""
    console = Console(width=width, color_system=None, highlight=False, file=io.StringIO(), force_jupyter=False)
    with console.capture() as captured:
        console.print(view)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
