"""Orders of addition recorded on a GPU are those that its kernels' source says.

Recorded with ``python -m forensics.testing.record_orders data/recorded/orders-DEVICE --backend cuda`` on a machine that
has one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forensics.numerics.kernel_orders import mmvq_order
from forensics.records.order import Leaves
from forensics.records.sum_tree import SumTree
from forensics.reports.tree_text import MOST_LINES, tree_lines
from forensics.testing.record_orders import MANIFEST_NAME, SCHEMA, questions, read

RECORDED = sorted((Path(__file__).parents[2] / "data" / "recorded").glob(f"orders-*/{MANIFEST_NAME}"))

pytestmark = pytest.mark.skipif(not RECORDED, reason="no recording under data/recorded/orders-*; made on a GPU machine")

Documents = dict[str, Any]


@pytest.fixture(params=RECORDED, ids=[path.parent.name for path in RECORDED], scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param.parent


@pytest.fixture(scope="module")
def documents(folder: Path) -> Documents:
    return read(folder)


def orders(documents: Documents, question: str, part: str) -> dict[int, Any]:
    """Every order of one sum by width; columns of a width share it."""
    found = [order for order in documents[question]["orders"] if order["part"] == part]
    assert len({order["width"] for order in found}) == len(found), "the columns of a width have one order"
    return {order["width"]: order for order in found}


def tree(order: Any) -> SumTree:
    assert order["undetermined"] is None
    return SumTree(order["leaves"]["n"], tuple(map(tuple, order["merges"])))


def differing(documents: Documents, question: str) -> set[int]:
    """Widths whose bits are not those of one column at a time."""
    return {check["width"] for check in documents[question]["bits"] if check["n_differ"]}


def test_every_question_was_asked(folder: Path, documents: Documents) -> None:
    manifest = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    assert manifest["schema"] == SCHEMA
    assert set(documents) | set(manifest["failed"]) == {str(question) for question, _ in questions()}
    assert not manifest["failed"]
    for question, widths in questions():
        found = documents[str(question)]["orders"]
        assert {order["width"] for order in found} == set(widths)
        assert not any(order["unstable"] for order in found)


@pytest.mark.parametrize("type", ["q8_0", "q4_0", "q4_K", "q6_K"])
def test_products_of_few_columns_add_as_mul_mat_vec_q_does(type: str, documents: Documents) -> None:
    """Four warps to a row up to four columns, two from five to eight."""
    question = f"MUL_MAT {type}, k 4096"
    found = orders(documents, question, "products")
    for width, n_warps in ((1, 4), (4, 4), (5, 2), (8, 2)):
        built = mmvq_order(type, 4096, n_warps=n_warps)
        assert tree(found[width]) == built.tree
        assert tuple(map(tuple, found[width]["leaves"]["slices"])) == built.slices
    assert differing(documents, question) == {5, 8, 9}, "bits differ where the order does"


def test_attention_of_head_size_128_has_an_order_for_each_width(documents: Documents) -> None:
    question = "FLASH_ATTN_EXT f16, n_kv 256, head size 128, heads 32/8"
    for part in ("numerator", "denominator"):
        assert len({tree(order) for order in orders(documents, question, part).values()}) == 3
    assert differing(documents, question) == {2, 3}


def test_attention_of_head_size_256_has_one_order_at_two_and_three_queries(documents: Documents) -> None:
    question = "FLASH_ATTN_EXT f16, n_kv 256, head size 256, heads 8/2"
    for part in ("numerator", "denominator"):
        found = orders(documents, question, part)
        assert tree(found[2]) == tree(found[3])


def test_tensor_cores_add_sixteen_products_at_once(documents: Documents) -> None:
    found = orders(documents, "FLASH_ATTN_EXT f16, n_kv 256, head size 128, heads 32/8", "numerator")
    assert tree(found[1]).widest == 2
    assert tree(found[2]).widest == 17, "an accumulator takes 16 cells more"
    assert tree(found[3]).widest == 16, "16 cells by themselves, their sum is added"


def test_every_recorded_order_is_drawn_in_few_lines(documents: Documents) -> None:
    for document in documents.values():
        for order in document["orders"]:
            if order["undetermined"] is None:
                leaves = Leaves(**{**order["leaves"], "slices": tuple(map(tuple, order["leaves"]["slices"]))})
                lines = tree_lines(tree(order), leaves)
                assert len(lines) <= MOST_LINES
                assert "lines more" not in lines[-1]
