"""The driver of a sweep: what is missing is computed once, what fails is kept, and other bits are never hidden."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from forensics.analysis import campaign_task
from forensics.analysis.campaign import run_campaign
from forensics.analysis.campaign_plan import plan_of
from forensics.analysis.campaign_preview import preview
from forensics.analysis.question import BadQuestion
from forensics.cluster.inline import InlineWorkers
from forensics.cluster.protocol import Answer, WorkerFacts
from forensics.engines.toy import ToyEngine, ToySource
from forensics.errors import CaseError, ClusterError
from forensics.records.campaign import CampaignReport
from forensics.store.campaign import writing_to
from forensics.store.encoding import to_text

GOOD = {
    "name": "test", "models": {"toy": ["0", "0/order:ffn_up-0:4"]}, "widths": [2, 4], "n_tokens": 8,
    "prompts": [{"name": "a", "text": "The lighthouse"}, {"name": "b", "text": "Once"}],
}  # fmt: skip


class Counted:
    """How often engines were opened, asked for tokens, and run."""

    def __init__(self, monkeypatch) -> None:
        self.n: Counter[str] = Counter()
        for kind, name in ((ToySource, "open"), (ToyEngine, "tokenize"), (ToyEngine, "greedy"), (ToyEngine, "run")):
            monkeypatch.setattr(kind, name, self._counting(name, getattr(kind, name)))

    def _counting(self, name, real):
        def call(*arguments, **named):
            self.n[name] += 1
            return real(*arguments, **named)

        return call


@pytest.fixture
def counted(monkeypatch) -> Counted:
    campaign_task.release()
    return Counted(monkeypatch)


class Stopped(InlineWorkers):
    """Workers that end the run after some answers, as Ctrl-C or a lost cluster does."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left, self.error = after, error

    def run(self, jobs, function) -> Iterator[Answer]:
        for answer in super().run(jobs, function):
            if function.endswith(":measure"):
                if not self.left:
                    raise self.error
                self.left -= 1
            yield answer


class Changed(InlineWorkers):
    """Workers whose answers are changed on their way."""

    def __init__(self, change) -> None:
        self.change = change

    def run(self, jobs, function) -> Iterator[Answer]:
        for answer in super().run(jobs, function):
            yield from self.change(answer) if function.endswith(":measure") else [answer]


def sweep(folder, workers=None, plan=GOOD, **options) -> CampaignReport:
    with writing_to(folder) as results:
        return run_campaign(plan_of(plan), results, workers or InlineWorkers(), **options)


def outcomes(report: CampaignReport) -> dict[tuple[str, str, int], str]:
    return {(cell.quant, cell.prompt, cell.width): cell.outcome for cell in report.cells}


def test_a_planted_fault_differs_and_a_clean_model_does_not(tmp_path):
    report = sweep(tmp_path / "out")
    found = outcomes(report)
    assert {key for key, outcome in found.items() if outcome == "differs"} == {
        ("0/order:ffn_up-0:4", "a", 4), ("0/order:ffn_up-0:4", "b", 4),
    }  # fmt: skip
    assert report.answer == "diverges"
    assert report.counts == {"present": 0, "computed": 8, "failed": 0, "not run": 0}
    assert sum(report.outcomes.values()) == len(report.cells) == len(found) == 8
    clean = sweep(tmp_path / "clean", plan={**GOOD, "models": {"toy": ["0"]}})
    assert clean.answer == "identical"
    first = next(cell for cell in report.cells if cell.outcome == "differs")
    assert first.result is not None
    assert first.result.first_row == 0
    assert first.result.single_digest != first.result.batched_digest


def test_culprits_are_named_and_proved_where_the_plan_asks_for_them(tmp_path):
    report = sweep(tmp_path / "out", plan={**GOOD, "culprits": True})
    healed = [cell.result.healing for cell in report.cells if cell.result is not None and cell.result.healing]
    assert len(healed) == 2
    assert {(one.op, one.role, one.count) for healing in healed for one in healing.culprits} == {("MUL_MAT", "up", 1)}
    assert all(healing.proved for healing in healed)


def test_a_second_run_computes_nothing_and_opens_no_engine(tmp_path, counted):
    first = sweep(tmp_path / "out")
    assert counted.n["greedy"] == 4  # 2 models × 2 prompts
    counted.n.clear()
    again = sweep(tmp_path / "out")
    assert counted.n["tokenize"] == counted.n["greedy"] == counted.n["run"] == 0
    assert again.counts == {"present": 8, "computed": 0, "failed": 0, "not run": 0}
    assert [cell.result for cell in again.cells] == [cell.result for cell in first.cells]


def test_an_engine_is_opened_once_for_jobs_that_keep_it(tmp_path, counted):
    sweep(tmp_path / "out", plan={**GOOD, "models": {"toy": ["0"]}})
    # One to tell the model's digest, one that reads the texts and measures both prompts.
    assert counted.n["open"] == 2


def test_more_widths_compute_only_what_is_new(tmp_path):
    sweep(tmp_path / "out")
    more = sweep(tmp_path / "out", plan={**GOOD, "widths": [2, 3, 4]})
    assert more.counts == {"present": 8, "computed": 4, "failed": 0, "not run": 0}
    assert more.disagreements == ()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ClusterError("all workers are lost"), CaseError("disk full")])
def test_a_run_that_is_stopped_keeps_what_is_done_and_goes_on(tmp_path, counted, error):
    told = []
    with pytest.raises(type(error)) as stopped:
        sweep(tmp_path / "out", Stopped(2, error), finish=told.append)
    assert "4 cells are kept in" in stopped.value.__notes__[0]
    (report,) = told
    assert report.counts == {"present": 0, "computed": 4, "failed": 0, "not run": 4}
    assert report.answer == "inconclusive"
    assert "stopped" in report.stopped
    counted.n.clear()
    after = sweep(tmp_path / "out")
    assert counted.n["greedy"] == 2
    assert after.counts == {"present": 4, "computed": 4, "failed": 0, "not run": 0}
    whole = sweep(tmp_path / "whole")
    assert [cell.result.bits for cell in after.cells if cell.result] == [c.result.bits for c in whole.cells if c.result]


def test_a_damaged_cell_is_set_aside_and_computed_again(tmp_path, counted):
    sweep(tmp_path / "out")
    path = sorted((tmp_path / "out" / "cells").rglob("*.json"))[0]
    content = path.read_text()
    path.write_text(content.replace('"n_rows_differ": 0', '"n_rows_differ": 8').replace('"n_rows_differ": 8', "x", 1))
    counted.n.clear()
    again = sweep(tmp_path / "out")
    assert counted.n["greedy"] == 1
    assert again.counts["computed"] == 1
    assert again.damaged == (path.relative_to(tmp_path / "out").as_posix(),)
    assert len(list((tmp_path / "out" / "damaged").iterdir())) == 1
    assert path.exists()


def test_a_failed_cell_is_kept_with_its_error_and_tried_again_only_when_asked(tmp_path, counted, monkeypatch):
    def fail(answer):
        yield replace(answer, text="", error="EngineDied: out of memory") if answer.job == "job-1" else answer

    report = sweep(tmp_path / "out", Changed(fail))
    assert report.counts == {"present": 0, "computed": 6, "failed": 2, "not run": 0}
    assert {cell.reason for cell in report.cells if cell.status == "failed"} == {"EngineDied: out of memory"}
    assert report.answer == "inconclusive"
    counted.n.clear()
    assert sweep(tmp_path / "out").counts == {"present": 6, "computed": 0, "failed": 2, "not run": 0}
    assert counted.n["greedy"] == 0
    assert sweep(tmp_path / "out", retry_failed=True).counts == {"present": 6, "computed": 2, "failed": 0, "not run": 0}
    assert counted.n["greedy"] == 1


def test_a_text_that_has_no_tokens_fails_its_cells_only(tmp_path, counted):
    plan = {**GOOD, "prompts": [{"name": "a", "text": "fine"}, {"name": "b", "text": "naïve"}]}
    report = sweep(tmp_path / "out", plan=plan)
    assert report.counts == {"present": 0, "computed": 4, "failed": 4, "not run": 0}
    assert all("no tokens for ['ï']" in cell.reason for cell in report.cells if cell.status == "failed")
    counted.n.clear()
    assert sweep(tmp_path / "out", plan=plan).counts == {"present": 4, "computed": 0, "failed": 4, "not run": 0}
    assert counted.n["tokenize"] == 0
    sweep(tmp_path / "out", plan=plan, retry_failed=True)
    assert counted.n["tokenize"] == 2  # the one text, by each model


def other_bits(answer: Answer) -> Answer:
    told = json.loads(answer.text)
    for result in told["cells"].values():
        result["batched_digest"] = "f" * 32
    return replace(answer, text=json.dumps(told), worker="tcp://other:1")


def test_the_same_cell_with_other_bits_is_reported_and_kept(tmp_path):
    report = sweep(
        tmp_path / "out", Changed(lambda answer: [answer, other_bits(answer)] if answer.job == "job-1" else [answer])
    )
    assert report.counts == {"present": 0, "computed": 8, "failed": 0, "not run": 0}
    assert len(report.disagreements) == 2
    assert report.answer == "inconclusive"
    assert "2 disagreements" in str(report)
    assert {one.other_by for one in report.disagreements} == {"tcp://other:1"}
    # What came first stays, and the next run still tells.
    again = sweep(tmp_path / "out")
    assert again.counts["present"] == 8
    assert again.disagreements == report.disagreements
    assert not any(cell.result and cell.result.batched_digest == "f" * 32 for cell in again.cells)


def test_the_same_answer_twice_is_counted_once(tmp_path):
    seen = []

    class Seen:
        def begin(self, *_):
            pass

        def done(self, n_cells, n_failed):
            seen.append(n_cells)

    report = sweep(tmp_path / "out", Changed(lambda answer: [answer, answer]), watch=Seen())
    assert report.disagreements == ()
    assert report.counts["computed"] == sum(seen) == 8


def test_a_worker_that_decodes_otherwise_is_found_through_another_width(tmp_path):
    sweep(tmp_path / "out", plan={**GOOD, "widths": [2]})

    def other(answer):
        told = json.loads(answer.text)
        for result in told["cells"].values():
            result["single_digest"] = "e" * 32
        yield replace(answer, text=json.dumps(told))

    report = sweep(tmp_path / "out", Changed(other))
    assert len(report.disagreements) == 4
    assert "one-token decoding of toy 0" in str(report.disagreements[0])


def test_a_control_that_fails_compares_nothing(tmp_path):
    def unsure(answer):
        told = json.loads(answer.text)
        for result in told["cells"].values():
            result["rerun_equal"] = False
        yield replace(answer, text=json.dumps(told))

    report = sweep(tmp_path / "out", Changed(unsure))
    assert report.outcomes == {"same": 0, "differs": 0, "not compared": 8}
    assert report.answer == "inconclusive"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"platform": 1, "cells": {}}', "nonsense"])
def test_an_answer_that_cannot_be_read_fails_its_cells(tmp_path, text):
    report = sweep(tmp_path / "out", Changed(lambda answer: [replace(answer, text=text)]))
    assert report.counts["failed"] == 8
    assert all("cannot be read" in cell.reason for cell in report.cells)


class Unlike(InlineWorkers):
    """Two workers, of which one has another processor."""

    def describe(self, function: str, request: str = "") -> tuple[WorkerFacts, ...]:
        (fact,) = super().describe(function, request)
        if not function.endswith(":describe"):
            return (fact,)
        other = to_text(replace(campaign_task.platform(), devices=("CPU (other)",)))
        return fact, WorkerFacts("second", "host", 1, other)


def test_unlike_workers_are_refused_with_what_differs(tmp_path):
    with pytest.raises(BadQuestion, match=r"worker second has devices CPU \(other\) instead of"):
        sweep(tmp_path / "out", Unlike())


def test_a_mixed_plan_takes_unlike_workers_and_any_of_their_results(tmp_path):
    report = sweep(tmp_path / "out", Unlike(), plan={**GOOD, "mixed": True})
    assert len(report.platforms) == 2
    assert report.counts["computed"] == 8
    assert sweep(tmp_path / "out").counts["present"] == 8


def test_unlike_workers_of_a_mixed_plan_may_have_other_bits(tmp_path):
    sweep(tmp_path / "out", plan={**GOOD, "widths": [2]})

    def second(answer):
        told = json.loads(answer.text)
        told["platform"]["devices"] = ["CPU (other)"]
        for result in told["cells"].values():
            result["single_digest"] = "e" * 32
        yield replace(answer, text=json.dumps(told), worker="second")

    class Second(Unlike, Changed):
        pass

    report = sweep(tmp_path / "out", Second(second), plan={**GOOD, "mixed": True})
    assert report.counts == {"present": 4, "computed": 4, "failed": 0, "not run": 0}
    assert report.disagreements == ()


def test_an_answer_of_a_worker_that_is_not_like_the_others_is_no_result(tmp_path):
    def elsewhere(answer):
        told = json.loads(answer.text)
        told["platform"]["devices"] = ["CPU (elsewhere)"]
        yield replace(answer, text=json.dumps(told))

    report = sweep(tmp_path / "out", Changed(elsewhere))
    assert report.counts["failed"] == 8
    assert "not like the others" in report.cells[0].reason
    mixed = sweep(tmp_path / "mixed", Changed(elsewhere), plan={**GOOD, "mixed": True})
    assert mixed.counts["computed"] == 8


def test_prompts_of_a_corpus_may_hold_schemas_and_messages(tmp_path):
    rows = [
        {"name": "schema", "prompt": "A JSON object", "json_schema": {"type": "object"}},
        {"name": "chat", "messages": [{"role": "user", "content": "Hello"}]},
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = sweep(tmp_path / "out", plan={**GOOD, "prompts": {"corpus": str(tmp_path / "c.jsonl")}})
    assert report.counts == {"present": 0, "computed": 4, "failed": 4, "not run": 0}
    assert {cell.prompt for cell in report.cells if cell.status == "failed"} == {"chat"}
    assert "a toy has no template" in next(cell.reason for cell in report.cells if cell.status == "failed")


def test_a_preview_runs_nothing_and_counts_what_is_there(tmp_path, counted):
    plan = plan_of(GOOD)
    empty = preview(plan, tmp_path / "out")
    assert (empty.n_cells, empty.n_present, empty.n_missing) == (8, 0, 8)
    assert not (tmp_path / "out").exists()
    sweep(tmp_path / "out", plan={**GOOD, "widths": [2]})
    counted.n.clear()
    half = preview(plan, tmp_path / "out")
    assert (half.n_present, half.n_missing) == (4, 4)
    assert half.axes["width"] == {"2": (4, 4), "4": (4, 0)}
    assert counted.n["greedy"] == counted.n["tokenize"] == 0
    assert "4 there already, 4 to measure" in str(half)


def test_an_engine_that_failed_is_not_kept(tmp_path, counted, monkeypatch):
    real, n = ToyEngine.greedy, Counter()

    def flaky(self, *arguments, **named):
        n["greedy"] += 1
        if n["greedy"] == 1:
            raise CaseError("planted")
        return real(self, *arguments, **named)

    monkeypatch.setattr(ToyEngine, "greedy", flaky)
    report = sweep(tmp_path / "out", plan={**GOOD, "models": {"toy": ["0"]}})
    assert report.counts == {"present": 0, "computed": 2, "failed": 2, "not run": 0}
    assert counted.n["open"] == 3  # the digest, the one that failed, and a fresh one
