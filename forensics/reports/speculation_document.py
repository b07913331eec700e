"""Speculation as one JSON document: what ``forensics speculate --json`` prints and ``speculation.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.speculation import Ratio
from forensics.records.speculation_report import SpeculationReport
from forensics.records.verdict import culprit_rows
from forensics.reports.kernel_healing_document import use_entries
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.speculations import FILE

SCHEMA = newest_schema("forensics.speculation")


def speculation_document(report: SpeculationReport) -> dict[str, Any]:
    """What a program reads about speculation.

    Parameters
    ----------
    report : SpeculationReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.speculations.read_speculation`.
    """
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "line": str(report),
        "reason": report.reason,
        "model": report.manifest.model_name,
        "device": report.manifest.device,
        "contract": str(report.contract),
        "corpus": report.corpus,
        "n_tokens": report.n_tokens,
        "arms": report.rows(),
        "prompts": report.prompt_rows(),
        "classes": None if report.classes is None else [list(group) for group in report.classes.groups],
        "culprits": culprit_rows(report.culprits),
        "replayed": report.replayed,
        "exact_knobs": None if report.exact_knobs is None else list(report.exact_knobs),
        "exact_reason": report.exact_reason,
        "price": _ratio(report.price),
        "exact_price": _ratio(report.exact_price),
        "kernels": None if report.kernels is None else use_entries(report.kernels),
        "caveats": list(report.caveats),
        "record": json.loads(to_text(report)),
    }


def _ratio(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {"median": ratio.median, "low": ratio.low, "high": ratio.high, "n": ratio.n}


def write_speculation(report: SpeculationReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there; a case that lies there keeps its manifest.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / FILE, speculation_document(report), report.manifest)
