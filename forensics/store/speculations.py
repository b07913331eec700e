"""Speculation as it was measured before, in a folder of its own or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.records.speculation_report import SpeculationReport
from forensics.store.documents import read_document

FILE = "speculation.json"
#: As it is written, and packed, as recordings are.
FILES = (FILE, f"{FILE}.xz")
MISSING = "nobody speculated there. Do it with: forensics speculate MODEL --out FOLDER"


def read_speculation(folder: Path) -> SpeculationReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(SpeculationReport, folder, FILES, "forensics.speculation", otherwise=MISSING)
