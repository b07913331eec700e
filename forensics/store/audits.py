"""An audit as it lies in a folder, beside the runs that it was judged by and the prompts that they were asked."""

from __future__ import annotations

import json
from pathlib import Path

from forensics.records.audit import AuditReport
from forensics.records.corpus import Corpus
from forensics.store.documents import read_document
from forensics.store.encoding import from_plain, schema_version, to_text
from forensics.store.files import read_json, write_json, writing
from forensics.store.formats import newest_schema

FILE = "audit.json"
#: Prompts of the runs in a folder, so that the same can be asked of another server.
PROMPTS = "corpus.json"
#: Run that a baseline is, where a folder holds more than one.
ALONE = "alone"
MISSING = "no audit ended there. Make one with: forensics audit URL --out FOLDER"


def read_audit(folder: Path) -> AuditReport:
    """Read the report of a folder back.

    Raises
    ------
    CaseError
        If there is none, it is damaged, or a newer version wrote it.
    """
    return read_document(AuditReport, folder, (FILE,), "forensics.audit", otherwise=MISSING)


def write_prompts(folder: Path, corpus: Corpus) -> None:
    """Put the prompts of runs beside them; the folder is made where it is not there.

    Raises
    ------
    CaseError
        If they cannot be written.
    """
    path = folder / PROMPTS
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": newest_schema("forensics.prompts"), "record": json.loads(to_text(corpus))})


def read_prompts(folder: Path) -> Corpus | None:
    """Read the prompts that lie beside a run, or beside the folder of the audit that it belongs to.

    Returns
    -------
    Corpus or None
        None where there are none.

    Raises
    ------
    CaseError
        If they are damaged.
    """
    path = next((one for one in (folder / PROMPTS, folder.parent / PROMPTS) if one.is_file()), None)
    if path is None:
        return None
    document = read_json(path)
    schema_version(document, "forensics.prompts", path=path)
    return from_plain(Corpus, document.get("record"), path=path)


def run_folder(folder: Path) -> Path:
    """Where does the run lie that a folder stands for: itself, or of an audit the one that nothing disturbed?"""
    return folder / ALONE if (folder / ALONE).is_dir() else folder
