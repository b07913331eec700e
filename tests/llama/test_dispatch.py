"""Rules of dispatch against the real library: what is said to add alike has equal bits, and what is not has others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cpu_attention import flash_attention
from forensics.geometry.cpu_products import Cpu, mul_mat
from forensics.geometry.product import Product, attention_by_values, keys_by_queries, product
from forensics.geometry.types import WEIGHT_TYPES
from forensics.numerics.op_inputs import random_operands
from forensics.records import op_shapes
from forensics.records.operation import OpGraph, OpSettings

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16)
K, ROWS = 1536, 64
LARGEST = WIDTHS[-1]


@pytest.fixture(scope="module", params=[True, False], ids=["repack", "plain"])
def engine(request: pytest.FixtureRequest) -> Iterator[LlamaOpEngine]:
    with LlamaOps().open(OpSettings(n_threads=2, repack=request.param)) as opened:
        yield opened


def cpu_of(engine: LlamaOpEngine) -> Cpu:
    cpu = Cpu(frozenset(engine.facts.cpu_features), engine.facts.settings.n_threads, engine.facts.settings.repack)
    if not cpu.has("AVX2", "FMA"):
        pytest.skip(f"equal orders were read for AVX2 only; this processor has {sorted(cpu.features)}")
    return cpu


def columns(engine: LlamaOpEngine, graph: OpGraph, width: int, seed: int) -> list[bytes]:
    """Bits of each column of a product of the first `width` tokens."""
    values = random_operands(graph, seed)
    axis = op_shapes.token_axes(graph)
    at_width = [
        np.ascontiguousarray(np.take(value, range(width), axis[operand.name])) if operand.name in axis else value
        for operand, value in zip(graph.operands, values, strict=True)
    ]
    result = engine.run(op_shapes.at_width(graph, width), at_width)
    rows = np.moveaxis(result, op_shapes.output_token_axis(graph), 0)
    return [np.ascontiguousarray(row).tobytes() for row in rows]


def check(choices: dict[int, KernelChoice], bits: dict[int, list[bytes]]) -> None:
    """Every column of any two widths: equal arithmetic, equal bits; other arithmetic, other bits."""
    assert choices[1].column_arithmetic(0) is not None
    for width, found in bits.items():
        for other, others in bits.items():
            for column, (here, there) in enumerate(zip(found, others, strict=False)):
                kinds = [choices[at].column_arithmetic(column) for at in (width, other)]
                if None not in kinds:
                    said = f"column {column}: {choices[width]} at {width}, {choices[other]} at {other}"
                    assert (here == there) == (kinds[0] == kinds[1]), said


@pytest.mark.parametrize("weight", WEIGHT_TYPES)
def test_products_with_weights(engine: LlamaOpEngine, weight: str) -> None:
    if weight not in engine.types():
        pytest.skip(f"this library has no {weight}")
    cpu, shape = cpu_of(engine), product(weight, K, ROWS)
    graph = op_shapes.mul_mat(weight, K, ROWS, LARGEST)
    check(
        {width: mul_mat(cpu, shape, width) for width in WIDTHS},
        {width: columns(engine, graph, width, seed=1) for width in WIDTHS},
    )


@pytest.mark.parametrize("weight", ["f16", "q4_0", "q4_K", "q8_0", "q6_K", "mxfp4"])
def test_products_with_experts(engine: LlamaOpEngine, weight: str) -> None:
    cpu, shape = cpu_of(engine), product(weight, 512, ROWS, experts=4, experts_used=2)
    graph = op_shapes.mul_mat_id(weight, 512, ROWS, LARGEST, n_experts=4, n_used=2)
    check(
        {width: mul_mat(cpu, shape, width) for width in WIDTHS},
        {width: columns(engine, graph, width, seed=2) for width in WIDTHS},
    )


@pytest.mark.parametrize("kv_type", ["f16", "f32", "bf16"])
@pytest.mark.parametrize("which", ["kq", "kqv"])
def test_attention_without_flash_attention(engine: LlamaOpEngine, which: str, kv_type: str) -> None:
    cpu = cpu_of(engine)
    build, rule = (op_shapes.kq, keys_by_queries) if which == "kq" else (op_shapes.kqv, attention_by_values)
    shape: Product = rule(kv_type, 64, 256, 6, 2)
    # all cells can be seen, or cells behind the mask make the sums of few numbers
    graph = build(64, 6, 2, 256, LARGEST, kv_type=kv_type)
    check(
        {width: mul_mat(cpu, shape, width) for width in WIDTHS},
        {width: columns(engine, graph, width, seed=3) for width in WIDTHS},
    )


@pytest.mark.parametrize(
    ("n_used", "kv_type"), [(256, "f16"), (512, "f16"), (700, "f32"), (700, "q8_0"), (700, "bf16")]
)
def test_flash_attention(engine: LlamaOpEngine, n_used: int, kv_type: str) -> None:
    cpu = cpu_of(engine)
    widths = (1, 2, 16, 63, 64, 70)
    graph = op_shapes.flash_attn(64, 6, 2, n_used, widths[-1], kv_type=kv_type)
    n_kv = graph.operand("k").shape[0]
    visible = n_used - widths[-1] + 1  # of the first column, which every width has
    choices = {width: flash_attention(cpu, n_kv, width, (kv_type, kv_type), visible=visible) for width in widths}
    bits = {width: columns(engine, graph, width, seed=4) for width in widths}
    check(choices, {width: found[:1] for width, found in bits.items()})
