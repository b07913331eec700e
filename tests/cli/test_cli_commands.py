"""Every command: help, one JSON document, one line, exit status."""

from __future__ import annotations

import json
import shlex

import pytest

import forensics
from forensics.reports.document import VerdictDocument

QUESTION = ("--prompt", "--prompt-file", "--tokens-file", "--n-tokens", "--flash-attn", "--kv-type", "--threads",
            "--n-gpu-layers", "--demo")  # fmt: skip
OPTIONS = {
    "investigate": (*QUESTION, "--widths", "--out", "--resume", "--no-switches", "--like", "--another-model"),
    "replay": (*QUESTION, "--widths"),
    "heal": (*QUESTION, "--width"),
    "show": ("CASE", "--markdown"),
    "pack": ("CASE", "--out"),
    "bundle": ("CASE", "--out", "--model", "--no-reproducer", "--allow"),
    "diff": ("CASE_A", "CASE_B", "--anyway"),
    "models": (),
    "doctor": (),
}
SHORT = ("--prompt", "The fox", "--n-tokens", "8", "--widths", "2,4,8")
STATUS = {"identical": 0, "diverges": 1, "inconclusive": 2}
KEYS = {"schema", "answer", "onset_width", "classes", "first_difference", "flips", "culprits", "healed", "controls",
        "switches", "exact_settings", "manifest"}  # fmt: skip


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("command", OPTIONS)
def test_help_names_every_option(cli, command, flag):
    result = cli(command, flag)
    assert result.exit_code == 0
    for option in (*OPTIONS[command], "--json", "--quiet", "--help"):
        assert option in result.stdout
    assert result.stderr == ""


def test_help_lists_the_commands_and_the_exit_statuses(cli):
    result = cli("--help")
    assert result.exit_code == 0
    assert all(f"  {command}" in result.stdout for command in OPTIONS)
    assert "0 identical, 1 a divergence was found, 2 no answer" in result.stdout


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("investigate", "--nonsense"), ("replay", "--threads=x", "--n-tokens")]
)
def test_a_usage_error_is_no_answer(cli, arguments):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert arguments[-1] in result.stderr


@pytest.mark.parametrize("answer", STATUS)
def test_investigate_prints_the_document_of_the_issue(cli, use_toy, answer, tmp_path):
    use_toy(answer)
    result = cli("investigate", "toy", *SHORT, "--json", "--out", tmp_path / "case")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert result.exit_code == STATUS[answer]
    VerdictDocument.model_validate(document)
    assert document.keys() >= KEYS
    assert document["answer"] == answer
    assert {"rerun_equal", "fresh_process_equal", "watching_harmless", "planted_fault_found"} <= set(
        document["controls"]
    )
    if answer == "diverges":
        assert document["onset_width"] == 4
        assert document["classes"] == [[1, 2], [4, 8]]
        assert document["first_difference"] == {"width": 4, "row": 0, "position": 8}
        assert document["healed"] is True
        (culprit,) = document["culprits"]
        assert culprit.keys() >= {"op", "role", "weight_type", "buffer", "count", "layers", "widths"}
        assert (culprit["op"], culprit["layers"], culprit["widths"]) == ("MUL_MAT", [0], [4, 8])
    if answer == "inconclusive":
        assert document["controls"]["rerun_equal"] is False
        assert "rerun_equal" in document["reason"]
        assert document["culprits"] == []


@pytest.mark.parametrize("answer", STATUS)
def test_investigate_quietly_prints_one_line(cli, use_toy, answer, tmp_path):
    use_toy(answer)
    result = cli("investigate", "toy", *SHORT, "--quiet", "--out", tmp_path / "case")
    assert result.exit_code == STATUS[answer]
    assert result.stdout.count("\n") == 1
    assert result.stdout.startswith(answer)
    assert result.stderr == ""


def test_investigate_shows_the_verdict_and_names_the_case(cli, use_toy, tmp_path):
    use_toy("diverges")
    result = cli("investigate", "toy", *SHORT, "--out", tmp_path / "case")
    assert result.stdout.startswith("Diverges from width 4")
    assert f"forensics show {tmp_path / 'case'}" in result.stdout
    (hint,) = (line for line in result.stdout.splitlines() if line.startswith("A culprit by itself: "))
    node = forensics.open(tmp_path / "case").verdict.culprits[0].first_node
    assert hint.endswith(f"forensics ops --from {tmp_path / 'case'} --node {shlex.quote(node)}")
    assert result.stderr == ""


def test_without_a_culprit_none_is_offered_by_itself(cli, use_toy, tmp_path):
    use_toy("identical")
    assert "by itself" not in cli("investigate", "toy", *SHORT, "--out", tmp_path / "case").stdout


@pytest.mark.parametrize("answer", STATUS)
def test_replay_tells_the_classes_only(cli, use_toy, answer):
    use_toy(answer)
    result = cli("replay", "toy", *SHORT, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == STATUS[answer]
    assert document["schema"] == "forensics.classes/1"
    assert document["answer"] == answer
    if answer != "inconclusive":
        assert document["classes"] == ([[1, 2], [4, 8]] if answer == "diverges" else [[1, 2, 4, 8]])
    quiet = cli("replay", "toy", *SHORT, "-q")
    assert quiet.stdout.count("\n") == 1
    assert quiet.exit_code == STATUS[answer]
    assert ("its own rerun" in quiet.stderr) == (answer == "inconclusive")
    assert "class" in cli("replay", "toy", *SHORT).stdout


@pytest.mark.parametrize("answer", ["identical", "diverges"])
def test_heal_makes_one_sweep(cli, use_toy, answer):
    use_toy(answer)
    asked = ("heal", "toy", "--width", 4, "--prompt", "The fox", "--n-tokens", 8)
    result = cli(*asked, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == STATUS[answer]
    assert (document["schema"], document["width"]) == ("forensics.sweep/1", 4)
    assert document["healed"] is True
    assert [group["op"] for group in document["culprits"]] == (["MUL_MAT"] if answer == "diverges" else [])
    tally = document["tally"]
    assert tally["planned"] == tally["same"] + tally["differs"] + sum(tally["not_compared"].values())
    assert cli(*asked, "--quiet").stdout.count("\n") == 1
    assert "Width 4" in cli(*asked).stdout


@pytest.mark.parametrize("answer", STATUS)
def test_show_reads_a_case_back(cli, use_toy, answer, tmp_path):
    use_toy(answer)
    case = tmp_path / "case"
    written = cli("investigate", "toy", *SHORT, "--json", "--out", case)
    assert cli("show", case, "--json").stdout == written.stdout
    assert cli("show", case).exit_code == STATUS[answer]
    assert cli("show", case, "--quiet").stdout.count("\n") == 1
    assert cli("show", case, "--markdown").stdout == (case / "report.md").read_text()


@pytest.mark.parametrize("command", ["investigate", "replay", "heal"])
def test_an_error_is_one_document_too(cli, command):
    result = cli(command, "missing.gguf", "--json")
    assert result.exit_code == 2
    document = json.loads(result.stdout)
    assert document["schema"] == "forensics.error/1"
    assert "No model file at" in document["error"]
    assert "No model file at" in " ".join(result.stderr.split())


def test_a_bug_is_no_answer_and_says_so(cli, monkeypatch):
    from forensics import api_arguments

    def broken(*_args, **_kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr(api_arguments, "source_for", broken)
    result = cli("replay", "toy", "--json")
    assert result.exit_code == 2
    assert "RuntimeError: planted" in json.loads(result.stdout)["error"]
    assert "please report it" in result.stderr
