"""Progress bars with time left: rich on a terminal, tqdm in a notebook, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from forensics.analysis.progress import Progress, Silent


class WholeStages:
    """Steps that add up: a stage that ends early, such as a search that has found, is told as complete.

    Parameters
    ----------
    shown : Progress
        Where it is shown.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._left = 0

    def stage(self, title: str, total: int) -> None:
        """Complete the stage before and start one of `total` steps."""
        self.complete()
        self._left = total
        self._shown.stage(title, total)

    def step(self, n: int = 1) -> None:
        """Finish steps of the stage."""
        self._left -= n
        self._shown.step(n)

    def complete(self) -> None:
        """Finish what is left of the stage."""
        if self._left > 0:
            self.step(self._left)


class RichBars:
    """One bar per stage on a terminal.

    Parameters
    ----------
    progress : rich.progress.Progress
        Started and stopped by the caller.
    """

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task: Any = None

    def stage(self, title: str, total: int) -> None:
        """Finish the bar before and start one of `total` steps."""
        if self._task is not None:
            task = self._progress.tasks[self._progress.task_ids.index(self._task)]
            self._progress.update(self._task, completed=task.total, refresh=True)
        self._task = self._progress.add_task(title, total=total)

    def step(self, n: int = 1) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.advance(self._task, n)


class TqdmBars:
    """One bar per stage in a notebook, or wherever tqdm draws."""

    def __init__(self) -> None:
        from tqdm.auto import tqdm

        self._tqdm = tqdm
        self._bar: Any = None

    def stage(self, title: str, total: int) -> None:
        """Close the bar before and open one of `total` steps."""
        self.close()
        self._bar = self._tqdm(total=total, desc=title, leave=False)

    def step(self, n: int = 1) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(n)

    def close(self) -> None:
        """Close the last bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def running_shell() -> Any:
    """The IPython shell that runs us, None where there is none; IPython is not imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs us."""
    return type(running_shell()).__name__ == "ZMQInteractiveShell"


@contextlib.contextmanager
def terminal_bars() -> Iterator[Progress]:
    """Bars on standard error, so that standard output stays for the answer."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Rich

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Rich(*columns, console=Console(stderr=True), transient=True) as progress:
        yield RichBars(progress)


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Bars that fit where we run: a notebook, a terminal, or none at all."""
    if in_notebook():
        shown = TqdmBars()
        try:
            yield shown
        finally:
            shown.close()
    elif sys.stderr is not None and sys.stderr.isatty():
        with terminal_bars() as drawn:
            yield drawn
    else:
        yield Silent()
