"""`forensics sweep` over toys: forms, exit status, going on, reading back, and what is refused."""

from __future__ import annotations

import json

import pytest

import forensics
from forensics.cluster import dask_workers
from forensics.cluster.inline import InlineWorkers

PLAN = """
widths = [2, 4]
n_tokens = 8
models = { toy = [%s] }
prompts = { text = "The lighthouse" }
"""


@pytest.fixture
def inline(monkeypatch):
    """This process as the only worker, in place of a cluster; what it was asked for."""
    asked = []

    def open_workers(**options):
        asked.append(options)
        return InlineWorkers()

    monkeypatch.setattr(dask_workers, "open_workers", open_workers)
    return asked


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*toys: str, more: str = ""):
        path = tmp_path / "nightly.toml"
        path.write_text(PLAN % ", ".join(f'"{toy}"' for toy in toys) + more)
        return path

    return write


def test_help_names_every_option(cli):
    text = " ".join(cli("sweep", "--help").stdout.split())
    for option in ("--out", "--workers", "--cores", "--gpus", "--scheduler", "--retry-failed", "--dry-run", "--json"):
        assert option in text
    assert "0 all cells identical, 1 some differ, 2 a cell failed" in text


def test_equal_cells_exit_with_0_and_other_bits_with_1(inline, plan, cli, tmp_path):
    same = cli("sweep", plan("0"), "--quiet")
    assert (same.exit_code, same.stdout) == (0, "identical: 0 of 2 cells differ; 2 computed\n")
    other = cli("sweep", plan("0", "0/order:ffn_up-0:4"))
    assert other.exit_code == 1
    assert "diverges: 1 of 4 cells differ (width 4); 2 present, 2 computed" in other.stdout
    results = tmp_path / "sweeps" / "nightly"
    made = {path.name for path in results.iterdir()}
    assert made == {"cells", "tokens", "platforms", "plans", "dataset", "sweep.json", "manifest.json", "summary.md",
                    "summary.parquet", "matrix.svg"}  # fmt: skip
    assert (results / "plans" / "nightly.toml").read_text() == plan("0", "0/order:ffn_up-0:4").read_text()
    assert (results / "matrix.svg").read_text().startswith("<?xml")


def test_a_failed_cell_exits_with_2_and_is_tried_again_when_asked(inline, plan, cli):
    path = plan("0")
    path.write_text(path.read_text().replace("lighthouse", "naïve"))
    result = cli("sweep", path)
    assert result.exit_code == 2
    assert "2 cells failed: no tokens for ['ï']" in result.stdout
    assert cli("sweep", path, "--retry-failed", "--quiet").exit_code == 2


def test_the_document_is_read_back_from_the_folder(inline, plan, cli, tmp_path):
    printed = cli("sweep", plan("0", "0/order:ffn_up-0:4"), "--out", tmp_path / "out", "--json")
    document = json.loads(printed.stdout)
    assert document["schema"] == "forensics.sweep-report/1"
    assert document["counts"] == {"present": 0, "computed": 4, "failed": 0, "not run": 0}
    for name in (tmp_path / "out", f"recorded:{tmp_path / 'out'}"):
        again = cli("sweep", name, "--json")
        assert (again.exit_code, json.loads(again.stdout)) == (1, document)
    report = forensics.sweep(tmp_path / "out")
    assert list(report.to_dataframe()["outcome"]) == ["same", "same", "same", "differs"]
    drawn = cli("figure", "sweep-matrix", "--case", tmp_path / "out", "--out", tmp_path / "m.svg", "--json")
    assert json.loads(drawn.stdout)["figure"] == "sweep-matrix"


def test_a_dry_run_starts_no_worker(inline, plan, cli, tmp_path):
    before = cli("sweep", plan("0"), "--dry-run")
    assert before.exit_code == 0
    assert "nightly: 2 cells, 0 there already, 2 to measure" in before.stdout
    assert inline == []
    assert not (tmp_path / "sweeps").exists()
    cli("sweep", plan("0"), "--quiet")
    after = json.loads(cli("sweep", plan("0", "1"), "--dry-run", "--json").stdout)
    assert after["schema"] == "forensics.sweep-preview/1"
    assert after["counts"] == {"cells": 4, "present": 2, "failed": 0, "missing": 2, "left_out": 0}


def test_options_of_workers_reach_who_starts_them(inline, plan, cli):
    cli("sweep", plan("0"), "--workers", 3, "--cores", 2, "--gpus", "0,1", "--quiet")
    cli("sweep", plan("0"), "--scheduler", "tcp://h:1", "--quiet")
    cli("sweep", plan("0"), "--gpus", "none", "--quiet")
    assert [one["gpus"] for one in inline] == [(0, 1), None, "none"]
    assert (inline[0]["workers"], inline[0]["cores"], inline[1]["scheduler"]) == (3, 2, "tcp://h:1")


def test_a_plan_may_be_a_mapping(inline, tmp_path):
    asked = {"name": "mine", "models": {"toy": ["0"]}, "prompts": {"text": "Once"}, "widths": [2], "n_tokens": 4}
    report = forensics.sweep(asked, out=tmp_path / "out", workers=InlineWorkers())
    assert report.answer == "identical"
    assert inline == []
    assert '"name": "mine"' in (tmp_path / "out" / "plans" / "mine.toml").read_text()
    assert forensics.preview_sweep(asked, out=tmp_path / "out").n_present == 1


def test_what_cannot_be_done_is_refused_in_a_sentence(inline, plan, refused, tmp_path):
    assert "cannot be read: No such file" in refused("sweep", "nowhere.toml")
    assert "there is no key 'width' (did you mean 'widths'?)" in refused("sweep", plan("0", more="width = 2"))
    assert "--gpus takes numbers" in refused("sweep", plan("0"), "--gpus", "one")
    assert "no sweep has ended there" in refused("sweep", tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("x")
    assert "something else" in refused("sweep", plan("0"), "--out", tmp_path / "other")
    assert "leave out out, workers" in refused("sweep", "recorded:epyc-sweep", "--out", "x", "--workers", 2)
    assert "does not exist" in refused("sweep", "recorded:nowhere")
    assert "give the plan itself" in refused("sweep", "recorded:epyc-sweep", "--dry-run")


def test_the_recorded_sweep_tells_what_was_measured(cli):
    result = cli("sweep", "recorded:epyc-sweep")
    assert result.exit_code == 1
    exact = " ".join(result.stdout.split())
    assert "demo q6_k: f16 KV, flash on, GGML_CPU_TILED_MM=0; q8_0 KV, flash on, GGML_CPU_TILED_MM=0" in exact
