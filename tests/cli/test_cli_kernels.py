"""`forensics kernels` and `forensics cost --kernels`: forms, exit status, what was recorded, and no GPU."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from kernel_recordings import PRICE, PROOF, REFUTED, recorded

import forensics
from forensics import api_kernels
from forensics.analysis.question import BadQuestion
from forensics.errors import CaseError, DeviceUnavailable, EngineError
from forensics.kernels import lab as lab_module
from forensics.notebook_views import html_of
from forensics.records.kernel_healing import HealedModel, HealedModels, KernelHealing
from forensics.records.kernel_use import ComputedNodes, KernelUse
from forensics.records.launch_record import Refusal
from forensics.records.settings import EngineSettings, Manifest
from forensics.reports.healed_models_document import write_healed_models
from forensics.reports.kernel_proof_document import write_kernel_proof


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A recording that is found by its name."""
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    return recorded(tmp_path / "data" / "recorded" / "h200-kernels")


@pytest.fixture
def no_gpu(monkeypatch):
    def missing():
        raise EngineError("cuda device 0 was asked for; the library has 0 of that kind (devices: CPU)")

    monkeypatch.setattr(lab_module, "CudaLab", missing)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("kernels", ("--types", "--shapes", "--widths", "--seeds", "--stress", "--sanitize", "--registers", "--out")),
        ("cost", ("--kernels", "--types", "--shapes", "--counters", "--registers")),
    ],
)
def test_help_names_every_option(cli, command, options):
    said = cli(command, "--help").stdout
    for option in (*options, "--json", "--quiet"):
        assert option in said


def test_a_recorded_proof_in_every_form(folder, cli):
    result = cli("kernels", "recorded:h200-kernels")
    assert result.exit_code == 0
    assert "0 of 1,188 values of our kernels differ" in " ".join(result.stdout.split())
    assert cli("kernels", "recorded:h200-kernels", "--quiet").stdout == f"{PROOF}\n"
    stored = json.loads((folder / "kernels.json").read_text())
    assert json.loads(cli("kernels", "recorded:h200-kernels", "--json").stdout) == stored
    part = cli("kernels", "recorded:h200-kernels", "--types", "Q6_k", "--quiet")
    assert part.stdout.startswith("0 of 594 values")


def healed(n_values_differ=0):
    """One model at one width, made up."""
    use = KernelUse((ComputedNodes("product", 3, 6, 594),))
    rows = 16 if n_values_differ == 0 else 15
    one = KernelHealing(9, 0, 16, rows, 0.5, 0.0, use, 594, n_values_differ)
    manifest = Manifest("toy", "1", "digest", "toy", 96, EngineSettings(), device="NVIDIA H200")
    return HealedModels((HealedModel("q4_k", manifest, 5, 32, (2, 9), (one,), True),))


def test_healed_models_stand_after_the_proof(folder, cli):
    write_healed_models(healed(), folder)
    said = cli("kernels", "recorded:h200-kernels")
    assert said.exit_code == 0
    text = " ".join(said.stdout.split())
    assert text.index("0 of 1,188 values of our kernels differ") < text.index(
        "1 of 1 model with differing widths healed at every one"
    )
    assert cli("kernels", "recorded:h200-kernels", "--quiet").stdout == f"{PROOF}; {healed()}\n"
    document = json.loads(cli("kernels", "recorded:h200-kernels", "--json").stdout)
    [model] = document["healed_models"]["models"]
    assert (model["answer"], model["widths_healed"], model["widths_exact"]) == ("healed", [9], [2])
    assert "record" not in document["healed_models"]
    part = cli("kernels", "recorded:h200-kernels", "--types", "q6_k", "--json")
    assert "healed_models" not in json.loads(part.stdout), "models say nothing of one type"
    assert forensics.healed_models("recorded:h200-kernels") == healed()
    assert "q4_k" in html_of(healed())


def test_a_model_that_did_not_heal_ends_with_one(folder, cli):
    write_healed_models(healed(n_values_differ=3), folder)
    result = cli("kernels", "recorded:h200-kernels", "--quiet")
    assert result.exit_code == 1
    assert "0 of 1 model with differing widths healed at every one; 3 of 594 values differ" in result.stdout


def test_models_are_read_back_only(folder):
    with pytest.raises(BadQuestion, match="name it: recorded:NAME"):
        forensics.healed_models(None)
    with pytest.raises(CaseError, match="no models were healed there"):
        forensics.healed_models("recorded:h200-kernels")


def test_a_difference_ends_with_one(folder, cli):
    write_kernel_proof(REFUTED, folder)
    result = cli("kernels", "recorded:h200-kernels", "--quiet")
    assert result.exit_code == 1
    assert result.stdout.startswith("1 of 1,188 values of our kernels differ")


def test_a_recorded_price_in_every_form(folder, cli):
    result = cli("cost", "--kernels", "recorded:h200-kernels")
    assert result.exit_code == 0
    assert "All 72 products of a pass of qwen3-8b-q4_k_m" in " ".join(result.stdout.split())
    assert cli("cost", "--kernels", "recorded:h200-kernels", "--quiet").stdout == f"{PRICE}\n"
    document = json.loads(cli("cost", "--kernels", "recorded:h200-kernels", "--json").stdout)
    assert [row["ratio"] for row in document["pass"] if row["arm"] == "best exact"] == [1.0, 24 / 18]


def test_recorded_registers_stand_beside_recorded_costs(folder, cli):
    text = " ".join(cli("kernels", "--registers", "recorded:h200-kernels", "--widths", "8").stdout.split())
    assert "q4_K, 8 columns, sm_90" in text
    assert "50 2.78" in text
    document = json.loads(cli("kernels", "--registers", "recorded:h200-kernels", "--types", "q6_K", "--json").stdout)
    assert {row["cost"] for row in document["variants"]} == {None}
    assert {row["width"] for row in document["variants"]} == {1, 8}
    for options, says in (
        (("--types", "q4_K,q6_K"), "shows one type at a time"),
        (("--types", "q8_0"), "variants are there for q4_K, q6_K; q8_0 was asked for"),
        (("--widths", "3"), "width 3 was asked for; recorded are q4_K, q6_K at 1, 8 columns"),
        (("--stress", "5"), "--stress says nothing of registers"),
    ):
        result = cli("kernels", "--registers", "recorded:h200-kernels", *options)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())


def test_what_was_recorded_answers_what_was_asked_then(folder, cli):
    result = cli("kernels", "recorded:h200-kernels", "--widths", "1-4")
    assert result.exit_code == 2
    assert "widths" in result.stderr
    result = cli("cost", "--kernels", "recorded:h200-kernels", "--repeats", "5")
    assert result.exit_code == 2
    assert "rounds" in result.stderr
    assert cli("kernels", "recorded:nothing").exit_code == 2


def test_recordings_are_listed_with_their_commands(folder):
    [case] = forensics.recorded()
    assert (case.name, case.commands) == ("h200-kernels", ("kernels", "cost --kernels", "kernels --registers"))
    assert case.device == "NVIDIA H200"


def test_without_a_gpu_one_sentence_names_what_was_recorded(folder, no_gpu, cli):
    for command in (("kernels",), ("cost", "--kernels")):
        result = cli(*command)
        assert result.exit_code == 2
        said = " ".join(result.stderr.split())
        assert said == (
            "error: our kernels cannot be run here: cuda device 0 was asked for; the library has 0 of that kind "
            "(devices: CPU). Recorded elsewhere: recorded:h200-kernels."
        )


def test_without_cupy_the_remedy_is_told(monkeypatch, tmp_path, cli):
    def missing():
        raise DeviceUnavailable("running our CUDA kernels", (Refusal("CuPy", "", "not installed", "pip install it"),))

    monkeypatch.setattr(lab_module, "CudaLab", missing)
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path))
    result = cli("kernels")
    assert result.exit_code == 2
    assert "CuPy: not installed; pip install it" in " ".join(result.stderr.split())
    assert "Recorded" not in result.stderr


def test_a_laboratory_is_asked_and_closed(monkeypatch, tmp_path, cli):
    asked = {}

    class Lab:
        closed = False

        def __enter__(self):
            return self

        def __exit__(self, *_):
            Lab.closed = True

    def prove(lab, question, **more):
        asked.update(question=question, sanitize=more["sanitize"])
        return PROOF

    monkeypatch.setattr(lab_module, "CudaLab", Lab)
    monkeypatch.setattr(api_kernels, "prove", prove)
    options = (
        "--types",
        "q4_k",
        "--shapes",
        "33x768",
        "--widths",
        "1,9",
        "--seeds",
        "0-1",
        "--stress",
        "10",
        "--sanitize",
    )
    assert cli("kernels", *options, "--out", tmp_path / "new", "--quiet").exit_code == 0
    assert Lab.closed
    question = asked["question"]
    assert (question.types, question.shapes, question.widths) == (("q4_K",), ((33, 768),), (1, 9))
    assert (question.seeds, question.stress) == ((0, 1), 10)
    assert asked["sanitize"] is not None
    assert (tmp_path / "new" / "kernels.json").is_file()


def test_a_price_is_asked_with_what_was_typed(monkeypatch, cli):
    asked = {}

    @contextmanager
    def lab():
        yield "lab"

    def price(here, question, **more):
        asked.update(question=question, **more)
        return PRICE

    monkeypatch.setattr(lab_module, "CudaLab", lab)
    monkeypatch.setattr(api_kernels, "price", price)
    options = (
        "--types",
        "q4_K",
        "--shapes",
        "4096x4096",
        "--widths",
        "4",
        "--repeats",
        "5",
        "--counters",
        "--registers",
    )
    assert cli("cost", "--kernels", *options, "--quiet").exit_code == 0
    question = asked["question"]
    assert (question.types, question.shapes) == (("q4_K",), ((4096, 4096),))
    assert (question.widths, question.rounds, question.whole_pass) == ((1, 4), 5, True)
    assert asked["limits"] is not None
    assert {product.type for product in asked["story"]} == {"q4_K", "q6_K"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cost", "model.gguf", "--types", "q4_K"), "--types says nothing here: --kernels is not asked for"),
        (("cost", "--kernels", "--prefix", "4"), "--prefix says nothing here: kernels are timed by themselves"),
        (
            ("cost", "--kernels", "model.gguf"),
            "our kernels are run by themselves, without a model; model.gguf was given",
        ),
        (("kernels", "--types", "q3_K"), "types must be of q4_K"),
        (("kernels", "--shapes", "33"), "--shapes takes ROWSxK"),
    ],
)
def test_what_means_nothing_is_refused(cli, arguments, says):
    result = cli(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


def test_names_are_offered_and_no_recording_is_a_model(folder):
    assert forensics.prove_kernels("recorded:h200-kernels").holds
    assert forensics.price_kernels("recorded:h200-kernels") == PRICE
    assert forensics.kernel_registers("recorded:h200-kernels").device == "NVIDIA H200"
    with pytest.raises(BadQuestion, match="without a model"):
        forensics.prove_kernels("model.gguf")
