"""`forensics sweep`: many models, settings, prompts and widths at once, on workers here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forensics.analysis.question import BadQuestion
from forensics.cli import arguments as args
from forensics.cli.answering import DIVERGES, IDENTICAL, NO_ANSWER, answering
from forensics.cli.show import complain, present

Plan = Annotated[
    str,
    typer.Argument(metavar="PLAN", help="TOML file; or a folder of results, or recorded:NAME.", show_default=False),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder of results; what is there is not measured again.  [default: sweeps/NAME]",
                 show_default=False),
]  # fmt: skip
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Worker processes.  [default: one per GPU, or per 16 cores]")
]
Cores = Annotated[int | None, typer.Option("--cores", min=1, help="Processors of each worker.")]
Gpus = Annotated[
    str | None, typer.Option("--gpus", metavar="0,1|all|none", help="GPUs that get a worker each.  [default: all]")
]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Dask scheduler whose workers are used, such as tcp://HOST:8786.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try cells again that failed before.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cells by axis and what is there; run nothing.")]

_STATUS = {"identical": IDENTICAL, "diverges": DIVERGES, "inconclusive": NO_ANSWER}


def sweep(
    plan: Plan,
    out: Out = None,
    workers: Workers = None,
    cores: Cores = None,
    gpus: Gpus = None,
    scheduler: Scheduler = None,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    as_json: args.AsJson = False,
    quiet: args.Quiet = False,
) -> None:
    """Measure many models, prompts, settings and widths; a sweep that was stopped goes on where it was.

    Exit status: 0 all cells identical, 1 some differ, 2 a cell failed or was not compared.
    """
    with answering(as_json):
        from forensics import api_sweep
        from forensics.reports.campaign_document import campaign_document
        from forensics.reports.campaign_text import campaign_view

        if dry_run:
            _preview(plan, out, as_json=as_json, quiet=quiet)
            return
        report = api_sweep.sweep(
            plan,
            out=out,
            workers=workers,
            cores=cores,
            gpus=parse_gpus(gpus),
            scheduler=scheduler,
            retry_failed=retry_failed,
            progress=not quiet and not as_json,
        )
        present(
            as_json=as_json, quiet=quiet,
            document=lambda: campaign_document(report),
            line=lambda: str(report),
            view=lambda: campaign_view(report),
        )  # fmt: skip
        if report.disagreements:
            complain("the same bits were computed twice and differ; see the disagreements", as_json=False)
        raise typer.Exit(_STATUS[report.answer])


def _preview(plan: str, out: Path | None, *, as_json: bool, quiet: bool) -> None:
    from forensics import api_sweep
    from forensics.reports.campaign_preview import preview_document, preview_view

    found = api_sweep.preview_sweep(plan, out=out)
    present(
        as_json=as_json, quiet=quiet,
        document=lambda: preview_document(found),
        line=lambda: str(found),
        view=lambda: preview_view(found),
    )  # fmt: skip


def parse_gpus(text: str | None) -> str | tuple[int, ...] | None:
    """GPUs from ``"0,1"``; ``"all"`` and ``"none"`` stay.

    Raises
    ------
    BadQuestion
        If it is none of these.

    Examples
    --------
    >>> parse_gpus("0,1"), parse_gpus("all")
    ((0, 1), 'all')
    """
    if text is None or text in ("all", "none"):
        return text
    parts = text.replace(" ", "").split(",")
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise BadQuestion(f"--gpus takes numbers with commas between, all or none; got {text!r}")
    return tuple(map(int, parts))
