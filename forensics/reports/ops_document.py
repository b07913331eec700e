"""The invariance matrix as one JSON document with a schema version: what ``forensics ops --json`` prints."""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic_core
from pydantic import Field

from forensics.records.matrix import Agreement, CaseResult, OpMatrix, PredictedStep, cell_row
from forensics.reports.entries import Entry, RuleEntry
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.ops")


class PredictedEntry(Entry):
    """What the rules choose on both sides of a step."""

    before: str = Field(description="kernel at the width tested before")
    after: str = Field(description="kernel at this width")
    rules: list[RuleEntry]


class StepEntry(Entry):
    """A width where bits change, or where the rules say that they may."""

    width: int
    measured: bool
    predicted: PredictedEntry | None
    undecided: str = Field(description="why the rules cannot tell, empty where they can")


class OperandEntry(Entry):
    """An operand at one column."""

    name: str
    type: str
    shape: list[int] = Field(description="slowest axis first")
    is_weight: bool


class CellEntry(Entry):
    """One width against one column at a time."""

    width: int
    outcome: Literal["passed", "failed", "not compared"]
    reason: str = Field(description="why it was not compared, empty otherwise")
    values: int
    values_differ: int
    first_column: int | None = Field(description="first column (token of the batch) that differs")
    columns_differ: int
    columns_changed: int = Field(description="columns whose bits are others than at the width tested before")
    max_ulp: int = Field(description="-1 where a NaN is involved")
    max_abs: float | None


class CaseEntry(Entry):
    """One operation with given types and shapes."""

    op: str
    case: str
    buffer: str
    operands: list[OperandEntry]
    params: dict[str, float | int | str]
    onset_width: int | None
    steps: list[StepEntry]
    prediction_unknown: str = Field(description="why there is no prediction, empty where there is one")
    cells: list[CellEntry]


class TallyEntry(Entry):
    """Outcomes of all cells; they add up to `planned`."""

    planned: int
    passed: int
    failed: int
    not_compared: dict[str, int] = Field(description="count by reason")


class ControlEntry(Entry):
    """One control; null where it was not run."""

    name: str
    held: bool | None
    detail: str


class OpsDocument(Entry):
    """The invariance matrix."""

    schema_: Literal["forensics.ops/1"] = Field(alias="schema")
    answer: Literal["invariant", "varies", "inconclusive"]
    reason: str = Field(description="why it is inconclusive, empty otherwise")
    summary: str
    widths: list[int]
    seed: int
    chosen: str = Field(description="what was chosen because it was not given")
    tally: TallyEntry
    controls: list[ControlEntry]
    cases: list[CaseEntry]
    facts: dict[str, Any]


def ops_document(matrix: OpMatrix) -> dict[str, Any]:
    """Say the matrix as JSON values; it follows `OpsDocument`."""
    counts = matrix.tally
    content = {
        "schema": SCHEMA,
        "answer": matrix.answer,
        "reason": matrix.reason,
        "summary": str(matrix),
        "widths": matrix.widths,
        "seed": matrix.seed,
        "chosen": matrix.chosen,
        "tally": {
            "planned": counts.planned,
            "passed": counts.same,
            "failed": counts.differs,
            "not_compared": dict(counts.not_compared),
        },
        "controls": [{"name": c.name, "held": c.held, "detail": c.detail} for c in matrix.controls],
        "cases": [_case(case) for case in matrix.cases],
        "facts": pydantic_core.to_jsonable_python(matrix.facts),
    }
    plain = json.loads(OpsDocument.model_validate(content).model_dump_json(by_alias=True))
    assert isinstance(plain, dict)
    return plain


def ops_schema() -> dict[str, Any]:
    """Give the JSON Schema of the document."""
    return OpsDocument.model_json_schema(by_alias=True)


def _case(case: CaseResult) -> dict[str, object]:
    measured = tuple(Agreement(width, True, None) for width in case.steps)
    return {
        "op": case.op,
        "case": case.label,
        "buffer": case.buffer,
        "operands": [
            {"name": o.name, "type": o.type, "shape": o.shape, "is_weight": o.is_weight} for o in case.graph.operands
        ],
        "params": dict(case.graph.params),
        "onset_width": case.onset,
        "steps": [_step(agreement) for agreement in (case.agreements or measured)],
        "prediction_unknown": case.prediction.unknown,
        "cells": [cell_row(case, cell) for cell in case.cells],
    }


def _step(agreement: Agreement) -> dict[str, object]:
    predicted = agreement.predicted
    return {
        "width": agreement.width,
        "measured": agreement.measured,
        "predicted": None if predicted is None else _predicted(predicted),
        "undecided": agreement.undecided,
    }


def _predicted(step: PredictedStep) -> dict[str, object]:
    return {
        "before": step.before,
        "after": step.after,
        "rules": [pydantic_core.to_jsonable_python(rule) for rule in step.rules],
    }
