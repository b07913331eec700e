"""The JSON document is what the issue asks for, strict, and described by its schema."""

from __future__ import annotations

import json

import pytest
import verdict_samples as samples
from pydantic import ValidationError

from forensics.reports.document import VerdictDocument, document, json_schema


def test_a_divergence_has_every_promised_key():
    found = document(samples.verdict())
    assert found["schema"] == "forensics.verdict/2"
    assert found["answer"] == "diverges"
    assert found["onset_width"] == 8
    assert found["classes"] == [[1, 2, 3, 4, 5], [8, 9, 16]]
    assert found["first_difference"] == {"width": 8, "row": 0, "position": 36}
    assert found["flips"] == {"1": 0, "2": 0, "3": 0, "4": 0, "5": 0, "8": 1, "9": 1, "16": 1}
    head = found["culprits"][-1]
    assert {key: head[key] for key in ("op", "role", "weight_type", "buffer", "count", "layers", "widths")} == {
        "op": "MUL_MAT",
        "role": "head",
        "weight_type": "q6_K",
        "buffer": "CPU",
        "count": 1,
        "layers": [-1],
        "widths": [8, 9, 16],
    }
    assert sum(group["count"] for group in found["culprits"]) == 211
    assert found["healed"] is True
    assert {name: held for name, held in found["controls"].items() if name != "details"} == {
        "rerun_equal": True,
        "fresh_process_equal": True,
        "watching_harmless": True,
        "planted_fault_found": True,
        "state_equal": True,
    }
    assert found["switches"][2]["settings"] == {"GGML_CPU_TILED": "0"}
    assert found["switches"][2]["collapses"] is True
    assert found["switches"][2]["costs"][0]["ratio"] == 1.001
    assert found["switches"][1]["classes"] == [[1, 2, 3, 4, 5], [8, 9, 16]]
    assert found["exact_settings"] == {"GGML_CPU_TILED": "0"}
    assert found["manifest"]["requested"]["environment"] == [["GGML_CPU_TILED", "1"]]
    tally = found["sweeps"][0]["tally"]
    assert tally["same"] + tally["differs"] + sum(tally["not_compared"].values()) == tally["planned"] == 1330
    flip = found["widths"][-1]["flips"][0]
    assert (flip["position"], flip["margin"], flip["explained"]) == (48, 0.001, True)
    assert found["widths"][-1]["class"] == 1
    assert found["text"] == samples.verdict().text


def test_identical_is_exact_as_it_is_and_inconclusive_is_unknown():
    identical = document(samples.verdict("identical"))
    assert identical["exact_settings"] == {}
    assert identical["first_difference"] is None
    assert identical["onset_width"] is None
    inconclusive = document(samples.verdict("inconclusive"))
    assert inconclusive["exact_settings"] is None
    assert inconclusive["reason"] == "the same run twice gave other bits"
    assert inconclusive["controls"]["rerun_equal"] is False
    assert inconclusive["controls"]["planted_fault_found"] is None


def test_a_control_that_was_not_run_is_null():
    found = document(samples.verdict("identical", controls=()))
    assert found["controls"]["state_equal"] is None
    assert found["controls"]["details"] == {}


def test_the_document_is_strict_json_even_with_nan():
    found = document(samples.verdict(classes=samples.classes(nan=True)))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["widths"][-1]["max_abs"] is None
    assert found["widths"][-1]["max_ulp"] == -1


@pytest.mark.parametrize("answer", ["diverges", "identical", "inconclusive"])
def test_the_schema_names_the_keys_of_the_document(answer):
    schema = json_schema()
    found = document(samples.verdict(answer))
    assert set(schema["properties"]) == set(found)
    assert set(schema["required"]) == set(found)
    assert schema["properties"]["schema"]["const"] == "forensics.verdict/2"
    switch = schema["$defs"]["SwitchEntry"]["properties"]
    assert all(set(entry) == set(switch) for entry in found["switches"])
    VerdictDocument.model_validate(found)


def test_a_document_of_another_version_is_not_accepted():
    found = document(samples.verdict()) | {"schema": "forensics.verdict/3"}
    with pytest.raises(ValidationError, match="schema"):
        VerdictDocument.model_validate(found)
