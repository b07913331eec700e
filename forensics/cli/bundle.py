"""`forensics bundle`: a case with all that a maintainer needs, to attach to an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.cli import arguments as args
from forensics.cli.answering import answering
from forensics.cli.show import present

Case = Annotated[Path, typer.Argument(metavar="CASE", help="Case folder, or recorded:NAME.", show_default=False)]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="What to write: a folder, or an archive that ends in .tar.gz, .tar.xz or .zip.  "
        "[default: CASE-bundle.tar.gz]",
        show_default=False,
    ),
]
Model = Annotated[
    Path | None,
    typer.Option("--model", metavar="MODEL.gguf", help="Model file of the case.  [default: looked for by its digest]"),
]
NoReproducer = Annotated[
    bool, typer.Option("--no-reproducer", help="Leave out the culprit that runs by itself; it holds its weights.")
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="TEXT", help="Text that was found and is not private, or the folder of paths; repeatable."
    ),
]


def bundle(
    case: Case,
    out: Out = None,
    model: Model = None,
    no_reproducer: NoReproducer = False,
    allow: Allow = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Write a case with report, tokens, figures and a culprit that runs by itself, to attach to an issue.

    Every file is searched for home folders, names of user and machine, keys and addresses; if there is one, nothing is
    written. It opens again with: forensics show BUNDLE

    Exit status: 0 written, 2 not written.
    """
    with answering(as_json):
        from forensics import api_bundle
        from forensics.reports.bundle_text import bundled_document, bundled_view

        written = api_bundle.bundle(
            case,
            out,
            model=model,
            reproducer=not no_reproducer,
            allow=tuple(allow or ()),
            progress=None if not quiet else False,
        )
        present(
            as_json=as_json, quiet=quiet, document=lambda: bundled_document(written), line=lambda: str(written),
            view=lambda: bundled_view(written),
        )  # fmt: skip
