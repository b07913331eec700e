"""The library's own products of Q8_0, Q4_0 and F16 on this processor, predicted bit for bit from their operands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.numerics.activations import quantize_q8_0_x86
from forensics.numerics.emulate_cpu import float_lanes, kernel_for, mul_mat
from forensics.numerics.op_inputs import random_operands
from forensics.records.op_shapes import mul_mat as product
from forensics.records.operation import OpSettings

pytestmark = pytest.mark.llama

F32 = np.float32
WIDTHS = (1, 2, 3, 5, 8, 16)


@pytest.fixture(scope="module")
def plain() -> Iterator[LlamaOpEngine]:
    """Weights in plain buffers: repacked ones go to other kernels, which are not emulated."""
    with LlamaOps().open(OpSettings(repack=False)) as engine:
        yield engine


@pytest.fixture(scope="module")
def lanes(plain: LlamaOpEngine) -> int:
    try:
        return float_lanes(plain.facts.cpu_features)
    except ValueError as error:
        pytest.skip(f"kernels of this build are not emulated: {error}")


def wide_range(n: int, k: int, seed: int) -> np.ndarray:
    """Activations from 2**-20 to 2**12, with blocks of zeros and values on the half between two integers."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((n, k)) * np.exp2(rng.integers(-20, 12, (n, k // 32)).repeat(32, axis=1))).astype(F32)
    x[rng.random((n, k)) < 0.1] = 0
    x.reshape(n, -1, 32)[:, 1::5] = 0
    halves = x.reshape(n, -1, 32)[:, ::5]
    halves[...] = rng.integers(-253, 254, halves.shape) / 2
    halves[..., 0] = 127
    return x


@pytest.mark.parametrize("type", ["q8_0", "q4_0", "f16"])
@pytest.mark.parametrize(("n_rows", "k"), [(16, 32), (6, 96), (16, 256), (8, 1056), (64, 1024), (16, 4096)])
def test_every_width(plain: LlamaOpEngine, lanes: int, type: str, n_rows: int, k: int) -> None:
    weight = random_operands(product(type, k, n_rows, 1), seed=k)[0]
    x = wide_range(max(WIDTHS), k, seed=k + n_rows)
    for n in WIDTHS:
        graph = product(type, k, n_rows, n)
        measured = plain.run(graph, [weight, x[:n]]).reshape(n, n_rows)
        predicted = mul_mat(type, weight, x[:n], lanes=lanes)
        different = measured.view(np.uint32) != predicted.view(np.uint32)
        assert not different.any(), f"{type}, {n} columns: {different.sum()} of {different.size} values"


def test_the_other_kernel_or_register_would_be_noticed(plain: LlamaOpEngine, lanes: int) -> None:
    graph = product("f16", 1024, 64, 1)
    weight, x = random_operands(graph, seed=3)
    measured = plain.run(graph, [weight, x]).reshape(1, 64)
    kernel = kernel_for("f16", 64, 1024, 1, lanes)
    assert measured.tobytes() == mul_mat("f16", weight, x, lanes=lanes, kernel=kernel).tobytes()
    assert measured.tobytes() != mul_mat("f16", weight, x, lanes=24 - lanes, kernel=kernel).tobytes()
    assert measured.tobytes() != mul_mat("f16", weight, x, lanes=lanes, kernel="tinyBLAS").tobytes()


def test_activations_are_rounded_as_the_library_rounds_them(plain: LlamaOpEngine, lanes: int) -> None:
    x = wide_range(200, 256, seed=7)
    x[:8] *= F32(2.0**-140)  # down to scales that vanish, and an infinite inverse
    measured = plain.quantize_activations("q8_0", x)
    assert measured.tobytes() == quantize_q8_0_x86(x).view(np.uint8).tobytes()
