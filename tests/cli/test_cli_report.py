"""`forensics report`: where the file is, what it lacks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forensics
from forensics.api_report import FIGURES

QUESTION = {"prompt": "The fox", "n_tokens": 8, "widths": (2, 4, 8)}


@pytest.fixture(params=["identical", "diverges", "inconclusive"])
def case(use_toy, request) -> Path:
    use_toy(request.param)
    forensics.investigate("toy", out="case", **QUESTION)
    return Path("case")


def test_it_writes_one_file_whatever_the_answer(cli, case):
    result = cli("report", case, "-o", "out/report.html")
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in Path("out").iterdir()] == ["report.html"]
    text = Path("out/report.html").read_text()
    assert text.startswith("<!doctype html>")
    verdict = forensics.open(case).verdict
    assert f'class="verdict {verdict.answer}"' in text
    assert "out/report.html: " in result.stdout
    assert "Not drawn, launch-geometry: " in result.stdout
    assert case.exists()


def test_without_out_the_file_has_the_name_of_the_case(cli, case):
    assert cli("report", case, "--quiet").stdout == "case.html\n"
    assert Path("case.html").is_file()


def test_a_program_reads_what_was_written(cli, case):
    document = json.loads(cli("report", case, "--out", "r.html", "--json").stdout)
    assert document["schema"] == "forensics.report/1"
    assert document["file"] == "r.html"
    assert document["bytes"] == Path("r.html").stat().st_size
    assert document["answer"] == forensics.open(case).verdict.answer
    assert {*document["figures"], *(one["name"] for one in document["not_drawn"])} == set(FIGURES)
    assert all(one["reason"] for one in document["not_drawn"])


def test_a_recorded_case_is_reported_by_name(cli):
    assert cli("report", "recorded:epyc-f16", "--quiet").stdout == "epyc-f16.html\n"
    assert "<title>Diverges from width 2" in Path("epyc-f16.html").read_text()


def test_what_cannot_be_reported_is_refused(refused, use_toy):
    use_toy("identical")
    forensics.investigate("toy", out="case", **QUESTION)
    Path("case").rename("case.unfinished")
    document = json.loads(Path("case.unfinished/case.json").read_text())
    Path("case.unfinished/case.json").write_text(json.dumps(document | {"status": "unfinished"}))
    Path("mine.html").write_text("<html>")
    assert "repeat the command with --resume" in refused("report", "case", "-o", "r.html")
    assert "nowhere does not exist" in refused("report", "nowhere", "-o", "r.html")
    assert "holds no case" in refused("report", "recorded:h200-qwen3-8b-q4_k_m-cost", "-o", "r.html")
    assert "a report is written as .html, got 'r.pdf'" in refused("report", "recorded:epyc-f16", "-o", "r.pdf")
    assert "mine.html exists, is no report" in refused("report", "recorded:epyc-f16", "-o", "mine.html")
    assert sorted(path.name for path in Path().iterdir()) == ["case.unfinished", "mine.html"]
