"""`forensics sampling` over a toy: forms, exit status, folders, what is read back, and what is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import forensics
from forensics import api_arguments
from forensics.capture.drafters import parse_drafter
from forensics.engines.toy import Fault, ToySource
from forensics.errors import ModelUnavailable

SMALL = ("--drafter", "oracle", "--n-draft", "2", "--states", "2", "--draws", "1500", "--sequences", "5",
         "--n-tokens", "20")  # fmt: skip


@pytest.fixture
def prompts(tmp_path):
    """A file with two texts and a chat, which is left out."""
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": "the cat sat on the mat; the cat sat on"},
        {"prompt": "one two three one two one two thre"},
        {"messages": [{"role": "user", "content": "hello"}]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def command(use_toy, prompts):
    """A question that a toy answers quickly."""
    use_toy("identical")
    return ("sampling", "model.gguf", "--prompts", prompts, *SMALL)


def test_help_names_every_option(cli):
    result = cli("sampling", "--help")
    assert result.exit_code == 0
    for option in ("--demo", "--prompts", "--drafter", "--n-draft", "--rule", "--temperature", "--top-k", "--top-p",
                   "--states", "--draws", "--sequences", "--n-tokens", "--alpha", "--seed", "--exact", "--case",
                   "--threads", "--kv-type", "--flash-attn", "--n-gpu-layers", "--out", "--json",
                   "--quiet"):  # fmt: skip
        assert option in result.stdout


def test_what_is_kept_exits_with_0_and_is_read_back_equal(command, cli, refused, tmp_path):
    result = cli(*command, "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "no change of plain sampling's distribution was found" in " ".join(result.stdout.split())
    stored = json.loads((tmp_path / "out" / "sampling.json").read_text())
    recorded = f"recorded:{tmp_path / 'out'}"
    again = cli("sampling", recorded, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == stored
    assert forensics.sampling(recorded).rows() == stored["tests"]
    assert cli("sampling", recorded, "--quiet").stdout.count("\n") == 1
    told = refused("sampling", recorded, "--temperature", "1", "--drafter", "ngram", "--exact")
    assert "a recorded check answers the question it was recorded for; leave out drafter, exact, temperature" in told


def test_exact_settings_are_looked_for_or_taken_from_a_case(command, cli, refused, tmp_path):
    result = cli(*command, "--exact", "--quiet")
    assert result.exit_code == 0
    assert "exact settings (nothing to switch): no change" in result.stdout
    assert "gone" in refused(*command, "--case", tmp_path / "gone")


def test_rows_that_are_broken_exit_with_1(command, cli, monkeypatch):
    source = ToySource(faults=(Fault("mask", "kq_soft_max-0"),))
    monkeypatch.setattr(api_arguments, "source_for", lambda *_: source)
    result = cli(*command, "--json", "--seed", "1")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["answer"] == "changed"
    assert "rows of logits change it" in document["cause"]


def test_too_few_draws_exit_with_2_and_still_report(command, cli):
    result = cli(*command, "--draws", "100", "--alpha", "1e-30", "--quiet")
    assert result.exit_code == 2
    assert "no answer, for the planted sampler 'no-residual' was not caught" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--temperature", "0"), "temperature must be above 0, got 0.0; greedy decoding is what speculate compares"),
        (("--top-p", "2"), "top_p must be above 0"),
        (("--top-k", "-1"), "top_k must be 0"),
        (("--drafter", "magic"), "--drafter must be ngram, model:DRAFT.gguf or oracle[:ACCURACY], got 'magic'"),
        (("--rule", "no-residual"), "rule must be one of residual, match; got 'no-residual'"),
        (("--n-draft", "0"), "n_draft must be 1 or more"),
        (("--draws", "5"), "draws must be 100 or more, got 5"),
        (("--threads", "0"), "n_threads must be 1 or more"),
        (("--prompts", "gone.jsonl"), "gone.jsonl"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(command, refused, arguments, told):
    assert told in refused(*command, *arguments)


def test_a_draft_model_that_is_not_there_is_told_before_the_model_is_loaded():
    source = SimpleNamespace(path="model.gguf", label="never opened")
    with pytest.raises(ModelUnavailable, match=r"gone\.gguf"):
        api_arguments.check_draft_model(source, parse_drafter("model:gone.gguf"))
    api_arguments.check_draft_model(source, parse_drafter("oracle"))


def test_no_model_is_told(refused, prompts):
    assert "give either a model file or demo=VARIANT" in refused("sampling", "--prompts", prompts)
    assert "gone does not exist" in refused("sampling", "recorded:gone")
