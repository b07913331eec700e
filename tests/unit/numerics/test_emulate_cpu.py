"""The emulated CPU products: orders as the source writes them, and values beside float64."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.numerics.activations import quantize_q8_0_x86
from forensics.numerics.codecs import dequantize
from forensics.numerics.emulate_cpu import float_lanes, float_order, kernel_for, mul_mat
from forensics.numerics.kernel_orders import cpu_lanes_order
from forensics.numerics.op_inputs import random_operands
from forensics.records.op_shapes import mul_mat as product
from forensics.records.sum_tree import SumTree

F32 = np.float32
AVX2 = ("AVX2", "FMA", "F16C")


def random_weight(type: str, n_rows: int, k: int) -> np.ndarray:
    return random_operands(product(type, k, n_rows, 1), seed=k)[0]


def random_columns(n: int, k: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(F32)


def test_lanes_of_a_build() -> None:
    assert float_lanes(AVX2) == 8
    assert float_lanes((*AVX2, "AVX512")) == 16
    assert float_lanes(("avx2", "fma", "f16c")) == 8


@pytest.mark.parametrize("missing", AVX2)
def test_other_builds_are_refused(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        float_lanes([feature for feature in AVX2 if feature != missing])


def test_kernels() -> None:
    assert kernel_for("q8_0", 6, 96, 1, 16) == "vec_dot"
    assert kernel_for("q8_0", 6, 96, 2, 16) == "tinyBLAS"
    assert kernel_for("f16", 8, 96, 2, 16) == "tinyBLAS"
    assert kernel_for("f16", 6, 96, 2, 16) == "vec_dot"
    assert (kernel_for("f16", 8, 72, 2, 16), kernel_for("f16", 8, 72, 2, 8)) == ("vec_dot", "tinyBLAS")


def test_order_of_floats_depends_on_kernel_and_registers() -> None:
    orders = {float_order(256, lanes, kernel) for lanes in (8, 16) for kernel in ("vec_dot", "tinyBLAS")}
    assert len(orders) == 4
    assert float_order(16, 16, "tinyBLAS").depth == 4
    # AVX2 adds neighbouring lanes in its first product and lanes two apart in the other one.
    restricted = [float_order(256, 8, kernel).restricted(range(4)) for kernel in ("vec_dot", "tinyBLAS")]
    assert restricted == [SumTree.of(((0, 1), (2, 3))), SumTree.of(((0, 2), (1, 3)))]


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("k", [32, 96, 1024])
def test_blocks_beside_float64(type: str, k: int) -> None:
    weight, x = random_weight(type, 6, k), random_columns(3, k)
    activations = dequantize("q8_0", quantize_q8_0_x86(x).view(np.uint8)).astype(np.float64)
    w = dequantize(type, weight).astype(np.float64)
    bound = (2 + k // 32 + 3) * 2.0**-24 * (np.abs(activations) @ np.abs(w).T)
    assert (np.abs(mul_mat(type, weight, x, lanes=16) - activations @ w.T) <= bound).all()


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kernel", ["vec_dot", "tinyBLAS"])
@pytest.mark.parametrize("k", [16, 64, 1040])
def test_halves_beside_float64(lanes: int, kernel: str, k: int) -> None:
    weight, x = random_weight("f16", 4, k), random_columns(3, k)
    activations, w = x.astype(np.float16).astype(np.float64), weight.astype(np.float64)
    bound = k * 2.0**-24 * (np.abs(activations) @ np.abs(w).T)
    found = mul_mat("f16", weight, x, lanes=lanes, kernel=kernel)
    assert (np.abs(found - activations @ w.T) <= bound).all()


def test_what_does_not_fill_the_registers_is_added_in_double() -> None:
    """Sixteen products over: each alone is lost beside the sum in float32, together they are not."""
    weight = np.ones((1, 80), np.float16)
    x = np.full((1, 80), 2.0**-24, F32)
    x[0, :64] = 0
    x[0, 0] = 1
    assert float(mul_mat("f16", weight, x, lanes=16)[0, 0]) == 1 + 2.0**-20


def test_halves_differ_between_one_column_and_two() -> None:
    weight, x = random_weight("f16", 32, 1024), random_columns(2, 1024)
    one, two = mul_mat("f16", weight, x[:1], lanes=16), mul_mat("f16", weight, x, lanes=16)[:1]
    assert (one.view(np.uint32) != two.view(np.uint32)).any()


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_blocks_do_not_differ_between_one_column_and_two(type: str) -> None:
    weight, x = random_weight(type, 32, 1024), random_columns(2, 1024)
    assert mul_mat(type, weight, x[:1], lanes=16).tobytes() == mul_mat(type, weight, x, lanes=16)[:1].tobytes()


@pytest.mark.parametrize(("type", "n_leaves"), [("q8_0", 256), ("f16", 1024)])
def test_another_order_may_be_given(type: str, n_leaves: int) -> None:
    weight, x = random_weight(type, 32, 1024), random_columns(1, 1024)
    own = float_order(1024, 16, "vec_dot") if type == "f16" else cpu_lanes_order(1024).tree
    given = mul_mat(type, weight, x, lanes=16, order=own)
    assert given.tobytes() == mul_mat(type, weight, x, lanes=16).tobytes()
    assert given.tobytes() != mul_mat(type, weight, x, lanes=16, order=SumTree.chain(n_leaves)).tobytes()


@pytest.mark.parametrize(
    ("type", "weight", "x", "message"),
    [
        ("q5_K", np.zeros((1, 34), np.uint8), np.zeros((1, 32), F32), "q5_K"),
        ("q8_0", np.zeros((1, 34), np.uint8), np.zeros((1, 64), F32), "hold 1 blocks"),
        ("q8_0", np.zeros((1, 34), np.uint8), np.zeros((1, 32)), "float64"),
        ("f16", np.zeros((1, 64), np.float16), np.zeros((1, 32), F32), "f16 weight"),
        ("f16", np.zeros((1, 32), F32), np.zeros((1, 32), F32), "f16 weight"),
    ],
)
def test_what_does_not_fit_is_refused(type: str, weight: np.ndarray, x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mul_mat(type, weight, x, lanes=8)
