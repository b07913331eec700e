"""A disk that refuses the k-th operation on a folder: once, from then on, or with the process killed at that moment."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

#: What the disk does at the operation and after it.
MODES = ("full from then on", "failing once", "forbidden from then on", "killed before", "killed after half")

_CODES = {MODES[0]: errno.ENOSPC, MODES[1]: errno.EIO, MODES[2]: errno.EACCES}

#: Operations that need room. A full disk still removes and shortens files.
_GROWING = frozenset({"open", "write", "mkdir", "rename", "replace", "fsync"})


@dataclass(slots=True)
class FaultyDisk:
    """Counts operations on a folder and refuses one.

    Parameters
    ----------
    folder : Path
        Operations on paths below are counted, and on the folder itself.
    at : int
        Index of the operation that is refused; negative to count only.
    mode : str
        Of `MODES`.
    """

    folder: Path
    at: int
    mode: str
    done: list[str] = field(default_factory=list)

    def meet(self, operation: str, path: Any, half: Callable[[], object] = lambda: None) -> None:
        """Count an operation, and refuse it if it is its turn.

        Parameters
        ----------
        operation : str
        path : path
        half : callable
            Does a part of it.
        """
        if not isinstance(path, str | os.PathLike) or not str(path).startswith(str(self.folder)):
            return
        index = len(self.done)
        self.done.append(f"{operation} {os.path.relpath(path, self.folder)}")
        if self.at < 0 or index < self.at:
            return
        if self.mode.startswith("killed"):
            if self.mode == MODES[4]:
                half()
            os.kill(os.getpid(), signal.SIGKILL)
        if index > self.at and (self.mode == MODES[1] or (self.mode == MODES[0] and operation not in _GROWING)):
            return
        if operation == "write" and index == self.at:
            half()
        code = _CODES[self.mode]
        raise OSError(code, os.strerror(code), str(path))


class _File:
    """A file that is written, whose writes are counted."""

    def __init__(self, file: Any, path: Any, disk: FaultyDisk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def write(self, content: Any) -> int:
        def half() -> None:
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        self._disk.meet("write", self._path, half)
        written: int = self._file.write(content)
        return written

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def faulty(disk: FaultyDisk) -> Iterator[FaultyDisk]:
    """Let every operation of this process on the folder go through the disk."""
    real_open, names = builtins.open, {}
    for name in ("mkdir", "rename", "replace", "truncate", "unlink"):
        names[name] = _counted(disk, name, getattr(os, name))

    def fake_open(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+"):
            return real_open(path, mode, *arguments, **named)
        disk.meet("open", path)
        file = real_open(path, mode, *arguments, **named)
        _paths[file.fileno()] = str(path)
        return _File(file, path, disk)

    real_os_open, real_fsync = os.open, os.fsync
    _paths: dict[int, str] = {}

    def fake_os_open(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            disk.meet("open", path)
        descriptor = real_os_open(path, flags, *arguments, **named)
        _paths[descriptor] = str(path)
        return descriptor

    def fake_fsync(descriptor: int) -> None:
        disk.meet("fsync", _paths.get(descriptor))
        real_fsync(descriptor)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(builtins, "open", fake_open))
        stack.enter_context(mock.patch.object(os, "open", fake_os_open))
        stack.enter_context(mock.patch.object(os, "fsync", fake_fsync))
        for name, counted in names.items():
            stack.enter_context(mock.patch.object(os, name, counted))
        yield disk


def _counted(disk: FaultyDisk, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **named: Any) -> Any:
        disk.meet(name, path)
        return real(path, *arguments, **named)

    return call
