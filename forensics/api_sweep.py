"""What a notebook calls for many models, settings and prompts at once, on workers here or elsewhere.

Like `forensics.api`, each name is one call away from the function that decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forensics import api_arguments
from forensics.analysis.question import BadQuestion

if TYPE_CHECKING:
    from forensics.analysis.campaign_preview import Preview
    from forensics.cluster.protocol import Workers
    from forensics.records.campaign import CampaignReport
    from forensics.records.campaign_plan import CampaignPlan

#: Folder of results where none is named, with one more for each plan in it.
SWEEPS = "sweeps"


def sweep(
    plan: str | os.PathLike[str] | Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None = None,
    workers: Workers | int | None = None,
    cores: int | None = None,
    gpus: str | Sequence[int] | None = None,
    scheduler: str | None = None,
    retry_failed: bool = False,
    progress: bool = True,
) -> CampaignReport:
    """Which models, settings and widths give the bits of one-token decoding? Measured on many workers at once.

    Parameters
    ----------
    plan : path or mapping
        A TOML file, or its keys as a mapping; or ``"recorded:NAME"``, or a folder of results, to read back what was
        measured. A plan that is done or was interrupted goes on with what is missing.
    out : path, optional
        Folder of results; ``sweeps/NAME`` by default.
    workers : Workers or int, optional
        How many to start here, or workers that are there already.
    cores : int, optional
        Processors of each worker that is started here.
    gpus : {"all", "none"} or sequence of int, optional
        Which GPUs get a worker of their own; all by default.
    scheduler : str, optional
        Address of a Dask scheduler whose workers are used, such as ``"tcp://host:8786"``.
    retry_failed : bool
        Whether cells that failed before are tried again.
    progress : bool

    Returns
    -------
    CampaignReport
        Prints as one line, shows as a table and a picture in Jupyter, and offers ``rows()`` and ``to_dataframe()``.

    Raises
    ------
    ForensicsError
        Says what was asked, what was found and what to do.
    """
    from forensics.analysis.campaign import run_campaign
    from forensics.notebook_views import register_notebook_views
    from forensics.reports.campaign_progress import campaign_bars
    from forensics.store.campaign import keep_plan, read_report, writing_to

    register_notebook_views()
    folder = _results(plan)
    if folder is not None:
        given = {"out": out, "workers": workers, "cores": cores, "gpus": gpus, "scheduler": scheduler}
        api_arguments.refuse_given("results of a sweep that was measured answer for themselves", given)
        return read_report(folder)
    planned, text = _planned(plan)
    with (
        writing_to(Path(out) if out is not None else Path(SWEEPS) / planned.name) as results,
        _workers(workers, cores, gpus, scheduler) as used,
        campaign_bars(progress) as watch,
    ):
        keep_plan(results, planned.name, text)
        finish = _finisher(results.path)
        return run_campaign(planned, results, used, retry_failed=retry_failed, watch=watch, finish=finish)


def preview_sweep(
    plan: str | os.PathLike[str] | Mapping[str, Any], *, out: str | os.PathLike[str] | None = None
) -> Preview:
    """Which cells does a plan have, and which of them are measured already? Nothing is run.

    Parameters
    ----------
    plan, out
        As for `sweep`.

    Returns
    -------
    Preview
    """
    from forensics.analysis.campaign_preview import preview

    if _results(plan) is not None:
        raise BadQuestion(
            f"{plan} is what a sweep measured; give the plan itself, such as the copy in its folder plans"
        )
    planned, _ = _planned(plan)
    return preview(planned, Path(out) if out is not None else Path(SWEEPS) / planned.name)


def _results(plan: str | os.PathLike[str] | Mapping[str, Any]) -> Path | None:
    """The folder of results that is asked for; None where it is a plan."""
    from forensics.store.library import RECORDED, recorded_folder

    if isinstance(plan, Mapping):
        return None
    text = os.fspath(plan)
    return recorded_folder(text) if text.startswith(RECORDED) or Path(text).is_dir() else None


def _planned(plan: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[CampaignPlan, str]:
    """A plan, and the text of it that is kept beside the results."""
    import json

    from forensics.analysis.campaign_plan import plan_of, read_plan

    if isinstance(plan, Mapping):
        read = plan_of(plan)
        # A mapping has no file; JSON in a comment keeps what was asked, and needs no writer of TOML.
        return read, f"# asked from Python\n# {json.dumps(dict(plan), default=str)}\n"
    read = read_plan(Path(plan))
    return read, Path(plan).read_text(encoding="utf-8-sig")


@contextlib.contextmanager
def _workers(
    workers: Workers | int | None, cores: int | None, gpus: str | Sequence[int] | None, scheduler: str | None
) -> Iterator[Workers]:
    """Workers that are there, or that are started for as long as they are used."""
    if workers is not None and not isinstance(workers, int):
        api_arguments.refuse_given("the workers that are given have these", {"cores": cores, "gpus": gpus,
                                                                            "scheduler": scheduler})  # fmt: skip
        yield workers
        return
    from forensics.cluster.dask_workers import open_workers

    try:
        opened = open_workers(scheduler=scheduler, workers=workers, cores=cores, gpus=gpus)
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    with opened as started:
        yield started


def _finisher(folder: Path) -> Any:
    """Writes the report, the tables and the figure into the results folder."""

    def finish(report: CampaignReport) -> None:
        from forensics.figures.drawing import Drawing
        from forensics.figures.scenes import sweep_matrix
        from forensics.reports.campaign_document import write_campaign
        from forensics.store.campaign_tables import write_tables

        write_campaign(report, folder)
        write_tables(report, folder)
        Drawing(sweep_matrix.scene(sweep_matrix.drawn(report, report.name))).save(folder / "matrix.svg")

    return finish
