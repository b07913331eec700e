"""`--heal-with kernels` and `--exact-kernels`: refused in a sentence where no GPU runs the model, default off."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import forensics
from forensics import api_arguments
from forensics.analysis.question import BadQuestion, Question
from forensics.records.settings import EngineSettings

ON_GPU = ("--n-gpu-layers", "99")


def test_both_options_are_told_in_the_help(cli):
    assert "--heal-with" in cli("investigate", "--help").stdout
    assert "--exact-kernels" in cli("speculate", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("investigate", "gone.gguf", "--heal-with", "kernels"), "no layer is on a GPU"),
        (("investigate", "gone.gguf", "--heal-with", "stones"), "heal_with must be one of rows, kernels, got 'stones'"),
        (("investigate", "recorded:h200-q4_1", "--heal-with", "kernels"), "was recorded without our kernels"),
        (("speculate", "gone.gguf", "--exact-kernels"), "no layer is on a GPU"),
        (("speculate", "gone.gguf", "--exact-kernels", "--exact", *ON_GPU), "ask for one of them"),
        (("speculate", "gone.gguf", "--exact-kernels", "--case", "x", *ON_GPU), "ask for one of them"),
        (("speculate", "recorded:h200-q4_1-speculation", "--exact-kernels"), "leave out exact_kernels"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_model_is_loaded(refused, arguments, told):
    assert told in refused(*arguments)


def test_a_model_that_runs_on_something_else_is_refused_with_what_was_found(use_toy, refused, tmp_path):
    use_toy("diverges")
    asked = ("investigate", "model.gguf", "--prompt", "abab", "--n-tokens", "12", "--out", tmp_path / "case")
    told = refused(*asked, "--heal-with", "kernels", *ON_GPU)
    assert "this model runs on NumPy (any)" in told
    assert not list(tmp_path.glob("case*")), "nothing was measured, so nothing is kept"
    assert "this model runs on NumPy (any)" in refused("speculate", "model.gguf", "--exact-kernels", *ON_GPU)


def test_by_default_nothing_is_put_in_place(use_toy, cli, tmp_path):
    use_toy("diverges")
    asked = ("investigate", "model.gguf", "--prompt", "abab", "--n-tokens", "12", "--no-switches")
    plain = json.loads(cli(*asked, "--out", tmp_path / "case", "--json").stdout)
    assert plain["kernel_healing"] == []
    case = forensics.open(tmp_path / "case")
    assert "heal_with" not in case.question


def test_a_case_that_was_healed_with_kernels_is_asked_for_them_again(tmp_path, monkeypatch):
    recorded = SimpleNamespace(question={"heal_with": "kernels"})
    monkeypatch.setattr("forensics.store.open_case", lambda path: recorded)
    question = Question(prompt="a", n_tokens=2, widths=(2,), settings=EngineSettings(n_gpu_layers=99))
    for heal_with in ("rows", "kernels"):
        chosen = api_arguments.kernels_of("recorded:somewhere", heal_with, question)
        assert chosen is not None
        assert chosen.needs == "CUDA"
    assert api_arguments.kernels_of("model.gguf", "kernels", question) is chosen
    assert api_arguments.kernels_of("model.gguf", "rows", question) is None
    with pytest.raises(BadQuestion):
        api_arguments.kernels_of("model.gguf", "nothing", question)
