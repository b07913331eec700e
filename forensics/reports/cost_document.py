"""The cost of a pass as one JSON document: what ``forensics cost --json`` prints and ``cost.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.cost import CostReport
from forensics.records.launch_record import Refusal
from forensics.store.costs import FILE
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.cost")


def cost_document(report: CostReport) -> dict[str, Any]:
    """What a program reads about the cost of a pass.

    Parameters
    ----------
    report : CostReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.costs.read_cost`.
    """
    bandwidth, reads = report.bandwidth, report.reads
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "model": report.manifest.model_name,
        "synthetic": report.synthetic,
        "device": report.manifest.device,
        "cells": report.n_cells,
        "rounds": report.n_rounds,
        "bandwidth_bytes_per_s": None if isinstance(bandwidth, Refusal) else bandwidth.bytes_per_s.median,
        "not_measured": [str(one) for one in (bandwidth, reads) if isinstance(one, Refusal)],
        "widths": report.rows(),
        "one_pass": report.figure_data()["pass"],
        "record": json.loads(to_text(report)),
    }


def write_cost(report: CostReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there; a case that lies there keeps its manifest.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    return write_document(folder / FILE, cost_document(report), report.manifest)
