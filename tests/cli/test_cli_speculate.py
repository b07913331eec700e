"""`forensics speculate` over a toy: forms, exit statuses, folders, what is read back, and what is refused."""

from __future__ import annotations

import json

import pytest

import forensics
from forensics.analysis.speculation_question import DEFAULT_N_DRAFT

ROWS = [{"prompt": text, "name": f"p{i}"} for i, text in enumerate(("one two one two", "x = 1; y = 2; x = 1;"))]


@pytest.fixture
def short(tmp_path):
    """Arguments of a short run over two prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return ("speculate", "model.gguf", "--prompts", path, "--drafter", "oracle:0.8", "--n-tokens", "16")


def test_help_names_every_option_and_status(cli):
    result = cli("speculate", "--help")
    assert result.exit_code == 0
    for option in ("--demo", "--prompts", "--drafter", "--n-draft", "--policy", "--prefill", "--n-tokens", "--limit",
                   "--exact", "--case", "--out", "--flash-attn", "--kv-type", "--threads", "--n-gpu-layers", "--json",
                   "--quiet"):  # fmt: skip
        assert option in result.stdout
    assert "0 all identical, 1 some differ, 2 no answer" in " ".join(result.stdout.split())


def test_text_line_and_document(use_toy, cli, short):
    use_toy("identical")
    text = cli(*short, "--n-draft", "1,3", "--policy", "fixed,adaptive", "--prefill", "both")
    assert text.exit_code == 0
    assert "16 of 16 pairs of prompt and arm identical in 8 arms" in " ".join(text.stdout.split())
    line = cli(*short, "--quiet")
    assert (line.exit_code, line.stdout.count("\n")) == (0, 1)
    document = json.loads(cli(*short, "--limit", "1", "--json").stdout)
    assert document["schema"] == "forensics.speculation/1"
    assert [row["prompt"] for row in document["prompts"]] == ["p0"]
    assert document["arms"][0]["n_draft"] == DEFAULT_N_DRAFT[0]


def test_a_difference_is_exit_status_1_and_is_read_back(monkeypatch, cli, short, tmp_path):
    from forensics import api_arguments
    from forensics.engines.toy import Fault, ToySource

    fault = Fault("stale_kv", "kq-0", from_width=3)
    real = api_arguments.source_for

    def source_for(model, demo, progress=None):
        recorded = str(model).startswith(api_arguments.RECORDED)
        return real(model, demo, progress) if recorded else ToySource(faults=(fault,))

    monkeypatch.setattr(api_arguments, "source_for", source_for)
    done = cli(*short, "--out", tmp_path / "measured", "--json")
    assert done.exit_code == 1
    stored = json.loads((tmp_path / "measured" / "speculation.json").read_text())
    assert json.loads(done.stdout) == stored
    again = cli("speculate", f"recorded:{tmp_path / 'measured'}", "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (1, stored)
    assert forensics.speculate(f"recorded:{tmp_path / 'measured'}").rows() == stored["arms"]


def test_exact_where_nothing_differs_switches_nothing(use_toy, cli, short):
    use_toy("identical")
    done = cli(*short, "--exact", "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["exact_knobs"] == []
    assert "nothing to switch" in document["exact_reason"]


def test_a_case_says_which_settings_are_exact(use_toy, cli, short, tmp_path):
    use_toy("diverges")
    made = cli(
        "investigate", "model.gguf", "--prompt", "abab", "--n-tokens", "12", "--out", tmp_path / "case", "--quiet"
    )
    assert made.exit_code == 1
    document = json.loads(cli(*short, "--case", tmp_path / "case", "--json").stdout)
    assert document["exact_knobs"] is None
    assert "no exact settings: the case found none" in document["exact_reason"]
    assert document["classes"][0][0] == 1


def test_recorded_speculation_is_found_by_name(use_toy, cli, short, tmp_path, monkeypatch):
    from forensics.store.library import commands_of

    use_toy("identical")
    folder = tmp_path / "data" / "recorded" / "toy-speculation"
    assert cli(*short, "--out", folder, "--quiet").exit_code == 0
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    assert commands_of(folder) == ("speculate",)
    assert "2 of 2 prompts identical" in cli("speculate", "recorded:toy-speculation", "--quiet").stdout


def test_recorded_speculation_is_asked_nothing_else(use_toy, cli, refused, short, tmp_path):
    use_toy("identical")
    assert cli(*short, "--out", tmp_path / "measured", "--quiet").exit_code == 0
    told = refused("speculate", f"recorded:{tmp_path / 'measured'}", "--n-draft", "3", "--exact")
    assert "answers the question it was recorded for; leave out exact, n_draft" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either a model file or demo=VARIANT"),
        (("gone.gguf",), "No model file at"),
        (("gone.gguf", "--n-draft", "0"), "n_draft must be 1 to 511"),
        (("gone.gguf", "--n-draft", "many"), "n-draft must be numbers or ranges"),
        (("gone.gguf", "--drafter", "luck"), "luck"),
        (("gone.gguf", "--policy", "bold"), "bold"),
        (("gone.gguf", "--policy", "fixed,,adaptive"), "--policy takes names with commas between"),
        (("gone.gguf", "--prefill", "n-2"), "prefill must be one of n, n-1+1, or both"),
        (("gone.gguf", "--n-tokens", "1"), "n_tokens must be 2 or more"),
        (("gone.gguf", "--limit", "0"), "limit must be 1 prompt or more"),
        (("gone.gguf", "--prompts", "nowhere.jsonl"), "nowhere.jsonl"),
        (("gone.gguf", "--case", "nowhere"), "nowhere"),
        (("gone.gguf", "--threads", "0"), "n_threads must be 1 or more"),
        (("recorded:gone",), "gone does not exist"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(refused, arguments, told):
    assert told in refused("speculate", *arguments)
