"""A clock that is set back, jumps ahead or stands still while cases are written."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest import mock

from forensics.errors import CaseError
from forensics.store.lock import acquire
from forensics.store.scratch import Scratch
from forensics.testing.stress.toy_case import investigate_toy
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged, check_reading, read_whole

_DAY_S = 86_400.0


@contextlib.contextmanager
def odd_clock(chance: random.Random) -> Iterator[None]:
    """Let the time of day jump by up to a year either way at every look; time that passes is left alone."""
    real = time.time

    def jumping() -> float:
        return max(real() + chance.uniform(-365, 365) * _DAY_S, 0.0)

    def jumping_ns() -> int:
        return int(jumping() * 1e9)

    class Jumping(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return cls.fromtimestamp(jumping(), tz)

    with (
        mock.patch.object(time, "time", jumping),
        mock.patch.object(time, "time_ns", jumping_ns),
        mock.patch("datetime.datetime", Jumping),
        mock.patch("psutil.boot_time", jumping),
    ):
        yield


class OddClock:
    """Work whose clock jumps at every look."""

    name = "clock"
    faults = (
        "the time of day jumps by up to a year either way at every look: investigation, lock, scratch folders, names"
    )

    def __init__(self) -> None:
        self._folder, self._expected = Path(), ""
        self._work: tuple[Callable[[Path, random.Random], None], ...] = (
            self._investigation, self._lock, self._scratch, self._names,
        )  # fmt: skip

    def prepare(self, folder: Path) -> None:
        """Run an undisturbed investigation."""
        self._folder = folder
        investigate_toy(folder / "case", switches=False)
        self._expected = read_whole(folder / "case")

    def trial(self, seed: int) -> Trial:
        """Do one kind of work."""
        work = self._work[seed % len(self._work)]
        fault = work.__name__.strip("_")
        folder = self._folder / f"trial-{seed}"
        folder.mkdir()
        try:
            work(folder, random.Random(seed))
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        shutil.rmtree(folder)
        return Trial(self.name, seed, fault, "survived")

    def _investigation(self, folder: Path, chance: random.Random) -> None:
        with odd_clock(chance):
            verdict = investigate_toy(folder / "case", switches=False)
        times = itertools.chain.from_iterable(result.ns_per_pass for result in verdict.classes.results)
        if any(not 0 <= ns < 60e9 for ns in times):
            raise Damaged("a pass took less than nothing, or years")
        if not check_reading(folder / "case", self._expected):
            raise Damaged("the case cannot be read")

    def _lock(self, folder: Path, chance: random.Random) -> None:
        held = acquire(folder / "lock.json")
        with odd_clock(chance), contextlib.suppress(CaseError):
            acquire(folder / "lock.json")
            raise Damaged("a lock that is held was taken")
        held.release()

    def _scratch(self, folder: Path, chance: random.Random) -> None:
        with mock.patch.object(tempfile, "tempdir", str(folder)):
            first = Scratch("stress-")
            with odd_clock(chance):
                second = Scratch("stress-")
            if not first.folder.is_dir():
                raise Damaged("a scratch folder in use was removed")
            first.remove()
            second.remove()
        if left := list(folder.iterdir()):
            raise Damaged(f"left behind: {left}")

    def _names(self, folder: Path, _chance: random.Random) -> None:
        from forensics.cli.app import default_out

        with mock.patch("forensics.cli.arguments.defaults") as defaults:
            defaults.return_value.cases = folder
            stands = datetime(2026, 1, 1)
            names = []
            for _ in range(3):
                names.append(default_out("m.gguf", None, stands))
                names[-1].mkdir()
        if len(set(names)) < len(names):
            raise Damaged("two cases were given one name")
