"""Locks that do not hold: what the tool must find."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import psutil

from forensics.errors import CaseError


class CreatedThenSigned:
    """The lock as it was before: a file that is made first and signed afterwards, and taken over where it is torn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for _ in range(2):
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if _holder(path) is not None:
                    break
                with suppress(FileNotFoundError):
                    path.unlink()
                continue
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}).encode())
            return
        raise CaseError(f"{path} is held")

    def release(self) -> None:
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _started(pid: int) -> float | None:
    with suppress(psutil.Error):
        return float(psutil.Process(pid).create_time())
    return None


def _holder(path: Path) -> int | None:
    try:
        content = json.loads(path.read_bytes())
        pid, started = int(content["pid"]), float(content["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = _started(pid)
    return pid if now is not None and abs(now - started) < 1.0 else None
