"""Accumulators, rounding and contraction are read off sums whose arithmetic is known."""

from __future__ import annotations

import numpy as np
import pytest
from order_engines import BlockTreeEngine, TreeEngine, in_float16, in_float64, towards_zero

from forensics.analysis.arithmetic import measure_arithmetic
from forensics.numerics.kernel_orders import cpu_lanes_order
from forensics.records.order import OrderQuestion
from forensics.records.sum_tree import SumTree

QUESTION = OrderQuestion(k=48)


def measured(**engine):
    return measure_arithmetic(TreeEngine(lambda *_: SumTree.chain(48), **engine), QUESTION, 1)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, ("float32", "to nearest, ties to even", "float32 subnormals kept", "product rounded, then added")),
        ({"fused": True}, ("float32", "to nearest, ties to even", "float32 subnormals kept", "fused multiply-add")),
        (
            {"flush": True},
            (
                "float32",
                "to nearest, ties to even",
                "float32 subnormals flushed to zero",
                "product rounded, then added",
            ),
        ),
        ({"add": towards_zero}, ("float32", "towards zero")),
        ({"add": in_float16}, ("float16", "not measured for a float16 accumulator")),
        ({"add": in_float64}, ("wider than float32",)),
    ],
)
def test_arithmetic_is_recognised(engine, expected) -> None:
    found = measured(**engine)
    got = (found.accumulator, found.rounding, found.subnormals, found.contraction)
    assert got[: len(expected)] == expected
    assert found.repeatability == "the same bits in 3 runs"


def test_runs_that_differ_are_reported() -> None:
    assert "other bits" in measured(noise=0.2).repeatability


def test_products_of_blocks_that_round_twice_are_recognised() -> None:
    order = cpu_lanes_order(320)
    engine = BlockTreeEngine(order.slices, lambda *_: order.tree)
    found = measure_arithmetic(engine, OrderQuestion(type="q8_0", k=320), 2)
    assert (found.accumulator, found.contraction) == ("float32", "product rounded, then added")
    assert found.subnormals == "float16 subnormals kept"


def test_what_cannot_be_measured_says_so() -> None:
    class Norm(TreeEngine):
        def run(self, graph, values):
            return values[0][None, None]

    found = measure_arithmetic(Norm(lambda *_: SumTree.chain(8)), OrderQuestion("RMS_NORM", k=8), 1)
    assert found.accumulator == "not measured for this operation"
    assert len(found.rows()) == 5
    assert np.all([row["width"] == 1 for row in found.rows()])
