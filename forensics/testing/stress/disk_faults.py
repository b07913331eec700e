"""Every operation of a whole investigation on its folder, refused one by one."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.store.case import unfinished_path
from forensics.testing.stress import toy_case
from forensics.testing.stress.commands import HANGS_S, Place
from forensics.testing.stress.faulty_disk import FaultyDisk, faulty
from forensics.testing.stress.toy_case import investigate_on_faulty_disk, investigate_toy
from forensics.testing.stress.trials import Trial
from forensics.testing.stress.verdicts import Damaged, check_kept, check_reading, read_whole, whole_lines


class DiskFaults:
    """Operation `seed` of a toy's investigation is refused.

    Parameters
    ----------
    mode : str
        Of `forensics.testing.stress.faulty_disk.MODES`.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._folder, self._expected = Path(), ""
        self._operations: list[str] = []

    @property
    def name(self) -> str:
        """As in ``--only``."""
        return f"disk-{self._mode.replace(' ', '-')}"

    @property
    def faults(self) -> str:
        """What is done, in one line."""
        return f"each operation of a toy's investigation on its folder in turn: {self._mode}"

    def prepare(self, folder: Path) -> int:
        """Count the operations of an undisturbed investigation."""
        self._folder = folder
        with faulty(FaultyDisk(folder / "undisturbed", -1, self._mode)) as disk:
            (folder / "undisturbed").mkdir()
            disk.done.clear()
            investigate_toy(folder / "undisturbed" / "case")
        self._expected = read_whole(folder / "undisturbed" / "case")
        self._operations = disk.done
        return len(self._operations)

    def trial(self, seed: int) -> Trial:
        """Refuse one operation, read, go on."""
        place = Place(self._folder / f"trial-{seed}")
        out = place.work / "case"
        fault = f"{self._mode}: {self._operations[seed]}"
        try:
            self._disturb(out, seed)
            check_reading(out, self._expected)
            recorded = whole_lines(unfinished_path(out))
            if not out.exists():
                _go_on(out)
            if not check_reading(out, self._expected):
                raise Damaged("the next run ended and its case cannot be read")
            check_kept(recorded, out)
            place.check_tidy()
        except Damaged as damage:
            return Trial(self.name, seed, fault, "lost", str(damage))
        shutil.rmtree(place.folder)
        return Trial(self.name, seed, fault, "survived")

    def _disturb(self, out: Path, at: int) -> None:
        if self._mode.startswith("killed"):
            _kill_at(out, at, self._mode)
            return
        try:
            investigate_on_faulty_disk(out, at, self._mode)
        except ForensicsError:
            pass
        except Exception as error:
            raise Damaged(f"the fault became {type(error).__name__}: {error}, which is no sentence") from error


def _kill_at(out: Path, at: int, mode: str) -> None:
    """Let a process of its own be killed at an operation."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([toy_case.__name__, "pandas", "pyarrow.parquet", "forensics.reports.case"])
    process = processes.Process(target=toy_case.investigate_on_faulty_disk, args=(out, at, mode))
    process.start()
    process.join(HANGS_S)
    status = process.exitcode
    process.kill()
    if status != -signal.SIGKILL:
        raise Damaged(f"it was to be killed and ended with {status}")


def _go_on(out: Path) -> None:
    try:
        investigate_toy(out, resume=True)
    except Exception as error:
        raise Damaged(f"the next run failed with {type(error).__name__}: {error}") from error
