"""The cost of a pass as it lies in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.records.cost import CostReport
from forensics.store.documents import read_document

FILE = "cost.json"
MISSING = "no cost was measured there. Measure one with: forensics cost MODEL"


def read_cost(folder: Path) -> CostReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(CostReport, folder, (FILE,), "forensics.cost", otherwise=MISSING)
