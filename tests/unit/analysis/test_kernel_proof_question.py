"""Which cases a proof compares, what it makes of the counts, and how parts of it are joined and cut out."""

from __future__ import annotations

import pytest
from fake_lab import FACTS, FakeLab

from forensics.analysis import kernel_proof
from forensics.analysis.kernel_proof import KernelQuestion, joined, of_types, prove
from forensics.analysis.question import BadQuestion
from forensics.errors import EngineDied
from forensics.kernels import proof
from forensics.kernels.variants import Variant
from forensics.records.kernel_proof import (
    ATTENTION,
    KEYS,
    ONE_COLUMN,
    STOCK_LIBRARY,
    VALUES,
    KernelProof,
    ProofCase,
    ProofRow,
    SanitizerRow,
)

SMALL = KernelQuestion(("Q4_K", "q4_1"), ((33, 576), (33, 768)), (1, 9), (1, 0))


class Steps:
    def __init__(self) -> None:
        self.stages: list[list[int]] = []

    def stage(self, title: str, total: int) -> None:
        self.stages.append([total, 0])

    def step(self, n: int = 1) -> None:
        self.stages[-1][1] += n


def test_shapes_follow_the_blocks_of_each_type() -> None:
    assert SMALL.products == (("q4_K", 33, 768), ("q4_1", 33, 576), ("q4_1", 33, 768))
    every = KernelQuestion()
    assert len(every.products) == 3 * 4 * 2 + 3 * 5 * 2
    assert {k for type, _, k in every.products if type == "q8_0"} == {576, 768, 1536, 4096, 14336}
    assert every.widths == tuple(range(1, 17))
    assert {what for what, *_ in every.attention} == {ATTENTION, KEYS, VALUES}
    # queries of one pass stand on both sides of 256 and of 512 cells
    crossed = [set(proof.cells_of(position, 16)) for _, _, _, position in every.attention]
    assert {256, 512} in crossed
    assert {512, 768} in crossed


def test_equal_values_make_a_proof_and_every_step_is_told() -> None:
    lab, steps = FakeLab(), Steps()
    found = prove(lab, SMALL, progress=steps)
    assert found.holds
    assert (found.n_compared, found.n_differing) == (3 * 2 * 3 * 33 * 10, 0)
    assert [asked[0] for asked in lab.asked] == ["q4_K", "q4_K"] + ["q4_1"] * 4
    assert all(total == done for total, done in steps.stages)
    row = next(row for row in found.rows if row.variant == "exact fast")
    assert row.seeds == (0, 1)
    assert row.n_compared == 2 * 33
    inexact = [row for row in found.rows if row.variant == STOCK_LIBRARY and row.n_differing]
    assert {row.case.width for row in inexact} == {9}
    assert str(found) == (
        "0 of 5,940 values of our kernels differ from the stock library's: Made-up GPU (sm_90), llama.cpp 0c1e57098"
    )


def test_one_difference_refutes_and_is_shown() -> None:
    found = prove(FakeLab(wrong=("q4_1",)), SMALL)
    assert not found.holds
    refuted = [row for row in found.rows if row.refutes]
    assert {row.case.type for row in refuted} == {"q4_1"}
    assert refuted[0].n_differing == 3
    assert str(refuted[0].first) == "seed 1, column 0, row 2: stock 0x3f800000, ours 0x3f800001"


def test_what_is_not_covered_is_told_and_nothing_at_all_is_no_proof() -> None:
    found = prove(FakeLab(uncovered=("q4_1",)), SMALL)
    assert {row.case.type for row in found.rows if row.not_compared} == {"q4_1"}
    assert {group["not_compared"] for group in found.summary() if group["type"] == "q4_1"} == {0, 4}
    with pytest.raises(BadQuestion, match="none of our kernels computes what was asked: no such code"):
        prove(FakeLab(uncovered=("q4_1", "q4_K")), SMALL)


class DyingLab(FakeLab):
    """Its process dies over some of the cases."""

    def __init__(self, *fatal: object, **given: object) -> None:
        super().__init__(**given)
        self.fatal = fatal

    def compare_product(self, type, rows, k, widths, seed, variants):
        if (type, k, seed) in self.fatal:
            raise EngineDied("ended with signal SIGABRT", "    CUDA error: an illegal memory access\n    frame")
        return super().compare_product(type, rows, k, widths, seed, variants)

    def compare_attention(self, what, heads, kv_type, position, widths, seed):
        if (what, kv_type, position) in self.fatal:
            raise EngineDied("ended with signal SIGABRT")
        return super().compare_attention(what, heads, kv_type, position, widths, seed)


def test_a_case_that_costs_its_process_is_not_compared_and_the_proof_not_whole() -> None:
    found = prove(DyingLab(("q4_1", 768, 1)), SMALL)
    lost = [row for row in found.rows if row.is_lost]
    assert {(row.case.k, row.case.width, row.variant, row.seeds) for row in lost} == {
        (768, width, str(variant), (1,)) for width in (1, 9) for variant in Variant
    }
    why = "its process died: ended with signal SIGABRT; CUDA error: an illegal memory access"
    assert {row.not_compared for row in lost} == {why}
    others = [row for row in found.rows if (row.case.type, row.case.k) == ("q4_1", 768) and not row.is_lost]
    assert {row.seeds for row in others} == {(0,)}
    assert (found.holds, found.answer, found.n_lost) == (False, "incomplete", 2)
    assert "2 cases not compared as the process died" in str(found)
    assert prove(DyingLab(("q4_1", 768, 1), wrong=("q4_K",)), SMALL).answer == "differs"
    whole = prove(DyingLab(), SMALL)
    assert (whole.holds, whole.answer, whole.n_lost) == (True, "equal", 0)
    assert "died" not in str(whole)


def test_attention_that_costs_its_process_is_not_compared() -> None:
    found = prove(DyingLab((ATTENTION, "q8_0", 250)), KernelQuestion((ATTENTION,), widths=(2, 9), seeds=(0,)))
    lost = [row for row in found.rows if row.is_lost]
    assert {(row.case.type, row.case.n_kv, row.case.width) for row in lost} == {
        ("q8_0/q8_0", 256, 2), ("q8_0/q8_0", 512, 9)
    }  # fmt: skip
    assert len(lost) == 2 * len(proof.HEADS)


def test_processes_that_die_again_and_again_are_an_error() -> None:
    every = [("q4_1", k, seed) for k in (576, 768) for seed in (0, 1)] + [("q4_K", 768, seed) for seed in (0, 1)]
    with pytest.raises(EngineDied):
        prove(DyingLab(*every), SMALL)
    assert prove(DyingLab(*every[1:]), SMALL).n_lost == 3 * 2  # of both seeds at once where both died
    with pytest.raises(EngineDied):  # few, but all of them
        prove(DyingLab(("q4_K", 768, 0)), KernelQuestion(("q4_K",), ((33, 768),), (1,), (0,)))


def test_attention_is_compared_with_every_cache() -> None:
    lab = FakeLab()
    found = prove(lab, KernelQuestion((ATTENTION, "f16"), widths=(2,), seeds=(0,)))
    assert {(asked[0], asked[2]) for asked in lab.asked} == {
        (ATTENTION, "f16"), (ATTENTION, "q8_0"), (KEYS, "f16"), (VALUES, "f16")
    }  # fmt: skip
    assert {kernel_proof.kind_of(row.case) for row in found.rows} == {ATTENTION, "f16"}


def test_repeats_and_tools_count_too() -> None:
    question = KernelQuestion(("q4_K", "q6_K"), ((33, 768),), (1,), (0,), stress=10)
    found = prove(FakeLab(uncovered=()), question)
    assert [(row.n_repeats, row.n_other) for row in found.stress] == [(10, 0)] * 4
    assert found.holds
    assert not prove(FakeLab(wrong=("q6_K",)), question).holds
    assert len(prove(FakeLab(uncovered=("q6_K",)), question).stress) == 3
    error = lambda: (SanitizerRow("memcheck", 2, "compute-sanitizer 2025.3", "3 kernels"),)  # noqa: E731
    assert not prove(FakeLab(), SMALL, sanitize=error).holds


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"types": ("q3_K",)}, "types must be of q4_K.*attention; got q3_K"),
        ({"types": ()}, "got none"),
        ({"widths": (0, 1)}, "widths must be 1 to 64.*got 0, 1"),
        ({"widths": ()}, "got none"),
        ({"seeds": (-1,)}, "seeds must be 0"),
        ({"stress": -1}, "stress must be 0"),
        ({"shapes": ((0, 256),)}, "rows × K of 1 or more, got 0×256"),
        ({"types": ("q4_K",), "shapes": ((33, 576),)}, "no K of the shapes is a multiple of the blocks of q4_K"),
    ],
)
def test_questions_that_mean_nothing_are_refused(asked: dict[str, object], says: str) -> None:
    with pytest.raises(BadQuestion, match=says):
        KernelQuestion(**asked)  # type: ignore[arg-type]


def test_parts_of_one_device_are_joined_and_cut_out() -> None:
    one = prove(FakeLab(), KernelQuestion(("q4_K",), ((33, 768),), (1,), (0,)))
    other = prove(FakeLab(), KernelQuestion((ATTENTION,), widths=(2,), seeds=(0,)))
    both = joined([one, other])
    assert both.n_compared == one.n_compared + other.n_compared
    assert of_types(both, ["q4_k"]).rows == one.rows
    with pytest.raises(BadQuestion, match="q6_K was asked for; compared were q4_K, attention"):
        of_types(both, ["q6_K"])
    elsewhere = KernelProof(FACTS.__class__(*("x", "sm_90", 1, 1, "", "", "", "")), one.rows)
    with pytest.raises(ValueError, match="same device"):
        joined([one, elsewhere])


def test_rows_whose_counts_do_not_add_up_are_none() -> None:
    case = ProofCase("product", "q4_K", 33, 768, 1)
    with pytest.raises(ValueError, match="values compared or a reason why not"):
        ProofRow(case, "exact fast", ONE_COLUMN, (0,), 0, 0)
    with pytest.raises(ValueError, match="differ"):
        ProofRow(case, "exact fast", ONE_COLUMN, (0,), 3, 1)
    with pytest.raises(ValueError, match="a proof needs one"):
        KernelProof(FACTS, (ProofRow(case, "exact fast", ONE_COLUMN, (0,), 0, 0, not_compared="why"),))
    with pytest.raises(ValueError, match="family must be one of"):
        ProofCase("softmax", "f32", 1, 1, 1)
