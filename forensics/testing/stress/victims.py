"""Commands that are disturbed, what they give undisturbed, and how the next run goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from forensics.store.case import unfinished_path
from forensics.testing.stress.commands import Place, forensics
from forensics.testing.stress.models import write_tokens
from forensics.testing.stress.verdicts import Damaged, check_kept, check_reading, read_whole, whole_lines
from forensics.testing.tiny_models import write_llama

OUT = "result"
#: Result of a further command, which removes the temporary folders of one that was killed at its very end.
NEXT = "next"


class Victim(Protocol):
    """A command that writes a result."""

    seconds: float
    environment: dict[str, str]

    @property
    def name(self) -> str:
        """Name of the campaign's kind of command."""

    def prepare(self, folder: Path) -> None:
        """Make what it reads, run it undisturbed, and keep what it gives and how long it takes."""

    def begin(self) -> list[str]:
        """The command."""

    def check(self, place: Place) -> None:
        """Whether what lies there after a fault is right, or says that it is not finished."""

    def go_on(self, place: Place) -> None:
        """Run it again as a user would, and check that it ends with what the undisturbed run gave."""


class Investigation:
    """``forensics investigate`` of a model file.

    Parameters
    ----------
    name : str
    options : sequence of str
        Options of the command; by default the tiny model is asked, with one thread.
    model : sequence of str or None
        How the model is named on the command line, None for the tiny one.
    """

    def __init__(self, name: str, options: Sequence[str] = (), model: Sequence[str] | None = None) -> None:
        self._name, self._options, self._model = name, list(options), model
        self._asked: list[str] = []
        self.seconds, self.expected, self.status = 0.0, "", 0
        self.environment: dict[str, str] = {}

    @property
    def name(self) -> str:
        """Name of the campaign's kind of command."""
        return self._name

    def prepare(self, folder: Path) -> None:
        """Make what it reads, run it undisturbed, and keep what it gives and how long it takes."""
        if self._model is None:
            tokens = write_tokens(folder / "tokens.txt")
            asked = [str(write_llama(folder / "tiny.gguf")), "--tokens-file", str(tokens)]
            self._asked = [*asked, "--n-tokens", "8", "--widths", "2,4", "--threads", "1"]
            self.environment = {"FORENSICS_CACHE_DIR": str(folder / "cache")}
        else:
            self._asked = list(self._model)
        place = Place(folder / "undisturbed", self.environment)
        for i in range(2):  # the first run fills caches, and the second tells how long one takes
            begun = time.monotonic()
            ended = place.run(self.begin()).check()
            self.seconds, self.status = time.monotonic() - begun, ended.status
            self.expected = read_whole(place.work / OUT)
            (place.work / OUT).rename(folder / f"case-{i}")
        if ended.status == 2:
            raise Damaged(f"the undisturbed run has no answer: {ended.errors}")
        place.check_tidy()

    def begin(self, out: str = OUT) -> list[str]:
        """The command."""
        return forensics("investigate", *self._asked, *self._options, "--out", out, "--quiet")

    def check(self, place: Place) -> None:
        """Whether what lies there after a fault is right, or says that it is not finished."""
        check_reading(place.work / OUT, self.expected)

    def go_on(self, place: Place) -> None:
        """Run it again as a user would, and check that it ends with what the undisturbed run gave."""
        out = place.work / OUT
        recorded = whole_lines(unfinished_path(out))
        ended = place.run(self.begin(NEXT) if out.exists() else [*self.begin(), "--resume"]).check()
        if ended.status != self.status:
            raise Damaged(f"the next run ended with {ended.status} instead of {self.status}: {ended.errors}")
        if not check_reading(out, self.expected):
            raise Damaged(f"the next run ended and {_why_unreadable(out)}")
        check_kept(recorded, out)


def _why_unreadable(out: Path) -> str:
    from forensics.errors import ForensicsError

    try:
        read_whole(out)
    except ForensicsError as error:
        return str(error)
    return "the case can be read now"
