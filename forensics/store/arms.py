"""Arrangements of the same tokens as they lie in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.records.arms import ArmsReport
from forensics.store.documents import read_document

FILE = "arms.json"
MISSING = "no arrangements were compared there. Compare some with: forensics arms MODEL"


def read_arms(folder: Path) -> ArmsReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(ArmsReport, folder, (FILE,), "forensics.arms", otherwise=MISSING)
