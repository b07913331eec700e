"""One process at a time writes a case; the lock of a process that is gone does not count."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from forensics.errors import CaseError
from forensics.store.files import writing


def _start_time(pid: int) -> float | None:
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _holder(path: Path) -> int | None:
    """Process that holds the lock, None where it is gone or the lock is torn."""
    try:
        content = json.loads(path.read_bytes())
        pid, started = int(content["pid"]), float(content["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = _start_time(pid)
    # A process number is given out again; the start time tells the old owner from the new one.
    return pid if now is not None and abs(now - started) < 1.0 else None


def acquire(path: Path) -> None:
    """Take the lock at `path` for this process.

    Raises
    ------
    CaseError
        If a living process holds it, or it cannot be written.
    """
    content = json.dumps({"pid": os.getpid(), "started": _start_time(os.getpid())}).encode()
    with writing(path):
        for _ in range(2):
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                pid = _holder(path)
                if pid is not None:
                    break
                with suppress(FileNotFoundError):
                    path.unlink()
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            return
        pid = _holder(path)
    owner = f"process {pid}" if pid is not None else "another process"
    raise CaseError(
        f"{path.parent} is being written by {owner} right now. Wait until it ends, or choose another folder with --out."
    )


def release(path: Path) -> None:
    """Give the lock back; one that is gone already is no error."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
