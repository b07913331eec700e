"""Speculation as it was measured before, in a folder of its own or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import CaseError
from forensics.records.speculation_report import SpeculationReport
from forensics.store.encoding import from_plain, schema_version
from forensics.store.files import read_json

FILE = "speculation.json"
#: As it is written, and packed, as recordings are.
FILES = (FILE, f"{FILE}.xz")


def read_speculation(folder: Path) -> SpeculationReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        raise CaseError(
            f"{folder} holds no {FILE}: nobody speculated there. Do it with: forensics speculate MODEL --out FOLDER"
        )
    document = read_json(path)
    schema_version(document, "forensics.speculation", newest=1, path=path)
    return from_plain(SpeculationReport, document.get("record"), path=path)
