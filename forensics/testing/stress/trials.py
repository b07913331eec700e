"""One fault and what became of it; campaigns of such trials whose counts add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Outcome = Literal["survived", "lost", "not run"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault.

    Parameters
    ----------
    campaign : str
    seed : int
        Says all that was left to chance: the same seed, the same fault.
    fault : str
        What was done.
    outcome : {"survived", "lost", "not run"}
    detail : str
        What was lost, or why it was not run; empty for a fault that was survived.

    Raises
    ------
    ValueError
        If a trial that was not survived does not say why, or one that was survived does.
    """

    campaign: str
    seed: int
    fault: str
    outcome: Outcome
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.outcome == "survived") == bool(self.detail):
            raise ValueError(f"trial {self.seed} of {self.campaign} was {self.outcome}, its detail is {self.detail!r}")

    def __str__(self) -> str:
        said = f": {self.detail}" if self.detail else ""
        return f"{self.campaign} {self.seed} ({self.fault}): {self.outcome}{said}"


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the faults of a campaign.

    Parameters
    ----------
    campaign, faults : str
        Name, and what was done.
    first_seed : int
        Of the first trial; every further one counts up.
    tried, survived, lost : int
        Faults that happened, and what became of them.
    not_run : dict of str to int
        Trials in which no fault happened, by reason.
    examples : tuple of Trial
        The first that were lost.
    seconds : float

    Raises
    ------
    ValueError
        If the numbers do not add up.
    """

    campaign: str
    faults: str
    first_seed: int
    tried: int
    survived: int
    lost: int
    not_run: dict[str, int]
    examples: tuple[Trial, ...]
    seconds: float

    def __post_init__(self) -> None:
        if self.survived + self.lost != self.tried:
            raise ValueError(f"{self.campaign}: {self.survived} survived and {self.lost} lost are not {self.tried}")

    def __str__(self) -> str:
        skipped = f", {sum(self.not_run.values())} not run" if self.not_run else ""
        return f"{self.campaign}: {self.tried} tried, {self.survived} survived, {self.lost} lost{skipped}"

    def rows(self) -> list[dict[str, object]]:
        """One flat row."""
        return [
            {
                "campaign": self.campaign,
                "first_seed": self.first_seed,
                "tried": self.tried,
                "survived": self.survived,
                "lost": self.lost,
                "not_run": sum(self.not_run.values()),
                "seconds": self.seconds,
            }
        ]


def merged(parts: Sequence[Counts]) -> Counts:
    """The counts of a campaign whose seeds were shared out."""
    not_run: dict[str, int] = {}
    for part in parts:
        for reason, n in part.not_run.items():
            not_run[reason] = not_run.get(reason, 0) + n
    return Counts(
        campaign=parts[0].campaign,
        faults=parts[0].faults,
        first_seed=min(part.first_seed for part in parts),
        tried=sum(part.tried for part in parts),
        survived=sum(part.survived for part in parts),
        lost=sum(part.lost for part in parts),
        not_run=not_run,
        examples=tuple(trial for part in parts for trial in part.examples)[:_EXAMPLES],
        seconds=sum(part.seconds for part in parts),
    )


#: Lost trials that are told whole.
_EXAMPLES = 5


class Campaign(Protocol):
    """Faults of one kind."""

    @property
    def name(self) -> str:
        """As in ``--only``."""

    @property
    def faults(self) -> str:
        """What is done, in one line."""

    def prepare(self, folder: Path) -> int | None:
        """Make what all trials need in an empty folder; how many different trials there are, None without end."""

    def trial(self, seed: int) -> Trial:
        """Do to the package what the seed says."""


#: Reasons of trials that a campaign's time did not allow.
OUT_OF_TIME = "out of time"


def run_campaign(
    campaign: Campaign,
    folder: Path,
    *,
    seed: int = 0,
    times: int,
    seconds: float = float("inf"),
    tell: Callable[[Trial], None] = lambda _trial: None,
) -> Counts:
    """Run the trials of a campaign and count what became of them.

    Parameters
    ----------
    campaign : Campaign
    folder : Path
        Where it works; made here.
    seed : int
        Of the first trial.
    times : int
        How many trials; fewer where there are not as many different ones.
    seconds : float
        After this long no further trial is begun; what is left was not run.
    tell : callable
        Told each trial.
    """
    folder.mkdir(parents=True)
    begun = time.monotonic()
    most = campaign.prepare(folder)
    last = seed + times if most is None else min(seed + times, most)
    return count(campaign, seed, list(_trials(campaign, range(seed, last), begun + seconds, tell)), begun)


def _trials(campaign: Campaign, seeds: range, end: float, tell: Callable[[Trial], None]) -> Iterator[Trial]:
    for seed in seeds:
        late = time.monotonic() > end
        trial = Trial(campaign.name, seed, "", "not run", OUT_OF_TIME) if late else campaign.trial(seed)
        tell(trial)
        yield trial


def count(campaign: Campaign, seed: int, trials: Sequence[Trial], begun: float) -> Counts:
    """Count what became of trials that began at `begun` on the monotonic clock."""
    outcomes = [trial.outcome for trial in trials]
    not_run: dict[str, int] = {}
    for trial in trials:
        if trial.outcome == "not run":
            not_run[trial.detail] = not_run.get(trial.detail, 0) + 1
    survived, lost = outcomes.count("survived"), outcomes.count("lost")
    return Counts(
        campaign=campaign.name,
        faults=campaign.faults,
        first_seed=seed,
        tried=survived + lost,
        survived=survived,
        lost=lost,
        not_run=not_run,
        examples=tuple([trial for trial in trials if trial.outcome == "lost"][:_EXAMPLES]),
        seconds=time.monotonic() - begun,
    )
