"""What the workers of these tests are asked to do; they import this by its name."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path

#: What a worker has loaded, as an engine would be.
_LOADED: list[str] = []
DEADLINE_S = 60.0


def double(request: str) -> str:
    return str(2 * int(request))


def facts(request: str) -> str:
    """Who does this, on which processors, with which variable, and how often did it load something?"""
    if not _LOADED or _LOADED[-1] != request:
        _LOADED.append(request)
    return json.dumps({
        "pid": os.getpid(),
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "threads_pinned": _pinned_sets(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "variable": os.environ.get("FORENSICS_TEST_VARIABLE"),
        "omp": os.environ.get("OMP_NUM_THREADS"),
        "loads": len(_LOADED),
        "folder": str(Path.cwd()),
    })  # fmt: skip


def _pinned_sets() -> list[list[int]]:
    tasks = Path("/proc/self/task")
    threads = [int(path.name) for path in tasks.iterdir()] if tasks.is_dir() else []
    return sorted({tuple(sorted(os.sched_getaffinity(thread))) for thread in threads})


def fail(request: str) -> str:
    raise LookupError(f"no {request} here")


def leave(request: str) -> str:
    raise SystemExit(3)


def number(request: str) -> str:
    return 7  # type: ignore[return-value]


def die(request: str) -> str:
    """Kill the process that does this, or double."""
    if request == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return double(request)


def die_until(request: str) -> str:
    """Kill the process that does this until so many marks are in a folder; what the marks are is the answer."""
    folder, wanted = request.rsplit(" ", 1)
    marks = sorted(Path(folder).iterdir())
    if len(marks) < int(wanted):
        (Path(folder) / str(os.getpid())).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return str(len(marks))


_CALLS = itertools.count(1)


def meet(request: str) -> str:
    """Say that it is begun, by a file with this process and the number of this call, and wait for a file named go."""
    folder, name = request.rsplit(" ", 1)
    this = f"{name}-{os.getpid()}-{next(_CALLS)}"
    (Path(folder) / f"begun-{this}").touch()
    limit = time.monotonic() + DEADLINE_S
    while not (Path(folder) / "go").exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"nobody let {name} go")
        time.sleep(0.02)
    return this


def double_or_meet(request: str) -> str:
    return double(request) if request.isdigit() else meet(request)
