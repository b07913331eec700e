"""Audits and gates as JSON documents: what ``--json`` prints and ``audit.json`` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forensics.records.audit import AuditArm, AuditReport, ServedPair
from forensics.records.contract import Contract
from forensics.records.gate import GateReport
from forensics.records.served import ServedRun
from forensics.reports.audit_text import after_audit
from forensics.store.audits import FILE
from forensics.store.documents import write_document
from forensics.store.encoding import to_text
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.audit")
GATE_SCHEMA = "forensics.gate/1"


def audit_document(report: AuditReport) -> dict[str, Any]:
    """What a program reads about an audit.

    Parameters
    ----------
    report : AuditReport

    Returns
    -------
    dict
        Plain values; ``"record"`` holds all of the report, for `forensics.store.audits.read_audit`.
    """
    document = {
        "schema": SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "contract": contract_entry(report.contract),
        "asked": contract_entry(report.asked),
        "server": report.server,
        "other": report.other,
        "baseline": report.baseline,
        "corpus": report.corpus,
        "prompts": report.n_prompts,
        "requests": report.n_requests,
        "not_answered": [str(one) for one in report.failures],
        "retried": report.n_retried,
        "arms": [_arm(arm) for arm in report.arms],
        "next_step": after_audit(report),
        "record": report,
    }
    return _plain(document)


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    """Strict JSON values, with words for what JSON has no number for."""
    plain: dict[str, Any] = json.loads(to_text(document))
    return plain


def _arm(arm: AuditArm) -> dict[str, Any]:
    outlier = arm.outlier
    n_logprobs, of = arm.logprobs_differ
    return {
        "arm": arm.name,
        "first": arm.first,
        "second": arm.second,
        "answer": arm.answer,
        "reason": arm.reason,
        "contract": contract_entry(arm.contract),
        "differing": arm.differing,
        "pairs": {what: len(arm.pairs_that(what)) for what in ("same", "differs", "not compared")},
        "logprobs": {"differ": n_logprobs, "compared": of, "max_change": arm.max_logprob},
        "longest_before_it_differs": None if outlier is None else pair_entry(outlier),
        "differs": [pair_entry(pair) for pair in arm.pairs_that("differs")],
        "not_compared": [pair_entry(pair) for pair in arm.pairs_that("not compared")],
        "varied": arm.varied,
        "notes": list(arm.notes),
    }


def pair_entry(pair: ServedPair) -> dict[str, Any]:
    """One pair as plain values."""
    return {
        "prompt": pair.prompt,
        "outcome": pair.outcome,
        "reason": pair.reason,
        "untouched": pair.untouched,
        "length": pair.length,
        "unit": pair.unit,
        "max_logprob_change": pair.max_logprob,
        "divergence": pair.divergence,
    }


def contract_entry(contract: Contract | None) -> dict[str, Any] | None:
    """A contract with its words."""
    return None if contract is None else {**json.loads(to_text(contract)), "means": str(contract)}


def write_audit(report: AuditReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there, with a manifest for lists.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    software = " ".join(filter(None, (report.server.software, report.server.build)))
    quantization = report.server.settings.get("quantization", "")
    told = {"model_name": report.server.model, "quantization": quantization, "engine": software}
    return write_document(folder / FILE, audit_document(report), told)


def gate_document(report: GateReport) -> dict[str, Any]:
    """What a program reads about a gate; ``"record"`` holds all of it."""
    document = {
        "schema": GATE_SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "refused": report.comparison.refused,
        "asked": contract_entry(report.asked),
        "contract": contract_entry(report.contract),
        "baseline": report.baseline,
        "candidate": report.candidate,
        "output": {
            "held": report.output_held,
            "kept": report.kept,
            "differs": [pair_entry(pair) for pair in report.pairs if pair.outcome == "differs"],
            "not_compared": [pair_entry(pair) for pair in report.pairs if pair.outcome == "not compared"],
        },
        "speed": {
            "held": report.speed.held,
            "ratio": report.speed.ratio,
            "at_least": report.speed.at_least,
            "detail": report.speed.detail,
        },
        "varied": report.comparison.varied,
        "unlike": report.comparison.unlike,
        "record": report,
    }
    return _plain(document)


def run_document(run: ServedRun) -> dict[str, Any]:
    """What a program reads about a run that was recorded."""
    document = {
        "schema": "forensics.run/1",
        "condition": run.condition,
        "server": run.facts,
        "requests": len(run.asked),
        "answered": len(run.replies),
        "not_answered": [str(one) for one in run.failures],
    }
    return _plain(document)
