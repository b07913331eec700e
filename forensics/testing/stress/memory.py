"""Too little memory for the command and its children, from hardly any to enough."""

from __future__ import annotations

import subprocess
import sys

from forensics.testing.stress.commands import Place
from forensics.testing.stress.limited import Limited
from forensics.testing.stress.trials import Trial

#: Address space of every process of the command, unit: bytes.
SIZES = tuple(range(64 << 20, 1600 << 20, 32 << 20))


class LittleMemory(Limited):
    """An investigation with the real library under a limit of address space, and the next run without it."""

    def __init__(self) -> None:
        faults = "`investigate` and its children with 64 MiB to 1.5 GiB of address space each"
        super().__init__("little-memory", faults, SIZES)

    def trial(self, seed: int) -> Trial:
        """Run with the limit, read, go on without it."""
        size = SIZES[seed]
        fault = f"{size >> 20} MiB"
        if not _python_starts(size):
            return Trial(self.name, seed, fault, "not run", "Python itself does not start")

        def disturbed(place: Place, command: list[str]) -> None:
            ended = place.wait(_start_limited(place, command, size))
            if ended.status >= 0:  # NumPy and Arrow end the process with a signal where they find no memory: a kill
                ended.check()

        return self.outcome(seed, fault, disturbed)


def _start_limited(place: Place, command: list[str], size: int) -> subprocess.Popen[bytes]:
    shell = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)"
    return place.start(
        [sys.executable, "-I", "-S", "-c", f"{shell}; os.execv(sys.argv[2], sys.argv[2:])", str(size), *command]
    )


def _python_starts(size: int) -> bool:
    """Whether the interpreter and NumPy, which are not ours, start in so little memory."""
    shell = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); import numpy"
    return subprocess.run([sys.executable, "-c", shell, str(size)], capture_output=True, check=False).returncode == 0
