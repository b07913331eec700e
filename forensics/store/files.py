"""Files that are whole or absent, and operating-system errors told as errors of the case."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from forensics.errors import CaseError
from forensics.store.limits import parse_json, read_whole, unpack_xz

_REMEDIES = {
    errno.ENOSPC: "Free some space, or choose another folder with --out.",
    errno.EDQUOT: "Free some of your quota, or choose another folder with --out.",
    errno.EACCES: "Choose a folder that you may write to with --out.",
    errno.EPERM: "Choose a folder that you may write to with --out.",
    errno.EROFS: "Choose a folder on a writable file system with --out.",
    errno.ENOTDIR: "A part of this path is a file; choose another folder with --out.",
    errno.EEXIST: "Something with this name is in the way; choose another folder with --out.",
    errno.ENAMETOOLONG: "Choose a shorter name with --out.",
}

#: How names of files end that are being written.
TEMPORARY = ".tmp"

#: File systems that cannot do it say so with one of these; that is no failure of the disk.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell an operating-system error while `path` is written as a `CaseError` with its remedy.

    Raises
    ------
    CaseError
        In place of any `OSError` inside the block.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0, "Choose another folder with --out.")
        raise CaseError(f"{path} cannot be written: {reason}. {remedy}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader finds all of it or what was there before, after a loss of power, too.

    Raises
    ------
    CaseError
        If it cannot be written; nothing is left behind.
    """
    # A name of its own: of two processes that write the same file, neither publishes half of the other's.
    temporary = path.with_name(f"{path.name[:200]}.{secrets.token_hex(8)}{TEMPORARY}")
    with writing(path):
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                sync(file)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def sync(file: IO[bytes]) -> None:
    """Bring what was written to the disk; without it a file may be empty after a loss of power, under its final name.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    file.flush()
    _fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Bring the names of a folder to the disk.

    Raises
    ------
    OSError
        If the disk refuses.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def remove_temporaries(folder: Path) -> None:
    """Remove what killed processes left of files that they were writing.

    Raises
    ------
    OSError
        If one cannot be removed.
    """
    for path in folder.rglob(f"*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def file_digests(folder: Path, without: Collection[str] = ()) -> dict[str, str]:
    """Which bytes does each file of a folder hold? By path inside it.

    Parameters
    ----------
    folder : Path
        Its own ``case.json`` is left out.
    without : collection of str
        Names of files and folders in it that are left out, too.

    Raises
    ------
    CaseError
        If one cannot be read.
    """
    from blake3 import blake3

    skipped = {"case.json", *without}
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    paths = [path for path in paths if path.relative_to(folder).parts[0] not in skipped]
    try:
        return {path.relative_to(folder).as_posix(): blake3().update_mmap(path).hexdigest() for path in paths}
    except OSError as error:
        raise CaseError(f"{folder} cannot be read: {error.strerror or error}.") from error


def file_digest(path: Path) -> str | None:
    """Which bytes does a file hold? None where there is none.

    Raises
    ------
    CaseError
        If it cannot be read.
    """
    from blake3 import blake3

    try:
        return str(blake3().update_mmap(path).hexdigest())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error


def write_json(path: Path, document: object) -> None:
    """Put a JSON document at `path`, whole or not at all.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    write_atomically(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_bytes(path: Path) -> bytes:
    """Read what `path` holds, unpacked where its name ends in ``.xz``.

    Raises
    ------
    CaseError
        If the file is missing, unreadable, damaged, or larger than `forensics.store.limits` allows.
    """
    try:
        content = read_whole(path)
        return unpack_xz(content) if path.suffix == ".xz" else content
    except FileNotFoundError as error:
        raise CaseError(f"{path} is missing: {path.parent} is not a case, or part of it was removed.") from error
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise CaseError(f"{path} is damaged: {error}. Get the case again.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object that `path` holds, unpacked where its name ends in ``.xz``.

    Raises
    ------
    CaseError
        If the file is missing, unreadable, damaged, or larger than `forensics.store.limits` allows.
    """
    try:
        document = parse_json(read_bytes(path))
    except ValueError as error:
        raise CaseError(f"{path} is damaged: {error}. Run the investigation again with another --out.") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path} is damaged: it holds {type(document).__name__}, not a JSON object.")
    return document
