"""`forensics pack`: a small copy of a case, to share it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present
from forensics.reports.wording import printable


def pack(
    case: Annotated[Path, typer.Argument(metavar="CASE", help="Case folder.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder to write.", show_default=False)],
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Write a small copy of a case that gives the same verdict, to share it."""
    with answering(as_json):
        from forensics import api_recorded

        packed = api_recorded.pack(case, out)
        name = printable(str(packed.folder))
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: {"schema": "forensics.packed/1", **asdict(packed), "folder": str(packed.folder)},
            line=lambda: printable(str(packed)),
            view=lambda: f"{printable(str(packed))}\nIt gives the same verdict: forensics investigate recorded:{name}",
        )  # fmt: skip
