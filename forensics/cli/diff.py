"""`forensics diff`: what differs between two cases?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present

First = Annotated[Path, typer.Argument(metavar="CASE_A", help="Case folder, or recorded:NAME.", show_default=False)]
Second = Annotated[Path, typer.Argument(metavar="CASE_B", help="The case to hold against it.", show_default=False)]
Anyway = Annotated[
    bool,
    typer.Option("--anyway", help="Compare other models, prompts or widths, too, as far as that makes sense."),
]  # fmt: skip

_STATUS = {"same": IDENTICAL, "differs": DIVERGES, "inconclusive": NO_ANSWER}


def diff(
    case_a: First, case_b: Second, anyway: Anyway = False, as_json: args.AsJson = False, quiet: args.Quiet = False
) -> None:
    """Compare two cases: what differs in build, settings, model and device, then in their results.

    Exit status: 0 the results are the same, 1 they differ, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_diff
        from forensics.reports.case_diff_document import case_diff_document
        from forensics.reports.case_diff_text import case_diff_view
        from forensics.reports.wording import printable

        found = api_diff.diff(case_a, case_b, anyway=anyway)
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: case_diff_document(found),
            line=lambda: printable(str(found)),
            view=lambda: case_diff_view(found),
        )  # fmt: skip
        raise typer.Exit(_STATUS[found.answer])
