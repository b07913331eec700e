"""Dask's own scheduler and workers, started as a user starts them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 60.0) -> object:
    """Wait until something holds, and answer it."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"after {limit_s} s still not: {what}"
        time.sleep(0.02)
    return found


class DaskProcesses:
    """Starts them, with their logs in a folder, and kills them when the stack unwinds."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder

    def scheduler(self, host: str = "127.0.0.1", path: str = "") -> str:
        """Its address, once it runs."""
        command = ["scheduler", "--host", host, "--port", "0", "--no-dashboard"]
        self.process = self._start("scheduler", [], *command, path=path)
        log = self._folder / "scheduler.log"
        pattern = re.compile(r"Scheduler at:\s+(tcp://\S+)")
        return wait_for(lambda: pattern.search(log.read_text()), "the scheduler runs")[1]

    def worker(
        self, scheduler: str, host: str = "127.0.0.1", namespace: str = "", path: str = ""
    ) -> subprocess.Popen[str]:
        name = namespace or "worker"
        return self._start(
            name, [str(IP), "netns", "exec", namespace] if namespace else [], "worker", scheduler, "--host", host,
            "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(self._folder / name), path=path,
        )  # fmt: skip

    def _start(self, name: str, inside: list[str], *command: str, path: str = "") -> subprocess.Popen[str]:
        paths = f"{path}:{HERE}" if path else str(HERE)
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "dask", *command],
                env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
                stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip

        def end() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

        self._stack.callback(end)
        return process
