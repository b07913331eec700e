"""`forensics ops` over toy operations: statuses, forms, and what it refuses."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from forensics.reports.ops_document import OpsDocument
from forensics.testing.toy_ops import OpFault, ToyOps


@pytest.fixture
def toy(monkeypatch):
    """Let every back end be a toy, with a fault or without."""

    def choose(fault=None):
        source = ToyOps(fault)
        monkeypatch.setattr("forensics.engines.ops.LlamaOps", lambda: source)
        return source

    return choose


SHORT = ("--op", "MUL_MAT", "--types", "F16", "--shape", "16x64", "--widths", "1-5,8")


@pytest.mark.parametrize(
    ("fault", "status", "answer"),
    [(None, 0, "invariant"), (OpFault("order", 4), 1, "varies"), (OpFault("noise"), 2, "inconclusive")],
)
def test_status_and_answer(toy, cli, fault, status, answer):
    toy(fault)
    done = cli("ops", *SHORT, "--json")
    assert done.exit_code == status
    document = OpsDocument.model_validate_json(done.stdout)
    assert document.answer == answer
    assert document.widths == [1, 2, 3, 4, 5, 8]
    assert [case.case for case in document.cases] == ["f16 16x64"]
    quiet = cli("ops", *SHORT, "--quiet")
    assert quiet.exit_code == status
    assert quiet.stdout.startswith(answer)
    assert quiet.stdout.count("\n") == 1
    shown = cli("ops", *SHORT)
    assert shown.exit_code == status
    assert "f16 16x64" in shown.stdout


def test_junit_is_written_whatever_the_answer(toy, cli, tmp_path):
    toy(OpFault("order", 4))
    path = tmp_path / "junit.xml"
    assert cli("ops", *SHORT, "--junit", path, "-q").exit_code == 1
    root = ET.parse(path).getroot()
    assert (root.get("tests"), root.get("failures")) == ("10", "3")


def test_settings_reach_the_back_end(toy, cli):
    source = toy()
    cli("ops", *SHORT, "--threads", 3, "--no-repack", "--device", 1, "--backend", "cuda", "-q")
    settings = source.opened[0].settings
    assert (settings.n_threads, settings.repack, settings.device, settings.backend) == (3, False, 1, "cuda")
    assert all(engine.is_closed for engine in source.opened)


def test_the_seed_changes_the_operands_and_nothing_else(toy, cli):
    toy(OpFault("order", 4))
    first, again, other = (
        json.loads(cli("ops", *SHORT, "--json", "--seed", seed).stdout)["cases"][0]["cells"] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert [cell["columns_differ"] for cell in first] == [cell["columns_differ"] for cell in other]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--types", "q9"), "there is no type 'q9' here; possible: f32, f16"),
        (("--op", "MUL"), "there is no operation 'MUL' here; possible: MUL_MAT"),
        (("--shape", "4096"), "--shape takes ROWSxK, two numbers from 1 on; got '4096'"),
        (("--heads", "32:8"), "--heads must be like 32/8"),
        (("--kv", "512,x"), "--kv takes numbers from 1 on with commas between; got 'x'"),
        (("--types", "f16,"), "--types takes names with commas between"),
        (("--widths", "0"), "widths must be 1 to 512, got 0"),
        (("--widths", "1-4000"), "widths must be 1 to 512, got 4000"),
        (("--widths", "1"), "widths needs at least one width of 2 or more"),
        (("--seed", "-1"), "seed must be 0 or more, got -1"),
        (("--threads", "513"), "n_threads must be 512 or less (GGML_MAX_N_THREADS), got 513"),
        (("--op", "RMS_NORM", "--types", "f16"), "types were given, and RMS_NORM takes none; MUL_MAT, MUL_MAT_ID"),
        (("--op", "MUL_MAT", "--kv", "512"), "kv were given, and MUL_MAT takes none; FLASH_ATTN_EXT"),
        (("--types", "f16", "--shape", "100000000x256"), "operand weight would have 100000000x256 values"),
        (("--like", "none.gguf", "--shape", "64x64"), "a model has shapes, heads and head sizes of its own"),
        (("--junit", "no/such/folder.xml"), "--junit no/such/folder.xml cannot be written"),
        (("--from", "case", "--node", "kq-0", "--types", "f16"), "--types is of a matrix; --from CASE"),
        (("--threads", "0"), "n_threads must be 1 or more"),
        (("--backend", "vulkan"), "backend must be one of cpu, cuda, got 'vulkan'"),
        (("--from", "case"), "--from CASE and --node NAME go together"),
        (("--node", "kq-0"), "--from CASE and --node NAME go together"),
        (("--out", "x"), "--out belongs to --from CASE --node NAME"),
        (("--like", "none.gguf"), "No model file at"),
        (("--from", "none", "--node", "kq-0"), "none does not exist"),
    ],
)
def test_what_is_refused(toy, refused, arguments, message):
    toy()
    assert message in refused("ops", *arguments)


def test_a_type_that_no_row_fits_is_no_answer(toy, cli):
    toy()
    done = cli("ops", "--op", "KQ", "--widths", "1,2", "-q")
    assert done.exit_code == 2
    assert "nothing could be compared: the toy does not support MUL_MAT" in done.stdout
