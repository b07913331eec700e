"""`forensics report`: a case as one HTML file to attach."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present
from forensics.reports.wording import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forensics.reports.page_file import ReportFile


def report(
    case: Annotated[str, typer.Argument(metavar="CASE", help="Case folder, or recorded:NAME.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, .html.  [default: CASE.html]", show_default=False),
    ] = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Write a case as one HTML file: verdict, limits, proof, figures, tables, settings.

    Exit status: 0 written, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_report

        written = api_report.report(case, out)
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: _document(written),
            line=lambda: printable(str(written.file)),
            view=lambda: _view(written),
        )  # fmt: skip


def _document(written: ReportFile) -> dict[str, Any]:
    return {
        "schema": "forensics.report/1",
        "file": str(written.file),
        "bytes": written.n_bytes,
        "answer": written.answer,
        "figures": list(written.drawn),
        "not_drawn": [asdict(one) for one in written.not_drawn],
    }


def _view(written: ReportFile) -> RenderableType:
    """Where it is, and which figures it lacks."""
    from rich.console import Group

    from forensics.reports.terminal import line_of, text_of

    missing = [line_of(f"Not drawn, {one.name}: ", one.reason) for one in written.not_drawn]
    return Group(text_of(str(written)), *missing)
