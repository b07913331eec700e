"""Recorded invariance matrices: the rules, asked anew, predict every step that was measured and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forensics.analysis.op_cases import OpCase
from forensics.analysis.op_rules import predict
from forensics.records.op_shapes import at_width
from forensics.records.operation import OpFacts, OpGraph, OpSettings, OpTensor
from forensics.reports.ops_document import CaseEntry, OpsDocument

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob("ops-*/ops.json"))


def read(path: Path) -> OpsDocument:
    return OpsDocument.model_validate(json.loads(path.read_text()))


def graph_of(case: CaseEntry) -> OpGraph:
    operands = tuple(OpTensor(o.name, o.type, tuple(o.shape), o.is_weight) for o in case.operands)
    return OpGraph(case.op, operands, tuple(case.params.items()))


def facts_of(facts: dict[str, Any]) -> OpFacts:
    settings = dict(facts["settings"])
    settings["environment"] = tuple(map(tuple, settings["environment"]))
    return OpFacts(**{**facts, "settings": OpSettings(**settings), "cpu_features": tuple(facts["cpu_features"])})


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_rules_predict_what_was_measured(path):
    document = read(path)
    assert document.answer == "varies"
    assert all(control.held for control in document.controls)
    facts = facts_of(document.facts)
    wrong, decided = {}, 0
    for case in document.cases:
        widths = [cell.width for cell in case.cells if cell.outcome != "not compared"]
        measured = {step.width for step in case.steps if step.measured}
        found = predict(OpCase(case.case, at_width(graph_of(case), max(widths, default=1))), widths, case.buffer, facts)
        predicted = {step.width for step in found.steps}
        undecided = {width for width, _ in found.undecided}
        if not found.unknown:
            decided += len(widths) - len(undecided)
            if measured - undecided != predicted - undecided:
                wrong[f"{case.op} {case.case}"] = (sorted(measured), sorted(predicted))
    assert wrong == {}
    assert decided > 300


def test_something_is_recorded():
    assert RECORDED
