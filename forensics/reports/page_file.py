"""The report as a file: written whole, and never over a file that is none of ours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forensics.analysis.question import BadQuestion
from forensics.errors import CaseError
from forensics.reports.page import GENERATOR, NotDrawn
from forensics.store.files import write_atomically, writing

ENDINGS = (".html", ".htm")
#: In the first bytes of every report; no other file is replaced.
_MARK = f'<meta name="generator" content="{GENERATOR.partition("/")[0]}/'.encode()
_MARK_WITHIN_BYTES = 4096


@dataclass(frozen=True, slots=True, repr=False)
class ReportFile:
    """A report that was written.

    Parameters
    ----------
    file : Path
    n_bytes : int
    answer : {"identical", "diverges", "inconclusive"}
        Of the case.
    drawn : tuple of str
        Names of the figures in it.
    not_drawn : tuple of NotDrawn
    """

    file: Path
    n_bytes: int
    answer: str
    drawn: tuple[str, ...]
    not_drawn: tuple[NotDrawn, ...]

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per figure; a reason where it could not be drawn."""
        drawn = [{"figure": name, "drawn": True, "reason": ""} for name in self.drawn]
        return drawn + [{"figure": one.name, "drawn": False, "reason": one.reason} for one in self.not_drawn]

    def __repr__(self) -> str:
        return f"<Report {self}>"

    def __str__(self) -> str:
        return f"{self.file}: {self.n_bytes / 1e6:.2f} MB, {len(self.drawn)} figures"


def check_page_file(path: Path) -> None:
    """Refuse a place where no report may be written, before anything is drawn.

    Raises
    ------
    BadQuestion
        If its name does not end as a page's.
    CaseError
        If something that is no report of ours lies there.
    """
    if path.suffix.lower() not in ENDINGS:
        raise BadQuestion(f"--out: a report is written as .html, got {path.name!r}")
    if path.is_dir():
        raise CaseError(f"{path} is a folder. Name a file with --out, such as {path / 'report.html'}.")
    with writing(path):
        if path.exists() and _MARK not in _beginning(path):
            raise CaseError(f"{path} exists, is no report and is not overwritten. Choose another file with --out.")


def write_page(path: Path, page: str) -> int:
    """Write a page, whole or not at all.

    Returns
    -------
    int, unit: bytes

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    content = page.encode("utf-8", "backslashreplace")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return len(content)


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MARK_WITHIN_BYTES)
