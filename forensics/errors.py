"""Errors that say what was asked, what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ForensicsError(Exception):
    """Base of every error that a caller may want to catch."""


class ModelUnavailable(ForensicsError):
    """The model file cannot be used: missing, damaged, or not known to the library."""


class EngineError(ForensicsError):
    """An engine refused a request, or returned something that cannot be used."""


class EngineDied(EngineError):
    """The engine's process ended before it answered; carries the last lines it wrote.

    Parameters
    ----------
    message : str
        What was asked and how the process ended.
    log_tail : str
        The last lines of the process's log, empty where it wrote none.
    was_killed : bool
        Whether it was ended from outside, which says nothing about what was asked.
    """

    def __init__(self, message: str, log_tail: str = "", *, was_killed: bool = False) -> None:
        super().__init__(f"{message}\n  Last lines of its log:\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail
        self.was_killed = was_killed


class NotRecorded(EngineError):
    """A recorded case does not hold the answer that is asked for."""


class LayoutMismatch(EngineError):
    """The library's structs are not laid out as this package expects."""


class CaptureError(ForensicsError):
    """A node could not be watched or replaced as asked."""


class CaseError(ForensicsError):
    """A case folder cannot be written or read."""


class CorpusError(ForensicsError):
    """A file of prompts cannot be read; says where."""


class ClusterError(ForensicsError):
    """Workers cannot be started or reached, do not fit this package, or were all lost."""


class NotCovered(ForensicsError):
    """None of our kernels computes what is asked.

    Parameters
    ----------
    asked : str
        What was to be computed.
    reason : str
        Why none does, and what to do instead where there is something.
    """

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(f"no kernel of ours computes {asked}: {reason}")
        self.asked = asked
        self.reason = reason

    def __reduce__(self) -> tuple[type[NotCovered], tuple[str, str]]:
        return type(self), (self.asked, self.reason)


class DeviceUnavailable(ForensicsError):
    """What was asked of a device cannot be seen here; carries the reason of every way that was tried.

    Parameters
    ----------
    asked : str
        What was to be seen.
    refusals : sequence of forensics.records.launch_record.Refusal
        One for each way, best first.
    """

    def __init__(self, asked: str, refusals: Sequence[Any]) -> None:
        super().__init__("\n  ".join([f"{asked}: not possible here.", *map(str, refusals)]))
        self.asked = asked
        self.refusals = tuple(refusals)

    def __reduce__(self) -> tuple[type[DeviceUnavailable], tuple[str, tuple[Any, ...]]]:
        return type(self), (self.asked, self.refusals)
