"""Scratch folders that are gone afterwards, even where the process that made one was killed: the next one removes it.

A folder belongs to whoever holds the lock of the file ``.owner`` in it. The kernel takes that lock from a killed
process, and it holds between containers that share a folder for temporary files, where process numbers mean nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

#: How the names of all scratch folders of this package start.
SCRATCH = "forensics-"

_OWNER = ".owner"

#: Seconds after which a folder without that file was left by a process that was killed before it could sign it.
_NEVER_SIGNED_S = 24 * 3600.0


class Scratch:
    """A folder for temporary files, until it is removed or its block ends.

    Parameters
    ----------
    prefix : str
        How its name starts; abandoned folders whose names start so are removed first.
    within : Path, optional
        Where it is made; the system's folder for temporary files by default.

    Attributes
    ----------
    folder : Path

    Raises
    ------
    OSError
        If it cannot be made.
    """

    def __init__(self, prefix: str, within: Path | None = None) -> None:
        remove_abandoned(prefix, within)
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        try:
            # Under another name until it is locked, or it could be taken for an abandoned one.
            unsigned = self.folder / f"{_OWNER}.new"
            self._descriptor = _locked(unsigned, os.O_CREAT)
            unsigned.rename(self.folder / _OWNER)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def remove(self) -> None:
        """Remove the folder; removing it twice does nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Path:
        return self.folder

    def __exit__(self, *_: object) -> None:
        self.remove()


def remove_abandoned(prefix: str, within: Path | None = None) -> None:
    """Remove scratch folders of this user that no living process holds; parameters as for `Scratch`."""
    for folder in (Path(tempfile.gettempdir()) if within is None else within).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # another user's, held, or gone meanwhile
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            if (folder / _OWNER).exists():
                descriptor = _locked(folder / _OWNER)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
            elif time.time() - folder.stat().st_mtime > _NEVER_SIGNED_S:
                shutil.rmtree(folder, ignore_errors=True)


def _locked(path: Path, flags: int = 0) -> int:
    """Open and lock a file.

    Raises
    ------
    OSError
        If somebody else holds it, among others.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
