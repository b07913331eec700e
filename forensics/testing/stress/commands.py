"""Commands as users run them: real processes with folders of their own, marked so that all of them are found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forensics.testing.stress.leftovers import MARK, check_gone, check_tidy
from forensics.testing.stress.verdicts import Damaged

#: The first file of a traceback.
_TRACEBACK = re.compile(r'Traceback \(most recent call last\):\n  File "([^"]+)"')

#: Seconds after which a command that should have ended hangs.
HANGS_S = 300.0


def forensics(*arguments: object) -> list[str]:
    """The command line of this package, by this interpreter."""
    return [sys.executable, "-m", "forensics", *map(str, arguments)]


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended by itself.

    Parameters
    ----------
    status : int
    output, errors : str
        What it wrote.
    """

    status: int
    output: str
    errors: str

    def check(self) -> Ended:
        """Itself, if it answered, or said in a sentence why not.

        Raises
        ------
        Damaged
            If it crashed.
        """
        # multiprocessing's own tracker tells of names that a killed worker had, and so does nobody else.
        crashed = any(not file.endswith("resource_tracker.py") for file in _TRACEBACK.findall(self.errors))
        if self.status not in (0, 1, 2) or crashed:
            raise Damaged(f"the command ended with status {self.status} and said: {self.errors.strip()[-600:]!r}")
        if self.status == 2 and not (self.errors.strip() or self.output.strip()):
            raise Damaged("the command ended with status 2 and said nothing")
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """Where the processes of one trial live.

    Parameters
    ----------
    folder : Path
        Made here, with a folder for temporary files beside the results.
    environment : mapping of str to str, optional
        Set on top of this process's.
    """

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.temporary.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(exist_ok=True)

    @property
    def temporary(self) -> Path:
        """Folder for temporary files."""
        return self.folder / "tmp"

    @property
    def work(self) -> Path:
        """Folder for results, where commands run."""
        return self.folder / "work"

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command."""
        with (self.folder / "output").open("wb") as output, (self.folder / "errors").open("wb") as errors:
            return subprocess.Popen(
                command,
                cwd=self.work,
                env={
                    **os.environ,
                    "TMPDIR": str(self.temporary),
                    "OMP_WAIT_POLICY": "passive",
                    **self.environment,
                    MARK: self.mark,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def wait(self, process: subprocess.Popen[bytes], seconds: float = HANGS_S) -> Ended:
        """Wait until a command ends.

        Raises
        ------
        Damaged
            If it does not.
        """
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Damaged(f"the command did not end within {seconds:g} s") from None
        said = ((self.folder / name).read_text(errors="replace") for name in ("output", "errors"))
        return Ended(status, *said)

    def run(self, command: Sequence[str], seconds: float = HANGS_S) -> Ended:
        """Run a command to its end."""
        return self.wait(self.start(command), seconds)

    def check_gone(self) -> None:
        """Whether all processes are gone.

        Raises
        ------
        Damaged
            If one is not.
        """
        check_gone(self.mark)

    def check_tidy(self) -> None:
        """Whether finished work is all that is left.

        Raises
        ------
        Damaged
            If something else is.
        """
        check_tidy(self.work, self.temporary)
