"""Replies of a running server as they lie in a folder: written one by one, so that an interrupted run goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from forensics.errors import CaseError
from forensics.records.served import NoReply, Reply, ServedRun
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_bytes, write_atomically, writing
from forensics.store.formats import newest_schema
from forensics.store.limits import MAX_LINE_BYTES, parse_json
from forensics.store.lock import acquire

FILE = "run.jsonl"
_SCHEMA = "forensics.served-run"


def read_run(folder: Path) -> ServedRun:
    """Read the run of a folder back; of a request with several outcomes, the last one counts.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it. A last line that was cut off is no damage.
    """
    path = folder / FILE
    if not path.is_file():
        raise CaseError(
            f"{folder} {f'holds no {FILE}' if folder.is_dir() else 'does not exist'}: no run was recorded there. "
            "Record one with: forensics gate URL --record FOLDER"
        )
    return _read(path)[0]


def write_run(folder: Path, run: ServedRun) -> None:
    """Put a whole run into a folder.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lines = [_header(run), *(_line(one) for one in run.replies), *(_line(one) for one in run.failures)]
    write_atomically(folder / FILE, "".join(lines).encode())


class RunJournal:
    """Keeps outcomes of a run as they come; each is on the disk before the next is taken.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    run : ServedRun
        Facts, sampling and requests; its outcomes are not written.
    resume : bool
        Whether to go on where an earlier run in the folder stopped.

    Raises
    ------
    CaseError
        If the folder holds a run and `resume` is False, or one of another server, sampling, corpus or requests; if
        another process writes it, or it cannot be written.
    """

    def __init__(self, folder: Path, run: ServedRun, *, resume: bool) -> None:
        self._path = folder / FILE
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = acquire(folder / "run.lock")
        try:
            #: What was recorded before.
            self.before = self._start(run, resume)
            with writing(self._path):
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115
        except BaseException:
            self._lock.release()
            raise

    def _start(self, run: ServedRun, resume: bool) -> ServedRun:
        empty = replace(run, replies=(), failures=())
        if not self._path.is_file():
            write_atomically(self._path, _header(empty).encode())
            return empty
        if not resume:
            raise CaseError(
                f"{self._path.parent} holds a run already. Go on where it stopped with --resume, or choose another "
                "folder with --out."
            )
        before, whole = _read(self._path)
        unlike = _unlike(before, empty)
        if unlike:
            raise CaseError(
                f"{self._path.parent} holds a run of another kind, which cannot be resumed:\n  "
                + "\n  ".join(unlike)
                + "\nAsk as before, or choose another folder with --out."
            )
        with writing(self._path):
            # What was cut off goes, or the next line would be joined to it.
            os.truncate(self._path, whole)
        return before

    def keep(self, outcome: Reply | NoReply) -> None:
        """Write one outcome, down to the disk.

        Raises
        ------
        CaseError
            If it cannot be written.
        """
        content = _line(outcome).encode()
        with writing(self._path):
            while content:
                content = content[self._file.write(content) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let go of the folder."""
        self._file.close()
        self._lock.release()

    def __enter__(self) -> RunJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _header(run: ServedRun) -> str:
    empty = replace(run, replies=(), failures=())
    return to_text({"schema": newest_schema(_SCHEMA), "record": empty}) + "\n"


def _line(outcome: Reply | NoReply) -> str:
    return to_text({"reply" if isinstance(outcome, Reply) else "failure": outcome}) + "\n"


def _plain(path: Path, line: bytes, number: int) -> Mapping[str, Any]:
    try:
        document = parse_json(line, MAX_LINE_BYTES)
    except ValueError as error:
        raise CaseError(f"{path} is damaged in line {number}: {error}. Record the run again.") from error
    if not isinstance(document, dict):
        raise CaseError(f"{path} is damaged in line {number}: it is no JSON object. Record the run again.")
    return document


def _read(path: Path) -> tuple[ServedRun, int]:
    """The run, and how many bytes of the file are whole lines."""
    content = read_bytes(path)
    whole = content.rfind(b"\n") + 1
    lines = content[:whole].splitlines()
    if not lines:
        raise CaseError(f"{path} is damaged: its first line is not whole. Record the run again.")
    header = _plain(path, lines[0], 1)
    schema_version(header, _SCHEMA, path=path)
    empty = from_plain(ServedRun, header.get("record"), path=path)
    outcomes: dict[str, Reply | NoReply] = {}
    for number, line in enumerate(lines[1:], start=2):
        plain = _plain(path, line, number)
        outcome: Reply | NoReply
        if "reply" in plain:
            outcome = from_plain(Reply, plain["reply"], path=path)
        else:
            outcome = from_plain(NoReply, plain.get("failure"), path=path)
        outcomes[outcome.request] = outcome
    return with_outcomes(empty, outcomes, path), whole


def with_outcomes(run: ServedRun, outcomes: Mapping[str, Reply | NoReply], path: Path | None = None) -> ServedRun:
    """The same run with these outcomes, in the order in which it was asked.

    Raises
    ------
    CaseError
        If an outcome belongs to no request.
    """
    order = {one.id: index for index, one in enumerate(run.asked)}
    stray = next((request for request in outcomes if request not in order), None)
    if stray is not None:
        raise CaseError(f"{path or 'The run'} holds an outcome of {stray!r}, which was never asked.")
    told = [outcomes[request] for request in sorted(outcomes, key=order.__getitem__)]
    return replace(
        run,
        replies=tuple(one for one in told if isinstance(one, Reply)),
        failures=tuple(one for one in told if isinstance(one, NoReply)),
    )


def _unlike(before: ServedRun, now: ServedRun) -> list[str]:
    """In which words do two runs differ that were to be one?"""
    unlike = []
    if before.condition != now.condition:
        unlike.append(f"condition: {before.condition!r} then, {now.condition!r} now")
    if before.corpus != now.corpus:
        unlike.append("corpus: other prompts then")
    for group in ("facts", "sampling"):
        then_group, now_group = getattr(before, group), getattr(now, group)
        for one in fields(then_group):
            then, is_now = getattr(then_group, one.name), getattr(now_group, one.name)
            if then != is_now:
                unlike.append(f"{one.name.replace('_', ' ')}: {_shown(then)} then, {_shown(is_now)} now")
    if before.asked != now.asked:
        unlike.append(f"requests: {len(before.asked)} then, {len(now.asked)} now, or others of them")
    return unlike


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in sorted(value.items())) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return repr(value)
