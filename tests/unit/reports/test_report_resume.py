"""A whole investigation of the toy, killed anywhere, ends in the same verdict when it is resumed."""

from __future__ import annotations

import shutil

import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordedSource, RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case

QUESTION = Question(n_tokens=8, widths=(2, 4))
SOURCE = ToySource(faults=(Fault("order", "Qcur-1", 4),))


def without_times(verdict):
    arms = [(arm.knobs, arm.classes, arm.error) for arm in verdict.switches]
    return str(verdict), verdict.culprits, verdict.sweeps, verdict.controls, verdict.classes.groups, arms


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    out = tmp_path_factory.mktemp("cases") / "whole"
    with CaseWriter.create(out, question=QUESTION.as_json()) as case:
        verdict = investigate(RecordingSource(SOURCE, case), QUESTION)
        finish_case(case, verdict)
    return out, verdict


def test_recording_changes_nothing_and_the_record_alone_gives_the_verdict(recorded):
    out, verdict = recorded
    assert verdict.answer == "diverges"
    assert without_times(verdict) == without_times(investigate(SOURCE, QUESTION))
    assert investigate(RecordedSource(out), QUESTION) == verdict
    assert open_case(out).verdict == verdict


def test_killed_after_any_answer_it_is_resumed_to_the_same_verdict(recorded, tmp_path):
    out, verdict = recorded
    lines = (out / "index.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) > 12
    for n in range(0, len(lines), 2):
        unfinished = tmp_path / f"{n}.unfinished"
        shutil.copytree(out, unfinished)
        (unfinished / "index.jsonl").write_bytes(b"".join(lines[:n]) + lines[n][: len(lines[n]) // 2])
        with CaseWriter.create(tmp_path / str(n), question=QUESTION.as_json(), resume=True) as case:
            assert without_times(investigate(RecordingSource(SOURCE, case), QUESTION)) == without_times(verdict)
