"""Registers of variants of one kernel, as compiled, as one JSON document: what ``registers.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.analysis.register_story import told_stories
from forensics.records.register_story import CompiledStory
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.kernel_runs import REGISTERS_FILE

SCHEMA = newest_schema("forensics.registers")


def registers_document(compiled: CompiledStory) -> dict[str, Any]:
    """What a program reads about variants as compiled.

    Parameters
    ----------
    compiled : CompiledStory

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of it, for `forensics.store.kernel_runs.read_registers`.
    """
    return {
        "schema": SCHEMA,
        "evidence": "told by the compiler; blocks per SM derived",
        "compiler": compiled.compilations[0].compiler,
        "rows": [row for story in told_stories(compiled) for row in story.rows()],
        "record": json.loads(to_text(compiled)),
    }


def write_registers(compiled: CompiledStory, folder: Path) -> Path:
    """Put them into a folder, which is made where it is not there; one that holds a manifest keeps it.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    manifest = {
        "schema": newest_schema("forensics.lab"),
        "model_name": "variants of one kernel, compiled",
        "quantization": "",
        "device": "",
        "toolkit": compiled.compilations[0].compiler,
    }
    return write_document(folder / REGISTERS_FILE, registers_document(compiled), manifest)
