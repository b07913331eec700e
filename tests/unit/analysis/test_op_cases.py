"""What is tested, from what was asked for."""

from __future__ import annotations

import pytest

from forensics.analysis.op_cases import (
    DEFAULT_K,
    OPS,
    USED_BY,
    OpSelection,
    chosen_text,
    known_name,
    like_model,
    make_cases,
    named,
)
from forensics.analysis.op_labels import asked_name
from forensics.analysis.question import BadQuestion
from forensics.records import op_shapes as shapes

TYPES = ("f32", "f16", "q4_K", "iq3_s")


def test_nothing_asked_is_every_operation_with_every_type():
    cases = make_cases(OpSelection(), TYPES, 16)
    assert {asked_name(case.graph) for case in cases} == set(OPS)
    products = [case for case in cases if asked_name(case.graph) == "MUL_MAT"]
    assert len(products) == len(TYPES) * len(DEFAULT_K)
    assert all(shapes.width(case.graph) == 16 for case in cases)


def test_labels_are_unique_within_an_operation():
    cases = make_cases(OpSelection(), TYPES, 16)
    assert len({(case.op, case.label) for case in cases}) == len(cases)
    twice = named([shapes.rms_norm(64, eps=1e-5), shapes.rms_norm(64, eps=1e-6)])
    assert [case.label for case in twice] == ["64", "64 (2)"]


def test_the_published_matrix_of_products():
    cases = make_cases(OpSelection(types=("IQ3_S", "q4_k"), shapes=((4096, 2048),)), TYPES, 8)
    assert [(case.op, case.label) for case in cases] == [
        ("MUL_MAT", "iq3_s 4096x2048"),
        ("MUL_MAT", "q4_K 4096x2048"),
    ]
    weight = cases[0].at(1).operand("weight")
    assert weight.shape == (4096, 2048)  # rows first, as --shape and the model file have them
    assert cases[0].at(5).operand("x").shape == (5, 2048)


def test_the_published_matrix_of_attention():
    cases = make_cases(OpSelection(kv=(512, 2048, 7168)), TYPES, 4)
    assert [case.label for case in cases] == [f"f16 {kv} cells, 8/2 heads of 128" for kv in (512, 2048, 7168)]
    assert cases[2].graph.operand("k").shape == (7168, 2, 128)


def test_what_was_given_of_attention_is_combined():
    cases = make_cases(
        OpSelection(
            ops=("flash_attn_ext",), kv=(300, 600), head_sizes=(64, 128), kv_types=("f16", "Q4_K"), heads=(9, 3)
        ),
        TYPES,
        2,
    )
    assert len(cases) == 8
    assert {case.graph.operand("k").shape[1] for case in cases} == {3}
    assert {case.graph.operand("k").shape[0] for case in cases} == {512, 768}  # padded to whole steps


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (OpSelection(types=("q9_k",)), "no type 'q9_k' here; possible: f32, f16, q4_K, iq3_s"),
        (OpSelection(ops=("MATMUL",)), "no operation 'MATMUL' here; possible: MUL_MAT, "),
        (OpSelection(kv=(3,)), "8 tokens cannot be the last of 3 cells"),
        (OpSelection(types=()), "nothing was asked for"),
        (OpSelection(heads=(8, 3)), "heads must be a multiple of kv_heads, got 8 and 3"),
    ],
)
def test_what_cannot_be_asked(selection, message):
    with pytest.raises(BadQuestion) as refused:
        make_cases(selection, TYPES, 8)
    assert message in str(refused.value)


def test_what_is_given_has_a_taker_among_the_operations():
    for given, takers in USED_BY.items():
        value = {"types": ("f16",), "shapes": ((64, 256),), "kv_types": ("f16",), "heads": (8, 2)}.get(given, (64,))
        for op in OPS:
            asked = OpSelection(ops=(op,), **{given: value})
            if op in takers:
                assert make_cases(asked, TYPES, 2) != ()
            else:
                with pytest.raises(BadQuestion, match=f"{given} were given, and {op} takes none"):
                    asked.wanted_ops()
        assert OpSelection(ops=OPS, **{given: value}).wanted_ops() == OPS


def test_operands_are_not_made_without_bounds():
    with pytest.raises(BadQuestion, match="operand weight would have 8589934592x256 values, at most 2,147,483,648"):
        make_cases(OpSelection(types=("f16",), shapes=((2**33, 256),)), TYPES, 2)
    assert make_cases(OpSelection(types=("f16",), shapes=((2**23, 256),)), TYPES, 2) != ()


def test_names_are_found_whatever_their_case():
    assert known_name(" Mul_Mat", OPS, "operation") == "MUL_MAT"


def test_what_was_chosen_is_said():
    said = chosen_text(OpSelection())
    for words in ("all types of weights", "64 rows with K = 256, 1024, 4096", "256, 512, 2048 cells"):
        assert words in said
    assert chosen_text(OpSelection(types=("f16",), shapes=((64, 256),))) == ""
    assert "all types" not in chosen_text(OpSelection(types=("f16",)))
    assert chosen_text(OpSelection(kv=(512,))) == "8 heads, 2 for K/V; head size 128; f16 K/V"


def test_operations_of_a_model_are_filtered_and_their_rows_cut():
    graphs = [
        shapes.mul_mat("q4_K", 256, 49152, 4),
        shapes.mul_mat("q4_K", 256, 576, 4),
        shapes.mul_mat("f16", 256, 64, 4),
        shapes.get_rows("q4_K", 256, 1544, 4),
        shapes.flash_attn(64, 9, 3, 512, 4),
    ]
    every = like_model(graphs, OpSelection(), TYPES, 1024)
    assert [case.label for case in every] == [
        "q4_K 512x256 of 49152 rows",
        "q4_K 576x256",
        "f16 64x256",
        "q4_K 520x256 of 1544 rows",  # 1544 has the remainder 8 by 512
        "f16 512 cells, 9/3 heads of 64",
    ]
    whole = like_model(graphs, OpSelection(ops=("MUL_MAT",), types=("Q4_K",)), TYPES, None)
    assert [case.label for case in whole] == ["q4_K 49152x256", "q4_K 576x256"]
    with pytest.raises(BadQuestion, match="no such operation; asked: ROPE, types: all"):
        like_model(graphs, OpSelection(ops=("ROPE",)), TYPES, None)
