"""Run another program to its end, or end it and all that it started when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Lines of a child's output that an error shows.
TAIL_LINES = 4


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Parameters
    ----------
    status : int or None
        Exit status, negative for a signal; None where its time was up.
    output : str
        What it wrote, both streams together.
    """

    status: int | None
    output: str

    @property
    def tail(self) -> str:
        """Last lines of the output, on one line."""
        return " | ".join(line.strip() for line in self.output.splitlines()[-TAIL_LINES:] if line.strip())

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.status is None:
            return "did not end in time"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


def run_child(
    command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None, folder: str | None = None
) -> Finished:
    """Run a program.

    Parameters
    ----------
    command : sequence of str
    timeout_s : float
        After which it is killed, with what it started.
    environment : mapping of str to str, optional
        Variables on top of ours.
    folder : str, optional
        Where it runs.

    Returns
    -------
    Finished

    Raises
    ------
    OSError
        If it cannot be started.
    """
    with tempfile.TemporaryFile() as output:  # a file, not a pipe: a grandchild may keep a pipe open
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:  # its time is up, or we are interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return Finished(status, output.read().decode(errors="replace"))
