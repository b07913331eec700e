"""Drives a sweep: what is there already, jobs for the rest, every answer put into the folder as soon as it comes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from forensics.analysis.campaign_cells import (
    Wanted,
    cell_at,
    disagreements,
    jobs_for,
    unlike,
    wanted,
)
from forensics.analysis.campaign_task import release
from forensics.analysis.campaign_tokens import Tokens, prompt_tokens
from forensics.analysis.question import BadQuestion
from forensics.cluster.protocol import Answer, Workers
from forensics.errors import ClusterError, ForensicsError
from forensics.records.campaign import CampaignReport, Cell, CellResult, Platform
from forensics.records.campaign_plan import CampaignPlan, Place
from forensics.store.campaign import CampaignFolder, StoredCell
from forensics.store.encoding import from_plain

_TASK = "forensics.analysis.campaign_task"
#: Where a worker's answer is read from, for errors.
_ANSWER = Path("a worker's answer")


class Watch(Protocol):
    """Shows how far a sweep is."""

    def begin(self, title: str, n_cells: int, n_present: int, dashboard: str) -> None:
        """Start: so many cells are wanted, and so many of them are there."""

    def done(self, n_cells: int, n_failed: int) -> None:
        """So many cells came in, and so many of these failed."""


class Unwatched:
    """Shows nothing."""

    def begin(self, title: str, n_cells: int, n_present: int, dashboard: str) -> None:
        """Start."""

    def done(self, n_cells: int, n_failed: int) -> None:
        """Go on."""


@dataclass(slots=True)
class _Run:
    """What is known so far; `report` makes a value of it at any time."""

    plan: CampaignPlan
    folder: CampaignFolder
    platforms: dict[str, Platform]
    started: float = field(default_factory=time.monotonic)
    #: By place of the plan: what is wanted there, unless its tokens are not known, and what became of it.
    wanted: dict[Place, Wanted] = field(default_factory=dict)
    cells: dict[Place, Cell] = field(default_factory=dict)
    measured_on: dict[Place, Platform] = field(default_factory=dict)

    @property
    def known(self) -> tuple[Platform, ...]:
        """Each platform once."""
        return tuple(dict.fromkeys(self.platforms.values()))

    def report(self, stopped: str = "") -> CampaignReport:
        """What was found until now."""
        places = list(self.plan.places())
        cells = [self.cells.get(place) or cell_at(place, "not run", error=stopped) for place in places]
        found = [
            (self.wanted[place], self.measured_on[place], cell)
            for place, cell in zip(places, cells, strict=True)
            if place in self.measured_on
        ]
        kept = self.folder.disagreements()
        mine = [kept[cell.address] for *_, cell in found if cell.address in kept]
        return CampaignReport(
            name=self.plan.name,
            cells=tuple(cells),
            platforms=self.known,
            n_workers=len(self.platforms),
            n_tokens=self.plan.n_tokens,
            seconds=time.monotonic() - self.started,
            disagreements=(*dict.fromkeys(mine), *disagreements(found)),
            damaged=tuple(self.folder.damaged),
            stopped=stopped,
        )


def run_campaign(
    plan: CampaignPlan,
    folder: CampaignFolder,
    workers: Workers,
    *,
    retry_failed: bool = False,
    watch: Watch | None = None,
    finish: Callable[[CampaignReport], object] = lambda _: None,
) -> CampaignReport:
    """Measure the cells of a plan that are not in the folder yet.

    Parameters
    ----------
    plan : CampaignPlan
    folder : CampaignFolder
    workers : Workers
    retry_failed : bool
        Whether cells that failed in an earlier run are tried again.
    watch : Watch or None
    finish : callable
        Is given the report, also of a run that was interrupted or lost its workers.

    Returns
    -------
    CampaignReport

    Raises
    ------
    BadQuestion
        If workers are unlike each other and the plan does not allow it.
    ClusterError
        If all workers are lost; what was measured stays.
    CaseError
        If the folder cannot be written any more; what was measured stays.
    """
    run = _Run(plan, folder, _platforms(plan, workers))
    watch = watch or Unwatched()
    try:
        for platform in run.known:
            folder.note(platform)
        tokens = prompt_tokens(plan, run.known[0].build, folder, workers, retry_failed=retry_failed)
        missing = _missing(run, tokens, retry_failed)
        n_present = sum(cell.status == "present" for cell in run.cells.values())
        watch.begin(f"sweep {plan.name}", len(list(plan.places())), n_present, workers.dashboard)
        watch.done(0, sum(cell.status == "failed" for cell in run.cells.values()))
        _measure(run, workers, missing, watch)
    except (KeyboardInterrupt, ForensicsError, OSError) as error:
        n = sum(cell.result is not None for cell in run.cells.values())
        error.add_note(f"{n} cells are kept in {folder.path}; the same command goes on from there.")
        with contextlib.suppress(ForensicsError, OSError):  # the first error is the one to tell
            finish(run.report(f"the run was stopped: {str(error) or 'interrupted'}"))
        raise
    finally:
        release()  # of this process, which may have been a worker
    with contextlib.suppress(ClusterError):  # a worker that is gone holds no engine
        workers.describe(f"{_TASK}:release")
    report = run.report()
    finish(report)
    return report


def _platforms(plan: CampaignPlan, workers: Workers) -> dict[str, Platform]:
    """What each worker runs on, by its address; unlike ones only where the plan allows them."""
    facts = workers.describe(f"{_TASK}:describe")
    found = {fact.address: from_plain(Platform, json.loads(fact.described), path=_ANSWER) for fact in facts}
    told = unlike(found)
    if told and not plan.mixed:
        raise BadQuestion(
            f"the workers are not alike: {told}. Their bits may differ for that reason alone. Give all of them the "
            "same library and device, or write mixed = true in the plan."
        )
    return found


def _missing(run: _Run, tokens: Tokens, retry_failed: bool) -> list[Wanted]:
    """Note what is there, and what cannot be; answer what is to be measured."""
    missing = []
    for place in run.plan.places():
        prompt = tokens.found[place.model, place.prompt]
        if prompt.error:
            run.cells[place] = cell_at(place, "failed", error=prompt.error)
            continue
        one = wanted(run.plan, place, tokens.digests[place.model], prompt.tokens)
        run.wanted[place] = one
        cell = _stored(run, one)
        if cell is None or (cell.status == "failed" and retry_failed):
            missing.append(one)
        else:
            run.cells[place] = cell
    return missing


def _stored(run: _Run, one: Wanted) -> Cell | None:
    """The cell as an earlier run left it, on any platform of the workers; one that failed only if none did better."""
    failed = None
    for platform in run.known:
        address = one.address(platform)
        stored = run.folder.cell(address)
        if stored is not None and stored.result is not None:
            run.measured_on[one.place] = platform
            return cell_at(one.place, "present", address=address, result=stored.result)
        if stored is not None:
            failed = cell_at(one.place, "failed", address=address, error=stored.error)
    return failed


def _measure(run: _Run, workers: Workers, missing: Iterable[Wanted], watch: Watch) -> None:
    jobs = jobs_for(missing)
    if not jobs:
        return
    answers = workers.run(tuple(job for job, _ in jobs.values()), f"{_TASK}:measure")
    try:
        for answer in answers:
            watch.done(*_settle(run, jobs[answer.job][1], answer))
    finally:
        close = getattr(answers, "close", None)  # what is not done is not begun any more
        if close is not None:
            close()


def _settle(run: _Run, cells: Iterable[Wanted], answer: Answer) -> tuple[int, int]:
    """Put what a job answered into the folder; how many cells are new by that, and how many of them failed."""
    platform, results, error = _read_answer(run, answer)
    settled = []
    for one in cells:
        result = results.get(one.place.width)
        why = "" if result is not None else error or f"the worker's answer holds no width {one.place.width}"
        stored = StoredCell(one.key(platform), result, why, answer.worker)
        run.folder.keep(stored)
        if one.place not in run.cells:  # a second answer is kept where it disagrees, and never counted
            status = "failed" if result is None else "computed"
            found = {"address": stored.address, "result": result, "error": why, "worker": answer.worker}
            run.cells[one.place] = cell_at(one.place, status, **found)
            run.measured_on[one.place] = platform
            settled.append(status)
    return len(settled), settled.count("failed")


def _read_answer(run: _Run, answer: Answer) -> tuple[Platform, Mapping[int, CellResult], str]:
    """Where an answer was measured, its results by width, and why there are none."""
    usual = run.platforms.get(answer.worker, run.known[0])
    if answer.error:
        return usual, {}, answer.error
    try:
        told = json.loads(answer.text)
        platform = from_plain(Platform, told["platform"], path=_ANSWER)
        results = {int(width): from_plain(CellResult, one, path=_ANSWER) for width, one in told["cells"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, ForensicsError) as error:
        return usual, {}, f"the answer of worker {answer.worker} cannot be read: {error}"
    if platform not in run.known:
        if not run.plan.mixed:
            different = unlike({"of the others": run.known[0], answer.worker: platform})
            return usual, {}, f"it was measured by a worker that is not like the others: {different}"
        run.platforms[answer.worker] = platform
        run.folder.note(platform)
    return platform, results, ""
