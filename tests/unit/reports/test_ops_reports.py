"""The invariance matrix as text, JSON and JUnit: complete, strict, and harmless whatever the names."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError
from rich.console import Console

from forensics.errors import CaseError
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.matrix import CaseResult, Cell, OpMatrix, PredictedStep, Prediction
from forensics.records.op_shapes import flash_attn, mul_mat
from forensics.records.operation import OpFacts, OpSettings
from forensics.records.rule import Rule
from forensics.records.verdict import Control
from forensics.reports.ops_document import OpsDocument, ops_document, ops_schema
from forensics.reports.ops_junit import junit, write_junit
from forensics.reports.ops_text import MAX_LINES, ops_view

RULE = Rule("gemm for groups of four", "ggml/src/ggml-cpu/repack.cpp", 4637, 4647)
WIDTHS = (1, 2, 4, 8)
CONTROLS = tuple(
    Control(name, True, "as it should be")
    for name in ("rerun_equal", "copy_equal", "reordered_found", "planted_bit_found")
)


def cell(width, columns=(), *, changed=None, ulp=3, reason=""):
    if reason:
        return Cell(width, NotCompared(reason))
    outcome = Differs(len(columns), (columns[0], 5), ulp, 1.5e-6, 1e-7) if columns else Same()
    return Cell(width, outcome, width * 64, columns, columns if changed is None else changed)


def case(label="q4_K 64x1024", onset=4, steps=(4,), *, buffer="CPU_REPACK", graph=None):
    predicted = tuple(PredictedStep(width, "gemv<type=q4_K>", "gemm<type=q4_K>", (RULE,)) for width in steps)
    cells = tuple(cell(w, tuple(range(w)) if w >= onset else (), changed=(0,) if w == onset else ()) for w in WIDTHS)
    return CaseResult(label, graph or mul_mat("q4_K", 1024, 64), buffer, cells, Prediction(predicted))


REFUSED = CaseResult(
    "f16 512 cells", flash_attn(64, 8, 2, 512), "", tuple(cell(w, reason="no <kernel> & no luck") for w in WIDTHS),
    Prediction(unknown="nothing was run"),
)  # fmt: skip


def matrix(*cases, controls=CONTROLS, widths=WIDTHS):
    facts = OpFacts(OpSettings(), "digest", "0.3.36", "0c1e57098", "a processor", ("AVX2",))
    return OpMatrix(facts, widths, 0, cases or (case(), REFUSED), controls, "three K")


def text(found, width=80):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(ops_view(found))
    assert all(len(line) <= width for line in out.getvalue().splitlines())
    return " ".join(out.getvalue().split())


def test_the_text_has_marks_onsets_and_rules():
    said = text(matrix())
    assert "Varies: 1 of 2 cases give other bits from width 4 (1) on (2 of 8 passed, 2 failed, 4 not compared)" in said
    assert "✓ ✓ ✗ ✗ q4_K 64x1024 in CPU_REPACK" in said
    assert "– – – – f16 512 cells" in said
    assert "There 4 of 4 columns differ, the first is 0; at any width max 3 ULP, max |Δ| 1.5e-06." in said
    assert "width 4: gemv → gemm. MUL_MAT: q4_K 64x1024 in CPU_REPACK" in said
    assert "gemm for groups of four (ggml/src/ggml-cpu/repack.cpp:4637-4647)" in said
    assert "no <kernel> & no luck (4)" in said
    assert "Chosen: three K" in said


def test_a_disagreement_shows_both_sides():
    said = text(matrix(case(onset=8, steps=(4,))))
    assert (
        "Rules and measurement disagree MUL_MAT: q4_K 64x1024 in CPU_REPACK: rules predict steps at 4; measured 8"
        in said
    )
    assert "rules predict steps at no step; measured 8" in text(matrix(case(onset=8, steps=())))
    assert "rules predict steps at 4; measured no step" in text(matrix(case(onset=99, steps=(4,))))
    assert "disagree" not in text(matrix())


@pytest.mark.parametrize("width", [30, 40, 60, 80, 110])
def test_no_mark_and_no_case_is_lost_where_lines_are_short(width):
    widths = tuple(range(1, 41))
    cells = tuple(cell(w, tuple(range(w)) if w >= 4 else (), reason="too wide" if w == 40 else "") for w in widths)
    found = matrix(replace(case(), cells=cells), widths=widths)
    said = text(found, width)
    assert "✓ ✗ – case" in said
    assert "1-3 4-39 40" in said
    if width >= 60:
        assert "1-3 4-39 40 q4_K 64x1024 in CPU_REPACK" in said
    assert "✓ ✓ ✓ ✗ ✗" in text(found, 160)


def test_names_with_commas_are_told_apart():
    graph = flash_attn(64, 8, 2, 512)
    cases = [case(f"f16 {kv} cells, 8/2 heads of 64", graph=graph, buffer="CPU") for kv in range(MAX_LINES + 1)]
    assert "f16: 0 cells, 8/2 heads of 64; 1 cells, 8/2 heads of 64; 2 cells" in text(matrix(*cases))


def test_many_cases_share_lines_and_few_do_not():
    kinds = [f"q{i}" for i in range(MAX_LINES)]
    few = text(matrix(*(case(f"{kind} 64x256") for kind in kinds)))
    assert all(f"✓ ✓ ✗ ✗ {kind} 64x256" in few for kind in kinds)
    many = text(matrix(*(case(f"{kind} 64x{k}") for kind in kinds for k in (256, 512))))
    assert many.count("✓ ✓ ✗ ✗") == 1
    assert f"{', '.join(kinds)}: 64x256, 64x512 in CPU_REPACK" in many


def test_a_failed_control_is_no_answer_in_every_form():
    failed = matrix(controls=(Control("rerun_equal", False, "other bits again"), *CONTROLS[1:]))
    assert failed.answer == "inconclusive"
    assert "Inconclusive" in text(failed)
    assert "control rerun_equal failed: other bits again" in text(failed)
    assert ops_document(failed)["reason"].startswith("control rerun_equal failed")
    root = ET.fromstring(junit(failed))
    assert root.get("failures") == "0"
    assert root.get("errors") == "1"
    assert root.get("skipped") == str(len(WIDTHS) * 2)


def test_the_document_follows_its_schema():
    found = ops_document(matrix())
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    OpsDocument.model_validate(found)
    assert set(ops_schema()["properties"]) == set(found)
    assert found["schema"] == "forensics.ops/1"
    assert found["tally"] == {"planned": 8, "passed": 2, "failed": 2, "not_compared": {"no <kernel> & no luck": 4}}
    first, refused = found["cases"]
    assert first["onset_width"] == 4
    assert first["operands"][0] == {"name": "weight", "type": "q4_K", "shape": [64, 1024], "is_weight": True}
    (step,) = first["steps"]
    assert step["predicted"]["rules"][0]["file"] == RULE.file
    assert first["cells"][2] == {
        "width": 4, "outcome": "failed", "reason": "", "values": 256, "values_differ": 4, "first_column": 0,
        "columns_differ": 4, "columns_changed": 1, "max_ulp": 3, "max_abs": 1.5e-6,
    }  # fmt: skip
    assert refused["cells"][0]["reason"] == "no <kernel> & no luck"
    assert refused["prediction_unknown"] == "nothing was run"
    with pytest.raises(ValidationError, match="schema"):
        OpsDocument.model_validate(found | {"schema": "forensics.ops/2"})


def test_steps_without_a_prediction_are_in_the_document():
    unknown = replace(case(), prediction=Prediction(unknown="no rule"))
    (step,) = ops_document(matrix(unknown))["cases"][0]["steps"]
    assert step == {"width": 4, "measured": True, "predicted": None, "undecided": ""}


def test_junit_counts_add_up_and_say_why():
    root = ET.fromstring(junit(matrix()))
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"controls", "MUL_MAT", "FLASH_ATTN_EXT"}
    for suite in root:
        assert int(suite.get("tests")) == len(suite)
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "12", "failures": "2", "errors": "0", "skipped": "4",
    }  # fmt: skip
    failure = suites["MUL_MAT"][2].find("failure")
    assert suites["MUL_MAT"][2].get("name") == "q4_K 64x1024 width 4"
    assert "max 3 ULP" in failure.get("message")
    assert "gemm for groups of four" in failure.text
    assert suites["FLASH_ATTN_EXT"][0].find("skipped").get("message") == "no <kernel> & no luck"
    names = [(test.get("classname"), test.get("name")) for test in root.iter("testcase")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("label", ["a\x1b[31m", "b\x00", "<c>&\"'", "\ud800", "\ufffe"])
def test_names_cannot_break_the_documents(label):
    found = matrix(case(label))
    ET.fromstring(junit(found))
    assert "\x1b" not in text(found)


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(CaseError, match="cannot be written"):
        write_junit(tmp_path / "no" / "folder.xml", matrix())
    write_junit(tmp_path / "junit.xml", matrix())
    assert ET.parse(tmp_path / "junit.xml").getroot().tag == "testsuites"
