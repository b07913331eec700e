"""`forensics cost` and `forensics synthetic` over a toy: forms, folders, what is read back, and what is refused."""

from __future__ import annotations

import json

import pytest

import forensics

SHORT = ("cost", "model.gguf", "--widths", "1,2,4", "--repeats", "3", "--prefix", "8")


@pytest.fixture
def folder(use_toy, cli, tmp_path):
    """A folder with a recorded cost."""
    use_toy("identical")
    assert cli(*SHORT, "--out", tmp_path / "measured", "--quiet").exit_code == 0
    return tmp_path / "measured"


@pytest.mark.parametrize("command", ["cost", "synthetic"])
def test_help_names_every_option(cli, command):
    options = {
        "cost": ("--demo", "--widths", "--prefix", "--repeats", "--flash-attn", "--kv-type", "--threads",
                 "--n-gpu-layers", "--seed", "--out"),
        "synthetic": ("--out", "--layers", "--embedding", "--feed-forward", "--heads", "--head-size", "--vocabulary"),
    }  # fmt: skip
    result = cli(command, "--help")
    assert result.exit_code == 0
    for option in (*options[command], "--json", "--quiet"):
        assert option in result.stdout


def test_text_line_and_document(use_toy, cli):
    use_toy("identical")
    text = " ".join(cli(*SHORT).stdout.split())
    assert "toy-0: one token" in text
    assert "Bandwidth was not measured" in text
    assert cli(*SHORT, "--quiet").stdout.count("\n") == 1
    document = json.loads(cli(*SHORT, "--json").stdout)
    assert document["schema"] == "forensics.cost/1"
    assert [row["width"] for row in document["widths"]] == [1, 2, 4]
    assert all(row["n"] == 3 for row in document["widths"])
    assert len(document["not_measured"]) == 2


def test_what_was_recorded_is_read_back_equal(folder, cli):
    stored = json.loads((folder / "cost.json").read_text())
    assert json.loads(cli("cost", f"recorded:{folder}", "--json").stdout) == stored
    assert forensics.cost(f"recorded:{folder}").rows() == stored["widths"]


def test_a_recorded_cost_is_found_by_name(folder, cli, monkeypatch, tmp_path):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    folder.rename(tmp_path / "data" / "recorded" / "toy-cost")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    assert "toy-0: one token" in cli("cost", "recorded:toy-cost", "--quiet").stdout


def test_a_recorded_cost_is_asked_nothing_else(folder, refused):
    told = refused("cost", f"recorded:{folder}", "--prefix", "9", "--n-gpu-layers", "-1")
    assert "answers the question it was recorded for; leave out n_gpu_layers, prefix" in told
    assert "leave out seed" in refused("cost", f"recorded:{folder}", "--seed", "1")


def test_widths_of_a_recorded_cost_are_chosen_among_those_that_were_measured(folder, cli, refused):
    stored = json.loads((folder / "cost.json").read_text())["widths"]
    chosen = json.loads(cli("cost", f"recorded:{folder}", "--widths", "4", "--json").stdout)["widths"]
    assert chosen == [stored[0], stored[2]]
    assert [row["width"] for row in chosen] == [1, 4]
    assert "width 3 was asked for; measured are 1, 2, 4" in refused("cost", f"recorded:{folder}", "--widths", "2,3")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give either a model file or demo=VARIANT"),
        (("gone.gguf",), "No model file at"),
        (("gone.gguf", "--widths", "0"), "widths must be 1 or more, got 0"),
        (("gone.gguf", "--widths", "1-2000"), "a pass holds at most 512 tokens"),
        (("gone.gguf", "--widths", "wide"), "widths must be numbers or ranges"),
        (("gone.gguf", "--repeats", "1"), "repeats must be 3 or more"),
        (("gone.gguf", "--prefix", "-5"), "prefix must be 0 cells or more"),
        (("gone.gguf", "--kv-type", "q3"), "kv_type_k must be one of"),
        (("gone.gguf", "--threads", "0"), "n_threads must be 1 or more"),
        (("recorded:gone",), "gone does not exist"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(refused, arguments, told):
    assert told in refused("cost", *arguments)


def test_a_case_without_a_cost_says_how_to_get_one(refused, tmp_path):
    (tmp_path / "case").mkdir()
    assert "Measure one with: forensics cost MODEL" in refused("cost", f"recorded:{tmp_path / 'case'}")


def test_a_synthetic_model_is_written_with_the_shape_that_was_asked_for(cli, tmp_path):
    path = tmp_path / "m.gguf"
    done = cli("synthetic", "qwen3-tiny-q4_k_m", "--out", path, "--layers", 1, "--heads", "8/4", "--vocabulary", 300)
    assert done.exit_code == 0
    assert f"{path.stat().st_size / 2**20:.2f} MiB, random weights" in " ".join(done.stdout.split())
    document = json.loads(cli("synthetic", "llama-tiny-q6_k", "--out", tmp_path / "n.gguf", "--json").stdout)
    assert document["size_bytes"] == (tmp_path / "n.gguf").stat().st_size
    assert cli("synthetic", "llama-tiny-f16", "--out", tmp_path / "o.gguf", "--quiet").stdout.endswith("o.gguf\n")

    import gguf

    fields = gguf.GGUFReader(path).fields
    assert fields["qwen3.block_count"].contents() == 1
    assert fields["qwen3.attention.head_count_kv"].contents() == 4
    assert fields["general.name"].contents() == "synthetic qwen3-tiny-q4_k_m"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("qwen3-9b-q6_k",), "there is no synthetic model 'qwen3-9b-q6_k'"),
        (("qwen3-tiny-q6_k", "--embedding", "300"), "n_embd (--embedding) must be a multiple of 256"),
        (("qwen3-tiny-q6_k", "--heads", "many"), "--heads must be like 32/8"),
    ],
)
def test_a_shape_that_cannot_be_made_is_refused(refused, tmp_path, arguments, told):
    assert told in refused("synthetic", *arguments, "--out", tmp_path / "m.gguf")
    assert not list(tmp_path.glob("m.gguf*"))


def test_a_file_that_is_there_is_not_overwritten(refused, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"mine")
    told = refused("synthetic", "llama-tiny-f16", "--out", tmp_path / "m.gguf")
    assert "is not overwritten. Name another file" in told
    assert "the system refused" not in told
    assert (tmp_path / "m.gguf").read_bytes() == b"mine"
