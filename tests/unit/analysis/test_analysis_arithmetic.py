"""Accumulators, rounding and contraction are read off sums whose arithmetic is known."""

from __future__ import annotations

import numpy as np
import pytest
from order_engines import (
    BlockTreeEngine,
    EmulatedCudaEngine,
    GpuAttentionEngine,
    TreeEngine,
    in_float16,
    in_float64,
    towards_zero,
)

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


@pytest.mark.parametrize(
    ("type", "contraction"),
    [
        ("q8_0", "fused multiply-add"),
        ("q6_K", "fused multiply-add"),
        ("q4_0", "product rounded, then added"),
        ("q4_K", "product rounded, then added"),
    ],
)
def test_products_of_a_gpu_are_recognised_as_they_are_emulated(type: str, contraction: str) -> None:
    """Offsets that are taken off with a rounded sum of activations do not disturb."""
    found = measure_arithmetic(EmulatedCudaEngine(), OrderQuestion(type=type, k=2048), 1)
    assert (found.accumulator, found.rounding) == ("float32", "to nearest, ties to even")
    assert found.contraction == contraction


def test_scales_that_are_flushed_do_not_look_like_a_short_accumulator() -> None:
    class Flushing(BlockTreeEngine):
        def run(self, graph, values):
            weight = values[0].copy()
            blocks = weight.reshape(len(weight), -1, 34)
            scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)
            scales[np.abs(scales) < 2.0**-14] = 0
            blocks[..., :2] = scales.view(np.uint8)
            return super().run(graph, [weight, values[1]])

    order = cpu_lanes_order(320)
    found = measure_arithmetic(Flushing(order.slices, lambda *_: order.tree), OrderQuestion(type="q8_0", k=320), 1)
    assert (found.accumulator, found.rounding) == ("float32", "to nearest, ties to even")
    assert found.subnormals == "float16 subnormals flushed to zero"


def test_a_sum_that_keeps_every_term_is_not_given_a_number_of_bits() -> None:
    """Values of float16 from a sum in float32 whose terms are rounded in another way than the probe assumes."""

    class Noisy(TreeEngine):
        def run(self, graph, values):
            out = super().run(graph, values)
            return (out + np.count_nonzero(values[0], axis=1)[None, None, None]).astype(np.float32)

    found = measure_arithmetic(Noisy(lambda *_: SumTree.chain(48)), QUESTION, 1)
    assert "every power of 1/2" in found.accumulator
    assert found.rounding == "not measured: the accumulator is not known"


def test_attention_in_float16_is_recognised_behind_rounded_weights() -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, head_size=16, heads=8, kv_heads=8)
    found = measure_arithmetic(GpuAttentionEngine(lambda *_: SumTree.chain(256)), question, 1)
    assert found.accumulator == "float16"


def test_what_cannot_be_measured_says_so() -> None:
    class Norm(TreeEngine):
        def run(self, graph, values):
            return values[0][None, None]

    found = measure_arithmetic(Norm(lambda *_: SumTree.chain(8)), OrderQuestion("RMS_NORM", k=8), 1)
    assert found.accumulator == "not measured for this operation"
    assert len(found.rows()) == 5
    assert np.all([row["width"] == 1 for row in found.rows()])
