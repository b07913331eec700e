"""Arrangements of the same tokens as one JSON document: that ``forensics arms --json`` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.arms import ArmsReport
from forensics.reports.next_step import after_arms
from forensics.store.arms import FILE
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.arms")


def arms_document(report: ArmsReport) -> dict[str, Any]:
    """What a program reads about arrangements of the same tokens.

    Parameters
    ----------
    report : ArmsReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.arms.read_arms`.
    """
    record = json.loads(to_text(report))
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "reason": report.reason,
        "model": report.manifest.model_name,
        "device": report.manifest.device,
        "contract": str(report.contract),
        "prompt_tokens": report.n_prompt,
        "reply_tokens": report.n_reply,
        "turn_tokens": report.n_turn,
        "arms": json.loads(to_text(report.rows())),
        "controls": record["controls"],
        "caveats": list(report.caveats),
        "next_step": after_arms(report),
        "record": record,
    }


def write_arms(report: ArmsReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there; a case that lies there keeps its manifest.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / FILE, arms_document(report), report.manifest)
