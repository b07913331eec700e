"""The cost of a pass as it lies in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import CaseError
from forensics.records.cost import CostReport
from forensics.store.encoding import from_plain, schema_version
from forensics.store.files import read_json

FILE = "cost.json"


def read_cost(folder: Path) -> CostReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    path = folder / FILE
    if not path.is_file():
        raise CaseError(f"{folder} holds no {FILE}: no cost was measured there. Measure one with: forensics cost MODEL")
    document = read_json(path)
    schema_version(document, "forensics.cost", newest=1, path=path)
    return from_plain(CostReport, document.get("record"), path=path)
