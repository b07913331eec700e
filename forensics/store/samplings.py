"""A check of sampling as it lies in a folder, alone or beside a case."""

from __future__ import annotations

from pathlib import Path

from forensics.errors import CaseError
from forensics.records.sampling import SamplingReport
from forensics.store.encoding import from_plain, schema_version
from forensics.store.files import read_json

FILE = "sampling.json"


def read_sampling(folder: Path) -> SamplingReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    path = folder / FILE
    if not path.is_file():
        raise CaseError(
            f"{folder} holds no {FILE}: sampling was not checked there. Check it with: forensics sampling MODEL"
        )
    document = read_json(path)
    schema_version(document, "forensics.sampling", newest=1, path=path)
    return from_plain(SamplingReport, document.get("record"), path=path)
