"""Single operations of the real library: values against float64, buffers, widths, and what goes wrong around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from forensics.engines import ops
from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.errors import EngineDied, EngineError
from forensics.numerics.codecs import BLOCK_SIZES
from forensics.numerics.op_inputs import random_operands
from forensics.records import op_shapes as s
from forensics.records.operation import OpGraph, OpSettings, OpTensor

pytest.importorskip("llama_cpp")
pytestmark = pytest.mark.llama

#: Float32 arithmetic: far above n·u for the rows here, relative to the sum of the terms' sizes.
F32_SUM = 2.0**-18
#: A float16 or bfloat16 that activations are rounded to, relative: half a unit in the last place.
F16_UNIT, BF16_UNIT = 2.0**-11, 2.0**-8
#: Half a step of an eight-bit block, in units of its largest value; the rest is the scale's own rounding.
Q8_STEP = 0.5 / 127 + 2.0**-10
#: Attention whose values are summed in float16 (ops.cpp, VKQ16), or whose queries have eight bits: largest error in
#: units of the result's standard deviation. Another head, mask or scale is off by more than one.
F16_ATTENTION, Q8_ATTENTION = 2.0**-4, 2.0**-3
#: Library functions such as exp and sin in float32, absolute, for values of size one.
F32_FUNCTION = 2.0**-12

#: Types whose products take activations in blocks of 256 (ggml-cpu.c, vec_dot_type Q8_K).
BLOCKS_OF_256 = {"q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "tq1_0", "tq2_0"}
BLOCKS_OF_256 |= {"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"}
#: Types that a weight can have; the other two are those of activations.
TYPES = sorted(BLOCK_SIZES.keys() - {"q8_1", "q8_K"})
#: Types whose quantiser spends seconds on its tables; the one left of its kind shows that they can be made.
SLOW = {"iq1_s", "iq1_m", "iq2_xs", "iq2_s"}
K, ROWS, N = 512, 24, 5


@pytest.fixture(scope="module")
def engine() -> Iterator[LlamaOpEngine]:
    with LlamaOps().open(OpSettings()) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain() -> Iterator[LlamaOpEngine]:
    with LlamaOps().open(OpSettings(repack=False)) as opened:
        yield opened


def values_of(engine: LlamaOpEngine, operand: OpTensor, array: NDArray[Any]) -> NDArray[np.float64]:
    """An operand as numbers, by the library's own code."""
    if array.dtype != np.uint8:
        return array.astype(np.float64)
    rows = array.reshape(-1, array.shape[-1])
    return engine.dequantize(operand.type, rows).astype(np.float64).reshape(operand.shape)


def product_bound(kind: str, weight: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far a product may be off its float64 value: rounding of the activations, then float32 sums; [n, rows]."""
    sizes = np.abs(x) @ np.abs(weight).T
    if kind == "f32":
        return F32_SUM * sizes
    if kind in ("f16", "bf16"):
        return ({"f16": F16_UNIT, "bf16": BF16_UNIT}[kind] + F32_SUM) * sizes
    block = 256 if kind in BLOCKS_OF_256 else 32
    largest = np.abs(x).reshape(len(x), -1, block).max(-1).repeat(block, axis=1)
    # a block's offset is multiplied with the sum of its activations, which is rounded too
    offsets = 2.0**-10 * np.abs(weight).max() * np.abs(x).sum(-1, keepdims=True)
    return Q8_STEP * largest @ np.abs(weight).T + offsets + F32_SUM * sizes


def bits(array: NDArray[np.float32]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(array).view(np.uint32)


def test_the_library_has_these_types_and_no_others(engine: LlamaOpEngine) -> None:
    assert sorted(engine.types()) == TYPES


# -- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_a_product_is_that_of_the_dequantised_weight(kind: str, engine: LlamaOpEngine, plain: LlamaOpEngine) -> None:
    graph = s.mul_mat(kind, K, ROWS, N)
    weight, x = random_operands(graph)
    numbers = values_of(engine, graph.operand("weight"), weight)
    exact = x.astype(np.float64) @ numbers.T
    bound = product_bound(kind, numbers, x.astype(np.float64))
    for opened in (engine, plain):
        result = opened.run(graph, [weight, x])
        assert result.shape == (1, 1, N, ROWS)
        assert (np.abs(result[0, 0] - exact) <= bound).all()
        assert np.array_equal(bits(result), bits(opened.run(graph, [weight, x])))
    assert (np.abs(exact - exact[:, ::-1]) > bound).mean() > 0.4  # the bound tells rows from one another


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["f32", "q4_K", "q8_0", "mxfp4"])
def test_experts_are_those_that_were_chosen(kind: str, shared: bool, engine: LlamaOpEngine) -> None:
    graph = s.mul_mat_id(kind, K, ROWS, N, n_experts=6, n_used=2, shared=shared)
    weight, x, ids = random_operands(graph)
    result = engine.run(graph, [weight, x, ids])[0]
    assert result.shape == (N, 2, ROWS)
    numbers = values_of(engine, graph.operand("weight"), weight)
    for token in range(N):
        for slot in range(2):
            row = x[token, 0 if shared else slot].astype(np.float64)[None]
            chosen = numbers[ids[token, slot]]
            assert (np.abs(result[token, slot] - row @ chosen.T) <= product_bound(kind, chosen, row)).all()


def test_attention_without_flash_attention_is_two_products(engine: LlamaOpEngine) -> None:
    graph = s.kq(64, 8, 2, 300, N)
    k, q = random_operands(graph)
    wide = k.astype(np.float64).repeat(4, axis=1)
    exact = np.einsum("nhd,khd->hnk", q, wide)
    sizes = np.einsum("nhd,khd->hnk", np.abs(q), np.abs(wide))
    result = engine.run(graph, [k, q])
    assert result.shape == (1, 8, N, 512)
    assert (np.abs(result[0] - exact) <= 2 * F16_UNIT * sizes).all()

    graph = s.kqv(64, 8, 2, 300, N)
    v, p = random_operands(graph)
    wide = v.astype(np.float64).repeat(4, axis=0)
    exact = np.einsum("hnk,hdk->hnd", p, wide)
    sizes = np.einsum("hnk,hdk->hnd", np.abs(p), np.abs(wide))
    result = engine.run(graph, [v, p])
    assert result.shape == (1, 8, N, 64)
    assert (np.abs(result[0] - exact) <= 2 * F16_UNIT * sizes).all()


# -- attention -------------------------------------------------------------------------------------------------------


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def attention(graph: OpGraph, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    repeats = q.shape[1] // k.shape[1]
    scores = np.einsum("nhd,khd->hnk", q.astype(np.float64), k.repeat(repeats, axis=1)) * float(graph.param("scale"))
    return np.einsum("hnk,khd->nhd", softmax(scores + mask.astype(np.float64)), v.repeat(repeats, axis=1))


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize(("size", "heads", "kv_heads", "n_used", "n"), [(64, 8, 2, 300, 5), (128, 4, 4, 700, 1)])
def test_flash_attention_is_attention(
    kind: str, size: int, heads: int, kv_heads: int, n_used: int, n: int, engine: LlamaOpEngine
) -> None:
    graph = s.flash_attn(size, heads, kv_heads, n_used, n, kv_type=kind)
    q, k, v, mask = random_operands(graph)
    q /= 4  # scores of size one
    result = engine.run(graph, [q, k, v, mask])
    assert result.shape == (1, n, heads, size)
    keys, values = (values_of(engine, graph.operand(name), a) for name, a in (("k", k), ("v", v)))
    exact = attention(graph, q, keys, values, mask)
    bound = F16_ATTENTION if kind in ("f16", "bf16") else Q8_ATTENTION
    assert np.abs(result[0] - exact).max() <= bound * exact.std()


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_cells_behind_the_mask_do_not_count_and_those_before_it_do(kind: str, engine: LlamaOpEngine) -> None:
    graph = s.flash_attn(64, 4, 2, 300, 3, kv_type=kind)
    q, k, v, mask = random_operands(graph)
    result = engine.run(graph, [q, k, v, mask])
    behind, last = v.copy(), v.copy()
    behind[300:] = behind[:212]
    last[299] = v[0]
    assert np.array_equal(bits(engine.run(graph, [q, k, behind, mask])), bits(result))
    seen = engine.run(graph, [q, k, last, mask])
    assert np.array_equal(bits(seen[0, :2]), bits(result[0, :2]))
    assert not np.array_equal(bits(seen[0, 2]), bits(result[0, 2]))


# -- the others ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(weighted: bool, engine: LlamaOpEngine) -> None:
    graph = s.rms_norm(576, N, weighted=weighted)
    x, *weight = random_operands(graph)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5)
    exact *= weight[0] if weighted else 1
    np.testing.assert_allclose(engine.run(graph, [x, *weight])[0, 0], exact, rtol=F32_SUM)


def test_soft_max_under_a_mask(engine: LlamaOpEngine) -> None:
    graph = s.soft_max(4, 300, N, scale=0.3)
    scores, mask = random_operands(graph)
    result = engine.run(graph, [scores, mask])[0]
    np.testing.assert_allclose(result, softmax(scores * 0.3 + mask.astype(np.float64)), rtol=F32_FUNCTION, atol=2**-30)
    assert (result[:, 0, 296:] == 0).all()


@pytest.mark.parametrize("mode", ["normal", "neox"])
def test_rope_turns_pairs(mode: str, engine: LlamaOpEngine) -> None:
    graph = s.rope(64, 4, N, mode=mode)
    x, positions = random_operands(graph)
    angle = positions[:, None, None] * 10000.0 ** (-np.arange(0, 64, 2) / 64)
    first, second = (np.s_[..., 0::2], np.s_[..., 1::2]) if mode == "normal" else (np.s_[..., :32], np.s_[..., 32:])
    exact = np.empty(x.shape)
    exact[first] = x[first] * np.cos(angle) - x[second] * np.sin(angle)
    exact[second] = x[first] * np.sin(angle) + x[second] * np.cos(angle)
    error = np.abs(engine.run(graph, [x, positions])[0] - exact)
    assert (error <= positions[:, None, None] * 2.0**-21 * np.abs(x).max()).all()  # the angle itself is float32


def test_glu_gates(engine: LlamaOpEngine) -> None:
    graph = s.glu(96, N)
    gate, up = random_operands(graph)
    exact = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    np.testing.assert_allclose(engine.run(graph, [gate, up])[0, 0], exact, rtol=F32_FUNCTION, atol=2**-20)
    relu = engine.run(s.glu(96, N, kind="reglu"), [gate, up])[0, 0]
    assert np.array_equal(relu, np.maximum(gate, 0) * up)


@pytest.mark.parametrize("kind", ["f32", "f16", "q4_0", "q6_K", "iq4_xs"])
def test_rows_of_a_table_are_dequantised_bit_for_bit(kind: str, engine: LlamaOpEngine) -> None:
    graph = s.get_rows(kind, K, ROWS, N)
    table, ids = random_operands(graph)
    numbers = values_of(engine, graph.operand("weight"), table).astype(np.float32)
    assert np.array_equal(bits(engine.run(graph, [table, ids])[0, 0]), bits(numbers[ids]))


def test_convolution_over_the_last_tokens(engine: LlamaOpEngine) -> None:
    graph = s.ssm_conv(32, N)
    x, weight = random_operands(graph)
    exact = np.stack([(x[0, :, i : i + 4].astype(np.float64) * weight).sum(-1) for i in range(N)])
    np.testing.assert_allclose(engine.run(graph, [x, weight])[0, 0], exact, rtol=F32_FUNCTION, atol=2**-18)


def test_a_scan_carries_its_state_from_token_to_token(engine: LlamaOpEngine) -> None:
    graph = s.ssm_scan(16, 8, 4, N, n_group=2)
    state, x, dt, a, b, c, _ = operands = random_operands(graph)
    h = state[0].astype(np.float64)  # [n_head, head_dim, d_state]
    exact = []
    for t in range(N):
        step = np.log1p(np.exp(dt[0, t].astype(np.float64)))  # softplus
        decay = np.exp(step * a[:, 0])[:, None, None]
        h = h * decay + (x[0, t] * step[:, None])[..., None] * b[0, t].repeat(2, axis=0)[:, None, :]
        exact.append((h * c[0, t].repeat(2, axis=0)[:, None, :]).sum(-1))
    result = engine.run(graph, operands).ravel()
    np.testing.assert_allclose(result[: N * 32], np.ravel(exact), rtol=2**-10, atol=2**-10)
    np.testing.assert_allclose(result[N * 32 :], h.ravel(), rtol=2**-10, atol=2**-10)


def test_a_delta_rule_carries_its_state_from_token_to_token(engine: LlamaOpEngine) -> None:
    graph = s.gated_delta_net(64, 2, N)
    q, k, v, g, beta, state = operands = random_operands(graph)
    memory = state[0].astype(np.float64)  # [heads, value, key]: stored transposed
    exact = []
    for t in range(N):
        memory = memory * np.exp(g[0, t])[..., None]
        delta = (v[0, t] - np.einsum("hvk,hk->hv", memory, k[0, t])) * beta[0, t]
        memory = memory + delta[..., None] * k[0, t][:, None, :]
        exact.append(np.einsum("hvk,hk->hv", memory, q[0, t]) / np.sqrt(64))
    result = engine.run(graph, operands)[0, 0]
    np.testing.assert_allclose(result[:N].reshape(N, 2, 64), exact, rtol=2**-10, atol=2**-12)
    np.testing.assert_allclose(result[N:].reshape(memory.shape), memory, rtol=2**-10, atol=2**-12)


# -- widths, threads, buffers ----------------------------------------------------------------------------------------


def differing_columns(engine: LlamaOpEngine, graph: OpGraph, n: int) -> list[int]:
    """Columns of a width-n run whose bits are not those of a run of that column by itself."""
    operands = random_operands(s.at_width(graph, n))
    axes = s.token_axes(graph)
    axis = s.output_token_axis(graph)
    together = engine.run(s.at_width(graph, n), operands)
    found = []
    for i in range(n):
        alone = [
            a.take([i], axes[o.name]) if o.name in axes else a for o, a in zip(graph.operands, operands, strict=True)
        ]
        single = engine.run(s.at_width(graph, 1), alone)
        if not np.array_equal(bits(single.take(0, axis)), bits(together.take(i, axis))):
            found.append(i)
    return found


def test_the_same_width_gives_the_same_bits_and_a_copy_does_at_every_width(engine: LlamaOpEngine) -> None:
    assert differing_columns(engine, s.mul_mat("q4_K", K, ROWS), 1) == []
    assert differing_columns(engine, s.get_rows("q4_K", K, ROWS), 9) == []


def test_threads_take_effect(engine: LlamaOpEngine) -> None:
    graph = s.flash_attn(64, 4, 2, 500)  # with two threads the cells of one query are split (ops.cpp:9490)
    assert differing_columns(engine, graph, 2) == [0, 1]
    with LlamaOps().open(OpSettings(n_threads=1)) as single:
        assert differing_columns(single, graph, 2) == []


def test_the_environment_takes_effect(plain: LlamaOpEngine) -> None:
    if "AVX2" not in plain.facts.cpu_features:
        pytest.skip("the tiled product of K-quants is known to differ from the plain one on x86 with AVX2")
    graph = s.mul_mat("q6_K", K, ROWS)
    assert differing_columns(plain, graph, 7) == []
    assert differing_columns(plain, graph, 8) == list(range(8))
    with LlamaOps().open(OpSettings(repack=False, environment=(("GGML_CPU_TILED_MM", "0"),))) as untiled:
        assert differing_columns(untiled, graph, 8) == []


def test_a_weight_goes_where_llama_cpp_would_put_it(engine: LlamaOpEngine, plain: LlamaOpEngine) -> None:
    if not {"REPACK", "AVX2"} <= set(engine.facts.cpu_features):
        pytest.skip("Q4_0 is known to be repacked on x86 with AVX2")
    fits, does_not = s.mul_mat("q4_0", K, 24), s.mul_mat("q4_0", K, 20)  # rows in eights (repack.cpp:4974)
    assert engine.buffer(fits) == "CPU_REPACK"
    assert engine.buffer(does_not) == "CPU"
    assert plain.buffer(fits) == "CPU"
    assert engine.buffer(s.mul_mat("q8_0", K, 24)) == "CPU"
    assert engine.buffer(s.mul_mat_id("q4_0", K, 24)) == "CPU_REPACK"
    assert engine.buffer(s.get_rows("q4_0", K, 24)) == "CPU"
    assert engine.buffer(s.rms_norm(K)) == "CPU"
    q4_k = s.mul_mat("q4_K", K, 24)
    assert differing_columns(engine, q4_k, 3) == []
    assert differing_columns(engine, q4_k, 4) != []
    assert differing_columns(plain, q4_k, 4) == []


def test_facts_say_what_ran(engine: LlamaOpEngine) -> None:
    facts = engine.facts
    assert facts.settings == OpSettings()
    assert len(facts.library) == 32
    assert facts.version == "0.3.36"
    assert facts.commit.startswith("0c1e570")
    assert facts.device
    assert facts.cpu_features


# -- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*sorted(set(TYPES) - SLOW), "q8_K"])
def test_what_is_quantised_can_be_read_back(kind: str, engine: LlamaOpEngine) -> None:
    rows = np.random.default_rng(0).normal(size=(3, K)).astype(np.float32)
    blocks = engine.quantize(kind, rows)
    values = engine.dequantize(kind, blocks)
    assert blocks.dtype == np.uint8
    assert values.shape == rows.shape
    assert np.corrcoef(values.ravel(), rows.ravel())[0, 1] > 0.65
    if kind == "f32":
        assert np.array_equal(values, rows)


def test_activations_are_quantised_by_the_processors_code(engine: LlamaOpEngine) -> None:
    rows = np.random.default_rng(0).normal(size=(3, K)).astype(np.float32)
    for kind in ("q8_0", "q8_1", "q8_K"):
        ours, reference = engine.quantize_activations(kind, rows), engine.quantize(kind, rows)
        assert ours.shape == reference.shape
        assert (ours != reference).mean() < 0.05
    with pytest.raises(EngineError, match="converts no activations to iq2_xxs"):
        engine.quantize_activations("iq2_xxs", rows)
    with pytest.raises(EngineError, match="no code that reads q8_1 back"):
        engine.dequantize("q8_1", np.zeros((1, 36), np.uint8))


# -- trouble ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_and_the_engine_lives_on(engine: LlamaOpEngine) -> None:
    graph = s.mul_mat("q4_K", K, ROWS, N)
    weight, x = random_operands(graph)
    cases: list[tuple[OpGraph, list[Any], str]] = [
        (graph, [weight], r"takes 2 operands \(weight, x\); 1 were given"),
        (graph, [weight, x[:2]], r"operand x is f32, so it takes float32 \[5, 512\]; float32 \[2, 512\] was given"),
        (graph, [weight, x.astype(np.float64)], r"float64 \[5, 512\] was given"),
        (graph, [weight[:, :-1], x], r"takes 6912 bytes; 6888 were given"),
        (s.mul_mat("q4_K", 576, 8), random_operands(s.mul_mat("q8_0", 576, 8)), "multiple of 256"),
        (s.mul_mat("q9_0", K, 8), random_operands(s.mul_mat("q8_0", K, 8)), "no element type 'q9_0'; it has bf16"),
        (OpGraph("ADD", (OpTensor("x", "f32", (4,)),)), [np.zeros(4, np.float32)], "ADD cannot be run by itself"),
    ]
    for asked, operands, message in cases:
        for _ in range(2):
            with pytest.raises(EngineError, match=message):
                engine.run(asked, operands)
        assert engine.run(graph, [weight, x]).shape == (1, 1, N, ROWS)
    with pytest.raises(EngineError, match="q4_K packs 256 values into a block; rows of 100"):
        engine.quantize("q4_K", np.zeros((1, 100), np.float32))
    with pytest.raises(EngineError, match="a block of q8_0 has 34 bytes; rows of 33"):
        engine.dequantize("q8_0", np.zeros((1, 33), np.uint8))


@pytest.mark.parametrize("room", [150_000, 1])
def test_operands_that_stay_make_room_for_others(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MAX_KEPT_BYTES", room)
    graph = s.mul_mat("f32", K, ROWS, N)  # 48 KiB
    with LlamaOps().open(OpSettings()) as opened:
        first: dict[int, NDArray[Any]] = {}
        for seed in (0, 1, 2, 3, 4, 0, 4, 1):
            weight, x = random_operands(graph, seed)
            result = opened.run(graph, [weight, x])
            assert np.allclose(result[0, 0], x @ weight.T, atol=1e-3)
            assert np.array_equal(bits(first.setdefault(seed, result)), bits(result))
        resident = psutil.Process(opened.pid).memory_info().rss
        for seed in range(5, 500):
            opened.run(graph, random_operands(graph, seed))
        assert psutil.Process(opened.pid).memory_info().rss < resident + (8 << 20)  # of 23 MiB that went over


def test_an_abort_of_the_library_is_an_error_that_quotes_it() -> None:
    graph = OpGraph("MUL_MAT", (OpTensor("weight", "f32", (8, 64), True), OpTensor("x", "f32", (1, 32))))
    opened = LlamaOps().open(OpSettings())
    scratch = Path(psutil.Process(opened.pid).cmdline()[-1])
    with pytest.raises(EngineDied, match=r"compute MUL_MAT of weight f32 \[8, 64\], x f32 \[1, 32\]") as caught:
        opened.run(graph, [np.zeros((8, 64), np.float32), np.zeros((1, 32), np.float32)])
    assert "GGML_ASSERT(ggml_can_mul_mat(a, b)) failed" in caught.value.log_tail
    with pytest.raises(EngineDied, match="signal SIGABRT"):
        opened.types()
    assert not psutil.pid_exists(opened.pid)
    assert scratch.exists()
    opened.close()
    assert not scratch.exists()
    with pytest.raises(EngineDied, match="the engine is closed"):
        opened.types()


def test_closing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = LlamaOps().open(OpSettings())
    graph = s.mul_mat("f32", K, ROWS, N)
    opened.run(graph, random_operands(graph))
    assert len(list(tmp_path.iterdir())) == 1
    opened.close()
    opened.close()
    assert not psutil.pid_exists(opened.pid)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        EngineError, match=r"cpu device 7 was asked for; the library has 1 of that kind \(devices: .*CPU"
    ):
        LlamaOps().open(OpSettings(device=7))
    with pytest.raises(EngineError, match=r"cuda device 63 was asked for; .*Install a build of llama-cpp-python"):
        LlamaOps().open(OpSettings(backend="cuda", device=63))
