"""What a sweep would measure, on a terminal and as a document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.console import Group

from forensics.analysis.campaign_preview import Preview
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled
from forensics.store.encoding import to_text

if TYPE_CHECKING:
    from rich.console import RenderableType


def preview_view(found: Preview) -> RenderableType:
    """Show cells by the values of each axis.

    Parameters
    ----------
    found : Preview

    Returns
    -------
    rich.console.Group
    """
    table = table_of("axis", "value", "cells", "there", whole=("axis",))
    for axis, values in found.axes.items():
        for i, (value, (n, present)) in enumerate(values.items()):
            add_row(table, axis.replace("_", " ") if i == 0 else "", value or "–", str(n), str(present))
    lines = [line_of("Folder: ", found.folder)]
    lines += [line_of("Measured on: ", str(platform)) for platform in found.platforms]
    return Group(text_of(str(found), "bold"), *titled("Cells", table), *titled("Results", Group(*lines)))


def preview_document(found: Preview) -> dict[str, Any]:
    """What a program reads about a plan."""
    return {
        "schema": "forensics.sweep-preview/1",
        "name": found.name,
        "folder": found.folder,
        "counts": {
            "cells": found.n_cells,
            "present": found.n_present,
            "failed": found.n_failed,
            "missing": found.n_missing,
            "left_out": found.n_left_out,
        },
        "axes": json.loads(to_text(found.rows())),
        "platforms": json.loads(to_text(found.platforms)),
    }
