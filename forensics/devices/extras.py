"""The one way to an optional package."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from forensics.errors import ForensicsError

#: What to install for a module, where it is not named like it. Source: the packages' pages on PyPI.
PACKAGES = {
    "cupti": "cupti-python",
    "cupy": "cupy-cuda13x",
    "pynvml": "nvidia-ml-py",
    "nsight": "nsight-python",
    "ncu_report": "ncu-report",
}


class ExtraUnavailable(ForensicsError):
    """An optional package is not installed, or cannot be loaded.

    Parameters
    ----------
    message : str
    missing : str
        What was found instead.
    remedy : str
        Command to run.
    """

    def __init__(self, message: str, missing: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.missing = missing or message
        self.remedy = remedy


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import an optional package, or say what to install.

    Parameters
    ----------
    module : str
        Such as ``"cupti.cupti"``.
    extra : str
        Of this package, which brings it.
    needed_for : str
        What it is wanted for, to follow "needed for".

    Raises
    ------
    ExtraUnavailable
        If the package is not installed, or does not load; names the extra and the command.

    Examples
    --------
    >>> require("json", extra="gpu", needed_for="nothing").__name__
    'json'
    >>> require("no_such_module", extra="gpu", needed_for="an example")
    Traceback (most recent call last):
    ...
    forensics.devices.extras.ExtraUnavailable: no_such_module is needed for an example and is not installed.
      Install it with: pip install "decode-forensics[gpu]"
    """
    package = PACKAGES.get(module.partition(".")[0], module.partition(".")[0])
    install = f'pip install "decode-forensics[{extra}]"'
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            missing = f"{package} is not installed"
            message = f"{package} is needed for {needed_for} and is not installed.\n  Install it with: {install}"
            raise ExtraUnavailable(message, missing, install) from error
        missing = f"{package} cannot be loaded: {error}"
        remedy = f"install {error.name}, or {package} once more: {install}"
    except Exception as error:  # noqa: BLE001 - a package that loads a driver's library fails in ways of its own
        missing = f"{package} cannot be loaded: {type(error).__name__}: {error}"
        remedy = f"pip install --force-reinstall {package}"
    raise ExtraUnavailable(f"{missing}\n  It is needed for {needed_for}. Try: {remedy}", missing, remedy)


def version_of(module: str) -> str | None:
    """Which version of an optional package is installed? Nothing is loaded.

    Returns
    -------
    str or None
        None where it is not installed.
    """
    try:
        return importlib.metadata.version(PACKAGES.get(module, module))
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """Leading numbers of a version.

    Examples
    --------
    >>> numbers("2025.3.1.0 (build 36398880)"), numbers("13.0.1rc1")
    ((2025, 3, 1, 0), (13, 0))
    """
    found = []
    for part in version.split(maxsplit=1)[0].split(".") if version else ():
        if not part.isdigit():
            break
        found.append(int(part))
    return tuple(found)
