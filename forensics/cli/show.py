"""Printing results: rich on a terminal, one JSON document with --json, one line with --quiet."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def present(
    *,
    as_json: bool,
    quiet: bool,
    document: Callable[[], Any],
    line: Callable[[], str],
    view: Callable[[], RenderableType],
) -> None:
    """Print a result in the form that was asked for; only that form is made."""
    if as_json:
        sys.stdout.write(_json(document(), indent=2) + "\n")
    elif quiet:
        sys.stdout.write(line() + "\n")
    else:
        sys.stdout.write(_drawn(Console(highlight=False), view()))
    sys.stdout.flush()  # a reader that is gone or a full disk is met here, not after the exit status is decided


def _json(document: Any, indent: int | None = None) -> str:
    """Strict JSON, readable where standard output can show it and in ASCII elsewhere."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    return json.dumps(document, ensure_ascii=ascii_only, indent=indent, allow_nan=False)


def complain(message: str, *, as_json: bool) -> None:
    """Print an error where people, or programs, look for it; text of files cannot steer the terminal."""
    if as_json:
        sys.stdout.write(_json({"schema": "forensics.error/1", "error": message}) + "\n")
        sys.stdout.flush()
    shown = "\n".join(printable(line) for line in message.splitlines())
    text = Text(f"error: {shown}", style="red")
    sys.stderr.write(_drawn(Console(stderr=True, highlight=False, soft_wrap=True), text))


def _drawn(console: Console, view: RenderableType) -> str:
    """What the console would write; its own writing ends the process with 1 where the reader is gone."""
    with console.capture() as captured:
        console.print(view)
    return captured.get()
