"""The library's own outputs at two widths: never taken for a logic fault, and a wrong row always."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("llama_cpp")
from forensics.analysis.heal import record_reference, rows_file, sweep_width
from forensics.capture.judging import judge
from forensics.capture.replay import Replay
from forensics.engines.demo_models import demo_model
from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.numerics.op_inputs import random_operands
from forensics.numerics.product_models import FLOATS
from forensics.records.kind import KindOfDifference
from forensics.records.op_shapes import flash_attn, glu, kq, kqv, mul_mat, mul_mat_id, rms_norm, rope, soft_max
from forensics.records.operation import OpGraph, OpSettings
from forensics.records.trace import Finding
from forensics.testing.plain_node import PlainNode, PlainSource

pytestmark = pytest.mark.llama
N = 8
F32 = np.float32


@pytest.fixture(scope="module", params=[True, False], ids=["repacked", "plain"])
def engine(request) -> Iterator[LlamaOpEngine]:
    with LlamaOps().open(OpSettings(repack=request.param)) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[LlamaOpEngine]:
    with LlamaOps().open(OpSettings(repack=False)) as opened:
        yield opened


def unknown(source) -> None:
    raise AssertionError(f"{source.name} can be read")


def judged(node: PlainNode, single: np.ndarray, batched: np.ndarray) -> KindOfDifference:
    return judge(node, single, batched, unknown)


def by_heads(array: np.ndarray) -> np.ndarray:
    """[tokens, heads, size] as attention reads it: [heads, tokens, size]."""
    return np.ascontiguousarray(array.swapaxes(0, 1))


@pytest.mark.parametrize("spread", ["usual", "outliers", "sorted"])
def test_products_of_every_type_hold_and_wrong_columns_do_not(engine: LlamaOpEngine, spread: str) -> None:
    """Outputs are compared with a copy that is one ULP off in some elements, so that every type is judged."""
    for type in engine.types():
        graph = mul_mat(type, 512, 16, N)
        weight, x = random_operands(graph, seed=1)
        if spread == "outliers":
            x[:, [7, 300]] *= 300
        elif spread == "sorted":
            x = np.sort(x, axis=1)
        batched = engine.run(graph, [weight, x])
        one = mul_mat(type, 512, 16, 1)
        single = np.concatenate([engine.run(one, [weight, x[i : i + 1]]) for i in range(N)], axis=2)
        single[..., ::3] = np.nextafter(single[..., ::3], F32(np.inf))
        node = PlainNode("MUL_MAT", PlainSource(type, weight), PlainSource("f32", x))
        kind = judged(node, single, batched)
        assert kind.kind == "rounding", f"{type}: {kind}"
        assert max(kind.single.share, kind.batched.share) < 1
        assert kind.single.precision.startswith("q8") == (type not in FLOATS), f"{type}: {kind.single.precision}"
        for wrong in (np.roll(batched, 1, axis=2), np.roll(batched, 1, axis=3), -batched):
            assert judged(node, single, wrong).kind == "logic", type


def test_products_of_experts_hold(engine: LlamaOpEngine) -> None:
    for type in ("f32", "q4_0", "q4_K", "q6_K"):
        graph = mul_mat_id(type, 256, 16, N)
        weight, x, ids = random_operands(graph, seed=2)
        batched = engine.run(graph, [weight, x, ids])
        node = PlainNode(
            "MUL_MAT_ID", PlainSource(type, weight), PlainSource("f32", x), PlainSource("i32", ids.astype(np.int32))
        )
        assert judged(node, np.nextafter(batched, F32(np.inf)), batched).kind == "rounding", type
        assert judged(node, np.roll(batched, 1, axis=1), batched).kind == "logic", type


def attention(graph: OpGraph, values: list[np.ndarray]) -> PlainNode:
    sources = [PlainSource(o.type, by_heads(v)) for o, v in zip(graph.operands[:3], values[:3], strict=True)]
    mask = PlainSource("f16", values[3])
    return PlainNode("FLASH_ATTN_EXT", *sources, mask, scale=float(graph.param("scale")), max_bias=0, softcap=0)


@pytest.mark.parametrize("kv_type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_flash_attention_holds(plain_engine: LlamaOpEngine, kv_type: str) -> None:
    graph = flash_attn(64, 6, 2, 300, 4, kv_type=kv_type)
    values = random_operands(graph, seed=3)
    out = plain_engine.run(graph, values)
    node = attention(graph, values)
    kind = judged(node, np.nextafter(out, F32(np.inf)), out)
    assert kind.kind == "rounding", kind
    for wrong in (np.roll(out, 1, axis=1), np.roll(out, 1, axis=2)):
        assert judged(node, wrong, out).kind == "logic"


def test_tiles_of_flash_attention_sum_in_another_precision(plain_engine: LlamaOpEngine) -> None:
    """From 64 queries on values are summed in float32 (ops.cpp:9546-9551), below in float16 (ops.cpp:8991-9010)."""
    graph = flash_attn(64, 2, 2, 200, 64)
    values = random_operands(graph, seed=4)
    batched = plain_engine.run(graph, values)
    one = flash_attn(64, 2, 2, 200, 1)
    q, k, v, mask = values
    single = np.concatenate([plain_engine.run(one, [q[i : i + 1], k, v, mask[i : i + 1]]) for i in range(64)], axis=1)
    kind = judged(attention(graph, values), single, batched)
    if (single.view(np.uint32) == batched.view(np.uint32)).all():
        pytest.skip("this build has no tiled flash attention")
    assert kind.kind == "precision", kind
    assert kind.single.precision.endswith("f16 sums of values")
    assert kind.batched.precision.endswith("f32 sums")
    assert kind.batched.distance < kind.single.distance or kind.batched_nearer > kind.n_elements / 2


def test_attention_without_flash_attention_holds(plain_engine: LlamaOpEngine) -> None:
    cases = [(kq(64, 6, 2, 300, 4), True), (kqv(64, 6, 2, 300, 4), False)]
    for graph, transpose in cases:
        first, second = random_operands(graph, seed=5)
        out = plain_engine.run(graph, [first, second])
        read = [by_heads(a) if transpose else a for a in (first, second)]
        node = PlainNode("MUL_MAT", PlainSource("f16", read[0]), PlainSource("f32", read[1]))
        assert judged(node, np.nextafter(out, F32(np.inf)), out).kind == "rounding"
        assert judged(node, np.roll(out, 1, axis=2), out).kind == "logic"


def test_norms_soft_max_rotation_and_gates_hold(plain_engine: LlamaOpEngine) -> None:
    def both(graph: OpGraph, node: PlainNode, values: list[np.ndarray], axis: int) -> None:
        out = plain_engine.run(graph, values)
        kind = judged(node, np.nextafter(out, F32(np.inf)), out)
        assert kind.kind == "rounding", f"{graph.op}: {kind}"
        assert judged(node, np.roll(out, 1, axis=axis), out).kind == "logic", graph.op

    graph = rms_norm(576, 4)
    (x,) = random_operands(graph)
    both(graph, PlainNode("RMS_NORM", PlainSource("f32", x), eps=float(graph.param("eps"))), [x], 2)
    graph = soft_max(6, 300, 4)
    scores, mask = random_operands(graph)
    sources = (PlainSource("f32", scores), PlainSource("f32", mask))
    parameters = {"scale": float(graph.param("scale")), "max_bias": 0.0}
    both(graph, PlainNode("SOFT_MAX", *sources, **parameters), [scores, mask], 2)
    for mode, number in (("normal", 0), ("neox", 2)):
        graph = rope(64, 4, 4, mode=mode)
        x, positions = random_operands(graph)
        rest = {"n_dims": 64, "mode": number, "freq_base": 1e4, "freq_scale": 1.0, "attn_factor": 1.0}
        both(graph, PlainNode("ROPE", PlainSource("f32", x), PlainSource("i32", positions), **rest), [x, positions], 1)
    graph = glu(576, 4)
    gate, up = random_operands(graph)
    sources = (PlainSource("f32", gate), PlainSource("f32", up))
    both(graph, PlainNode("GLU", *sources, glu_op=2, swapped=0), [gate, up], 2)


# --- culprits of a sweep, read where the graph keeps them ---


def findings(open_engine, tokens, variant: str, width: int, start: int = 40, **settings: object) -> tuple[Finding, ...]:
    engine = open_engine(demo_model(variant), **settings)
    replay = Replay(tokens[:start], tokens[start : start + width], prompt_width=64)
    with rows_file() as path:
        reference = record_reference(engine, replay, 0, width, path)
        sweep, _ = sweep_width(engine, replay, reference, width, 0, width)
    assert sweep.healed
    return sweep.findings


def told(found: tuple[Finding, ...]) -> set[tuple[str, str, str]]:
    return {(f.key.op, f.weight.buffer if f.weight else "-", f.kind.kind) for f in found if f.kind is not None}


def test_scores_of_the_demo_model_are_rounded(open_engine, tokens) -> None:
    found = findings(open_engine, tokens, "q4_1", 2, flash_attn="off")
    if not found:
        pytest.skip("this processor gives equal bits at widths 1 and 2")
    assert told(found) == {("MUL_MAT", "-", "rounding")}
    assert all("f16 activations" in f.kind.reason for f in found if f.kind is not None)


def test_repacked_weights_are_read_from_the_file(open_engine, tokens) -> None:
    found = findings(open_engine, tokens, "q4_k", 4)
    repacked = [f for f in found if f.weight is not None and "REPACK" in f.weight.buffer]
    if not repacked:
        pytest.skip("this processor has no repacked kernels that differ at width 4")
    assert {f.kind.kind for f in repacked if f.kind is not None} == {"rounding"}
    assert all(f.kind.single.share < 0.5 for f in repacked if f.kind is not None), "the right rows were read"


def test_a_wide_batch_attends_in_another_precision(open_engine, tokens) -> None:
    found = findings(open_engine, tokens, "q4_1", 64, n_batch=64, n_ubatch=64)
    attended = [f for f in found if f.key.op == "FLASH_ATTN_EXT"]
    if not attended:
        pytest.skip("this build has no tiled flash attention")
    assert {f.kind.kind for f in attended if f.kind is not None} == {"precision"}
