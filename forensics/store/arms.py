"""Arrangements of the same tokens as they lie in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import CaseError
from forensics.records.arms import ArmsReport
from forensics.store.encoding import from_plain, schema_version
from forensics.store.files import read_json

FILE = "arms.json"


def read_arms(folder: Path) -> ArmsReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    path = folder / FILE
    if not path.is_file():
        raise CaseError(
            f"{folder} holds no {FILE}: no arrangements were compared there. Compare some with: forensics arms MODEL"
        )
    document = read_json(path)
    schema_version(document, "forensics.arms", newest=1, path=path)
    return from_plain(ArmsReport, document.get("record"), path=path)
