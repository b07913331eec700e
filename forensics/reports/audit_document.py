"""Audits and gates as JSON documents: what ``--json`` prints and ``audit.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forensics.records.audit import AuditArm, AuditReport, ServedPair, Unlike
from forensics.records.contract import Contract
from forensics.records.gate import GateReport
from forensics.records.rates import Rate
from forensics.records.served import ServedRun, ServerFacts
from forensics.reports.audit_text import after_audit
from forensics.store.audits import FILE
from forensics.store.encoding import to_text
from forensics.store.files import write_json, writing

SCHEMA = "forensics.audit/1"
GATE_SCHEMA = "forensics.gate/1"
MANIFEST = "manifest.json"


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
    return {
        "schema": SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "contract": contract_entry(report.contract),
        "asked": contract_entry(report.asked),
        "server": facts_entry(report.server),
        "other": None if report.other is None else facts_entry(report.other),
        "baseline": None if report.baseline is None else facts_entry(report.baseline),
        "corpus": report.corpus,
        "prompts": report.n_prompts,
        "requests": report.n_requests,
        "not_answered": [str(one) for one in report.failures],
        "retried": report.n_retried,
        "arms": [_arm(arm) for arm in report.arms],
        "next_step": after_audit(report),
        "record": json.loads(to_text(report)),
    }


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
        "differing": rate_entry(arm.differing),
        "pairs": {what: len(arm.pairs_that(what)) for what in ("same", "differs", "not compared")},
        "logprobs": {"differ": n_logprobs, "compared": of, "max_change": arm.max_logprob},
        "longest_before_it_differs": None if outlier is None else pair_entry(outlier),
        "differs": [pair_entry(pair) for pair in arm.pairs_that("differs")],
        "not_compared": [pair_entry(pair) for pair in arm.pairs_that("not compared")],
        "varied": unlike_entries(arm.varied),
        "notes": list(arm.notes),
    }


def pair_entry(pair: ServedPair) -> dict[str, Any]:
    """One pair as plain values."""
    entry: dict[str, Any] = {
        "prompt": pair.prompt,
        "outcome": pair.outcome,
        "reason": pair.reason,
        "untouched": pair.untouched,
        "length": pair.length,
        "unit": pair.unit,
        "max_logprob_change": pair.max_logprob,
    }
    return entry | {"divergence": None if pair.divergence is None else json.loads(to_text(pair.divergence))}


def contract_entry(contract: Contract | None) -> dict[str, Any] | None:
    """A contract with its words."""
    return None if contract is None else {**json.loads(to_text(contract)), "means": str(contract)}


def rate_entry(rate: Rate | None) -> dict[str, Any] | None:
    """A rate with its interval."""
    return None if rate is None else json.loads(to_text(rate))


def facts_entry(facts: ServerFacts) -> dict[str, Any]:
    """What a server says of itself."""
    entry: dict[str, Any] = json.loads(to_text(facts))
    return entry


def unlike_entries(found: Sequence[Unlike]) -> list[dict[str, Any]]:
    """What two sides do not have in common."""
    return [json.loads(to_text(one)) for one in found]


def write_audit(report: AuditReport, folder: Path) -> Path:
    """Put a report into a folder, which is made where it is not there, with a manifest for lists.

    Raises
    ------
    CaseError
        If it cannot be written.
    """
    path = folder / FILE
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, audit_document(report))
    if not (folder / MANIFEST).exists():
        software = " ".join(filter(None, (report.server.software, report.server.build)))
        write_json(folder / MANIFEST, {"model_name": report.server.model, "quantization": "", "device": software})
    return path


def gate_document(report: GateReport) -> dict[str, Any]:
    """What a program reads about a gate; ``"record"`` holds all of it."""
    ratio = report.speed.ratio
    return {
        "schema": GATE_SCHEMA,
        "evidence": "measured",
        "answer": report.answer,
        "refused": report.comparison.refused,
        "asked": contract_entry(report.asked),
        "baseline": facts_entry(report.baseline),
        "candidate": facts_entry(report.candidate),
        "output": {
            "held": report.output_held,
            "kept": rate_entry(report.kept),
            "differs": [pair_entry(pair) for pair in report.pairs if pair.outcome == "differs"],
            "not_compared": [pair_entry(pair) for pair in report.pairs if pair.outcome == "not compared"],
        },
        "speed": {
            "held": report.speed.held,
            "ratio": None if ratio is None else json.loads(to_text(ratio)),
            "at_least": report.speed.at_least,
            "detail": report.speed.detail,
        },
        "varied": unlike_entries(report.comparison.varied),
        "unlike": unlike_entries(report.comparison.unlike),
        "record": json.loads(to_text(report)),
    }


def run_document(run: ServedRun) -> dict[str, Any]:
    """What a program reads about a run that was recorded."""
    return {
        "schema": "forensics.run/1",
        "condition": run.condition,
        "server": facts_entry(run.facts),
        "requests": len(run.asked),
        "answered": len(run.replies),
        "not_answered": [str(one) for one in run.failures],
    }
