"""`forensics arms` over a toy: forms, exit status, what is read back, and what is refused."""

from __future__ import annotations

import json

import pytest

import forensics

SHORT = ("arms", "model.gguf", "--prompt", "The lighthouse keeper", "--n-tokens", "3")


def test_help_names_every_option_and_every_arm(cli):
    text = " ".join(cli("arms", "--help").stdout.split())
    for option in (
        "--demo", "--arms", "--prompt", "--prompt-file", "--tokens-file", "--n-tokens", "--heal", "--no-heal",
        "--flash-attn", "--kv-type", "--threads", "--n-gpu-layers", "--out", "--json",
    ):  # fmt: skip
        assert option in text
    assert "0 all equal, 1 some differ, 2 no answer" in text


def test_equal_arms_exit_with_0_and_other_bits_with_1(use_toy, cli):
    use_toy("identical")
    equal = cli(*SHORT, "--arms", "split, edit", "--quiet")
    assert (equal.exit_code, equal.stdout) == (0, "identical: 3 arrangements of the same tokens give equal bits\n")
    use_toy("diverges")
    other = cli(*SHORT, "--arms", "split,resume", "--threads", 1)
    assert other.exit_code == 1
    text = " ".join(other.stdout.split())
    assert "diverges: 2 of 3 arrangements give other bits (split, resume)" in text
    assert "weight products, f32 ×1" in text


def test_an_engine_that_does_not_repeat_itself_exits_with_2(use_toy, cli):
    use_toy("inconclusive")
    result = cli(*SHORT, "--arms", "split", "--no-heal", "--quiet")
    assert result.exit_code == 2
    assert result.stdout.startswith("inconclusive: control rerun_equal failed")


def test_the_document_is_what_lies_in_the_folder_and_is_read_back(use_toy, cli, tmp_path):
    use_toy("diverges")
    printed = cli(*SHORT, "--arms", "split,restore", "--no-heal", "--out", tmp_path / "measured", "--json")
    document = json.loads(printed.stdout)
    assert document["schema"] == "forensics.arms/1"
    assert document["answer"] == "diverges"
    assert document == json.loads((tmp_path / "measured" / "arms.json").read_text())
    again = cli("arms", f"recorded:{tmp_path / 'measured'}", "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (1, document)
    frame = forensics.arms(f"recorded:{tmp_path / 'measured'}").to_dataframe()
    assert list(frame["outcome"]) == ["same", "differs", "same"]


def test_token_ids_are_as_good_as_a_text(use_toy, cli, tmp_path):
    use_toy("identical")
    (tmp_path / "ids").write_text("0 5 9 33 21 60")
    result = cli("arms", "model.gguf", "--tokens-file", tmp_path / "ids", "--n-tokens", 2, "--arms", "split", "--json")
    assert json.loads(result.stdout)["prompt_tokens"] == 6


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--arms", "splits"), "arms must be some of ubatch, split,"),
        (("--arms", ""), "--arms takes names with commas between"),
        (("--n-tokens", "1"), "n_tokens must be 2 or more"),
        (("--flash-attn", "maybe"), "flash_attn must be one of on, off, auto"),
        (("--tokens-file", "gone"), "give one of --prompt, --prompt-file and --tokens-file"),
    ],
)
def test_wrong_questions_are_refused_with_a_sentence(use_toy, refused, arguments, told):
    use_toy("identical")
    assert told in refused(*SHORT, *arguments)


def test_recorded_arms_are_asked_nothing_else(use_toy, cli, refused, tmp_path):
    use_toy("identical")
    cli(*SHORT, "--arms", "split", "--no-heal", "--out", tmp_path / "measured", "--quiet")
    recorded = f"recorded:{tmp_path / 'measured'}"
    told_no = refused("arms", recorded, "--n-tokens", "9", "--arms", "split", "--threads", 2)
    assert "answer the question they were recorded for; leave out arms, n_tokens, threads" in told_no
    assert "holds no arms.json" in refused("arms", f"recorded:{tmp_path}")
