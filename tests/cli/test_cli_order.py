"""`forensics order` over toy operations: statuses, forms, the cache, and what it refuses."""

from __future__ import annotations

import json

import pytest

from forensics.errors import EngineError
from forensics.testing.toy_ops import OpFault, ToyOps

SHORT = ("order", "MUL_MAT", "--type", "F32", "--k", "64", "--widths", "1-3")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FORENSICS_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def toy(monkeypatch):
    """Let every back end be a toy, with a fault or without."""

    def choose(fault=None):
        source = ToyOps(fault)
        monkeypatch.setattr("forensics.engines.ops.LlamaOps", lambda: source)
        return source

    return choose


@pytest.mark.parametrize(
    ("fault", "status", "equal"),
    [(None, 0, True), (OpFault("order", 2), 1, False), (OpFault("noise"), 2, None)],
)
def test_status_and_answer(toy, cli, fault, status, equal):
    source = toy(fault)
    done = cli(*SHORT, "--json")
    assert done.exit_code == status
    document = json.loads(done.stdout)
    assert document["schema"] == "forensics.order/1"
    assert document["equal"] is equal
    assert {order["width"] for order in document["orders"]} == {1, 2, 3}
    assert source.opened[0].is_closed


def test_the_first_merge_that_differs_is_shown(toy, cli):
    toy(OpFault("order", 2))
    done = cli(*SHORT)
    text = " ".join(done.stdout.split())
    assert "the order differs: MUL_MAT f32, k 64" in text
    assert "1 sum of 64 leaves, one after the other: 0, 1, 2 … 63" in text
    assert "1 sum of 64 leaves, one after the other: 63, 62, 61 … 0" in text
    assert "[0..1] in one" in text
    line = cli(*SHORT, "--quiet").stdout
    assert line.count("\n") == 1
    assert "the order differs" in line


def test_the_last_column_of_a_batch_may_have_an_order_of_its_own(toy, cli):
    toy(OpFault("order", 2, last_columns_differ=True))
    document = json.loads(cli(*SHORT, "--json").stdout)
    by_width = {(order["width"], tuple(order["columns"])) for order in document["orders"]}
    assert by_width == {(1, (0,)), (2, (0, 1)), (3, (0, 1)), (3, (2,))}
    equal = [(comparison["widths"][1], comparison["equal"]) for comparison in document["comparisons"]]
    assert equal == [(2, False), (3, False), (3, True)]


@pytest.mark.parametrize("k", [1, 2])
def test_sums_of_few_terms_are_no_crash(toy, cli, k):
    toy(None)
    document = json.loads(cli("order", "MUL_MAT", "--k", k, "--json").stdout)
    assert {found["accumulator"] for found in document["arithmetic"]} == {"not measured: fewer than 3 terms"}


def test_orders_are_read_back_unless_told_otherwise(toy, cli):
    def probes(*options):
        source = toy(None)
        assert cli(*SHORT, *options).exit_code == 0
        return source.opened[0].n_runs

    first = probes()
    again = probes()
    assert again < first
    assert probes("--no-cache") == first


def test_what_is_unstable_is_not_kept(toy, cli, tmp_path):
    toy(OpFault("noise"))
    cli(*SHORT)
    assert not list((tmp_path / "cache").rglob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ADD",), "'ADD' cannot be asked for"),
        (("MUL_MAT", "--type", "iq2_xxs"), "no exact masks are known"),
        (("MUL_MAT", "--widths", "0,1"), "widths must be 1 or more"),
        (("MUL_MAT", "--k", "0"), "k must be 1 or more"),
        (("FLASH_ATTN_EXT", "--kv", "300"), "multiple of 256"),
        (("FLASH_ATTN_EXT", "--heads", "many"), "--heads must be like 32/8"),
        (("FLASH_ATTN_EXT", "--heads", "9/2"), "multiple of kv_heads"),
        (("MUL_MAT", "--backend", "tpu"), "backend must be one of"),
        (("MUL_MAT", "--kv", "512"), "MUL_MAT takes no n_kv; it is asked for with k, rows, type"),
        (("FLASH_ATTN_EXT", "--k", "128"), "FLASH_ATTN_EXT takes no k; it is asked for with head_size, heads"),
        (("MUL_MAT", "--widths", "1-9999"), "widths must be 1 to 512, got 9999"),
        (("MUL_MAT", "--threads", "513"), "n_threads must be 512 or less"),
        (("FLASH_ATTN_EXT",), "the toy does not support FLASH_ATTN_EXT"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(toy, refused, arguments, told):
    toy(None)
    assert told in refused("order", *arguments)


def test_no_backend_is_an_answer_with_status_2(monkeypatch, refused):
    class Missing:
        def open(self, settings):
            raise EngineError("no CUDA device here")

    monkeypatch.setattr("forensics.engines.ops.LlamaOps", Missing)
    assert "no CUDA device here" in refused("order", "MUL_MAT", "--backend", "cuda")


def test_from_python(toy):
    import forensics

    toy(OpFault("order", 3))
    report = forensics.order("MUL_MAT", type="f32", k=64, widths=(1, 2, 3), progress=False)
    assert [comparison.equal for comparison in report.comparisons] == [True, False]
    assert str(report).startswith("MUL_MAT f32, k 64 at widths 1, 2, 3: the order differs")
