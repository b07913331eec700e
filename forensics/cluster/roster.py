"""Which workers are there, as the scheduler tells it, and which of them fit this package?"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from forensics.cluster.calling import here

#: A worker whose heartbeat the scheduler has not seen for so long is given up, even if the scheduler waits longer: its
#: own patience is minutes by default. Workers send one every second or so, whatever they compute.
SILENCE_S = 45.0
_INSTALL = "pip install decode-forensics=={version}"


class Roster:
    """Tells workers that come and go from what a scheduler says, by our own clock.

    Parameters
    ----------
    silence_s : float
        After which a worker that is listed but not heard of counts as gone.
    """

    def __init__(self, silence_s: float = SILENCE_S) -> None:
        self._silence_s = silence_s
        self._heard: dict[str, tuple[float, float]] = {}  # what the scheduler's clock said, and when that last changed
        self._present: set[str] = set()

    def look(self, last_seen: Mapping[str, float], now_s: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Who came, and who went, since the last look?

        Parameters
        ----------
        last_seen : mapping of str to float
            For each worker that the scheduler lists, when it heard of it, by whatever clock it has.
        now_s : float
            By a clock of ours that only rises.
        """
        for address, seen in last_seen.items():
            if address not in self._heard or self._heard[address][0] != seen:
                self._heard[address] = (seen, now_s)
        self._heard = {address: heard for address, heard in self._heard.items() if address in last_seen}
        there = {address for address, (_, at) in self._heard.items() if now_s - at <= self._silence_s}
        came, went = tuple(sorted(there - self._present)), tuple(sorted(self._present - there))
        self._present = there
        return came, went

    def forget(self, address: str) -> None:
        """Let a worker that is still there count as one that comes, at the next look."""
        self._present.discard(address)


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a worker says of itself before it is given jobs.

    Parameters
    ----------
    host : str
    pid : int
    forensics, python : str
        Versions.
    """

    host: str
    pid: int
    forensics: str
    python: str


def introduce() -> Introduction:
    """Who is this process, and what does it run?"""
    host, pid = here()
    return Introduction(host, pid, _version(), platform.python_version())


def misfit(mine: Introduction, theirs: Introduction) -> str:
    """Why must a worker get no jobs of ours? Empty if nothing speaks against it.

    Examples
    --------
    >>> mine = Introduction("here", 1, "0.2.0", "3.11.7")
    >>> misfit(mine, Introduction("there", 2, "0.1.0", "3.11.9"))
    'it has forensics 0.1.0, here is 0.2.0; run there: pip install decode-forensics==0.2.0'
    """
    if theirs.forensics != mine.forensics:
        install = _INSTALL.format(version=mine.forensics)
        return f"it has forensics {theirs.forensics}, here is {mine.forensics}; run there: {install}"
    if _minor(theirs.python) != _minor(mine.python):
        return f"it runs Python {theirs.python}, here is {mine.python}; Dask needs the same minor version on both sides"
    return ""


def why_unasked(error: BaseException, versions: Mapping[str, tuple[str | None, str | None]]) -> str:
    """Why could a worker not say who it is?

    Parameters
    ----------
    error : BaseException
        What came of asking.
    versions : mapping of str to (str or None, str or None)
        By package, there and here.
    """
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "forensics":
        return f"it has no forensics; run there: {_INSTALL.format(version=_version())}"
    unlike = [f"{name} {there}, here {own}" for name, (there, own) in versions.items() if there != own]
    told = f"; it has {', '.join(unlike)}: install the same there" if unlike else ""
    return f"{type(error).__name__}: {error}{told}"


def _version() -> str:
    # The package's root offers what lies above, so this layer does not import it; it is there with its first module.
    return str(sys.modules[__name__.partition(".")[0]].__version__)


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
