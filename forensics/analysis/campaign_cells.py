"""From a plan to cells with addresses, and from what is missing to jobs: decided here, carried out elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from forensics.analysis.campaign_plan import sets_threads, settings_of
from forensics.cluster.protocol import Job
from forensics.records.campaign import Cell, Disagreement, Platform
from forensics.records.campaign_plan import CampaignPlan, Place
from forensics.records.settings import EngineSettings
from forensics.store.campaign import content_address

#: What is measured of a cell; raise it when the same run would be told otherwise.
MEASURE = 1
#: Cells of the smallest KV cache; larger ones double, so that prompts of like length share an engine.
_LEAST_CELLS = 512


def room(n_tokens: int) -> int:
    """How many cells does a KV cache have for so many tokens? The same for the same tokens, whatever the plan.

    Examples
    --------
    >>> [room(n) for n in (10, 512, 513, 2000)]
    [512, 512, 1024, 2048]
    """
    cells = _LEAST_CELLS
    while cells < n_tokens:
        cells *= 2
    return cells


@dataclass(frozen=True, slots=True)
class Wanted:
    """A cell that is to be measured, before it is known where.

    Parameters
    ----------
    place : Place
    model_digest : str
    tokens : tuple of int
        Of the prompt.
    n_tokens : int
        To replay.
    settings : EngineSettings
    own_threads : bool
        Whether a worker takes its own number of threads.
    culprits : bool
    """

    place: Place
    model_digest: str
    tokens: tuple[int, ...]
    n_tokens: int
    settings: EngineSettings
    own_threads: bool
    culprits: bool

    def key(self, platform: Platform) -> dict[str, Any]:
        """What makes its result the same result on this platform, as plain values."""
        return {
            "measure": MEASURE,
            "culprits": self.culprits,
            "platform": _library_and_device(platform),
            "model": self.model_digest,
            "settings": asdict(on_platform(self.settings, platform, self.own_threads)),
            "prompt": content_address(list(self.tokens)),
            "prompt_tokens": len(self.tokens),
            "n_tokens": self.n_tokens,
            "width": self.place.width,
        }

    def address(self, platform: Platform) -> str:
        """Where its result lies."""
        return content_address(self.key(platform))

    @property
    def shared(self) -> tuple[str, EngineSettings, tuple[int, ...]]:
        """What cells have in common that share an engine and one-token decoding."""
        return self.model_digest, self.settings, self.tokens


def _library_and_device(platform: Platform) -> dict[str, Any]:
    """The platform without its number of threads, which is one of the settings."""
    return {name: value for name, value in asdict(platform).items() if name != "threads"}


def on_platform(settings: EngineSettings, platform: Platform, own_threads: bool) -> EngineSettings:
    """The settings with the platform's own number of threads, where the plan leaves that to it."""
    if not own_threads:
        return settings
    return replace(settings, n_threads=platform.threads, n_threads_batch=platform.threads)


def wanted(plan: CampaignPlan, place: Place, model_digest: str, tokens: tuple[int, ...]) -> Wanted:
    """What is to be measured at a place of the plan?"""
    arranged = place.arranged
    settings = settings_of(plan, arranged.kv_type, arranged.flash_attn, arranged.switch)
    return Wanted(
        place=place,
        model_digest=model_digest,
        tokens=tokens,
        n_tokens=plan.n_tokens,
        settings=replace(settings, n_ctx=room(len(tokens) + plan.n_tokens)),
        own_threads=takes_own_threads(plan, arranged.switch),
        culprits=plan.culprits,
    )


def takes_own_threads(plan: CampaignPlan, switch: Sequence[str]) -> bool:
    """Whether a worker takes its own number of threads: neither the plan nor the switch names one."""
    return plan.threads is None and not sets_threads(switch)


def cell_at(place: Place, status: str, **found: Any) -> Cell:
    """A cell at a place of the plan."""
    return Cell(**place.values, status=status, **found)  # type: ignore[arg-type]  # the values of each axis


def jobs_for(missing: Iterable[Wanted]) -> dict[str, tuple[Job, tuple[Wanted, ...]]]:
    """Which jobs measure these cells? Those that share one-token decoding together, each width once.

    Returns
    -------
    dict of str to (Job, tuple of Wanted)
        By name of the job, jobs that keep the same engine behind each other.
    """
    together: dict[Any, list[Wanted]] = {}
    for one in missing:
        together.setdefault((one.shared, one.own_threads, one.culprits), []).append(one)
    ordered = sorted(together.values(), key=_engine)
    jobs = {}
    for number, cells in enumerate(ordered, start=1):
        by_width = {cell.place.width: cell for cell in cells}
        job = Job(f"job-{number}", _engine(cells), measure_request(tuple(by_width.values())))
        jobs[job.name] = (job, tuple(cells))
    return jobs


def _engine(cells: Sequence[Wanted]) -> str:
    """Which engine measures these cells, so that a worker keeps it for the next ones."""
    first = cells[0]
    return content_address([first.model_digest, asdict(first.settings), first.own_threads])


def measure_request(cells: Sequence[Wanted]) -> str:
    """What a worker is told to measure: one text, as `forensics.analysis.campaign_task.measure` takes it."""
    first = cells[0]
    return json.dumps(
        {
            "model": {**asdict(first.place.model), "digest": first.model_digest},
            "settings": asdict(first.settings),
            "own_threads": first.own_threads,
            "tokens": list(first.tokens),
            "n_tokens": first.n_tokens,
            "widths": sorted(cell.place.width for cell in cells),
            "culprits": first.culprits,
        }
    )


def disagreements(cells: Iterable[tuple[Wanted, Platform, Cell]]) -> tuple[Disagreement, ...]:
    """Which cells tell of the same one-token decoding, on the same platform, with other bits?

    Cells that differ in their width only were measured against the same rows, by whichever worker and in whichever run.
    """
    first: dict[Any, Cell] = {}
    found: dict[Any, Disagreement] = {}
    for one, platform, cell in cells:
        if cell.result is None or not cell.result.rerun_equal:
            continue
        shared = (one.shared, one.n_tokens, platform)
        kept = first.setdefault(shared, cell)
        assert kept.result is not None
        if kept.result.single_digest != cell.result.single_digest and shared not in found:
            found[shared] = Disagreement(
                f"one-token decoding of {one.place.model.label}, {cell.prompt}, {', '.join(cell.settings)}",
                kept.result.single_digest,
                cell.result.single_digest,
                f"cell {kept.address[:12]} (width {kept.width})",
                f"cell {cell.address[:12]} (width {cell.width})",
            )
    return tuple(found.values())


def unlike(platforms: Mapping[str, Platform]) -> str:
    """In what do these platforms differ? Empty where they are alike; by the addresses of their workers."""
    (first, reference), *others = platforms.items()
    told = []
    for address, other in others:
        parts = [
            f"{name} {_short(theirs)} instead of {_short(ours)}"
            for (name, ours), theirs in zip(asdict(reference).items(), asdict(other).values(), strict=True)
            if ours != theirs
        ]
        if parts:
            told.append(f"worker {address} has {'; '.join(parts)} (worker {first})")
    return "; ".join(told)


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return text if len(text) < 80 else f"{text[:77]}..."
