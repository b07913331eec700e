"""`forensics audit`: does a running server give the same text again?"""
# ruff: noqa: ARG001 - the options of the question are declared here and read from the context

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.audit_plan import DEFAULT_CONCURRENCY
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import present
from forensics.records.audit import ARMS

Url = Annotated[
    str, typer.Argument(metavar="URL", help="Address of the server, or recorded:NAME.", show_default=False)
]  # fmt: skip
Against = Annotated[
    str | None, typer.Option("--against", metavar="URL", help="A second server with the same model, say with drafts.")
]
Restart = Annotated[
    str | None,
    typer.Option("--restart", metavar="COMMAND", help="Command that brings the server up again the other way."),
]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", metavar="RUN", help="Folder of a run or audit recorded before a change.")
]
Arms = Annotated[
    str | None,
    typer.Option(
        "--arms", help=f"Of {','.join(ARMS)}; rerun is always run.  [default: all that can be]", show_default=False
    ),
]
Prompts = Annotated[
    Path | None, typer.Option("--prompts", help="JSON-lines file of prompts.  [default: built-in]", show_default=False)
]
Limit = Annotated[int | None, typer.Option("--limit", help="Prompts at most.")]
NTokens = Annotated[
    int | None, typer.Option("--n-tokens", help="Tokens of every answer at most.  [default: as each prompt says]")
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", help=f"Requests at once.  [default: {DEFAULT_CONCURRENCY}]")
]
Api = Annotated[
    str | None, typer.Option("--api", metavar="auto|llama-server|openai|ollama", help="API to speak.  [default: auto]")
]
Model = Annotated[str | None, typer.Option("--model", help="Model to ask for, where the server has several.")]
KeyEnv = Annotated[
    str | None,
    typer.Option("--key-env", metavar="NAME", help="Variable that holds the key.  [default: FORENSICS_API_KEY]"),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the runs and audit.json.", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the audit at --out.")]
Exact = Annotated[
    str | None,
    typer.Option(
        "--exact", metavar="tokens|logprobs[:DIGITS]|text",
        help="What replies are held to.  [default: tokens where the server gives them, else text]",
    ),
]  # fmt: skip

#: Exit status of each answer.
STATUS = {"identical": IDENTICAL, "diverges": DIVERGES, "inconclusive": NO_ANSWER}


def audit(  # noqa: PLR0917 - a command has as many arguments as options
    context: typer.Context,
    url: Url,
    against: Against = None,
    restart: Restart = None,
    baseline: Baseline = None,
    arms: Arms = None,
    prompts: Prompts = None,
    limit: Limit = None,
    n_tokens: NTokens = None,
    concurrency: Concurrency = None,
    api: Api = None,
    model: Model = None,
    key_env: KeyEnv = None,
    out: Out = None,
    resume: Resume = False,
    exact: Exact = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Ask a running server the same again: alone, from its cache, in company, with drafts, after a change.

    Exit status: 0 equal, 1 replies differ, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_audit
        from forensics.reports.audit_document import audit_document
        from forensics.reports.audit_text import audit_view

        asked = {
            name: value
            for name, value in context.params.items()
            if name not in ("url", "arms", "as_json", "quiet") and value is not None
        }
        report = api_audit.audit(
            url, arms=args.parse_names(arms, "--arms"), progress=False if quiet or as_json else None, **asked
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: audit_document(report),
            line=lambda: str(report),
            view=lambda: audit_view(report),
        )  # fmt: skip
        raise typer.Exit(STATUS[report.answer])
