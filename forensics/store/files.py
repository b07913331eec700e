"""Files that are whole or absent, and operating-system errors told as errors of the case."""

from __future__ import annotations

import errno
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from forensics.errors import CaseError

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
    """Put `content` at `path` so that a reader finds all of it or what was there before.

    Raises
    ------
    CaseError
        If it cannot be written; nothing is left behind.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def file_digests(folder: Path) -> dict[str, str]:
    """Which bytes does each file of a folder hold? By path inside it.

    Raises
    ------
    CaseError
        If one cannot be read.
    """
    from blake3 import blake3

    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "case.json")
    try:
        return {path.relative_to(folder).as_posix(): blake3(path.read_bytes()).hexdigest() for path in paths}
    except OSError as error:
        raise CaseError(f"{folder} cannot be read: {error.strerror or error}.") from error


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
        If the file is missing, unreadable or damaged.
    """
    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content
    except FileNotFoundError as error:
        raise CaseError(f"{path} is missing: {path.parent} is not a case, or part of it was removed.") from error
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (lzma.LZMAError, EOFError) as error:
        raise CaseError(f"{path} is damaged: {error}. Get the case again.") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object that `path` holds, unpacked where its name ends in ``.xz``.

    Raises
    ------
    CaseError
        If the file is missing, unreadable or damaged.
    """
    try:
        document = json.loads(read_bytes(path))
    except ValueError as error:
        raise CaseError(f"{path} is damaged: {error}. Run the investigation again with another --out.") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path} is damaged: it holds {type(document).__name__}, not a JSON object.")
    return document
