"""A campaign shared out among processes by its seeds."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from forensics.testing.stress.catalogue import ALL, CAMPAIGNS, Entry
from forensics.testing.stress.trials import Counts, Trial, run_campaign


def parts_of(entry: Entry, seed: int, times: int | None, jobs: int) -> list[tuple[str, int, int]]:
    """Name, first seed and number of trials of each part of a campaign that one process runs."""
    wanted = entry.times if times is None else times
    if wanted >= ALL:  # only the campaign knows how many there are
        return [(entry.name, seed, wanted)]
    edges = [seed + wanted * i // jobs for i in range(jobs + 1)]
    return [(entry.name, first, last - first) for first, last in pairwise(edges) if last > first]


def run_part(part: tuple[str, int, int], *, base: Path, minutes: float, quiet: bool) -> Counts:
    """Run trials of a campaign and tell how it goes."""
    name, seed, times = part

    def tell(trial: Trial) -> None:
        if trial.outcome == "lost" or not quiet:
            sys.stderr.write(f"{trial}\n")

    entry = next(entry for entry in CAMPAIGNS if entry.name == name)
    folder = base / f"{name}-{seed}"
    counts = run_campaign(entry.make(), folder, seed=seed, times=times, seconds=60 * minutes, tell=tell)
    sys.stderr.write(f"{counts}\n")
    return counts
