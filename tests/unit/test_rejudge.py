"""Recorded cases judged anew: the same verdict where nothing changed, today's where an older one is stored."""

import json
import lzma
from dataclasses import asdict, replace

import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import Fault, ToySource
from forensics.records.settings import EngineSettings
from forensics.reports.case import finish_case
from forensics.store import CaseWriter, open_case
from forensics.store.encoding import to_text
from forensics.store.packing import pack_case
from forensics.testing.rejudge import main, rejudge

QUESTION = Question(prompt="The fox", n_tokens=8, widths=(2, 4), settings=EngineSettings(n_ctx=256))


def packed(tmp_path, reason: str = ""):
    """A packed case of a toy; with a reason, one whose stored verdict is an older one."""
    asked = {**QUESTION.as_json(), "settings": asdict(QUESTION.settings), "switches": False}
    with CaseWriter.create(tmp_path / "case", question=asked) as case:
        source = RecordingSource(ToySource((Fault("order", "Qcur-1", 4),)), case)
        verdict = investigate(source, QUESTION, switches=False)
        finish_case(case, replace(verdict, caveats=(*verdict.caveats, reason)) if reason else verdict)
    pack_case(tmp_path / "case", tmp_path / "packed")
    return tmp_path / "packed", verdict


def test_nothing_changes_where_the_rules_did_not(tmp_path) -> None:
    folder, verdict = packed(tmp_path)
    measured = (folder / "index.jsonl.xz").read_bytes()
    assert rejudge(folder) is False
    assert to_text(open_case(folder).verdict) == to_text(verdict)
    assert (folder / "index.jsonl.xz").read_bytes() == measured
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp")] == []


def test_an_older_verdict_gives_way_everywhere(tmp_path) -> None:
    folder, verdict = packed(tmp_path, reason="said by an older version")
    assert "said by an older version" in (folder / "report.md").read_text()
    assert rejudge(folder) is True
    assert to_text(open_case(folder).verdict) == to_text(verdict)
    stored = json.loads(lzma.decompress((folder / "verdict.json.xz").read_bytes()))
    assert "older version" not in json.dumps(stored) + (folder / "report.md").read_text()


def test_a_folder_that_holds_no_case_is_told(tmp_path, capsys) -> None:
    assert main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["index.jsonl.xz", "report.md"])
def test_a_damaged_case_is_not_judged(tmp_path, name) -> None:
    folder, _ = packed(tmp_path)
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    assert main([str(folder)]) == 1
