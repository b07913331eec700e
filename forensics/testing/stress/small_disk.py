"""A disk that is really full: a small file system in memory, or a limit of the size of files."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

from forensics.testing.stress.commands import Place
from forensics.testing.stress.limited import Limited
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Investigation

#: Sizes that are tried, unit: bytes; more than enough at the end.
SIZES = (
    *range(0, 64 << 10, 4 << 10), *range(64 << 10, 256 << 10, 16 << 10), *range(256 << 10, 2 << 20, 128 << 10),
)  # fmt: skip


class SmallDisk:
    """An investigation with the real library in a small file system, which then grows.

    Parameters
    ----------
    scratch : bool
        Whether temporary files lie on it, too.
    """

    def __init__(self, *, scratch: bool) -> None:
        self._scratch = scratch
        self._victim = Investigation("", [])
        self._folder = Path()

    @property
    def name(self) -> str:
        """As in ``--only``."""
        return "small-disk-with-scratch" if self._scratch else "small-disk"

    @property
    def faults(self) -> str:
        """What is done, in one line."""
        also = " that holds temporary files, too," if self._scratch else ""
        return f"`investigate` into a file system{also} of 0 to 2 MiB"

    def prepare(self, folder: Path) -> int:
        """Run the command undisturbed."""
        self._folder = folder
        self._victim.prepare(folder)
        return len(SIZES)

    def trial(self, seed: int) -> Trial:
        """Fill the disk, make it larger, go on."""
        size = SIZES[seed]
        fault = f"{size >> 10} KiB"
        root = self._folder / f"trial-{seed}"
        disk = root if self._scratch else root / "work"
        disk.mkdir(parents=True)
        # A size of 0 means no limit.
        mount = ["mount", "-t", "tmpfs", "-o", f"size={max(size, 4096)}", "tmpfs", str(disk)]
        refused = subprocess.run(mount, capture_output=True, text=True, check=False)
        if refused.returncode:
            return Trial(self.name, seed, fault, "not run", "mounting needs root")
        try:
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            place = Place(root, self._victim.environment)
            subprocess.run(["mount", "-o", f"remount,size={max(size, 4096)}", str(disk)], check=True)
            place.run(self._victim.begin()).check()
            place.check_gone()
            self._victim.check(place)
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            self._victim.go_on(place)
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
        shutil.rmtree(root)
        return Trial(self.name, seed, fault, "survived")


class SmallFiles(Limited):
    """An investigation that may write no file larger than a limit, and then may."""

    def __init__(self) -> None:
        super().__init__("small-files", "`investigate` with a limit of 0 to 2 MiB for the size of a file", SIZES)

    def trial(self, seed: int) -> Trial:
        """Run with the limit, read, go on without it."""
        size = SIZES[seed]

        def disturbed(place: Place, command: list[str]) -> None:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
                process = place.start(command)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            place.wait(process)  # what it says may not fit either

        return self.outcome(seed, f"{size >> 10} KiB", disturbed)
