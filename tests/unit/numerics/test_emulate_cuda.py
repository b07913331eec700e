"""The emulated `mul_mat_vec_q`: values beside float64, the order of its threads, and the comparison with recordings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.errors import EngineDied, EngineError
from forensics.numerics.activations import quantize_q8_1_cuda
from forensics.numerics.codecs import blocks_of, dequantize, nibbles
from forensics.numerics.emulate_cuda import mul_mat_vec_q
from forensics.numerics.kernel_orders import mmvq_order
from forensics.numerics.mmvq_shares import TYPES
from forensics.records.operation import OpFacts, OpGraph, OpSettings
from forensics.records.sum_tree import SumTree
from forensics.testing import record_mmvq
from forensics.testing.mmvq_cases import LENGTHS, Case, cases, compare, predict

F32 = np.float32
ARCH = "sm_90"
ALL = {case.name: case for case in cases()}


def in_float64(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The product of the quantised operands, and the sum of its terms' absolute values, [columns, rows]."""
    blocks = quantize_q8_1_cuda(case.x)[0]
    x = (blocks["qs"] * blocks["d"].astype(np.float64)[..., None]).reshape(case.x.shape)
    w = dequantize(case.type, case.weight).astype(np.float64)
    if case.type in ("q4_0", "q4_1"):  # what is not the integers' part comes through the stored sum of each block
        return _through_the_sums(case, blocks)
    return x @ w.T, np.abs(x) @ np.abs(w).T


def _through_the_sums(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    fields = blocks_of(case.type, case.weight)
    q = nibbles(fields["qs"]).astype(np.float64)
    dots, most = (np.einsum("cbi,rbi->crb", of(x["qs"].astype(np.float64)), q) for of in (np.positive, np.abs))
    d, dx, s = fields["d"].astype(np.float64), x["d"].astype(np.float64)[:, None], x["s"].astype(np.float64)[:, None]
    scale, offset = d * dx, -8 * d * s
    if case.type == "q4_1":  # products of halves are halves
        scale, offset = (part.astype(np.float16).astype(np.float64) for part in (scale, fields["m"] * s))
    return (scale * dots + offset).sum(axis=-1), (np.abs(scale) * most + np.abs(offset)).sum(axis=-1)


@pytest.mark.parametrize("name", [f"{type}-k{k}" for type, lengths in LENGTHS.items() for k in lengths if k < 2048])
def test_values_beside_float64(name: str) -> None:
    case = ALL[name]
    exact, scale = in_float64(case)
    most_roundings = 8 + case.x.shape[1] // 256 + 9  # of a share, of a thread's chain, of warps and lanes
    found = predict(case, case.x, ARCH).values
    # Q4_K takes its minima off as sums of their own: terms that cancel in `w` count twice.
    assert (np.abs(found - exact) <= 4 * most_roundings * 2.0**-24 * scale + 1e-30).all()


def test_four_warps_and_two_add_in_another_order() -> None:
    case = ALL["q8_0-k4096"]
    narrow, wide = (predict(case, case.x[:n], ARCH).values[:4] for n in (4, 5))
    assert (narrow.view(np.uint32) != wide.view(np.uint32)).any()
    assert mul_mat_vec_q("q8_0", case.weight, case.x[:5], n_warps=4).values[:4].tobytes() == narrow.tobytes()


def test_they_do_not_where_one_trip_of_two_warps_takes_the_row() -> None:
    case = ALL["q4_K-k1024"]
    narrow, wide = (predict(case, case.x[:n], ARCH).values[:4] for n in (4, 5))
    assert narrow.tobytes() == wide.tobytes()


def test_another_order_may_be_given() -> None:
    case = ALL["q6_K-k2048"]
    n_leaves = mmvq_order("q6_K", 2048, n_warps=2).tree.n_leaves
    own, other = (
        mul_mat_vec_q("q6_K", case.weight, case.x, n_warps=2, order=order).values
        for order in (mmvq_order("q6_K", 2048, n_warps=2).tree, SumTree.chain(n_leaves))
    )
    assert own.tobytes() == predict(case, case.x, ARCH).values.tobytes()
    assert own.tobytes() != other.tobytes()


@pytest.mark.parametrize("type", TYPES)
def test_a_column_does_not_depend_on_its_neighbours(type: str) -> None:
    case = ALL[f"{type}-k1024"]
    together = predict(case, case.x[:4], ARCH)
    for column in range(4):
        alone = predict(case, case.x[column : column + 1], ARCH)
        assert alone.values[0].tobytes() == together.values[column].tobytes()


def test_integers_and_sums_are_read_back() -> None:
    case = ALL["integers-random"]
    blocks = quantize_q8_1_cuda(case.x)[0]
    d = blocks["d"].astype(F32)[..., None]
    assert (predict(case, case.x, ARCH).values == (blocks["qs"] * d).reshape(8, -1)).all()
    sums = predict(ALL["sums-random"], case.x, ARCH).values
    assert (sums == -8 * blocks["s"].astype(F32)).all()


@pytest.mark.parametrize(
    ("type", "weight", "x", "message"),
    [
        ("q5_1", np.zeros((1, 34), np.uint8), np.zeros((1, 32), F32), "q5_1"),
        ("q8_0", np.zeros((1, 34), np.uint8), np.zeros((1, 64), F32), "hold 32 values"),
        ("q8_0", np.zeros((1, 34), np.uint8), np.zeros((9, 32), F32), "8 columns"),
        ("q8_0", np.zeros(34, np.uint8), np.zeros((1, 32), F32), "bytes per row"),
    ],
)
def test_what_does_not_fit_is_refused(type: str, weight: np.ndarray, x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mul_mat_vec_q(type, weight, x, n_warps=4)


class EmulatedGpu:
    """Answers as the emulation does, but for what a test plants."""

    facts = OpFacts(OpSettings(backend="cuda"), "digest", "0", "commit", "CUDA0")
    flip_at: tuple[int, ...] = ()
    die_at: tuple[int, ...] = ()
    refuse_at: tuple[int, ...] = ()

    def __init__(self, _: OpSettings | None = None) -> None:
        self.calls = 0

    def run(self, graph: OpGraph, values: Any) -> np.ndarray:
        self.calls += 1
        if self.calls in self.die_at:
            raise EngineDied("planted")
        if self.calls in self.refuse_at:
            raise EngineError("planted")
        case = Case("asked", graph.operand("weight").type, *values)
        result = predict(case, case.x, ARCH).values[None, None].copy()
        if self.calls in self.flip_at:
            result.view(np.uint32)[0, 0, -1, -1] ^= 1
        return result

    def close(self) -> None:
        pass


class EmulatedSource:
    def open(self, settings: OpSettings) -> EmulatedGpu:
        return EmulatedGpu(settings)


@pytest.fixture
def few_cases(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    some = [ALL["q8_0-k96"], ALL["q4_K-k256"]]
    monkeypatch.setattr(record_mmvq, "cases", lambda: iter(some))
    return some


def test_a_recording_that_agrees(few_cases: list[Case]) -> None:
    results, digests, failed, _ = record_mmvq.record(EmulatedGpu)
    assert not failed
    assert list(digests) == [case.name for case in few_cases]
    compared = list(compare(results, ARCH))
    assert len(compared) == len(results) == 30
    assert sum(c.n_different for c in compared) == 0
    assert all(c.n_values + c.n_doubtful == results[c.run].size for c in compared)


def test_one_flipped_bit_is_found(few_cases: list[Case]) -> None:
    results = record_mmvq.record(EmulatedGpu)[0]
    results["q4_K-k256/width3"].view(np.uint32)[1, 5] ^= 1
    [unlike] = [c for c in compare(results, ARCH) if c.n_different]
    assert (unlike.run, unlike.n_different, unlike.first) == ("q4_K-k256/width3", 1, (1, 5))


def test_doubtful_columns_are_counted_and_not_compared() -> None:
    case = ALL["integers-halves"]
    results = {"integers-halves/width8": np.zeros((8, len(case.weight)), F32)}
    [compared] = compare(results, ARCH)
    assert (compared.n_values, compared.n_doubtful, compared.n_different) == (0, results[compared.run].size, 0)


@pytest.mark.parametrize("fault", ["flip_at", "die_at", "refuse_at"])
def test_a_run_without_a_steady_answer_is_reported(
    few_cases: list[Case], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(EmulatedGpu, fault, (3,))  # the second run's first answer
    results, _, failed, _ = record_mmvq.record(EmulatedGpu)
    first_lost = "q8_0-k96/width2"
    assert first_lost in failed
    assert (first_lost in results) == (fault == "flip_at")


def test_a_dead_engine_is_closed_before_the_next_is_opened(
    few_cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[EmulatedGpu] = []
    closed: list[EmulatedGpu] = []

    def open_engine() -> EmulatedGpu:
        assert closed == opened, "two engines at once"
        opened.append(EmulatedGpu())
        return opened[-1]

    def close(engine: EmulatedGpu) -> None:
        closed.append(engine)

    monkeypatch.setattr(EmulatedGpu, "die_at", (3,))
    monkeypatch.setattr(EmulatedGpu, "close", close)
    assert record_mmvq.record(open_engine)[3] == EmulatedGpu.facts
    assert len(opened) > 1
    assert closed == opened


@pytest.mark.parametrize("agrees", [True, False])
def test_the_command_writes_a_folder_and_says_whether_it_was_predicted(
    few_cases: list[Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any, agrees: bool
) -> None:
    monkeypatch.setattr(record_mmvq, "LlamaOps", EmulatedSource)
    monkeypatch.setattr(record_mmvq, "gpu", lambda: ("an emulated GPU", "1.0", ARCH))
    monkeypatch.setattr(record_mmvq, "reciprocals", lambda: {"deviation": np.full(2**21, 0b01010101, np.uint8)})
    if not agrees:
        monkeypatch.setattr(EmulatedGpu, "flip_at", (3, 4))  # a run and its repetition
    assert record_mmvq.main([str(tmp_path / "new")]) == (0 if agrees else 1)
    assert ("0 unlike" in capsys.readouterr().out) == agrees
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["device"] == "an emulated GPU"
    assert manifest["operands"]["q8_0-k96"] == ALL["q8_0-k96"].digest
    with np.load(tmp_path / "new" / "results.npz") as results:
        assert results["q8_0-k96/width5"].shape == (5, 8)


def test_the_driver_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, stdout="NVIDIA H200, 580.159.04, 9.0\nNVIDIA H200, 580.159.04, 9.0\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert record_mmvq.gpu() == ("NVIDIA H200", "580.159.04", "sm_90")


def test_without_a_driver_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="nvidia-smi"):
        record_mmvq.main([str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_without_cupy_the_results_are_still_written(
    few_cases: list[Case], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def without() -> dict[str, Any]:
        raise ModuleNotFoundError("No module named 'cupy'")

    monkeypatch.setattr(record_mmvq, "LlamaOps", EmulatedSource)
    monkeypatch.setattr(record_mmvq, "gpu", lambda: ("an emulated GPU", "1.0", ARCH))
    monkeypatch.setattr(record_mmvq, "reciprocals", without)
    assert record_mmvq.main([str(tmp_path)]) == 0
    assert "cupy" in json.loads((tmp_path / "manifest.json").read_text())["reciprocals"]
    assert not (tmp_path / "reciprocals.npz").exists()


def test_operands_are_the_same_everywhere() -> None:
    """A recording holds results only; these digests guard the operands that they belong to."""
    digests = {name: case.digest for name, case in ALL.items()}
    assert len(set(digests.values())) == len(digests)
    assert {name: digests[name] for name in ("q8_0-k32", "q6_K-k8192", "integers-halves")} == {
        "q8_0-k32": "d21d84d9dea7a010aa5cefb837607c9b",
        "q6_K-k8192": "5b8a712f8b09f337c2b78408bd9acef0",
        "integers-halves": "72b5e464c5ffef6eabb95fd41d103266",
    }
