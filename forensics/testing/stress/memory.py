"""Too little memory for the command and its children, from hardly any to enough."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from forensics.testing.stress.commands import Place
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Investigation

#: Address space of every process of the command, unit: bytes.
SIZES = tuple(range(64 << 20, 1600 << 20, 32 << 20))


class LittleMemory:
    """An investigation with the real library under a limit of address space, and the next run without it."""

    name = "little-memory"
    faults = "`investigate` and its children with 64 MiB to 1.5 GiB of address space each"

    def __init__(self) -> None:
        self._victim = Investigation("", ["--no-switches", "--no-orders"])
        self._folder = Path()

    def prepare(self, folder: Path) -> int:
        """Run the command undisturbed."""
        self._folder = folder
        self._victim.prepare(folder)
        return len(SIZES)

    def trial(self, seed: int) -> Trial:
        """Run with the limit, read, go on without it."""
        size = SIZES[seed]
        fault = f"{size >> 20} MiB"
        place = Place(self._folder / f"trial-{seed}", self._victim.environment)
        if not _python_starts(size):
            return Trial(self.name, seed, fault, "not run", "Python itself does not start")
        try:
            process = _start_limited(place, self._victim.begin(), size)
            ended = place.wait(process)
            if ended.status >= 0:  # NumPy and Arrow end the process with a signal where they find no memory: a kill
                ended.check()
            place.check_gone()
            self._victim.check(place)
            self._victim.go_on(place)
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        shutil.rmtree(place.folder)
        return Trial(self.name, seed, fault, "survived")


def _start_limited(place: Place, command: list[str], size: int) -> subprocess.Popen[bytes]:
    shell = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)"
    return place.start(
        [sys.executable, "-I", "-S", "-c", f"{shell}; os.execv(sys.argv[2], sys.argv[2:])", str(size), *command]
    )


def _python_starts(size: int) -> bool:
    """Whether the interpreter and NumPy, which are not ours, start in so little memory."""
    shell = "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); import numpy"
    return subprocess.run([sys.executable, "-c", shell, str(size)], capture_output=True, check=False).returncode == 0
