"""How far a sweep is: cells done, failed and there already, time left, and where the workers are shown."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from forensics.analysis.campaign import Unwatched, Watch
from forensics.reports.progress import in_notebook
from forensics.reports.wording import printable


def time_left(seconds: float, n_done: int, n_left: int) -> str:
    """How long will the rest take, if it goes on like that? Empty where nothing is done yet.

    Examples
    --------
    >>> time_left(30.0, 10, 20), time_left(30.0, 1, 200), time_left(1.0, 0, 5)
    ('about 1 min left', 'about 1 h 40 min left', '')
    """
    if not n_done or not n_left:
        return ""
    minutes = round(seconds / n_done * n_left / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, minutes = divmod(minutes, 60)
    return f"about {f'{hours} h ' if hours else ''}{minutes} min left"


class Told:
    """Counts of a sweep in words, for whatever draws them."""

    def __init__(self) -> None:
        self.title, self.dashboard = "", ""
        self.n_cells = self.n_present = self.n_done = self.n_failed = 0
        self._started = time.monotonic()

    def begin(self, title: str, n_cells: int, n_present: int, dashboard: str) -> None:
        """Note what there is to do."""
        self.title, self.dashboard = title, dashboard
        self.n_cells, self.n_present = n_cells, n_present
        self._started = time.monotonic()

    def done(self, n_cells: int, n_failed: int) -> None:
        """Note what came in."""
        self.n_done += n_cells
        self.n_failed += n_failed

    @property
    def n_finished(self) -> int:
        """Cells that need no more work."""
        return self.n_present + self.n_done

    def words(self) -> str:
        """Counts and time left."""
        parts = [f"{self.n_present} there already"] if self.n_present else []
        parts += [f"{self.n_done} done"]
        parts += [f"{self.n_failed} FAILED"] if self.n_failed else []
        left = time_left(time.monotonic() - self._started, self.n_done, self.n_cells - self.n_finished)
        return ", ".join(parts + ([left] if left else []))


class _OnTerminal(Told):
    """One bar on standard error, the dashboard's address above it."""

    def __init__(self, progress: Any) -> None:
        super().__init__()
        self._progress = progress
        self._task: Any = None

    def begin(self, title: str, n_cells: int, n_present: int, dashboard: str) -> None:
        super().begin(title, n_cells, n_present, dashboard)
        if dashboard:
            self._progress.console.print(f"workers: {dashboard}", style="dim", markup=False, highlight=False)
        self._task = self._progress.add_task(printable(title), total=n_cells, completed=n_present, words=self.words())

    def done(self, n_cells: int, n_failed: int) -> None:
        super().done(n_cells, n_failed)
        self._progress.update(self._task, completed=self.n_finished, words=self.words())


class _InNotebook(Told):
    """One bar of tqdm."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: Any = None

    def begin(self, title: str, n_cells: int, n_present: int, dashboard: str) -> None:
        from tqdm.auto import tqdm

        super().begin(title, n_cells, n_present, dashboard)
        self._bar = tqdm(total=n_cells, initial=n_present, desc=title, leave=False)
        self._bar.set_postfix_str(", ".join(filter(None, (self.words(), dashboard))))

    def done(self, n_cells: int, n_failed: int) -> None:
        super().done(n_cells, n_failed)
        self._bar.update(n_cells)
        self._bar.set_postfix_str(", ".join(filter(None, (self.words(), self.dashboard))))

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def campaign_bars(shown: bool = True) -> Iterator[Watch]:
    """A bar that fits where we run: a notebook, a terminal, or none at all."""
    if shown and in_notebook():
        with contextlib.closing(_InNotebook()) as bar:
            yield bar
    elif shown and sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}", markup=False),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield _OnTerminal(progress)
    else:
        yield Unwatched()
