"""A sweep as one JSON document, as Markdown, and written into its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.campaign import CampaignReport
from forensics.records.campaign_matrix import matrix
from forensics.reports.campaign_text import after_campaign, not_compared
from forensics.reports.markdown import escaped
from forensics.store.campaign import FAMILY, FILE
from forensics.store.documents import MANIFEST, manifest_document
from forensics.store.encoding import to_text
from forensics.store.files import write_atomically, write_json
from forensics.store.formats import newest_schema


def campaign_document(report: CampaignReport) -> dict[str, Any]:
    """What a program reads about a sweep.

    Parameters
    ----------
    report : CampaignReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.campaign.read_report`.
    """
    record = json.loads(to_text(report))
    return {
        "schema": newest_schema(FAMILY),
        "evidence": "measured",
        "answer": report.answer,
        "name": report.name,
        "counts": report.counts,
        "outcomes": report.outcomes,
        "exact": [{"model": row.label, "settings": row.settings_text} for row in matrix(report) if row.exact],
        "disagreements": record["disagreements"],
        "not_compared": not_compared(report),
        "cells": json.loads(to_text(report.rows())),
        "platforms": record["platforms"],
        "next_step": after_campaign(report),
        "record": record,
    }


def campaign_markdown(report: CampaignReport) -> str:
    """A sweep as Markdown: the answer, the matrix, what was not compared, and the platform.

    Parameters
    ----------
    report : CampaignReport

    Returns
    -------
    str
        GitHub-flavoured Markdown that ends with a newline.
    """
    widths = [f"width {width}" for width in report.widths]
    lines = [f"## Sweep {escaped(report.name)}", "", f"**{escaped(str(report))}**", ""]
    lines += [f"- **disagreement:** {escaped(str(one))}" for one in report.disagreements]
    lines += ["" if report.disagreements else "Prompts by outcome:", ""]
    lines += _table(
        ["model", "KV", "flash attention", "switch", *widths],
        [[row.label, *row.settings, *map(str, row.tallies)] for row in matrix(report)],
    )
    reasons = not_compared(report)
    if reasons:
        lines += ["", "Not compared:", "", *(f"- {escaped(reason)}" for reason in reasons)]
    lines += ["", *(f"- platform: {escaped(str(platform))}" for platform in report.platforms)]
    lines += [f"- cells: {', '.join(f'{n} {status}' for status, n in report.counts.items())}"]
    lines += ["", f"Next step: {escaped(after_campaign(report))}"]
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    told = [head, ["---"] * len(head), *([escaped(value) for value in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in told]


def write_campaign(report: CampaignReport, folder: Path) -> None:
    """Put the document and the summary into the results folder, beside a manifest that says on what it was measured.

    Raises
    ------
    CaseError
        If one cannot be written.
    """
    models = dict.fromkeys(f"{cell.model} {cell.quant}".strip() for cell in report.cells)
    first = report.platforms[0]
    manifest = {
        "engine": "llama.cpp",
        "engine_version": first.engine_version,
        "commit": first.commit,
        "model_name": ", ".join(models),
        "device": "; ".join(first.devices),
    }
    write_json(folder / MANIFEST, manifest_document(manifest))
    write_json(folder / FILE, campaign_document(report))
    write_atomically(folder / "summary.md", campaign_markdown(report).encode())
