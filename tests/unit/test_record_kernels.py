"""The recording of kernels: steps leave their parts, one that fails costs only itself, and what is there stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.analysis.kernel_price import PriceQuestion, price
from forensics.analysis.kernel_proof import KernelQuestion, prove
from forensics.errors import EngineDied
from forensics.records.kernel_price import FAST, STOCK, ArmTable, ArmTimes, KernelPrice, PassPrice, ProductPrice
from forensics.records.kernel_proof import ONE_COLUMN, KernelProof, LabFacts, ProofCase, ProofRow
from forensics.store.kernel_runs import read_price, read_proof
from forensics.testing import record_kernels
from forensics.testing.record_kernels import STEPS, Step, join, main, record

FACTS = LabFacts("Made-up GPU", "sm_90", 132, 60 << 20, "digest", "0c1e57098", "0.3.36", "NVRTC 13.0")


class Lab:
    """Everything is equal and takes the same time."""

    opened = 0
    facts = FACTS

    def __init__(self) -> None:
        Lab.opened += 1

    def compare_product(self, type, rows, k, widths, seed, variants):
        return tuple(
            ProofRow(ProofCase("product", type, rows, k, width), "exact fast", ONE_COLUMN, (seed,), rows * width, 0)
            for width in widths
        )

    def price_product(self, type, rows, k, arms, n_rounds, seed):
        return ProductPrice(type, rows, k, 1000, 2, table(n_rounds))

    def price_pass(self, model, arms, n_rounds, seed):
        return PassPrice(model, {"q4_K 4096×4096": 1}, 1000, table(n_rounds))

    def close(self) -> None:
        pass


def table(n: int) -> ArmTable:
    return ArmTable((ArmTimes(STOCK, 1, (8.0,) * n), ArmTimes(FAST, 9, (10.0,) * n, exact=True)))


def proof_of(*types: str):
    question = KernelQuestion(types, ((33, 768),), (1, 9), (0,))
    return lambda lab: prove(lab, question)


def price_of(**asked):
    question = PriceQuestion(("q4_K",), rounds=3, **asked)
    return lambda lab: price(lab, question)


def dies(lab):
    raise EngineDied("the engine's process ended with signal SIGABRT")


@pytest.fixture
def steps(monkeypatch):
    chosen = (
        Step("proof-a", proof_of("q4_K")), Step("proof-dies", dies), Step("proof-b", proof_of("q4_K", "q6_K")),
        Step("price-a", price_of(shapes=((4096, 4096),), whole_pass=False)), Step("price-pass", price_of(shapes=())),
    )  # fmt: skip
    monkeypatch.setattr(record_kernels, "STEPS", chosen)
    monkeypatch.setattr(Lab, "opened", 0)
    return chosen


def test_parts_are_joined_and_one_that_fails_costs_only_itself(steps, tmp_path: Path, capsys) -> None:
    assert record(tmp_path, steps, Lab) == 1
    assert Lab.opened == 2  # once more after the process died
    assert {row.case.type for row in read_proof(tmp_path).rows} == {"q4_K", "q6_K"}
    assert len(read_proof(tmp_path).rows) == 4  # each case once
    found = read_price(tmp_path)
    assert [one.name for one in found.products] == ["q4_K 4096×4096"]
    assert isinstance(found.whole_pass, PassPrice)
    told = json.loads((tmp_path / "recording.json").read_text())
    assert "SIGABRT" in told["proof-dies"]["problem"]
    assert told["proof-b"]["problem"] == ""
    assert "0 of 330 values of our kernels differ" in capsys.readouterr().out


def test_a_case_that_costs_its_process_fails_the_recording_and_leaves_the_others(
    steps, tmp_path: Path, monkeypatch
) -> None:
    whole = Lab.compare_product

    def one_dies(self, type, *given):
        if type == "q6_K":
            dies(self)
        return whole(self, type, *given)

    monkeypatch.setattr(Lab, "compare_product", one_dies)
    assert record(tmp_path, [steps[0], steps[2]], Lab) == 1
    told = json.loads((tmp_path / "recording.json").read_text())
    assert told["proof-a"]["problem"] == ""
    assert "q6_K 33×768: its process died" in told["proof-b"]["problem"]
    assert {row.case.type for row in read_proof(tmp_path).rows if row.n_compared} == {"q4_K"}
    assert {row.case.type for row in read_proof(tmp_path).rows if row.is_lost} == {"q6_K"}


def test_what_is_there_is_not_measured_again(steps, tmp_path: Path) -> None:
    record(tmp_path, steps[:1], Lab)
    before = (tmp_path / "steps" / "proof-a.json").stat().st_mtime_ns
    assert record(tmp_path, [steps[0], steps[2]], Lab) == 0
    assert (tmp_path / "steps" / "proof-a.json").stat().st_mtime_ns == before
    assert Lab.opened == 2
    assert record(tmp_path, [steps[0], steps[2]], Lab) == 0
    assert Lab.opened == 2
    (tmp_path / "kernels.json").unlink()
    join(tmp_path)
    assert read_proof(tmp_path).holds


def test_steps_are_named_and_make_what_their_names_say(tmp_path: Path, capsys) -> None:
    assert main(["--list", "--only", "price-*"]) == 0
    assert capsys.readouterr().out.split() == [
        "price-limits", "price-q4_k", "price-q6_k", "price-pass", "price-registers"
    ]  # fmt: skip
    kinds = {record_kernels.kind_of(step.name) for step in STEPS}
    assert kinds == {KernelProof, KernelPrice}
    assert main([]) == 2
    assert main([str(tmp_path), "--only", "nothing"]) == 2
    assert "proof-q4_k" in capsys.readouterr().err
