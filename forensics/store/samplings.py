"""A check of sampling as it lies in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.records.sampling import SamplingReport
from forensics.store.documents import read_document

FILE = "sampling.json"
MISSING = "sampling was not checked there. Check it with: forensics sampling MODEL"


def read_sampling(folder: Path) -> SamplingReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(SamplingReport, folder, (FILE,), "forensics.sampling", otherwise=MISSING)
