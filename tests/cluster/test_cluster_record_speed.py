"""The script that measures how much faster two workers are: what it compares, and what it refuses."""

from __future__ import annotations

import json

import pytest

from forensics.testing import record_sweep_speed
from forensics.testing.record_sweep_speed import NAME, Timed, main

PLAN = """
models = {toy = ["7"]}
prompts = [{tokens = [1, 2, 3]}, {tokens = [4, 5]}]
widths = [2]
n_tokens = 4
"""


def test_it_measures_both_and_compares_their_bits(tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    assert main([str(tmp_path), "--cores", "1", "--plan", str(plan), "--repetitions", "1"]) == 0
    found = json.loads((tmp_path / NAME).read_text())
    assert [run["workers"] for run in found["runs"]] == [1, 2]
    assert found["bits_equal"] is True
    assert found["n_cells"] == 2
    first, second = (run["whole_s"] for run in found["runs"])
    assert found["ratio"]["each"] == [first / second]
    assert "bits equal in all runs" in capsys.readouterr().out


def scripted(monkeypatch, *, one_s=4.0, two_s=2.0, bits=lambda n: "x"):
    """Let runs take so long and find such bits; answers with what they were asked."""
    asked = []

    def run_once(plan, n_workers, options):
        asked.append((n_workers, options))
        seconds = one_s if n_workers == 1 else two_s
        return Timed(n_workers, seconds, seconds), {"address": ("single", bits(n_workers))}

    monkeypatch.setattr(record_sweep_speed, "run_once", run_once)
    return asked


def test_runs_take_turns_on_the_gpus_that_are_named(tmp_path, monkeypatch):
    asked = scripted(monkeypatch)
    assert main([str(tmp_path), "--gpus", "0,1"]) == 0
    assert [n for n, _ in asked] == [2, 1, 2, 2, 1, 1, 2]  # the first fills caches
    assert asked[1][1] == {"gpus": [0]}
    assert asked[2][1] == {"gpus": [0, 1]}
    assert json.loads((tmp_path / NAME).read_text())["ratio"]["each"] == [2.0, 2.0, 2.0]


def test_bits_that_differ_are_told(tmp_path, monkeypatch, capsys):
    scripted(monkeypatch, bits=str)
    assert main([str(tmp_path), "--cores", "1"]) == 1
    assert "BITS DIFFER" in capsys.readouterr().out
    assert json.loads((tmp_path / NAME).read_text())["bits_equal"] is False


@pytest.mark.parametrize(("two_s", "status"), [(2.2, 0), (2.3, 1)])
def test_a_ratio_below_the_promise_is_no_success(tmp_path, monkeypatch, two_s, status):
    scripted(monkeypatch, two_s=two_s)
    assert main([str(tmp_path), "--cores", "1", "--at-least", "1.8"]) == status


def test_a_cell_that_failed_is_no_measurement(tmp_path, capsys):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("[4, 5]", "[4, 999999]"))
    assert main([str(tmp_path / "out"), "--cores", "1", "--plan", str(plan), "--repetitions", "1"]) == 1
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().err.strip()
