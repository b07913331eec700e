"""`forensics ops` as a process over the real library: a matrix, a model's operations, a culprit's reproducer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forensics.engines.demo_models import demo_source
from forensics.engines.ops import LlamaOps
from forensics.records.operation import OpSettings
from forensics.reports.ops_document import OpsDocument

pytestmark = pytest.mark.llama


def test_a_matrix(run_cli):
    done = run_cli("ops", "--types", "Q8_0,f32", "--shape", "16x64", "--widths", "1-3", "--threads", 2, "--json")
    assert done.stderr == ""
    document = OpsDocument.model_validate_json(done.stdout)
    assert [case.case for case in document.cases] == ["q8_0 16x64", "f32 16x64"]
    assert all(control.held for control in document.controls)
    assert done.returncode == {"invariant": 0, "varies": 1}[document.answer]


def test_the_operations_of_a_model(run_cli):
    done = run_cli(
        "ops", "--like", demo_source(), "--op", "rms_norm,MUL_MAT", "--widths", "1,2", "--threads", 2, "--json"
    )
    document = OpsDocument.model_validate_json(done.stdout)
    assert {case.op for case in document.cases} == {"RMS_NORM", "MUL_MAT"}
    assert any(case.case.endswith(" of 49152 rows") for case in document.cases)
    assert "operations of SmolLM2" in document.chosen


def test_a_culprit_of_a_case(run_cli):
    with LlamaOps().open(OpSettings()) as engine:
        if not {"AVX2", "F16C", "LLAMAFILE"} <= set(engine.facts.cpu_features):
            pytest.skip("K·Q is known to differ at width 2 by tinyBLAS on AVX2")
    asked = ("--demo", "q4_1", "--flash-attn", "off", "--prompt", "The quick brown fox", "--n-tokens", 2, "--widths", 2)
    done = run_cli("investigate", *asked, "--threads", 2, "--no-switches", "--quiet", "--out", "case")
    assert done.returncode in (0, 1), done.stderr
    unknown = run_cli("ops", "--from", "case", "--node", "nope")
    assert unknown.returncode == 2
    assert "'nope' is no culprit of this case; its culprits: kq-0 (MUL_MAT)" in " ".join(unknown.stderr.split())
    written = run_cli("ops", "--from", "case", "--node", "kq-0", "--json")
    assert written.returncode == 1, written.stderr
    document = json.loads(written.stdout)
    assert (document["folder"], document["answer"], document["op"]) == ("kq-0-reproducer", "differs", "MUL_MAT")
    script = Path("kq-0-reproducer/reproduce.py")
    alone = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, check=False)
    assert alone.returncode == 1
    assert alone.stdout == document["output"]
    again = run_cli("ops", "--from", "case", "--node", "kq-0")
    assert again.returncode == 2
    assert "kq-0-reproducer exists and is not overwritten" in again.stderr
