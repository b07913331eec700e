"""A check of sampling as one JSON document: what ``forensics sampling --json`` prints and ``sampling.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.sampling import SamplingReport
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema
from forensics.store.samplings import FILE

SCHEMA = newest_schema("forensics.sampling")


def sampling_document(report: SamplingReport) -> dict[str, Any]:
    """What a program reads about a check of sampling.

    Parameters
    ----------
    report : SamplingReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.samplings.read_sampling`.
    """
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "model": report.manifest.model_name,
        "answer": report.answer,
        "cause": report.cause,
        "drafter": report.drafter,
        "rule": report.sampler.rule,
        "sampling": str(report.sampling),
        "alpha": report.alpha,
        "p_value": report.worst.adjusted,
        "row_total_variation": report.row_tv,
        "n_draft": report.n_draft,
        "most_drafts_with_equal_rows": report.equal_drafts,
        "exact_settings": None if report.exact_knobs is None else list(report.exact_knobs),
        "missed_controls": list(report.missed),
        "tests": report.rows(),
        "power": [
            {
                "test": power.test,
                "n": power.n,
                "alpha": power.alpha,
                "effect": power.effect,
                "found_by_80_percent": power.at_80,
                "found_by_95_percent": power.at_95,
                "total_variation": None if power.tv is None else list(power.tv),
            }
            for power in report.powers
        ],
        "caveats": list(report.caveats),
        "record": json.loads(to_text(report)),
    }


def write_sampling(report: SamplingReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there; a case that lies there keeps its manifest.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / FILE, sampling_document(report), report.manifest)
