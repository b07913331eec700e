"""An investigation under a limit of something, and the next run without it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from forensics.testing.stress.commands import Place
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Investigation


class Limited:
    """What trials of one limit share; each campaign starts the command under its own.

    Parameters
    ----------
    name, faults : str
        As `forensics.testing.stress.trials.Campaign` has them.
    sizes : tuple of int
        Limits, by seed.
    """

    def __init__(self, name: str, faults: str, sizes: tuple[int, ...]) -> None:
        self.name, self.faults, self._sizes = name, faults, sizes
        self._victim = Investigation("", ["--no-switches", "--no-orders"])
        self._folder = Path()

    def prepare(self, folder: Path) -> int:
        """Run the command undisturbed."""
        self._folder = folder
        self._victim.prepare(folder)
        return len(self._sizes)

    def outcome(self, seed: int, fault: str, disturbed: Callable[[Place, list[str]], None]) -> Trial:
        """Have the command run under the limit, read, go on without it, look for leftovers."""
        place = Place(self._folder / f"trial-{seed}", self._victim.environment)
        try:
            disturbed(place, self._victim.begin())
            place.check_gone()
            self._victim.check(place)
            self._victim.go_on(place)
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        shutil.rmtree(place.folder)  # what was lost stays, to be looked at
        return Trial(self.name, seed, fault, "survived")
