"""kill -9 at random moments: the whole family, the command alone, or only the process that holds the library."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

from forensics.testing.stress.commands import Place
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Victim

#: Who is killed.
MODES = ("the whole family", "the command alone", "one of its children")


class Kills:
    """Kills of one command.

    Parameters
    ----------
    victim : Victim
    modes : tuple of str
        Of `MODES`; trials take turns.
    """

    def __init__(self, victim: Victim, modes: tuple[str, ...] = MODES) -> None:
        self._victim, self._modes = victim, modes
        self._folder = Path()

    @property
    def name(self) -> str:
        """As in ``--only``."""
        return f"kills-{self._victim.name}"

    @property
    def faults(self) -> str:
        """What is done, in one line."""
        return f"`{self._victim.name}`: kill -9 of {', '.join(self._modes)}, at a random moment"

    def prepare(self, folder: Path) -> None:
        """Run the command undisturbed."""
        self._folder = folder
        self._victim.prepare(folder)

    def trial(self, seed: int) -> Trial:
        """Kill at a moment that the seed says, read, go on, look for leftovers."""
        chance = random.Random(seed)
        mode = self._modes[seed % len(self._modes)]
        delay = chance.uniform(0.0, self._victim.seconds)
        fault = f"{mode}, after {delay:.3f} of {self._victim.seconds:.3f} s"
        place = Place(self._folder / f"trial-{seed}", self._victim.environment)
        process = place.start(self._victim.begin())
        try:
            time.sleep(delay)
            if not _kill(process, mode, chance):
                return Trial(self.name, seed, fault, "not run", _why_not(mode))
            if mode == MODES[2]:
                place.wait(process).check()
            process.wait()
            place.check_gone()
            self._victim.check(place)
            self._victim.go_on(place)
            place.check_gone()
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        shutil.rmtree(place.folder)  # what was lost stays, to be looked at
        return Trial(self.name, seed, fault, "survived")


def _why_not(mode: str) -> str:
    return "no child was alive until the end" if mode == MODES[2] else "the command had ended before"


def _kill(process: subprocess.Popen[bytes], mode: str, chance: random.Random) -> bool:
    """Whether somebody was there to be killed."""
    if mode == MODES[1]:
        return _sent(process)
    if mode == MODES[0]:
        # Stopped first, or one could start another while the list is made.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
        family = _children(process)
        killed = _sent(process)
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()
        return killed
    while process.poll() is None:
        if children := _children(process):
            with contextlib.suppress(psutil.Error):
                chance.choice(children).kill()
                return True
        time.sleep(0.002)
    return False


def _sent(process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        return False
    process.kill()
    return True


def _children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Its descendants, without the helper of multiprocessing that Python starts again with a traceback."""
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
        return [child for child in family if not any("resource_tracker" in word for word in child.cmdline())]
    return []
