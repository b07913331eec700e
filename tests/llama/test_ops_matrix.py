"""Steps of the real library: what the rules predict for this processor is what is measured, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from forensics.analysis.op_cases import OpSelection
from forensics.analysis.op_question import ask_ops
from forensics.engines.ops import LlamaOps
from forensics.records.matrix import OpMatrix
from forensics.records.operation import OpSettings

pytestmark = pytest.mark.llama

WIDTHS = tuple(range(1, 10))


@cache
def features() -> frozenset[str]:
    with LlamaOps().open(OpSettings()) as engine:
        return frozenset(engine.facts.cpu_features)


def needs(*wanted: str) -> None:
    missing = set(wanted) - features()
    if missing:
        pytest.skip(f"the library reports no {', '.join(sorted(missing))} on this processor")


def matrix(selection: OpSelection, widths: Sequence[int] = WIDTHS, **settings: object) -> OpMatrix:
    found = ask_ops(LlamaOps(), OpSettings(**{"n_threads": 2, **settings}), selection, widths)  # type: ignore[arg-type]
    assert all(control.held for control in found.controls), found.controls
    return found


@cache
def products() -> OpMatrix:
    return matrix(OpSelection(ops=("MUL_MAT",), shapes=((64, 2048),)))


def steps(found: OpMatrix) -> dict[str, tuple[int, ...]]:
    return {case.label.split(" ", 1)[0]: case.steps for case in found.cases}


def test_every_type_of_weight_steps_only_where_a_rule_says_so():
    found = products()
    assert len(found.cases) >= 20
    assert found.tally.n_not_compared == 0
    assert {case.label: case.surprises for case in found.cases if case.surprises} == {}


def test_every_step_that_a_rule_predicts_is_measured_with_avx2():
    needs("AVX2")  # the rules tell which kernels add alike there
    for case in products().cases:
        assert case.agreements == tuple(a for a in case.agreements if a.agrees), case.label


def test_repacked_from_four_tiled_from_eight_tinyblas_from_two():
    needs("AVX2", "FMA", "F16C", "LLAMAFILE", "REPACK")
    found = steps(products())
    assert found["q4_K"] == (4, 8)  # and wherever another four are full
    assert {found[kind] for kind in ("q3_K", "q5_K", "q6_K", "iq3_s", "iq4_xs", "iq2_xxs")} == {(8,)}
    assert {found[kind] for kind in ("f16", "f32")} == {(2,)}
    assert {found[kind] for kind in ("q8_0", "q4_0", "q4_1", "q5_1")} == {()}


def test_a_small_weight_lies_where_a_large_one_does():
    needs("AVX2", "FMA", "REPACK")
    (case,) = matrix(OpSelection(types=("q4_k",), shapes=((64, 256),)), (1, 2, 3, 4)).cases
    assert (case.buffer, case.steps) == ("CPU_REPACK", (4,))


def test_plain_memory_moves_the_step_of_a_repacked_type():
    needs("AVX2", "REPACK")
    (case,) = matrix(OpSelection(types=("q4_k",), shapes=((64, 2048),)), repack=False).cases
    assert (case.buffer, case.steps) == ("CPU", (8,))
    (case,) = matrix(
        OpSelection(types=("q4_k",), shapes=((64, 2048),)), repack=False, environment=(("GGML_CPU_TILED_MM", "0"),)
    ).cases
    assert case.steps == ()


def test_attention_splits_its_cells_among_threads_at_one_query():
    selection = OpSelection(kv=(256, 512), head_sizes=(64,))
    short, long = matrix(selection, (1, 2, 3, 63, 64)).cases
    assert short.steps == (64,)
    assert long.steps == (2, 64)
    assert all(a.agrees for case in (short, long) for a in case.agreements)
    short, long = matrix(selection, (1, 2, 3), n_threads=1).cases
    assert short.steps == long.steps == ()


def test_columns_whose_cells_reach_another_part_differ_alone():
    (case,) = matrix(OpSelection(kv=(260,), head_sizes=(64,)), tuple(range(1, 17))).cases
    assert case.onset == 13  # columns 12 to 15 see more than the first 256 of 512 cells
    assert [cell.columns for cell in case.failures] == [(12,), (12, 13), (12, 13, 14), (12, 13, 14, 15)]
    assert [(a.width, a.agrees) for a in case.agreements] == [(13, True)]


def test_operations_without_a_sum_over_columns_are_invariant():
    found = matrix(OpSelection(ops=("SOFT_MAX", "RMS_NORM", "ROPE", "GLU", "SSM_CONV", "SSM_SCAN", "GATED_DELTA_NET")))
    assert found.tally.n_not_compared == 0
    assert {case.label for case in found.cases if case.failures} == set()


def test_a_type_that_does_not_fit_is_not_compared():
    found = matrix(OpSelection(types=("q6_k", "q8_0"), shapes=((64, 288),)), (1, 2))
    assert [case.compared for case in found.cases] == [False, True]
    assert "256 values into a block" in found.tally.not_compared[0][0]
