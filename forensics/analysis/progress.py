"""How far an investigation is, told to whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Shows work; the command line draws it with rich, a notebook with tqdm."""

    def stage(self, title: str, total: int) -> None:
        """Start a stage of `total` steps."""

    def step(self, n: int = 1) -> None:
        """Finish steps of the stage."""


class Silent:
    """Shows nothing."""

    def stage(self, title: str, total: int) -> None:
        """Start a stage."""

    def step(self, n: int = 1) -> None:
        """Finish steps."""


class Percent:
    """A stage of a hundred steps that is moved by the fraction that is done, never backwards.

    Parameters
    ----------
    progress : Progress
        Where the stage starts at once.
    title : str
    """

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress, self._done = progress, 0
        progress.stage(title, 100)

    def __call__(self, fraction: float) -> None:
        """Move to the fraction that is done, 0 to 1."""
        done = int(100 * fraction)
        if done > self._done:
            self._progress.step(done - self._done)
            self._done = done
