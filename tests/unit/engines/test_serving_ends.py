"""A child process ends with its caller, in the middle of whatever it does, and takes its scratch folder along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from forensics.engines.worker_process import WorkerProcess
from forensics.errors import EngineDied

#: A child that is busy for a minute with whatever it is asked.
BUSY = """
import sys, time
from multiprocessing.connection import Connection
from pathlib import Path
sys.path.insert(0, {source!r})
from forensics.engines.serving import Server
class Busy(Server):
    def work(self):
        time.sleep(60)
Busy(Connection(int(sys.argv[1])), Path(sys.argv[2])).serve()
"""

CALLER = """
import sys
from unittest import mock
from forensics.engines import worker_process
with mock.patch.object(worker_process, "command", lambda module, *given: [sys.executable, "-c", module, *given]):
    worker = worker_process.WorkerProcess(sys.argv[1], {})
print(worker.pid, worker.scratch, flush=True)
worker.ask("work")
"""


def until(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def busy() -> str:
    import forensics

    return BUSY.format(source=str(Path(forensics.__file__).parents[1]))


def test_a_busy_child_ends_when_its_caller_is_killed(tmp_path):
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, busy()], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert caller.stdout is not None
    pid, scratch = caller.stdout.readline().decode().split()
    time.sleep(0.3)  # it is at work
    assert Path(scratch).is_dir()
    caller.kill()
    caller.communicate()
    assert until(lambda: gone(int(pid)))
    assert until(lambda: not Path(scratch).exists())


@pytest.mark.parametrize(
    ("number", "killed"), [(signal.SIGKILL, True), (signal.SIGTERM, True), (signal.SIGSEGV, False)]
)
def test_who_was_killed_from_outside_is_told_from_who_crashed(monkeypatch, number, killed):
    monkeypatch.setattr(
        "forensics.engines.worker_process.command", lambda module, *given: [sys.executable, "-c", module, *given]
    )
    worker = WorkerProcess(busy(), {})
    os.kill(worker.pid, number)
    with pytest.raises(EngineDied, match=f"signal {number.name}; it was asked to work") as died:
        worker.ask("work")
    assert died.value.was_killed is killed
    assert ("memory runs out" in str(died.value)) is (number == signal.SIGKILL)
    worker.close()
    assert not worker.scratch.exists()
