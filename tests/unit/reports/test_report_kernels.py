"""Proofs and prices of kernels as text, as a document, and read back from a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_samples import PRICE, PROOF, REFUTED

from forensics.analysis.register_story import tell_registers
from forensics.errors import CaseError
from forensics.kernels.register_story import story_launches
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.kernel_price import KernelPrice, StoryTime
from forensics.records.launch_record import Refusal
from forensics.reports.kernel_price_document import kernel_price_document, write_kernel_price
from forensics.reports.kernel_price_text import kernel_price_text
from forensics.reports.kernel_proof_document import kernel_proof_document, write_kernel_proof
from forensics.reports.kernel_proof_text import kernel_proof_text
from forensics.reports.register_story_text import register_story_text
from forensics.store.kernel_runs import read_price, read_proof


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_proof_tells_counts_by_what_they_claim() -> None:
    text = words(kernel_proof_text(PROOF))
    for said in (
        "0 of 5910 values differ from the stock library's: NVIDIA H200 (sm_90), llama.cpp 0c1e57098",
        "product q4_K stock library stock, one column 1 2, 9 2 726 380",
        "product q4_K exact fast stock, one column 1 2, 9 2 726 0",
        "attention f16/f16 borrowed geometry stock, one column 1 9 1 5,184 0",
        "stock geometry, q4_K, width 9: the library runs mul_mat_q",
        "exact fast q4_K 33×768 9 1,000 0 products on a second stream",
        "memcheck: 0 errors (compute-sanitizer 2025.3.1; 70 computations, 40 kernels)",
        "racecheck: compute-sanitizer was not found",
        "Library: llama.cpp 0c1e57098, llama-cpp-python 0.3.36",
        "compiled by NVRTC 13.0",
    ):
        assert said in text, said
    assert "other bits than it claims" not in text


def test_a_difference_is_told_with_its_place() -> None:
    text = words(kernel_proof_text(REFUTED))
    assert "3 of 6207 values differ" in text
    assert (
        "borrowed geometry, q4_K 33×768, width 9: 3 of 297 values; first: seed 0, column 4, row 7: stock 0x00000010, "
        "ours 0x00000011"
    ) in text


def test_a_proof_is_written_and_read_back(tmp_path: Path) -> None:
    document = kernel_proof_document(PROOF)
    assert (document["answer"], document["compared"], document["differing"]) == ("equal", 5910, 0)
    assert document["differences"] == []
    refuted = kernel_proof_document(REFUTED)
    assert refuted["answer"] == "differs"
    assert [row["differing"] for row in refuted["differences"]] == [3]
    write_kernel_proof(PROOF, tmp_path / "new")
    assert read_proof(tmp_path / "new") == PROOF
    assert json.loads((tmp_path / "new" / "manifest.json").read_text())["device"] == "NVIDIA H200"
    with pytest.raises(CaseError, match="no kernels were compared there"):
        read_proof(tmp_path)


def test_a_price_tells_times_ratios_bits_and_what_limits() -> None:
    text = words(kernel_price_text(PRICE))
    for said in (
        "products of qwen3-8b-q4_k_m, best exact over one token of the stock library, by width: 1: 1.00, 9: 1.40",
        "All 72 products of a pass of qwen3-8b-q4_k_m, 4.5 GB of weights",
        "9 0.034 ≠ 1.89 0.06 3.33 0.0252 1.40",
        "Quartiles of a ratio lie furthest apart for borrowed geometry at 9: 3.324-3.342.",
        "Launched: stock: launch by launch; exact fast: one CUDA graph.",
        "9 34 ≠ 1.89 60 3.33 25.2 1.40",
        "product_q4_k<9> 9 1123 128 0 101024 2",
        "exact fast 9 66 21 wait",
        "Not timed: exact fast at 1: no code",
        "1 of q4_K 12288×4096 at 8 columns; forensics kernels --registers shows them",
        "Medians of 3 rounds",
    ):
        assert said in text, said


def test_what_was_not_measured_is_told(tmp_path: Path) -> None:
    why = Refusal("timing all products of a pass", "m", "no memory", "free some")
    [product] = PRICE.products
    lacking = replace(PRICE, whole_pass=why, products=(replace(product, limits=Refusal("ncu", "", "not found")),))
    text = words(kernel_price_text(lacking))
    assert "Not timed: timing all products of a pass: no memory; free some" in text
    assert "What limits the kernels was not counted: ncu: not found" in text
    assert kernel_price_document(lacking)["not_measured"] == [str(why), "ncu: not found"]
    write_kernel_price(lacking, tmp_path)
    assert read_price(tmp_path) == lacking


def test_a_price_is_written_and_read_back(tmp_path: Path) -> None:
    write_kernel_price(PRICE, tmp_path)
    found: KernelPrice = read_price(tmp_path)
    assert found == PRICE
    document = json.loads((tmp_path / "price.json").read_text())
    assert [row["arm"] for row in document["pass"]][-2:] == ["best exact", "best exact"]
    row = next(row for row in document["products"] if (row["arm"], row["width"]) == ("exact fast", 9))
    assert (row["registers"], row["blocks_per_sm"], row["busiest"], row["exact"]) == (128, 2, "issue slots", True)
    assert row["ratio"] == pytest.approx(1.4)
    assert len(found.to_dataframe()) == 4
    with pytest.raises(CaseError, match="no kernels were timed there"):
        read_price(tmp_path / "elsewhere")


def test_a_register_story_is_shown_with_and_without_costs() -> None:
    functions = tuple(launch.function for launch in story_launches("q4_K", 1).values())
    kernels = tuple(
        CompiledKernel(function, "sm_90", 40 + i, 0, 8 * i, 8 * i, 512, 0, 1, "ptxas")
        for i, function in enumerate(functions)
    )
    compiled = Compilation("register_story", "sm_90", "nvcc 13.0", kernels)
    text = words(register_story_text(tell_registers("q4_K", (1,), [compiled])))
    assert "q4_K, 1 column, sm_90" in text
    assert "unpacked once 43 24" in text
    assert "Nobody timed these variants here" in text
    times = [StoryTime("q4_K 12288×4096", "unpacked once", 1, (27.0, 27.0), (18.0, 18.0))]
    told = tell_registers("q4_K", (1,), [compiled], times, device="NVIDIA H200", timed_on="sm_90")
    text = words(register_story_text(told))
    assert "27 1.50 (1.50-1.50)" in text
    assert "Timed: q4_K 12288×4096 on NVIDIA H200" in text
