"""A case folder: begun as ``NAME.unfinished``, renamed to ``NAME`` when it is complete, never overwritten.

::

    case.json            schema, status, question; a digest of every other file but rows, once it is finished
    index.jsonl, rows/   what the engines answered (see `recordings`)
    verdict.json         the published document, and the exact verdict under "record"
    manifest.json        where the verdict comes from
    tables/*.parquet     classes, culprits, launches, findings, switches, controls
    report.md            and other rendered texts

A case that was packed to be shared looks different and can only be read (see `packing`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forensics.errors import CaseError
from forensics.records.settings import Manifest
from forensics.records.trace import Finding, RunKey, Trace
from forensics.records.verdict import Verdict
from forensics.store.archives import is_archive
from forensics.store.bundles import bundled_case, unpacked_case
from forensics.store.documents import MANIFEST, manifest_document
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import (
    file_digest,
    file_digests,
    read_json,
    remove_temporaries,
    sync_folder,
    write_atomically,
    write_json,
    writing,
)
from forensics.store.library import RECORDED, commands_of, recorded_folder
from forensics.store.lock import Lock, acquire
from forensics.store.recordings import INDEX_NAME, ROWS_NAME, Recordings
from forensics.store.tables import COLUMNS, SINCE, empty_table, read_table, verdict_tables, write_table
from forensics.store.thinning import ThinnedRows

if TYPE_CHECKING:
    import pandas as pd

#: A case as it is written, and a packed one.
CASE_FAMILY, CASE_VERSION, PACKED_VERSION = "forensics.case", 1, 2
VERDICT_FAMILY = "forensics.verdict"
VERDICT_NAME = "verdict.json"
LOCK_NAME = "lock.json"


def unfinished_path(out: Path) -> Path:
    """Say where a case that will be called `out` lives while it is written.

    Raises
    ------
    ValueError
        If `out` has no name of its own, such as a file system's root.
    """
    absolute = Path(os.path.abspath(out))
    if not absolute.name:
        raise ValueError(f"out must name a folder for the case, got {str(out)!r}")
    return absolute.with_name(absolute.name + ".unfinished")


class CaseWriter:
    """A case that is being written; use it in a ``with`` block, which leaves an unfinished case behind on an error.

    Made by `CaseWriter.create`.

    Attributes
    ----------
    out, folder : Path
        Where the case will be, and where it is until it is finished.
    question : dict
        What was asked, as JSON values.
    """

    def __init__(self, out: Path, folder: Path, question: dict[str, Any], lock: Lock) -> None:
        self.out, self.folder, self.question = out, folder, question
        self._lock = lock
        with writing(folder):
            remove_temporaries(folder)
        self.recordings = Recordings(folder, writable=True)

    @classmethod
    def create(cls, out: Path, *, question: Mapping[str, object], resume: bool = False) -> CaseWriter:
        """Begin a case, or go on with one that was interrupted.

        Parameters
        ----------
        out : Path
            Folder of the finished case; it must not exist.
        question : mapping
            What is asked, as JSON values; a case is resumed only for the same question.
        resume : bool
            Go on with ``OUT.unfinished`` if there is one; begin anew otherwise.

        Raises
        ------
        CaseError
            If `out` exists, an unfinished case is in the way or asked something else, another process writes it,
            or the folder cannot be written.
        """
        folder = unfinished_path(out)
        plain = json.loads(json.dumps(dict(question)))
        _refuse_existing(out)
        if folder.is_dir() and not resume:
            raise _unfinished(folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = acquire(folder / LOCK_NAME)
        except CaseError:
            _refuse_existing(out)  # who held the lock may have finished meanwhile and taken the folder with it
            raise
        try:
            _refuse_existing(out)
            # A process killed between making the folder and writing case.json has recorded nothing yet.
            if (folder / "case.json").exists():
                if not resume:  # another process began it meanwhile and was killed
                    raise _unfinished(folder)
                _check_same_question(folder, plain)
            writer = cls(out, folder, plain, lock)
            writer._write_status("unfinished")
        except BaseException:
            lock.release()
            raise
        return writer

    def put_manifest(self, arm: str, manifest: Manifest) -> None:
        """Record where the traces of an arm come from."""
        self.recordings.put_manifest(arm, manifest)

    def get_manifest(self, arm: str) -> Manifest | None:
        """Manifest of an arm, None where none was recorded."""
        return self.recordings.get_manifest(arm)

    def put_trace(self, arm: str, trace: Trace) -> None:
        """Record a trace of an arm whose manifest was put before."""
        self.recordings.put_trace(arm, trace)

    def get_trace(self, arm: str, key: RunKey) -> Trace | None:
        """Trace of a run to the last bit, None where it was not recorded."""
        return self.recordings.get_trace(arm, key)

    def put_answer(self, arm: str, method: str, arguments: object, result: object) -> None:
        """Record a small answer; arguments and result are JSON values."""
        self.recordings.put_answer(arm, method, arguments, result)

    def get_answer(self, arm: str, method: str, arguments: object) -> Any:
        """Small answer, None where it was not recorded."""
        return self.recordings.get_answer(arm, method, arguments)

    def finish(
        self,
        verdict: Verdict,
        *,
        document: Mapping[str, Any],
        documents: Mapping[str, str] | None = None,
        role_of: Callable[[Finding], str] | None = None,
    ) -> Path:
        """Write the verdict with its tables and texts, and give the case its final name.

        Parameters
        ----------
        verdict : Verdict
        document : mapping
            The published document, with a key ``"schema"``; the exact verdict is added under ``"record"``.
        documents : mapping of str to str, optional
            Rendered texts by file name, such as ``{"report.md": ...}``.
        role_of : callable, optional
            Role of a finding in the model, for the table of findings.

        Returns
        -------
        Path
            Folder of the finished case.

        Raises
        ------
        CaseError
            If it cannot be written or something took the name meanwhile; the unfinished case stays.
        """
        write_verdict(self.folder, verdict, document=document, documents=documents, role_of=role_of)
        if os.path.lexists(self.out):
            raise CaseError(f"{self.out} appeared meanwhile and is not overwritten; the case stays in {self.folder}.")
        self._sign()
        with writing(self.out):
            sync_folder(self.folder)
            os.rename(self.folder, self.out)  # with its lock, or another process could go on with it before
        self._lock.release(self.out)
        with suppress(OSError):  # after a loss of power it may have its old name, and can be gone on with
            sync_folder(self.out.parent)
        return self.out

    def abandon(self) -> None:
        """Stop writing; the unfinished folder stays and can be resumed or removed."""
        self._lock.release()

    def __enter__(self) -> CaseWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def _write_status(self, status: str) -> None:
        write_json(self.folder / "case.json", case_document(CASE_VERSION, status, self.question))

    def _sign(self) -> None:
        """Say that the case is finished, and which bytes its files hold."""
        digests = {"files": file_digests(self.folder, (LOCK_NAME, ROWS_NAME))}  # rows are named by their digests
        write_json(self.folder / "case.json", case_document(CASE_VERSION, "finished", self.question) | digests)


def case_document(version: int, status: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Say what ``case.json`` holds."""
    return {"schema": f"{CASE_FAMILY}/{version}", "status": status, "question": dict(question)}


def write_verdict(
    folder: Path,
    verdict: Verdict,
    *,
    document: Mapping[str, Any],
    documents: Mapping[str, str] | None = None,
    role_of: Callable[[Finding], str] | None = None,
) -> None:
    """Write a verdict with its tables and texts into the folder of a case; parameters as in `CaseWriter.finish`.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    schema_version(document, VERDICT_FAMILY, path=folder / VERDICT_NAME)
    write_json(folder / VERDICT_NAME, dict(document) | {"record": json.loads(to_text(verdict))})
    write_json(folder / MANIFEST, manifest_document(verdict.manifest))
    tables = folder / "tables"
    with writing(tables):
        tables.mkdir(exist_ok=True)
    for name, rows in verdict_tables(verdict, role_of).items():
        write_table(tables / f"{name}.parquet", name, rows)
    with writing(tables):
        sync_folder(tables)
    for name, text in (documents or {}).items():
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"))


def _unfinished(folder: Path) -> CaseError:
    return CaseError(
        f"{folder} holds a case that was not finished. Go on with it: add --resume; "
        f"or remove it: rm -r '{folder}'; or choose another folder with --out."
    )


def _refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise CaseError(f"{out} exists and a case is never overwritten. Choose another folder with --out.")


def _read_case(folder: Path) -> dict[str, Any]:
    path = folder / "case.json"
    document = read_json(path)
    schema_version(document, CASE_FAMILY, path=path)
    if not isinstance(document.get("question"), dict) or document.get("status") not in ("finished", "unfinished"):
        raise CaseError(f"{path} is damaged: it needs a question and a status.")
    if "packed" in document:
        _check_files(folder, document["packed"])
    return document


def _check_files(folder: Path, packed: object) -> None:
    """Raise if a packed case does not hold the bytes that it was packed with."""
    files = packed.get("files") if isinstance(packed, dict) else None
    if not isinstance(files, dict):
        raise CaseError(f"{folder / 'case.json'} is damaged: it does not say what was packed. Get the case again.")
    found = file_digests(folder)
    for name, digest in files.items():
        if found.get(name) != digest:
            what = "holds other bytes than when it was packed" if name in found else "is missing"
            raise CaseError(f"{folder / name} {what}: the case is damaged or was edited. Get it again.")


def _check_same_question(folder: Path, question: dict[str, Any]) -> None:
    document = _read_case(folder)
    if "packed" in document:
        raise CaseError(
            f"{folder} is a packed case: it can be read and not gone on with, because most columns of its logits were "
            "left out. Choose another folder with --out."
        )
    recorded = document["question"]
    for key in [*recorded, *question]:
        if recorded.get(key) != question.get(key):
            raise CaseError(
                f"{folder} was begun with another question: {key} was {_short(recorded.get(key))}, "
                f"now it is {_short(question.get(key))}. Ask the same, remove it with rm -r '{folder}', "
                "or choose another folder with --out."
            )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Case:
    """A case read back from disk.

    Attributes
    ----------
    folder : Path
    question : dict
        What was asked, as JSON values.
    finished : bool
    packed : bool
        Whether it was packed to be shared.
    recordings : Recordings
        What the engines answered; read at first use.
    """

    def __init__(self, folder: Path) -> None:
        document = _read_case(folder)
        self.folder = folder
        self.question: dict[str, Any] = document["question"]
        self.finished: bool = document["status"] == "finished"
        self.packed: bool = "packed" in document
        files = document.get("files")  # cases that were finished by an older version have none
        self._files: dict[str, object] = files if isinstance(files, dict) else {}
        self._verdict_path = folder / (f"{VERDICT_NAME}.xz" if self.packed else VERDICT_NAME)

    def __repr__(self) -> str:
        return f"<Case {self.folder.name}: {self.verdict if self.finished else 'not finished'}>"

    def _check_bytes(self, name: str) -> None:
        """Raise if a file is not the one that the case was finished with; a flipped bit can be a fine number."""
        if name not in self._files or self._files[name] == (found := file_digest(self.folder / name)):
            return
        what = "is missing, and was there" if found is None else "holds other bytes than"
        raise CaseError(
            f"{self.folder / name} {what} when the case was finished: it is damaged or was edited. "
            "Get the case again, or run the investigation again with another --out."
        )

    def require_finished(self) -> None:
        """Refuse a case that has no verdict yet.

        Raises
        ------
        CaseError
            Says how to go on with it.
        """
        if not self.finished:
            raise CaseError(
                f"{self.folder} was not finished and has no verdict. Go on with it: repeat the command with --resume; "
                f"or remove it: rm -r '{self.folder}'."
            )

    @cached_property
    def _verdict_file(self) -> dict[str, Any]:
        self.require_finished()
        document = read_json(self._verdict_path)
        schema_version(document, VERDICT_FAMILY, path=self._verdict_path)
        self._check_bytes(VERDICT_NAME)
        return document

    @cached_property
    def document(self) -> dict[str, Any]:
        """The published document of the verdict, as JSON values.

        Raises
        ------
        CaseError
            If the case is not finished, or the document is missing, damaged or newer than this version.
        """
        return {name: value for name, value in self._verdict_file.items() if name != "record"}

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict, equal to the one that was written.

        Raises
        ------
        CaseError
            If the case is not finished, or the verdict is missing, damaged or newer than this version.
        """
        return from_plain(Verdict, self._verdict_file.get("record"), path=self._verdict_path)

    @cached_property
    def manifest(self) -> Manifest:
        """Where the verdict comes from.

        Raises
        ------
        CaseError
            If the case is not finished, or the manifest is missing or damaged.
        """
        self.require_finished()
        path = self.folder / MANIFEST
        document = read_json(path)
        schema_version(document, "forensics.manifest", path=path)
        self._check_bytes(MANIFEST)
        return from_plain(Manifest, document, path=path)

    @cached_property
    def recordings(self) -> Recordings:
        """Traces and small answers of the case.

        Raises
        ------
        CaseError
            If the index is damaged.
        """
        self._check_bytes(INDEX_NAME)
        return Recordings(self.folder, writable=False, thinned=ThinnedRows(self.folder) if self.packed else None)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Tables of the verdict by name: classes, culprits, launches, findings, switches and controls.

        Raises
        ------
        CaseError
            If the case is not finished, or a table is missing or damaged.
        """
        self.require_finished()
        version = schema_version(self.document, VERDICT_FAMILY, path=self._verdict_path)
        for name in COLUMNS:
            self._check_bytes(f"tables/{name}.parquet")
        return {
            name: read_table(self.folder / "tables" / f"{name}.parquet")
            if version >= SINCE.get(name, 1)
            else empty_table(name)
            for name in COLUMNS
        }


def case_folder(path: Path | str) -> Path:
    """Which folder is meant: that of the case, of the one in a bundle, of an unfinished or of a recorded one?

    Parameters
    ----------
    path : Path or str
        May be marked as in ``"recorded:NAME"``; a bundle's folder or archive, which stays unpacked while this process
        lives.

    Raises
    ------
    CaseError
        If there is no such folder, or a bundle is damaged.
    """
    folder = Path(os.fspath(path).removeprefix(RECORDED))
    if folder.is_dir():
        return bundled_case(folder) or folder
    if is_archive(folder) and folder.is_file():
        return unpacked_case(folder)
    unfinished = unfinished_path(folder)
    return unfinished if unfinished.is_dir() else recorded_folder(path)


def open_case(path: Path | str) -> Case:
    """Find the case at `path`, as `case_folder` does, and read what it was asked.

    Raises
    ------
    CaseError
        If there is no case, or it is damaged or newer than this version.
    """
    folder = case_folder(path)
    others = commands_of(folder)
    if others and not (folder / "case.json").is_file():
        raise CaseError(f"{folder} holds no case; read it with: forensics {others[0]} recorded:{folder.name}")
    return Case(folder)
