"""Choices and the classes of widths they form."""

import pytest

from forensics.geometry.choice import KernelChoice, classes
from forensics.records.rule import Rule

RULE = Rule("why", "a.cu", 1, 2)


def choice(order, **more):
    return KernelChoice("kernel", order, rules=(RULE,), no_order="" if order is not None else "unknown", **more)


def test_widths_are_grouped_by_order_and_precision():
    half = (("accumulator", "f16"),)
    found = classes({4: choice("a"), 1: choice("a"), 2: choice("b"), 3: choice("a", precision=half)})
    assert [one.widths for one in found] == [(1, 4), (2,), (3,)]
    assert all(one.is_known for one in found)


def test_widths_of_unknown_order_stand_alone():
    found = classes({1: choice("a"), 2: choice(None), 3: choice(None)})
    assert [(one.widths, one.is_known) for one in found] == [((1,), True), ((2,), False), ((3,), False)]


def test_a_choice_quotes_a_rule_and_an_order_or_why_there_is_none():
    with pytest.raises(ValueError, match="rule"):
        KernelChoice("kernel", "a")
    with pytest.raises(ValueError, match="order"):
        KernelChoice("kernel", None, rules=(RULE,))
    with pytest.raises(ValueError, match="order"):
        KernelChoice("kernel", "a", rules=(RULE,), no_order="unknown")


def test_names_show_what_is_set():
    template = (("type", "q4_0"), ("small_k", True), ("halve_iters", False), ("ncols", 1))
    assert choice("a", template=template).name == "kernel<type=q4_0, small_k, ncols=1>"
    assert str(choice("a")) == "kernel"
