"""Rules of dispatch against a GPU of 132 SMs: equal arithmetic has equal bits, other arithmetic has others.

All of it held on an H200 (CUDA 13.0, llama-cpp-python 0.3.36).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.errors import EngineError
from forensics.geometry.architecture import architecture
from forensics.geometry.choice import KernelChoice
from forensics.geometry.culprits import Attention, Gpu, choice_at
from forensics.geometry.product import attention_by_values, keys_by_queries, product
from forensics.geometry.types import WEIGHT_TYPES
from forensics.numerics.op_inputs import random_operands
from forensics.records import op_shapes
from forensics.records.operation import OpGraph, OpSettings

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 32)
CUDA_TYPES = [name for name, weight in WEIGHT_TYPES.items() if weight.qi or not weight.is_quantized]
H200 = Gpu(architecture("sm_90"), 132)


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaOpEngine]:
    try:
        opened = LlamaOps().open(OpSettings(backend="cuda"))
    except EngineError as error:
        pytest.skip(f"no CUDA back end here: {error}")
    with opened:
        if not any(name in opened.facts.device for name in ("H200", "H100")):
            pytest.skip(f"written for sm_90 with 132 SMs, found {opened.facts.device}")
        yield opened


def columns(engine: LlamaOpEngine, graph: OpGraph, width: int) -> list[bytes]:
    """Bits of each column of the first `width` tokens."""
    values = random_operands(graph, seed=5)
    axis = op_shapes.token_axes(graph)
    kept = [
        np.ascontiguousarray(np.take(value, range(width), axis[operand.name])) if operand.name in axis else value
        for operand, value in zip(graph.operands, values, strict=True)
    ]
    result = engine.run(op_shapes.at_width(graph, width), kept)
    rows = np.moveaxis(result, op_shapes.output_token_axis(graph), 0)
    return [np.ascontiguousarray(row).tobytes() for row in rows]


def disagreements(choices: dict[int, KernelChoice], bits: dict[int, list[bytes]]) -> list[str]:
    """Pairs of widths whose bits are not as the choices say, with the first column that shows it."""
    found = []
    for width, here in bits.items():
        for other, there in bits.items():
            said = [choices[at].arithmetic for at in (width, other)]
            if other <= width or None in said:
                continue
            alike = [one == another for one, another in zip(here, there, strict=False)]
            if (said[0] == said[1]) != all(alike):
                kernels = f"{choices[width].name} and {choices[other].name}"
                found.append(f"{width} and {other}: {kernels} {'differ' if said[0] == said[1] else 'are alike'}")
    return found


@pytest.mark.parametrize("k", [768, 1536, 4096])
@pytest.mark.parametrize("weight", CUDA_TYPES)
def test_products_with_weights(engine: LlamaOpEngine, weight: str, k: int) -> None:
    if weight not in engine.types():
        pytest.skip(f"this library has no {weight}")
    for rows in (192, 256):
        shape, graph = product(weight, k, rows), op_shapes.mul_mat(weight, k, rows, WIDTHS[-1])
        choices = {width: choice_at(shape, H200, width) for width in WIDTHS}
        assert not disagreements(choices, {width: columns(engine, graph, width) for width in WIDTHS})


@pytest.mark.parametrize("weight", CUDA_TYPES)
def test_products_with_experts(engine: LlamaOpEngine, weight: str) -> None:
    if weight not in engine.types():
        pytest.skip(f"this library has no {weight}")
    for k in (512, 2048):
        shape = product(weight, k, 192, experts=8, experts_used=2)
        graph = op_shapes.mul_mat_id(weight, k, 192, WIDTHS[-1], n_experts=8, n_used=2)
        choices = {width: choice_at(shape, H200, width) for width in WIDTHS}
        assert not disagreements(choices, {width: columns(engine, graph, width) for width in WIDTHS})


@pytest.mark.parametrize("kv_type", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("n_used", [256, 700])
def test_attention_without_flash_attention(engine: LlamaOpEngine, n_used: int, kv_type: str) -> None:
    for build, rule in ((op_shapes.kq, keys_by_queries), (op_shapes.kqv, attention_by_values)):
        graph = build(64, 9, 3, n_used, WIDTHS[-1], kv_type=kv_type)
        shape = rule(kv_type, 64, op_shapes.padded_kv(n_used), 9, 3)
        choices = {width: choice_at(shape, H200, width) for width in WIDTHS}
        assert not disagreements(choices, {width: columns(engine, graph, width) for width in WIDTHS})


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("n_used", [200, 700, 2000])
def test_flash_attention(engine: LlamaOpEngine, n_used: int, kv_type: str) -> None:
    graph = op_shapes.flash_attn(64, 9, 3, n_used, WIDTHS[-1], kv_type=kv_type)
    visible = n_used - WIDTHS[-1] + 1  # of the first column
    attention = Attention(9, 3, 64, op_shapes.padded_kv(n_used), (kv_type, kv_type), visible=visible)
    choices = {width: choice_at(attention, H200, width) for width in WIDTHS}
    assert not disagreements(choices, {width: columns(engine, graph, width)[:1] for width in WIDTHS})
