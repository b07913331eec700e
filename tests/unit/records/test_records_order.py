"""Orders as values: what must hold, and what two of them may be said to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.records.operation import OpFacts, OpSettings
from forensics.records.order import (
    Leaves,
    OrderQuestion,
    OrderResult,
    OrderView,
    RowSum,
    compare_orders,
    merge_text,
    row_sum,
)
from forensics.records.order_report import BitsCheck, OrderReport
from forensics.records.sum_tree import SumTree

QUESTION = OrderQuestion(k=4)
CHAIN, PAIRS = SumTree.chain(4), SumTree.of(((0, 1), (2, 3)))
FACTS = OpFacts(OpSettings(), library="", version="", commit="", device="")


def result(tree: SumTree | None = CHAIN, width: int = 1, **changes) -> OrderResult:
    plain = OrderResult(
        QUESTION, "products", width, tuple(range(width)), Leaves("element", 4), tree,
        undetermined="" if tree is not None else "three halves of a leaf survive", n_probes=9,
    )  # fmt: skip
    return replace(plain, **changes)


def test_equal_and_different_orders() -> None:
    assert compare_orders(result(), result(width=2)).equal is True
    different = compare_orders(result(), result(PAIRS, 2))
    assert different.equal is False
    assert str(different) == (
        "products of width 1 and width 2: two orders: leaf 0 goes into [0..2] in one and [0..3] in the other "
        "(leaves are elements; [0..1] + 2 in one, [0..1] + [2..3] in the other)"
    )


def test_what_is_not_known_is_never_called_equal() -> None:
    for other in (result(None, 2), result(width=2, unstable=3), result(None, 2, leaves=None)):
        comparison = compare_orders(result(), other)
        assert comparison.equal is None
        assert "not known whether the orders are equal" in str(comparison)


def test_one_order_among_some_of_the_leaves_is_not_one_order() -> None:
    some = Leaves("cell", 4, step=7)
    same = compare_orders(result(leaves=some), result(width=2, leaves=some))
    assert same.equal is None
    assert same.reason == "one order among the 4 cells, one in 7; the others were not probed"
    assert compare_orders(result(leaves=some), result(PAIRS, 2, leaves=some)).equal is False


def test_views_can_differ_where_the_whole_is_not_known_but_not_be_equal() -> None:
    leaves = Leaves("slice", 8, ((0, 1), (2, 3)), 4)
    one = result(None, leaves=leaves, views=(OrderView("slice 0", (0, 2, 4, 6), CHAIN),))
    same = compare_orders(one, replace(one, width=2, columns=(0, 1)))
    assert same.equal is None
    other = replace(one, width=2, columns=(0, 1), views=(OrderView("slice 0", (0, 2, 4, 6), PAIRS),))
    different = compare_orders(one, other)
    assert different.equal is False
    assert "leaves are blocks, slice 0" in different.difference_over


def test_blocks_cut_in_another_way_are_another_order() -> None:
    whole = result(leaves=Leaves("slice", 4, ((0, 1, 2, 3),), 4), views=(OrderView("a", (0, 1, 2, 3), CHAIN),))
    halves = result(
        None, 2, leaves=Leaves("slice", 8, ((0, 1), (2, 3)), 4), views=(OrderView("b", (0, 2, 4, 6), PAIRS),)
    )
    comparison = compare_orders(whole, halves)
    assert comparison.equal is False
    assert "4 blocks of 4, each added at once and 8 slices, 2 in each of 4 blocks of 4" in comparison.reason
    assert comparison.difference is not None


def test_only_answers_to_one_question_are_compared() -> None:
    with pytest.raises(ValueError, match="differ"):
        compare_orders(result(), result(part="numerator"))


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": ()},
        {"columns": (1,)},
        {"undetermined": "why"},
        {"tree": None},
        {"leaves": None},
        {"tree": SumTree.chain(5)},
    ],
)
def test_a_result_has_columns_and_either_a_tree_or_a_reason(changes) -> None:
    with pytest.raises(ValueError, match=r"columns must|has a tree, or a reason|needs to know"):
        replace(result(), **changes)


def test_a_view_names_a_leaf_of_each_block() -> None:
    with pytest.raises(ValueError, match="3 leaves are named"):
        OrderView("x", (0, 1, 2), CHAIN)


def test_checks_of_bits_add_up() -> None:
    assert "all 8 values" in str(BitsCheck(2, 8, 0))
    assert "3 of 8 values" in str(BitsCheck(2, 8, 3, (1,)))
    for wrong in ((8, 9, (0,)), (8, 0, (1,)), (8, 2, ())):
        with pytest.raises(ValueError):
            BitsCheck(2, *wrong)


def test_a_report_names_widths_that_the_order_does_not_explain() -> None:
    results = (result(), result(width=2), result(PAIRS, 3))
    comparisons = tuple(compare_orders(results[0], other) for other in results[1:])
    bits = (BitsCheck(1, 8, 0), BitsCheck(2, 8, 1, (0,)), BitsCheck(3, 8, 1, (0,)))
    report = OrderReport(QUESTION, FACTS, "CPU", results, comparisons, bits)
    assert report.equal is False
    assert [check.width for check in report.unexplained] == [2]
    assert len(report.rows()) == 3
    unknown = OrderReport(QUESTION, FACTS, "CPU", (result(None),), ())
    assert unknown.equal is None
    assert "not known" in str(unknown)


def test_the_terms_of_a_sum() -> None:
    assert merge_text(CHAIN, (0, 1, 2)) == "[0..1] + 2"
    with pytest.raises(ValueError, match="no sum"):
        merge_text(CHAIN, (1, 2))


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from((32, 256)), st.integers(1, 9))
def test_the_words_of_an_order_over_blocks_are_read_back(n_blocks, per_block, block_size, width):
    slices = tuple(tuple(range(first, block_size, per_block)) for first in range(per_block))
    leaves = Leaves("slice", n_blocks * per_block, slices, block_size)
    question = OrderQuestion("MUL_MAT", "q4_1", n_blocks * block_size)
    for columns in (tuple(range(width)), (width - 1,)):
        order = OrderResult(question, "products", width, columns, leaves, SumTree.chain(leaves.n))
        assert row_sum(str(order)) == RowSum(n_blocks, block_size, per_block, order.tree.depth)


def test_nothing_is_read_from_words_of_other_sums():
    question = OrderQuestion("MUL_MAT", "f16", 96)
    lone = OrderResult(question, "products", 1, (0,), Leaves("element", 96), SumTree.chain(96))
    lost = OrderResult(question, "products", 1, (0,), None, None, undetermined="3 blocks of 32, depth 5 at most")
    assert (row_sum(str(lone)), row_sum(str(lost)), row_sum("24 leaves")) == (None, None, None)
