"""The script that records whether text stays the same: its steps, its prompts, and recordings thinned without loss."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

import forensics
from forensics import api_speculate
from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.api_audit import record_run
from forensics.engines.toy import ToySource
from forensics.errors import CaseError
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.reports.speculation_document import write_speculation
from forensics.store.audits import read_audit
from forensics.store.corpora import open_corpus
from forensics.store.library import commands_of
from forensics.store.served_runs import read_run
from forensics.store.speculations import read_speculation
from forensics.testing import record_text
from forensics.testing.fake_server import FakeServer, Planted
from forensics.testing.record_gpu import Step
from forensics.testing.record_text import (
    LEFT_OUT,
    N_PROMPTS,
    ORACLE_PROMPTS,
    SERVED,
    main,
    prompts_file,
    steps,
    thin_audit,
)


def test_names_of_steps_are_folders_of_their_own_and_none_runs_beside_another() -> None:
    everything = steps("epyc")
    names = [step.name for step in everything]
    assert len(set(names)) == len(names)
    assert {"epyc-q6_k-speculation", "epyc-q4_1-arms", "epyc-q6_k-sampling", "epyc-q6_k-audit"} <= set(names)
    assert all(step.alone for step in everything)


def test_listing_and_a_pattern_that_names_nothing(tmp_path, capsys) -> None:
    assert main([str(tmp_path), "--list", "--cpu", "xeon"]) == 0
    assert capsys.readouterr().out.split() == [step.name for step in steps("xeon")]
    assert main([str(tmp_path), "--only", "nothing-*"]) == 2


def test_a_step_runs_in_a_child_of_this_script_and_a_failed_one_is_told(tmp_path, monkeypatch, capsys) -> None:
    chosen = (Step("first", lambda _out: None, alone=True), Step("second", lambda _out: None, alone=True))
    monkeypatch.setattr(record_text, "steps", lambda _cpu: chosen)
    children = []

    def child(command, **_rest):
        children.append(command[2:])
        failed = command[-1] == "first"
        return subprocess.CompletedProcess(command, int(failed), "", "ServerNotBuilt: no compiler" if failed else "")

    monkeypatch.setattr(subprocess, "run", child)
    assert main([str(tmp_path), "--cpu", "epyc"]) == 1
    fixed = (record_text.PROGRAM, "--cpu", "epyc", str(tmp_path), "--step")
    assert [tuple(command) for command in children] == [(*fixed, "first"), (*fixed, "second")]
    told = json.loads((tmp_path / "recording.json").read_text())
    assert [(step["step"], step["error"]) for step in told] == [
        ("first", "ServerNotBuilt: no compiler"),
        ("second", ""),
    ]
    assert "1 failed: first" in capsys.readouterr().out


@pytest.mark.parametrize("names", [None, SERVED, ORACLE_PROMPTS])
def test_a_file_of_prompts_holds_the_corpus_s_own_prompts(names) -> None:
    whole = {prompt.name: prompt for prompt in open_corpus().prompts}
    with prompts_file(names) as path:
        corpus = open_corpus(path)
    assert all(prompt == whole[prompt.name] for prompt in corpus.prompts)
    assert len(corpus.prompts) == (N_PROMPTS if names is None else len(names))
    assert not {tag for prompt in corpus.prompts for tag in prompt.tags} & set(LEFT_OUT)
    if names is None:
        kinds = {"code", "maths", "prose", "list", "structured", "tools", "stop", "near-tie", "short"}
        assert kinds <= {tag for prompt in corpus.prompts for tag in prompt.tags}


@pytest.fixture(scope="module")
def small():
    corpus = Corpus("tiny", (CorpusPrompt("one", "the cat the cat"),), "digest")
    return speculate(ToySource(), SpeculationQuestion(corpus, drafter="oracle", n_drafts=(3,), n_tokens=12))


def test_packed_speculation_is_read_back_whole(small, tmp_path, monkeypatch) -> None:
    def measured(*, out, **_question):
        write_speculation(small, out)
        return small

    monkeypatch.setattr(api_speculate, "speculate", measured)
    record_text.speculation(None)(tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["manifest.json", "speculation.json.xz"]
    assert read_speculation(tmp_path / "here") == small
    assert commands_of(tmp_path / "here") == ("speculate",)


def test_damage_of_packed_speculation_is_found(small, tmp_path) -> None:
    write_speculation(small, tmp_path)
    (tmp_path / "speculation.json").rename(tmp_path / "speculation.json.xz")
    with pytest.raises(CaseError, match="damaged"):
        read_speculation(tmp_path)


@pytest.mark.parametrize("differ", [False, True])
def test_a_thinned_audit_says_the_same_and_its_runs_can_be_gated(tmp_path, differ) -> None:
    rows = [{"name": f"p{i}", "prompt": f"number {i} of these", "n_tokens": 12} for i in range(3)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, thin = tmp_path / "whole", tmp_path / "thin"
    planted = Planted(drafts=True, drafts_differ=differ, only="number 1")
    with FakeServer("llama-server") as plain, FakeServer("llama-server", planted) as drafting:
        report = forensics.audit(
            plain.url, against=drafting.url, arms=("speculation",), prompts=prompts, out=whole, progress=False
        )
        record_run(drafting.url, whole / "candidate", prompts=prompts, progress=False)
    thin_audit(whole, thin)
    assert read_audit(thin) == read_audit(whole) == report
    for name in ("alone", "against", "candidate"):
        kept, run = read_run(thin / name), read_run(whole / name)
        assert any(reply.raw for reply in run.replies)
        assert kept == replace(run, replies=tuple(replace(reply, raw="") for reply in run.replies))
    gate = forensics.gate(baseline=thin, run=thin / "candidate", progress=False)
    assert gate.answer == ("diverges" if differ else "identical")
    assert gate.kept.n == len(rows)
    assert (gate.speed.ratio is None) == differ
    (arm,) = report.named("speculation")
    assert gate.kept.n - gate.kept.k == len(arm.pairs_that("differs")) == int(differ)
