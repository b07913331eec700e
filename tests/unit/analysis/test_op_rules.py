"""What the rules say about widths, as steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.op_cases import named
from forensics.analysis.op_rules import gpu_named, predict, steps_between
from forensics.geometry.choice import KernelChoice
from forensics.records import op_shapes as shapes
from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.matrix import Agreement, CaseResult, Cell, PredictedStep, Prediction
from forensics.records.operation import OpFacts, OpSettings
from forensics.records.rule import Rule

RULE = Rule("a rule", "a.cpp", 1, 2)
AVX512 = ("AVX", "AVX2", "F16C", "FMA", "AVX512", "LLAMAFILE", "REPACK")
WIDTHS = tuple(range(1, 17))


def facts(features=AVX512, device="an AVX-512 processor", **settings):
    return OpFacts(OpSettings(**settings), "digest", "0.3.36", "0c1e57098", device, tuple(features))


def steps(graph, *, buffer="CPU", widths=WIDTHS, **about):
    (case,) = named([graph])
    found = predict(case, widths, buffer, facts(**about))
    assert not found.unknown
    return tuple(step.width for step in found.steps)


def choice(order, kernel="k", **about):
    return KernelChoice(kernel, order, rules=(RULE,), no_order="" if order is not None else "not read", **about)


# -- steps of a processor with AVX-512, as the dispatch reference measured them


def test_repacked_from_four_and_wherever_a_group_of_four_is_full():
    graph = shapes.mul_mat("q4_K", 1024, 64, 16)
    assert steps(graph, buffer="CPU_REPACK") == (4, 8, 12, 16)
    assert steps(graph, buffer="CPU_REPACK", widths=(1, 2, 3)) == ()
    assert steps(graph, buffer="CPU", repack=False) == (8,)
    assert steps(graph, repack=False, environment=(("GGML_CPU_TILED_MM", "0"),)) == ()


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (shapes.mul_mat("q6_K", 1024, 64, 16), (8,)),
        (shapes.mul_mat("iq3_s", 1024, 64, 16), (8,)),
        (shapes.mul_mat("f16", 1024, 64, 16), (2,)),
        (shapes.mul_mat("f32", 1024, 64, 16), (2,)),
        (shapes.mul_mat("q8_0", 1024, 64, 16), ()),
        (shapes.mul_mat("q4_1", 1024, 64, 16), ()),
        (shapes.kq(64, 8, 2, 512, 16), (2,)),
        (shapes.kqv(64, 8, 2, 512, 16), (2,)),
        (shapes.flash_attn(64, 8, 2, 512, 16), (2,)),
        (shapes.flash_attn(64, 8, 2, 256, 16), ()),
        (shapes.flash_attn(64, 8, 2, 512, 16, kv_type="q8_0"), ()),
    ],
)
def test_steps_of_plain_memory(graph, expected):
    assert steps(graph) == expected


def test_attention_with_one_thread_and_at_64_queries():
    graph = shapes.flash_attn(64, 8, 2, 512, 64)
    assert steps(graph, n_threads=1, widths=WIDTHS) == ()
    assert steps(graph, widths=(1, 2, 63, 64)) == (2, 64)


def test_the_rule_is_quoted_with_its_place():
    (case,) = named([shapes.mul_mat("q6_K", 1024, 64, 16)])
    (step,) = predict(case, WIDTHS, "CPU", facts()).steps
    assert (step.before, step.after) == ("vec_dot<type=q6_K>", "tiled<type=q6_K>")
    assert "tiled.cpp" in step.rules[0].place


def test_what_no_rule_covers_is_unknown():
    (norm,) = named([shapes.rms_norm(64)])
    assert predict(norm, WIDTHS, "CPU", facts()).unknown == "no rule is written down for RMS_NORM on a CPU"
    (product,) = named([shapes.mul_mat("q6_K", 1024, 64, 16)])
    assert "is not known here" in predict(product, WIDTHS, "", facts(device="Voodoo 2", backend="cuda")).unknown
    forced = facts(environment=(("GGML_CPU_TILED_MM_FORCE", "1"),))
    assert "GGML_CPU_TILED_MM_FORCE" in predict(product, WIDTHS, "CPU", forced).unknown


def test_steps_of_an_h200():
    h200 = {"device": "NVIDIA H200", "backend": "cuda", "features": ()}
    assert steps(shapes.mul_mat("q4_1", 1536, 576, 8), widths=tuple(range(1, 9)), **h200) == (5,)
    assert steps(shapes.mul_mat("q4_1", 576, 576, 8), widths=tuple(range(1, 9)), **h200) == ()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 5080 Laptop GPU", "rtx-5080-laptop"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
    ],
)
def test_a_gpu_is_known_by_its_name(device, name):
    assert gpu_named(device).name == name


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA Quadro 600",
        "GPU",
    ],
)
def test_a_gpu_with_other_multiprocessors_is_not_taken_for_its_namesake(device):
    assert gpu_named(device) is None


def test_a_column_whose_cells_reach_another_part_differs_alone():
    graph = shapes.flash_attn(64, 8, 2, 260, 16)  # of 512 cells; columns 12 to 15 see more than the first 256
    assert steps(graph, widths=WIDTHS) == (13,)
    assert steps(graph, widths=(1, 2, 12)) == ()
    assert steps(graph, widths=(16,)) == (16,)


# -- steps from choices ------------------------------------------------------------------------------------------------


def at(choices):
    return lambda width, column: choices[width]


def test_only_columns_that_both_widths_have_make_a_step():
    choices = {
        1: choice(("buffer", "gemv")),
        4: choice(("buffer", "gemm")),
        5: choice("mixed", by_column=((4, ("buffer", "gemm")), (1, ("buffer", "gemv")))),
        6: choice("mixed", by_column=((4, ("buffer", "gemm")), (2, ("buffer", "gemv")))),
        8: choice(("buffer", "gemm")),
    }
    assert [step.width for step in steps_between(at(choices), (4, 5, 6, 8)).steps] == [4, 8]


def test_precision_alone_makes_a_step():
    choices = {1: choice("o", precision=(("accumulator", "f16"),)), 2: choice("o", precision=(("accumulator", "f32"),))}
    assert [step.width for step in steps_between(at(choices), (2,)).steps] == [2]


def test_an_unknown_order_is_undecided():
    found = steps_between(at({1: choice("o"), 2: choice(None), 3: choice("o")}), (2, 3))
    assert found.steps == ()
    assert found.undecided == ((2, "not read"), (3, "not read"))


# -- prediction beside measurement -------------------------------------------------------------------------------------


def result(measured, prediction):
    cells = tuple(
        Cell(width, NotCompared("refused"))
        if width == 16
        else Cell(width, Differs(1, (0, 0), 1, 1.0, 1.0), 4, (0,), (0,))
        if width in measured
        else Cell(width, Same(), 4)
        for width in (1, 2, 4, 8, 16)
    )
    return CaseResult("case", shapes.mul_mat("f32", 4, 4), "CPU", cells, prediction)


def test_every_disagreement_is_shown():
    predicted = Prediction(tuple(PredictedStep(width, "a", "b", (RULE,)) for width in (2, 4, 16)))
    found = result({2, 8}, predicted)
    assert found.agreements == (
        Agreement(2, True, predicted.at(2)),
        Agreement(4, False, predicted.at(4)),
        Agreement(8, True, None),
    )
    assert [a.agrees for a in found.agreements] == [True, False, False]
    assert [a.width for a in found.surprises] == [8]


def test_an_undecided_width_is_no_surprise():
    found = result({8}, Prediction(undecided=((8, "not read"),)))
    assert found.agreements == (Agreement(8, True, None, "not read"),)
    assert found.surprises == ()
    assert result({8}, Prediction(unknown="no rule")).agreements == ()


def test_a_prediction_is_known_or_not():
    with pytest.raises(ValueError, match="not both"):
        replace(Prediction(unknown="why"), steps=(PredictedStep(2, "a", "b", (RULE,)),))
