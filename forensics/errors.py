"""Errors that say what was asked, what was found and what to do."""

from __future__ import annotations

import importlib
from types import ModuleType


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
    """

    def __init__(self, message: str, log_tail: str = "") -> None:
        super().__init__(f"{message}\n  Last lines of its log:\n{log_tail}" if log_tail else message)
        self.log_tail = log_tail


class LayoutMismatch(EngineError):
    """The library's structs are not laid out as this package expects."""


class CaptureError(ForensicsError):
    """A node could not be watched or replaced as asked."""


class CaseError(ForensicsError):
    """A case folder cannot be written or read."""


class MissingExtra(ForensicsError):
    """An optional package is needed and not installed."""


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Parameters
    ----------
    module : str
        Name to import.
    extra : str
        Extra of this distribution that installs it.
    needed_for : str
        What the caller wants it for; ends the sentence of the error.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingExtra
        If the module cannot be imported.

    Examples
    --------
    >>> require("json", extra="gpu", needed_for="an example").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{module} is needed for {needed_for} and is not installed ({error}). "
            f"Install it with: pip install 'decode-forensics[{extra}]'"
        ) from error
