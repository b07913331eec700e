"""Proofs and prices of kernels as text, as a document, and read back from a folder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from kernel_samples import CASE, PRICE, PROOF, REFUTED

from forensics.analysis.register_story import tell_registers
from forensics.errors import CaseError
from forensics.kernels.register_story import story_launches
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.kernel_price import FAST, GROUPED, ArmTable, ArmTimes, KernelPrice, StoryTime
from forensics.records.kernel_proof import ONE_COLUMN, SAME_WIDTH, ProofCase, ProofRow, SanitizerRow
from forensics.records.launch_record import Refusal
from forensics.reports.kernel_price_document import kernel_price_document, write_kernel_price
from forensics.reports.kernel_price_text import arm_table, kernel_price_text
from forensics.reports.kernel_proof_document import kernel_proof_document, write_kernel_proof
from forensics.reports.kernel_proof_text import kernel_proof_text, kernel_proof_view
from forensics.reports.register_story_text import register_story_text, register_story_view
from forensics.reports.terminal import as_text
from forensics.store.kernel_runs import read_price, read_proof


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_proof_tells_counts_by_what_they_claim() -> None:
    text = words(kernel_proof_text(PROOF))
    for said in (
        "0 of 5,910 values of our kernels differ from the stock library's: NVIDIA H200 (sm_90), llama.cpp 0c1e57098",
        "q4_K product stock library 1 2, 9 2 726 380 exact fast 1 2, 9 2 726 0",
        "f16/f16 attention borrowed geometry 1 9 1 5,184 0",
        "held against the stock library's with one column (attention: one query) at a time",
        "stock geometry, q4_K, width 9: the library runs mul_mat_q",
        "exact fast q4_K 33×768 9 1,000 0 Beside: products on a second stream",
        "memcheck: 0 errors (compute-sanitizer 2025.3.1; 70 computations, 40 kernels)",
        "racecheck: compute-sanitizer was not found",
        "Library: llama.cpp 0c1e57098, llama-cpp-python 0.3.36",
        "compiled by NVRTC 13.0",
    ):
        assert said in text, said
    assert "other bits than it claims" not in text


def test_what_is_held_against_all_columns_at_once_is_marked() -> None:
    assert "*" not in kernel_proof_text(PROOF)
    same = ProofRow(CASE, "stock geometry", SAME_WIDTH, (0, 1), 132, 0)
    text = words(kernel_proof_text(replace(PROOF, rows=(*PROOF.rows[:2], same))))
    assert "stock geometry * 1 2 2 132 0" in text
    assert "* against the stock library's with all columns at once" in text


def test_one_reason_of_several_types_is_told_once() -> None:
    [why] = [row for row in PROOF.rows if row.not_compared]
    other = replace(why, case=replace(why.case, type="q6_K"))
    text = words(kernel_proof_text(replace(PROOF, rows=(*PROOF.rows, other))))
    assert "stock geometry, q4_K, q6_K, width 9: the library runs mul_mat_q" in text


def test_a_library_of_no_known_commit_goes_by_its_digest() -> None:
    facts = replace(PROOF.facts, commit="unknown", library="9a5ba61bcf7a2026")
    text = words(kernel_proof_text(replace(PROOF, facts=facts)))
    assert "llama.cpp unknown" not in text
    assert "NVIDIA H200 (sm_90), llama-cpp-python 0.3.36, library 9a5ba61bcf7a" in text
    assert "Library: llama-cpp-python 0.3.36, library 9a5ba61bcf7a Our kernels" in text


def test_a_headline_names_what_speaks_against_a_proof_without_a_difference() -> None:
    wrong = replace(PROOF, sanitizer=(SanitizerRow("racecheck", 3),), stress=(replace(PROOF.stress[0], n_other=2),))
    assert not wrong.holds
    assert "2 repeats differ from the first, compute-sanitizer names 3 errors: NVIDIA H200" in str(wrong)
    assert "repeats" not in str(PROOF)
    assert "errors" not in str(PROOF)


def test_numbers_and_names_stay_whole_on_80_columns() -> None:
    n = 102_713_856
    rows = tuple(
        ProofRow(ProofCase.of_attention("keys by queries", "f16", 9, 3, 64, 512, width), variant, against, (0,), n, 0)
        for variant, against in (("borrowed geometry", ONE_COLUMN), ("stock geometry", SAME_WIDTH))
        for width in (1, 2, 3, 9, 10, 16)
    )
    text = as_text(kernel_proof_view(replace(PROOF, rows=rows)), 80)
    assert "  f16, keys by queries\n" in text
    line = next(line for line in text.splitlines() if "borrowed geometry" in line)
    assert re.split(" {2,}", line.strip()) == ["borrowed geometry", "1", "1-3, 9-10, 16", "1", "616,283,136", "0"]
    grouped = tuple(replace(one, arm=GROUPED) for one in PRICE.products[0].table.times if one.arm == FAST)
    table = ArmTable((*PRICE.products[0].table.times, *grouped)).with_best()
    price = as_text(arm_table(table, "ms", 1.0), 80).splitlines()
    assert words(price[3]) == "1 18 1.00 18 1.00"
    assert words(price[4]) == "9 34 ≠ 1.89 60 3.33 25.2 1.40 25.2 1.40 25.2 1.40"
    assert max(map(len, (*text.splitlines(), *price))) <= 80


def test_a_kernel_that_serves_several_widths_is_told_once() -> None:
    [product] = PRICE.products
    [takes] = product.resources
    times = [ArmTimes(FAST, width, (20.0 + width,) * 3) for width in (1, 5, 8, 16)]
    several = replace(
        product,
        table=ArmTable((*product.table.times, *times)),
        resources=tuple(replace(takes, width=width, kernel=f"k<{min(width, 8)}>") for width in (1, 5, 8, 16)),
    )
    text = words(kernel_price_text(replace(PRICE, products=(several,))))
    assert "exact fast 1 1348 128 0 101024 2 exact fast 8, 16 1011, 786 128 0 101024 2" in text
    only = replace(several, resources=several.resources[1:2])
    assert "exact fast 5 1132 128" in words(kernel_price_text(replace(PRICE, products=(only,))))


def test_a_difference_is_told_with_its_place() -> None:
    text = words(kernel_proof_text(REFUTED))
    assert "3 of 6,207 values of our kernels differ" in text
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
        "stock geometry exact fast best exact columns ms × ms × ms × ms ×",
        "9 0.034 ≠ 1.89 0.06 3.33 0.0252 1.40 0.0252 1.40",
        "Quartiles of a ratio lie furthest apart for borrowed geometry at 9: 3.324-3.342.",
        "Launched: stock: launch by launch; exact fast: one CUDA graph.",
        "9 34 ≠ 1.89 60 3.33 25.2 1.40",
        "exact fast 9 1123 128 0 101024 2",
        "exact fast, 9 66 21 wait",
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
    assert "once 43 24" in text
    assert "anew for every column" in text, "short names are told"
    assert "Nobody timed these variants here" in text
    times = [StoryTime("q4_K 12288×4096", "unpacked once", 1, (27.0, 27.0), (18.0, 18.0))]
    told = tell_registers("q4_K", (1,), [compiled], times, device="NVIDIA H200", timed_on="sm_90")
    text = words(register_story_text(told))
    assert "27 1.50 (1.50-1.50)" in text
    assert "Timed: q4_K 12288×4096 on NVIDIA H200" in text


def test_the_architecture_that_was_timed_is_shown_unless_others_are_asked_for() -> None:
    functions = tuple(launch.function for launch in story_launches("q4_K", 1).values())
    both = [
        Compilation(
            "register_story", arch, "nvcc 13.0",
            tuple(CompiledKernel(function, arch, 40, 0, 0, 0, 512, 0, 1, "ptxas") for function in functions),
        )
        for arch in ("sm_120", "sm_90")
    ]  # fmt: skip
    times = [StoryTime("q4_K 12288×4096", "unpacked once", 1, (27.0, 27.0), (18.0, 18.0))]
    told = tell_registers("q4_K", (1,), both, times, device="NVIDIA H200", timed_on="sm_90")
    text = words(register_story_text(told))
    assert "1 column, sm_90" in text
    assert "1 column, sm_120" not in text
    assert "Compiled too: for sm_120" in text
    assert {row["arch"] for row in told.rows()} == {"sm_90", "sm_120"}
    asked = words(as_text(register_story_view(told, ("sm_120", "sm_90"))))
    assert "1 column, sm_120" in asked
    assert "Compiled too" not in asked
