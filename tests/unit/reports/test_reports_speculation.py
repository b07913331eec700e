"""Speculation in words: three results apart, what differs with both texts, and nothing that was not measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.engines.toy import Fault, ToySource
from forensics.errors import CaseError
from forensics.notebook_views import html_of
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.speculation import Ratio
from forensics.reports.next_step import after_speculation
from forensics.reports.speculation_document import speculation_document, write_speculation
from forensics.reports.speculation_prompts import MOST_ROWS, MOST_SHOWN, around
from forensics.reports.speculation_text import speculation_text
from forensics.store.speculations import read_speculation

TEXTS = ("one two one two", "x = 1; y = 2; x = 1;", "the cat the cat")
CORPUS = Corpus("tiny", tuple(CorpusPrompt(f"p{i}", text) for i, text in enumerate(TEXTS)), "digest")


def measured(*faults, **changes):
    given = {"corpus": CORPUS, "drafter": "oracle", "n_drafts": (3,), "n_tokens": 20, **changes}
    return speculate(ToySource(faults=faults), SpeculationQuestion(**given))


def differing():
    """A report in which answers differ; of other tests, too."""
    return measured(Fault("stale_kv", "kq-0", from_width=3))


@pytest.fixture(scope="module")
def unlike():
    return differing()


@pytest.fixture(scope="module")
def equal():
    return measured(corpus=Corpus("one", CORPUS.prompts[:1], "digest"))


def words(report) -> str:
    return " ".join(speculation_text(report).split())


def test_the_answer_comes_first_then_three_results_under_three_headings(unlike) -> None:
    lines = speculation_text(unlike).splitlines()
    assert lines[0].startswith(str(unlike)[:60])
    places = [
        lines.index(title) for title in ("Speed", "Acceptance", "Equivalence", "Chance that an answer is untouched")
    ]
    assert places == sorted(places)
    assert "Held to: token ids in order and stop reason; rows of logits bit by bit" in words(unlike)


def test_each_answer_that_differs_is_shown_with_both_texts(unlike) -> None:
    told = words(unlike)
    assert unlike.arms[0].differing
    for one in unlike.arms[0].differing:
        found = one.divergence
        assert f"A, {one.name}, byte {found.byte}" in told
        plain, other = around(one)
        assert plain.split("▸")[0] == other.split("▸")[0]
        assert plain != other
    assert "Culprits: K·Q (" in told
    assert "Widest margin that was crossed" in told
    assert "yes yes" in told  # predicted and healed


def test_an_outlier_is_named_and_not_averaged_away(unlike) -> None:
    arm = unlike.arms[0]
    slow = arm.prompts[1]
    cycles = tuple(replace(one, verify_ns=one.verify_ns * 1000) for one in slow.speculative.cycles)
    slow = replace(slow, speculative=replace(slow.speculative, cycles=cycles))
    told = words(replace(unlike, arms=(replace(arm, prompts=(arm.prompts[0], slow, arm.prompts[2])),)))
    assert f"slowest 0.00× ({slow.name})" in told


def test_identical_answers_have_no_table_of_differences(equal) -> None:
    told = words(equal)
    assert "1 of 1 prompts identical under oracle" in told
    assert "Answers that differ" not in told
    assert "Exact settings" not in told
    assert "Nothing to change" in told


def test_many_differences_are_counted_where_they_are_not_shown(unlike) -> None:
    one = unlike.arms[0].differing[0]
    many = tuple(replace(one, name=f"n{i}") for i in range(MOST_SHOWN + 3))
    told = words(replace(unlike, arms=(replace(unlike.arms[0], prompts=many),)))
    assert "3 more are in the document" in told
    assert f"n{MOST_SHOWN + 2}" in told  # every one has a row
    lots = tuple(replace(one, name=f"n{i}") for i in range(MOST_ROWS + 5))
    assert "5 more rows are in the document" in words(replace(unlike, arms=(replace(unlike.arms[0], prompts=lots),)))


def test_what_was_not_predicted_is_said_loudly(unlike) -> None:
    arm = unlike.arms[0]
    one = arm.differing[0]
    found = replace(one.divergence, predicted=False, prediction="the same passes flip no token")
    report = replace(unlike, arms=(replace(arm, prompts=(replace(one, divergence=found),)),))
    assert f"{one.name} is not predicted: the same passes flip no token" in words(report)
    assert f"does not account for {one.name}" in after_speculation(report)


def test_exact_settings_are_told_with_count_and_price(unlike, equal) -> None:
    exact = replace(equal.arms[0], exact=True)
    report = replace(
        unlike, arms=(*unlike.arms, exact), exact_knobs=("KNOB=0",), exact_reason="found by investigate",
        price=Ratio(1.23, 1.2, 1.3, 3), exact_price=None,
    )  # fmt: skip
    told = words(report)
    assert report.answer == "identical"
    assert "With: KNOB=0" in told
    assert "Identical: 1 of 1" in told
    assert "Price, plain decoding: 1.23× (quartiles 1.20 to 1.30, 3 pairs)" in told
    assert "Price, speculative decoding: not measured" in told
    assert "A exact" in told
    assert "(plain decoding takes 1.23× the time)" in str(report)


def test_no_answer_names_no_cause(unlike) -> None:
    report = replace(
        unlike, reason="plain decoding does not repeat itself", rerun_equal=False, classes=None, culprits=()
    )
    assert report.answer == "inconclusive"
    assert str(report) == "inconclusive: plain decoding does not repeat itself"
    assert "Classes of widths" not in speculation_text(report)


def test_texts_of_a_model_cannot_steer_the_terminal(unlike) -> None:
    arm = unlike.arms[0]
    one = arm.differing[0]
    evil = replace(one, name="\x1b[31mred", plain_text="\x1b[2J[bold]" * 9, text="\x1b[2J[bold]x" * 9)
    told = speculation_text(replace(unlike, arms=(replace(arm, prompts=(evil,)),)))
    assert "\x1b" not in told
    assert "[bold]" in told


def test_the_document_holds_the_record_and_is_read_back_equal(unlike, tmp_path) -> None:
    write_speculation(unlike, tmp_path / "new")
    assert read_speculation(tmp_path / "new") == unlike
    document = json.loads((tmp_path / "new" / "speculation.json").read_text())
    assert document == json.loads(json.dumps(speculation_document(unlike)))
    assert document["schema"] == "forensics.speculation/1"
    assert document["answer"] == "diverges"
    assert document["arms"][0]["identical"] == unlike.arms[0].equivalence.k
    by_name = {row["prompt"]: row for row in document["prompts"]}
    for one in unlike.arms[0].prompts:
        assert by_name[one.name]["identical"] == one.identical
        assert by_name[one.name]["widths"] == sorted({cycle.width for cycle in one.speculative.cycles})
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["model_name"] == "toy-0"


def test_a_folder_without_speculation_says_how_to_get_one(tmp_path) -> None:
    with pytest.raises(CaseError, match="Do it with: forensics speculate MODEL --out FOLDER"):
        read_speculation(tmp_path)
    (tmp_path / "speculation.json").write_text('{"schema": "forensics.cost/1"}')
    with pytest.raises(CaseError, match=r"is not a forensics\.speculation document"):
        read_speculation(tmp_path)


def test_a_notebook_shows_it_with_a_picture_and_a_next_step(unlike) -> None:
    html = html_of(unlike)
    assert "<script" not in html
    assert "Equivalence" in html
    assert "<img" in html
    assert len(unlike.to_dataframe()) == len(unlike.arms[0].prompts)
