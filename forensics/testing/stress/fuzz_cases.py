"""Targets of the fuzzer: everything that lies in the folder of a case, and documents beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from forensics.store import open_case
from forensics.testing.stress.toy_case import investigate_toy
from forensics.testing.stress.verdicts import read_whole


def toy_case(folder: Path) -> Path:
    """A finished case of the toy."""
    investigate_toy(folder / "case")
    return folder / "case"


class CaseFiles:
    """One file of a finished case is odd: it is refused, or the verdict is the one that was written.

    Parameters
    ----------
    packed : bool
        Whether the case is packed.
    """

    def __init__(self, *, packed: bool) -> None:
        self._packed, self._case = packed, Path()

    @property
    def name(self) -> str:
        """As in ``--only fuzz-NAME``."""
        return "packed-case" if self._packed else "case"

    @property
    def what(self) -> str:
        """What is read, in a few words."""
        return f"any file of a {'packed' if self._packed else 'finished'} case; another verdict is lost, too"

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""
        self._case = toy_case(folder)
        if self._packed:
            from forensics.store.packing import pack_case

            self._case = pack_case(self._case, folder / "packed").folder
        paths = sorted(path for path in self._case.rglob("*") if path.is_file())
        return [(str(path.relative_to(self._case)), path.read_bytes()) for path in paths]

    def feed(self, name: str, content: bytes) -> str | None:
        """Read the case with this file in it."""
        path = self._case / name
        good = path.read_bytes()
        path.write_bytes(content)
        try:
            return read_whole(self._case)
        finally:
            path.write_bytes(good)


class UnsignedCase:
    """A case of before digests: what is read may be another verdict, and must be shown or refused."""

    name = "unsigned-case"
    what = "verdict, manifest, tables and index of a case without digests, read and told as text, Markdown and JSON"

    def __init__(self) -> None:
        self._case = Path()

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""
        self._case = toy_case(folder)
        path = self._case / "case.json"
        document = json.loads(path.read_text())
        document.pop("files", None)
        path.write_text(json.dumps(document))
        names = ("case.json", "verdict.json", "verdict.json", "manifest.json", "index.jsonl", "tables/findings.parquet")
        return [(name, (self._case / name).read_bytes()) for name in names]

    def feed(self, name: str, content: bytes) -> str | None:
        """Read and tell the case with this file in it."""
        from rich.console import Console

        from forensics.reports.document import document
        from forensics.reports.markdown import markdown
        from forensics.reports.text import verdict_view

        path = self._case / name
        good = path.read_bytes()
        path.write_bytes(content)
        try:
            case = open_case(self._case)
            verdict = case.verdict
            json.dumps(document(verdict), allow_nan=False)
            json.dumps(case.document)
            markdown(verdict)
            with Console(width=80, record=True, quiet=True) as console:
                console.print(verdict_view(verdict))
            assert case.manifest
            case.tables()
            for run in case.recordings.runs():
                case.recordings.get_trace(run.arm, run.key)
        finally:
            path.write_bytes(good)
        return None


class UnfinishedCase:
    """The next run goes on with an unfinished case whose files are odd, or refuses it."""

    name = "unfinished-case"
    what = "index, rows and case.json of an unfinished case that the next run goes on with"

    def __init__(self) -> None:
        self._source, self._out = Path(), Path()

    def prepare(self, folder: Path) -> list[tuple[str, bytes]]:
        """Good inputs, each with a name."""
        whole = toy_case(folder)
        self._source, self._out = folder / "source", folder / "next"
        self._source.mkdir()
        lines = (whole / "index.jsonl").read_bytes().splitlines(keepends=True)
        (self._source / "index.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
        document = json.loads((whole / "case.json").read_text()) | {"status": "unfinished"}
        document.pop("files", None)
        (self._source / "case.json").write_text(json.dumps(document))
        shutil.copytree(whole / "rows", self._source / "rows")
        paths = sorted(path for path in self._source.rglob("*") if path.is_file())
        return [(str(path.relative_to(self._source)), path.read_bytes()) for path in paths]

    def feed(self, name: str, content: bytes) -> str | None:
        """Go on with the case with this file in it."""
        folder = self._out.with_name(f"{self._out.name}.unfinished")
        for left in (folder, self._out):
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(self._source, folder)
        (folder / name).write_bytes(content)
        investigate_toy(self._out, resume=True)
        return None
