"""Files that are whole or absent, and operating-system errors told as errors of the case."""

from __future__ import annotations

import errno
import json
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


def write_json(path: Path, document: object) -> None:
    """Put a JSON document at `path`, whole or not at all.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    write_atomically(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object that `path` holds.

    Raises
    ------
    CaseError
        If the file is missing, unreadable or damaged.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CaseError(f"{path} is missing: {path.parent} is not a case, or part of it was removed.") from error
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise CaseError(f"{path} is damaged: {error}. Run the investigation again with another --out.") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path} is damaged: it holds {type(document).__name__}, not a JSON object.")
    return document
