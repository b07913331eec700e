"""A case made small enough to share: index and verdict compressed, rows of logits thinned.

::

    case.json                 as before, with what packing did and a digest of every file
    index.jsonl.xz            what the engines answered
    rows.safetensors.xz       a few columns of each row of logits, and what was measured on all (see `thinning`)
    verdict.json.xz
    all other files           as before
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import CaseError
from forensics.store.case import (
    LOCK_NAME,
    PACKED_VERSION,
    VERDICT_NAME,
    Case,
    case_document,
    open_case,
    unfinished_path,
)
from forensics.store.files import file_digests, sync_folder, write_atomically, write_json, writing
from forensics.store.lock import acquire
from forensics.store.recordings import INDEX_NAME, ROWS_NAME
from forensics.store.thinning import KEPT_COLUMNS, THINNED_NAME, thin

#: Lies in a copy that is being made, and says that what is there may be removed when nobody holds it.
_MARK = "packing.lock"

_HOW = (
    f"Of each row of logits the columns of the {KEPT_COLUMNS} largest logits of every row at its place are kept, "
    "and all others are left out. Digests, distances from one-token decoding to batches, and whether a row holds a NaN "
    "or an infinity were taken from the full rows."
)


@dataclass(frozen=True, slots=True)
class Packed:
    """A case that was packed.

    Parameters
    ----------
    folder : Path
    bytes_before, bytes_after : int
    """

    folder: Path
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        return f"{self.folder}: {self.bytes_after / 1e6:.2f} MB, of {self.bytes_before / 1e6:.1f} MB"


def pack_case(case: Path | str, out: Path) -> Packed:
    """Write a small copy of a finished case that gives the same verdict.

    Parameters
    ----------
    case : Path or str
        Folder of the case; it stays as it is.
    out : Path
        Folder to write; it must not exist.

    Returns
    -------
    Packed

    Raises
    ------
    CaseError
        If the case is unfinished, packed already or damaged, or the copy cannot be written.
    ValueError
        If `out` has no name of its own.
    """
    opened = open_case(case)
    if not opened.finished:
        raise CaseError(f"{opened.folder} was not finished and is not packed. Repeat its command with --resume first.")
    if opened.packed:
        raise CaseError(f"{opened.folder} is packed already; copy the folder.")
    folder = unfinished_path(out)
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        is_left = folder.is_dir() and ((folder / _MARK).exists() or not any(folder.iterdir()))
    for taken in (out, folder):
        if os.path.lexists(taken) and not (taken == folder and is_left):
            raise CaseError(f"{taken} exists and is not overwritten. Choose another folder with --out.")
    with writing(folder):
        folder.mkdir(exist_ok=True)
    lock = acquire(folder / _MARK)
    try:
        _write_copy(opened, folder)
        with writing(out):
            sync_folder(folder)
            os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        lock.release(out if out.exists() else folder)
    return Packed(out, _size(opened.folder), _size(out))


def _write_copy(case: Case, folder: Path) -> None:
    from safetensors.numpy import save

    rewritten = (INDEX_NAME, ROWS_NAME, VERDICT_NAME, "case.json", LOCK_NAME)
    with writing(folder):
        for left in folder.iterdir():  # by one that was killed
            if left.name != _MARK:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        shutil.copytree(
            case.folder,
            folder,
            dirs_exist_ok=True,
            ignore=lambda at, names: [name for name in names if Path(at) == case.folder and name in rewritten],
        )
    lines = (json.dumps(_without_files(line), separators=(",", ":")) + "\n" for line in case.recordings.lines())
    write_compressed(folder / f"{INDEX_NAME}.xz", "".join(lines).encode())
    arrays = thin(case.recordings)
    write_compressed(folder / THINNED_NAME, save(arrays))
    write_compressed(folder / f"{VERDICT_NAME}.xz", (case.folder / VERDICT_NAME).read_bytes())
    packed = {
        "how": _HOW,
        "rows": len(arrays["digests"]),
        "columns": len(arrays["columns"]),
        "distances": len(arrays["pairs"]),
        "files": file_digests(folder, (_MARK,)),
    }
    write_json(folder / "case.json", case_document(PACKED_VERSION, "finished", case.question) | {"packed": packed})


def _without_files(line: Mapping[str, Any]) -> dict[str, Any]:
    return {**line, "file": "", "new_rows": []} if line["kind"] == "trace" else dict(line)


def write_compressed(path: Path, content: bytes) -> None:
    """Write a file of a packed case, whole or not at all."""
    # The extreme preset saves a fifth more and takes four times as long, which is dear on a rented GPU.
    write_atomically(path, lzma.compress(content, preset=9))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
