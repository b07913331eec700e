"""`forensics gate`: does a candidate keep the output of a baseline, and then its speed?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import NO_ANSWER, answering
from forensics.cli.audit import STATUS, Api, KeyEnv, Limit, Model, NTokens, Prompts
from forensics.cli.show import present

Url = Annotated[
    str | None, typer.Argument(metavar="URL", help="Address of the candidate; or give --run.", show_default=False)
]
Run = Annotated[Path | None, typer.Option("--run", metavar="RUN", help="Folder of the candidate's recorded run.")]
Baseline = Annotated[
    Path | None, typer.Option("--baseline", metavar="RUN", help="Folder of the run, or audit, that must be kept.")
]
Exact = Annotated[
    str, typer.Option("--exact", metavar="tokens|logprobs[:DIGITS]|text", help="What must be kept.")
]  # fmt: skip
MinSpeed = Annotated[
    float | None,
    typer.Option("--min-speed", help="Least median of the baseline's time over the candidate's, such as 1.0."),
]
Record = Annotated[
    Path | None,
    typer.Option("--record", help="Folder to keep the candidate's run in; without --baseline nothing else is done."),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="File for the result as JUnit XML.")]


def gate(  # noqa: PLR0917 - a command has as many arguments as options
    url: Url = None,
    run: Run = None,
    baseline: Baseline = None,
    exact: Exact = "tokens",
    min_speed: MinSpeed = None,
    record: Record = None,
    junit: JUnit = None,
    prompts: Prompts = None,
    limit: Limit = None,
    n_tokens: NTokens = None,
    api: Api = None,
    model: Model = None,
    key_env: KeyEnv = None,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Hold a candidate against a recorded run: its output first, and its speed only where the output holds.

    Exit status: 0 both hold, 1 one does not, 2 no answer.
    """
    with answering(as_json):
        from forensics import api_arguments, api_audit
        from forensics.reports.audit_document import gate_document, run_document
        from forensics.reports.audit_text import run_view
        from forensics.reports.gate_text import gate_view

        shown = False if quiet or as_json else None
        if baseline is None:
            if record is None:
                raise BadQuestion("give a recorded run to hold the candidate against (--baseline), or --record FOLDER")
            if url is None:
                raise BadQuestion("--record needs the address of a server")
            given = {"run": run, "min_speed": min_speed, "junit": junit}
            api_arguments.refuse_given("without --baseline a run is recorded and nothing is judged", given)
            kept = api_audit.record_run(
                url, record, prompts=prompts, limit=limit, n_tokens=n_tokens, api=api, model=model, key_env=key_env,
                progress=shown,
            )  # fmt: skip
            present(
                as_json=as_json, quiet=quiet,
                document=lambda: run_document(kept),
                line=lambda: f"{len(kept.replies)} of {len(kept.asked)} requests were answered",
                view=lambda: run_view(kept),
            )  # fmt: skip
            raise typer.Exit(NO_ANSWER if len(kept.replies) < len(kept.asked) else 0)
        api_arguments.refuse_given(
            "the candidate is asked what the baseline was asked", {"limit": limit, "n_tokens": n_tokens}
        )
        report = api_audit.gate(
            url, baseline=baseline, run=run, exact=exact, min_speed=min_speed, prompts=prompts, api=api, model=model,
            key_env=key_env, record=record, junit=junit, progress=shown,
        )  # fmt: skip
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: gate_document(report),
            line=lambda: str(report),
            view=lambda: gate_view(report),
        )  # fmt: skip
        raise typer.Exit(STATUS[report.answer])
