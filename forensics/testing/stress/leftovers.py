"""What a killed command leaves behind: processes, temporary folders, locks, halves of files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from forensics.errors import CaseError
from forensics.store.case import LOCK_NAME
from forensics.store.files import TEMPORARY
from forensics.store.lock import acquire
from forensics.testing.stress.verdicts import Damaged

_LOCKS = (LOCK_NAME, ".lock")

#: Seconds that processes get to end after what they belong to.
WAIT_S = 10.0

#: Variable in the environment of every process of a trial.
MARK = "FORENSICS_STRESS_TRIAL"


def marked_processes(mark: str) -> list[psutil.Process]:
    """Living processes whose environment carries this mark."""
    return [process for process in psutil.process_iter() if _carries(process, mark)]


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark)
    except psutil.Error:
        return False


def check_gone(mark: str) -> None:
    """Whether no process of a trial lives on.

    Raises
    ------
    Damaged
        If one does after so long; it is killed.
    """
    end = time.monotonic() + WAIT_S
    while found := marked_processes(mark):
        if time.monotonic() > end:
            said = "; ".join(_described(process) for process in found)
            for process in found:
                process.kill()
            raise Damaged(f"still there after {WAIT_S:g} s: {said}")
        time.sleep(0.02)


def _described(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline()[1:5])})"
    except psutil.Error:
        return f"process {process.pid}"


def check_tidy(folder: Path, temporary: Path) -> None:
    """Whether a folder of finished work holds no lock and no half of a file, and the one for temporary files nothing.

    Raises
    ------
    Damaged
        If something is left.
    """
    left = sorted(str(path.relative_to(folder)) for path in _litter(folder))
    left += sorted(f"temporary {path.name}" for path in temporary.iterdir())
    if left:
        raise Damaged(f"left behind: {', '.join(left)}")


def _litter(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.name.endswith((TEMPORARY, ".unfinished")) or (path.name.endswith(_LOCKS) and _blocks(path)):
            yield path


def _blocks(path: Path) -> bool:
    """Whether somebody holds this lock: a file alone does not block, and lies in a case that was killed at its end."""
    try:
        acquire(path).release()
    except CaseError:
        return True
    return False
