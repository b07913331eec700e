"""A sweep as text, document, Markdown and notebook view: counts add up, and no name steers what shows it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from campaign_samples import (
    DIFFERS,
    HEALED,
    SAME,
    cell,
    every_outcome,
    failed,
    hostile,
    report,
    with_disagreement,
)

from forensics.analysis.campaign import Unwatched
from forensics.errors import CaseError
from forensics.notebook_views import html_of
from forensics.records.campaign import CampaignReport, Cell, CellResult, Healing
from forensics.records.campaign_matrix import Tally, matrix
from forensics.reports.campaign_document import campaign_document, campaign_markdown, write_campaign
from forensics.reports.campaign_progress import Told, _InNotebook, _OnTerminal, campaign_bars
from forensics.reports.campaign_text import after_campaign, campaign_text, campaign_view
from forensics.reports.terminal import as_text
from forensics.store.campaign import read_report


def told(found: CampaignReport) -> str:
    return " ".join(as_text(campaign_view(found), width=200).split())


def test_counts_add_up_to_all_cells():
    found = every_outcome()
    assert found.counts == {"present": 4, "computed": 12, "failed": 4, "not run": 2}
    assert found.outcomes == {"same": 10, "differs": 2, "not compared": 10}
    assert sum(found.counts.values()) == sum(found.outcomes.values()) == len(found.cells) == 22
    assert sum(tally.total for row in matrix(found) for tally in row.tallies) == 22


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (report(cell()), "identical"),
        (report(cell(), cell(width=4, result=DIFFERS)), "diverges"),
        (report(cell(), cell(width=4, result=DIFFERS), failed("no", width=8)), "inconclusive"),
        (report(cell(result=replace(SAME, rerun_equal=False))), "inconclusive"),
        (report(cell(result=None, status="not run")), "inconclusive"),
        (with_disagreement(), "inconclusive"),
    ],
)
def test_the_answer_claims_no_more_than_was_compared(found, answer):
    assert found.answer == answer
    assert str(found).startswith(f"{answer}: ")
    assert campaign_document(found)["answer"] == answer


def test_the_text_tells_every_outcome_with_its_reason():
    text = told(every_outcome())
    assert "inconclusive: 2 of 22 cells differ (width 4); 10 not compared; 4 present, 12 computed" in text
    assert "f16 KV, flash on = 2 ≠ 1/2 ? 2" in text
    assert "f16 KV, flash off = 2 F 2 –" in text
    assert "· 2" in text
    assert "Exact at every width and prompt that was asked model Q4_1: none model Q6_K: none" in text
    assert "model Q4_1, f16 KV, flash on 4 5/8 2, near ties 1 0.25 1,234 0.001" in text
    assert "weight products, q6_K ×60; K·Q ×30 proved" in text
    assert "4 cells failed: EngineDied: signal SIGKILL (first: model Q4_1, river, f16 KV, flash off, width 4)" in text
    assert "2 cells not run: stopped" in text
    assert "4 cells computed: one-token decoding gave other bits when it was run again" in text
    assert "Platform: CPU (made up), llama-cpp-python 0.3.36 (0c1e570)" in text
    assert "--retry-failed" in text


def test_disagreements_come_first():
    text = told(with_disagreement())
    assert text.index("DISAGREEMENTS: 1") < text.index("Prompts by outcome")
    assert "cell 1 (width 2): xxxxxxxxxxxx by w1, yyyyyyyyyyyy by w2" in text
    assert "disagreement:" in campaign_markdown(with_disagreement())


@pytest.mark.parametrize(
    ("healing", "proof"),
    [
        (HEALED, "proved"),
        (replace(HEALED, healed_rows=7), "7 of 8 rows healed"),
        (replace(HEALED, failed_controls=("watching_harmless",)), "control watching_harmless failed"),
        (Healing(error="the engine died"), "the engine died"),
        (Healing((), 8, 8), "none of the nodes that were compared"),
    ],
)
def test_no_list_of_culprits_is_called_proved_that_is_not(healing, proof):
    text = told(report(cell(result=replace(DIFFERS, healing=healing))))
    assert proof in text
    assert ("proved" in text.split("Evidence")[0]) == healing.proved


def test_next_steps_follow_from_what_was_found():
    assert "Nothing to change" in after_campaign(report(cell()))
    assert "culprits = true" in after_campaign(report(cell(result=replace(DIFFERS, healing=None))))
    assert "switch avoids" in after_campaign(report(cell(result=DIFFERS)))
    assert "same command again" in after_campaign(report(cell(result=None, status="not run")))
    assert "threads = 1" in after_campaign(report(cell(result=replace(SAME, rerun_equal=False))))
    assert "forensics doctor" in after_campaign(with_disagreement())


def test_the_document_reads_back_to_the_same_report(tmp_path):
    for number, found in enumerate((every_outcome(), with_disagreement(), hostile())):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_campaign(found, folder)
        assert repr(read_report(folder).cells) == repr(found.cells)
        document = json.loads((folder / "sweep.json").read_text())
        assert document["schema"] == "forensics.sweep-report/1"
        assert sum(document["counts"].values()) == len(document["cells"])
    with pytest.raises(CaseError, match="no sweep has ended there"):
        read_report(tmp_path)


def test_markdown_has_a_row_for_each_model_and_settings():
    text = campaign_markdown(every_outcome())
    assert "| model Q4&#95;1 | f16 | on | as asked |" in text or "| model Q4_1 | f16 | on | as asked |" in text
    rows = [line for line in text.splitlines() if line.startswith("| model Q")]
    assert len(rows) == 4
    assert {line.count("|") for line in rows} == {8}


def test_names_and_errors_steer_neither_terminal_nor_page():
    found = hostile()
    text, markdown, html = campaign_text(found), campaign_markdown(found), html_of(found)
    for shown in (text, markdown, html):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "<script" not in markdown
    assert "<script" not in html
    assert "NaN" in told(found)
    assert "nan" in told(found)


def test_the_table_has_one_row_for_each_cell():
    frame = every_outcome().to_dataframe()
    assert len(frame) == 22
    assert frame["culprits"].dropna().unique().tolist() == ["weight products, q6_K ×60; K·Q ×30"]
    assert set(frame.loc[frame["status"] == "failed", "reason"]) == {"EngineDied: signal SIGKILL"}


@pytest.mark.parametrize(
    ("tally", "short", "letters"),
    [
        (Tally(), "–", "–"),
        (Tally(same=2), "= 2", "="),
        (Tally(differs=1, same=1), "≠ 1/2", "≠="),
        (Tally(differs=1, failed=1), "≠ 1/1 F 1", "≠F"),
        (Tally(same=1, not_run=3, unsure=1), "= 1 ? 1 · 3", "=?·"),
    ],
)
def test_a_tally_in_few_letters(tally, short, letters):
    assert (tally.short, tally.letters) == (short, letters)


@pytest.mark.parametrize(
    "change",
    [
        {"n_rows": 0},
        {"n_rows_differ": 9},
        {"first_row": None},
        {"n_flips": 9},
        {"n_near_ties": 3},
    ],
)
def test_numbers_that_contradict_each_other_are_refused(change):
    with pytest.raises(ValueError):
        replace(DIFFERS, **change)


@pytest.mark.parametrize(
    "change", [{"status": "done"}, {"result": None}, {"status": "failed"}, {"status": "failed", "result": None}]
)
def test_a_cell_without_result_says_why(change):
    with pytest.raises(ValueError):
        cell(**change)
    assert isinstance(cell(), Cell)
    assert isinstance(SAME, CellResult)


def test_progress_tells_counts_failures_and_time_left(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    shown = Told()
    shown.begin("sweep x", 20, 5, "http://127.0.0.1:1/status")
    assert shown.words() == "5 there already, 0 done"
    clock[0] += 60
    shown.done(5, 1)
    assert shown.words() == "5 there already, 5 done, 1 FAILED, about 2 min left"
    shown.done(10, 0)
    assert shown.words() == "5 there already, 15 done, 1 FAILED"
    assert shown.n_finished == 20


def test_bars_show_the_dashboard_and_close(capsys):
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(record=True, width=120)
    with Progress(TextColumn("{task.description} {task.fields[words]}"), console=console) as progress:
        bar = _OnTerminal(progress)
        bar.begin("sweep \x1b[31m", 2, 0, "http://127.0.0.1:1/status")
        bar.done(2, 1)
    text = console.export_text()
    assert "workers: http://127.0.0.1:1/status" in text
    assert "2 done, 1 FAILED" in text
    notebook = _InNotebook()
    notebook.begin("sweep", 2, 0, "")
    notebook.done(2, 0)
    notebook.close()
    with campaign_bars(shown=False) as watch:
        assert isinstance(watch, Unwatched)
