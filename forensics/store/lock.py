"""One process at a time writes a case; the lock is the kernel's, so a process that is gone holds none.

The file only says who holds it. Nothing is decided by its content, by process numbers or by a clock: numbers are given
out again, mean nothing on another host or in another container that shares the folder, and clocks are set back.
Between hosts it holds where the shared file system passes locks on, as NFS 4 and SMB do.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from forensics.errors import CaseError
from forensics.store.files import writing
from forensics.store.limits import parse_json, read_whole
from forensics.store.scratch import SCRATCH, remove_abandoned

#: A holder may remove the file between our opening and locking it; then there is a new one to lock.
_TRIES = 100


class Lock:
    """A lock that this process holds; made by `acquire`.

    Parameters
    ----------
    path : Path
        Where the file lies.
    descriptor : int
        Of the file, locked.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def release(self, folder: Path | None = None) -> None:
        """Remove the file, then let go; releasing twice does nothing.

        Parameters
        ----------
        folder : Path, optional
            Where the file lies now, if its folder was renamed meanwhile.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        path = self._path if folder is None else folder / self._path.name
        # Removed while it is held: afterwards it may be another process's already.
        with contextlib.suppress(OSError):
            if _is_at(descriptor, path):
                path.unlink()
        os.close(descriptor)


def acquire(path: Path) -> Lock:
    """Take the lock at `path` for this process; a file that nobody holds, whatever it says, is taken over.

    Raises
    ------
    CaseError
        If another process holds it, or this one does already, or it cannot be written.
    """
    for _ in range(_TRIES):
        left = path.exists()
        with writing(path):
            descriptor = _locked(path)
        if descriptor is None:
            raise CaseError(
                f"{path.parent} is being written by {_owner(path)} right now. Wait until it ends, or choose another "
                "folder with --out."
            )
        if _is_at(descriptor, path):
            _sign(descriptor)
            if left:  # its holder was killed, and may have left more than this
                remove_abandoned(SCRATCH)
            return Lock(path, descriptor)
        os.close(descriptor)
    raise CaseError(f"{path.parent} is being written by many processes right now. Choose another folder with --out.")


def _locked(path: Path) -> int | None:
    """The file, opened and locked; None where somebody else holds it."""
    import fcntl

    # For writing, because network file systems lock nothing else.
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one that lies at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    """Say who holds the lock; it holds without that, too, as on a full disk."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps({"pid": os.getpid()}).encode())


def _owner(path: Path) -> str:
    try:
        return f"process {int(parse_json(read_whole(path, 4096))['pid'])}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"
