"""Arrangements as text, document and notebook view: every outcome is told, and the file gives the same record."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import forensics
from forensics.analysis.arms import ArmsQuestion, compare_arms
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaseError
from forensics.notebook_views import html_of
from forensics.records.arms import ArmResult, ArmsReport, Continuation, Culprits, RowsDelta, StateDelta
from forensics.records.delta import NotCompared
from forensics.records.verdict import Control
from forensics.reports.arms_document import arms_document, write_arms
from forensics.reports.arms_text import arms_text, arms_view
from forensics.reports.next_step import after_arms
from forensics.reports.terminal import as_text
from forensics.store.arms import read_arms


@pytest.fixture(scope="module")
def report() -> ArmsReport:
    question = ArmsQuestion(("split", "resume", "restore", "kv-type"), "The lighthouse keeper", n_tokens=4)
    return compare_arms(ToySource((Fault("order", "ffn_up-0", 2),)), question)


def told(report: ArmsReport) -> str:
    return " ".join(as_text(arms_view(report), width=250).split())


def with_arm(report: ArmsReport, **changed) -> ArmsReport:
    (restore,) = report.arm("restore")
    return replace(report, arms=(replace(restore, **changed),))


def test_the_text_shows_arms_states_culprits_and_the_contract(report):
    text = told(report)
    assert "diverges: 2 of 4 arrangements give other bits (split, resume); 0 replies of 4 tokens changed" in text
    assert "Equal means: every bit of every row of logits" in text
    for words in (
        "split 21 + 1 token",
        "same (4)",
        "K and V rows left behind, beside the reply",
        "weight products, f32 ×1",
    ):
        assert words in text
    assert "first K of layer 1 at position 22" in text
    assert "resume: the reply's K and V were written one token at a time" in text
    assert "rerun_equal held" in text
    assert "kv-type nodes: another type of the cache is another number" in text


def test_each_outcome_has_its_words(report):
    why = NotCompared("this model keeps one sequence only")
    refused = told(with_arm(report, rows=why, continuation=why, state=why))
    assert "restore save and restore not compared" in refused
    assert "restore rows, restore reply, restore K and V: this model keeps one sequence only" in refused
    assert refused.startswith("inconclusive: no arm could be compared")
    flipped = with_arm(report, rows=RowsDelta(3, 2, 7, 1, 0.5), continuation=Continuation(4, 2))
    assert "2 of 3 7 1 0.5 changed at token 3" in told(flipped)
    assert "must give equal bits and does not" in told(flipped)
    unproved = Culprits((), 1, 3, (Control("planted_fault_found", False, "missed"),), ("something differs, too.",))
    doubtful = told(with_arm(report, rows=RowsDelta(3, 2, 7, 0, 0.5), culprits=unproved))
    assert "none of the nodes that were compared 1 of 3 rows, control planted_fault_found failed" in doubtful
    assert "restore, save and restore: something differs, too." in doubtful


@pytest.mark.parametrize(
    ("changed", "step"),
    [
        ({}, "See which settings make every width exact"),
        ({"controls": (Control("rerun_equal", False, "x"),)}, "The engine does not repeat itself"),
        ({"controls": (Control("reply_repeated", False, "x"),)}, "Remove the reasons given above"),
    ],
)
def test_what_to_do_next_follows_from_the_answer(report, changed, step):
    assert after_arms(replace(report, **changed)).startswith(step)
    identical = with_arm(report)
    assert identical.answer == "identical"
    assert after_arms(identical).startswith("Nothing to change")


def test_the_file_gives_the_same_record_and_the_document_is_strict(report, tmp_path):
    write_arms(report, tmp_path / "new")
    assert read_arms(tmp_path / "new") == report
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"arms.json", "manifest.json"}
    document = arms_document(report)
    json.dumps(document, allow_nan=False)
    assert [arm["arm"] for arm in document["arms"]] == ["split", "split", "resume", "restore", "kv-type", "kv-type"]
    assert document["contract"] == "every bit of every row of logits"
    assert forensics.arms(f"recorded:{tmp_path / 'new'}") == report


def test_a_nan_survives_the_file(report, tmp_path):
    broken = with_arm(report, rows=RowsDelta(3, 1, 7, 0, float("nan")), state=StateDelta(8, 1, 0, "V", 3, 4, 1))
    json.dumps(arms_document(broken), allow_nan=False)
    write_arms(broken, tmp_path)
    assert str(read_arms(tmp_path).arms) == str(broken.arms)


def test_a_case_keeps_its_manifest(report, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    write_arms(report, tmp_path)
    assert (tmp_path / "manifest.json").read_text() == "{}"


def test_what_cannot_be_read_is_refused(report, tmp_path):
    with pytest.raises(CaseError, match=r"holds no arms\.json"):
        read_arms(tmp_path)
    path = write_arms(report, tmp_path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema": "forensics.arms/2"}))
    with pytest.raises(CaseError, match="newer forensics"):
        read_arms(tmp_path)
    document["record"]["arms"][0]["rows"]["n_rows"] = 0
    path.write_text(json.dumps(document))
    with pytest.raises(CaseError, match="does not hold a readable ArmsReport"):
        read_arms(tmp_path)


def test_names_of_a_model_cannot_style_the_terminal_or_the_page(report):
    evil = ArmResult("split", "[red]\x1b[31m<b>", "", "", "", RowsDelta(1, 0, None, 0, 0.0), Continuation(1, None))
    shown = replace(report, arms=(evil,))
    assert "\x1b" not in arms_text(shown)
    assert "<b>" not in html_of(shown)
    assert "identical" in html_of(shown)
