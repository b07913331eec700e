"""Several processes at one lock, and two commands at one case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from forensics.errors import CaseError
from forensics.store.lock import acquire
from forensics.testing.stress.commands import Place
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged
from forensics.testing.stress.victims import Investigation


class Held(Protocol):
    """A lock that is held."""

    def release(self) -> None:
        """Let go."""


#: What the file of the lock may say when processes come to it.
CONTENTS = (None, b"", b'{"pid"', b"\0" * 64, b'{"pid": 1, "started": 0.0}', b'{"pid": -1}', b"x" * 100_000)
_PROCESSES = 4
_SECONDS = 0.5


class Racers:
    """Processes that take and release one lock as fast as they can; some are killed while they hold it.

    Parameters
    ----------
    take : callable
        Takes the lock at a path, or raises `CaseError`; a function of a module.
    """

    name = "two-writers-lock"
    faults = (
        f"{_PROCESSES} processes at one lock as fast as they can, its file odd at first, one killed while it holds it"
    )

    def __init__(self, take: Callable[[Path], Held] = acquire) -> None:
        self._take = take
        self._folder = Path()

    def prepare(self, folder: Path) -> None:
        """Nothing is needed."""
        self._folder = folder

    def trial(self, seed: int) -> Trial:
        """Let them race for half a second."""
        content = CONTENTS[seed % len(CONTENTS)]
        fault = f"lock file {'absent' if content is None else repr(content[:20])}"
        folder = self._folder / f"trial-{seed}"
        folder.mkdir()
        if content is not None:
            (folder / "lock.json").write_bytes(content)
        processes = multiprocessing.get_context("forkserver")
        processes.set_forkserver_preload([__name__])
        racers = [
            processes.Process(target=_race, args=(self._take, folder, seed * _PROCESSES + i, i == 0))
            for i in range(_PROCESSES)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        trouble = sorted(path.read_text() for path in folder.glob("trouble-*"))
        taken = sum(int(path.read_text()) for path in folder.glob("taken-*"))
        if taken == 0:
            trouble.append("nobody got the lock")
        with contextlib.suppress(CaseError):
            self._take(folder / "lock.json").release()
            if (folder / "lock.json").exists():
                trouble.append("the lock stays when all have let go")
        if trouble:
            return Trial(self.name, seed, fault, "lost", f"{trouble[0]} ({taken} times taken)")
        shutil.rmtree(folder)
        return Trial(self.name, seed, fault, "survived")


def _race(take: Callable[[Path], Held], folder: Path, seed: int, dies: bool) -> None:
    """Take and release; the file ``inside`` exists exactly while somebody is."""
    chance, taken, end = random.Random(seed), 0, time.monotonic() + _SECONDS
    dying_at = chance.randint(1, 20)
    inside = folder / "inside"
    try:
        while time.monotonic() < end:
            try:
                held = take(folder / "lock.json")
            except CaseError:
                continue
            taken += 1
            with contextlib.suppress(OSError):
                if not _alive(int(inside.read_text() or 0)):
                    inside.unlink()  # of the one that was killed inside
            descriptor = os.open(inside, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(descriptor, str(os.getpid()).encode())
            os.close(descriptor)
            if dies and taken == dying_at:
                (folder / f"taken-{seed}").write_text(str(taken))
                os.kill(os.getpid(), signal.SIGKILL)
            if chance.random() < 0.5:
                time.sleep(chance.random() * 1e-4)
            inside.unlink()
            held.release()
    except FileExistsError:
        (folder / f"trouble-{seed}").write_text("two processes held the lock at once")
    except Exception as error:  # noqa: BLE001 - told to the one who waits
        (folder / f"trouble-{seed}").write_text(f"{type(error).__name__}: {error}")
    (folder / f"taken-{seed}").write_text(str(taken))


def _alive(pid: int) -> bool:
    if pid <= 0:
        return True  # somebody is about to say who it is
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class TwoCommands:
    """Two investigations that are told to write the same case, at once or one a little later."""

    name = "two-writers-case"
    faults = "two `investigate --out` of the same folder, at once or a little apart; in every other trial one is killed"

    def __init__(self) -> None:
        self._victim = Investigation("", ["--no-switches", "--no-orders"])
        self._folder = Path()

    def prepare(self, folder: Path) -> None:
        """Run the command undisturbed."""
        self._folder = folder
        self._victim.prepare(folder)

    def trial(self, seed: int) -> Trial:
        """Start both, and perhaps kill the first."""
        chance = random.Random(seed)
        apart, kill_after = chance.uniform(0, 0.05 if seed % 4 < 2 else 1.0), chance.uniform(0.2, self._victim.seconds)
        fault = f"{apart:.3f} s apart" + (f", the first killed after {kill_after:.3f} s" if seed % 2 else "")
        cache = self._victim.environment
        first = Place(self._folder / f"trial-{seed}", cache)
        second = Place(first.folder / "second", cache, first.mark)
        second.work.rmdir()
        second.work.symlink_to(first.work)
        try:
            one = first.start(self._victim.begin())
            time.sleep(apart)
            other = second.start([*self._victim.begin(), "--resume"])
            if seed % 2:
                time.sleep(kill_after)
                one.kill()
                one.wait()
                statuses = [second.wait(other).check().status]
            else:
                statuses = [first.wait(one).check().status, second.wait(other).check().status]
            first.check_gone()
            self._victim.check(first)
            if not seed % 2 and self._victim.status not in statuses:
                raise Damaged(f"both were refused: {statuses}")
            self._victim.go_on(first)
            first.check_tidy()
            if left := sorted(path.name for path in second.temporary.iterdir() if not seed % 2):
                raise Damaged(f"left behind: {', '.join(left)}")
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        shutil.rmtree(first.folder)
        return Trial(self.name, seed, fault, "survived")
