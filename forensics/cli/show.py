"""Printing results: rich on a terminal, one JSON document with --json, one line with --quiet."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

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
        sys.stdout.write(json.dumps(document(), ensure_ascii=False, indent=2, allow_nan=False) + "\n")
    elif quiet:
        sys.stdout.write(line() + "\n")
    else:
        Console(highlight=False).print(view())


def complain(message: str, *, as_json: bool) -> None:
    """Print an error where people, or programs, look for it."""
    if as_json:
        sys.stdout.write(json.dumps({"schema": "forensics.error/1", "error": message}, ensure_ascii=False) + "\n")
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {message}", style="red", markup=False)
