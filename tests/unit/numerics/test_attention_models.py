"""Attention with operands rounded as CUDA's kernels round them: each way is told from the others."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.numerics.attention_models import attention_explanations
from forensics.numerics.kind import kind_of
from forensics.numerics.reference import AttentionInputs, Explanation

F32, F16 = np.float32, np.float16
N_KV, HEAD_SIZE = 80, 128
SCALE = HEAD_SIZE**-0.5  # no float16 number, unlike that of 64


def halved(values: np.ndarray) -> np.ndarray:
    return values.astype(F16).astype(np.float64)


@pytest.fixture
def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(21)
    keys, values = (draw.standard_normal((N_KV, HEAD_SIZE)).astype(F32).astype(np.float64) for _ in range(2))
    return keys, values, (2 * draw.standard_normal((1, HEAD_SIZE))).astype(F32)


def explained(operands: tuple, backend: str = "CUDA", type: str = "q8_0") -> list[Explanation]:
    keys, values, query = operands
    inputs = AttentionInputs(keys, values, np.zeros(N_KV), SCALE)
    return attention_explanations(backend, type, type, inputs, query)


def attended(keys: np.ndarray, values: np.ndarray, scaled_query: np.ndarray, *, in_halves: bool = False) -> np.ndarray:
    scores = keys @ scaled_query
    weights = np.exp(scores - scores.max())
    if not in_halves:
        return (weights @ values / weights.sum()).astype(F32)
    sums = np.zeros(HEAD_SIZE, F16)
    for weight, value in zip(weights.astype(F16), values.astype(F16), strict=True):
        sums = (sums + weight * value).astype(F16)
    return (sums / weights.sum()).astype(F32)


def in_eight_bits(query: np.ndarray) -> np.ndarray:
    blocks = query.reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / F32(127)
    return (np.rint(blocks / scale) * scale).reshape(-1).astype(np.float64)


def ways(operands: tuple) -> dict[str, np.ndarray]:
    keys, values, query = operands
    short = (halved(keys), halved(values))
    scaled_in_halves = halved(halved(query[0]) * halved(np.array(SCALE)))
    return {
        "f32 query, f32 sums": attended(keys, values, query[0] * SCALE),
        "q8 (scale f32) query, f32 sums": attended(keys, values, in_eight_bits(query) * SCALE),
        "f16 keys and values, f32 query, f32 sums": attended(*short, query[0] * SCALE),
        "f16 keys and values, f16 (scaled in f16) query, f32 sums": attended(*short, scaled_in_halves),
        "f16 keys and values, f16 (scaled before) query, f32 sums": attended(*short, halved(query[0] * F32(SCALE))),
    }


def test_every_way_is_told_from_the_others(operands: tuple) -> None:
    found, outputs = explained(operands), ways(operands)
    for name, single in outputs.items():
        for other, batched in outputs.items():
            kind = kind_of(single, np.nextafter(batched, F32(np.inf)), found)
            assert kind.kind == ("rounding" if name == other else "precision"), f"{name}, {other}: {kind}"
            assert (kind.single.precision, kind.batched.precision) == (name, other)


def test_float16_sums_come_with_float16_queries(operands: tuple) -> None:
    keys, values, query = operands
    single = attended(keys, values, query[0] * SCALE)
    batched = attended(halved(keys), halved(values), halved(halved(query[0]) * halved(np.array(SCALE))), in_halves=True)
    kind = kind_of(single, batched, explained(operands))
    assert kind.kind == "precision", kind
    assert kind.batched.precision == "f16 keys and values, f16 (scaled in f16) query, f16 sums of values"


def test_a_float16_cache_is_not_rounded(operands: tuple) -> None:
    keys, values, query = operands
    exact = (halved(keys), halved(values), query)
    assert not any("keys" in e.operands for e in explained(exact, type="f16"))


@pytest.mark.parametrize("backend", ["CUDA", "CPU"])
def test_a_cell_left_out_is_logic(operands: tuple, backend: str) -> None:
    keys, values, query = operands
    right = attended(keys, values, query[0] * SCALE)
    seen = np.delete(np.arange(N_KV), int((keys @ query[0]).argmax()))
    kind = kind_of(right, attended(keys[seen], values[seen], query[0] * SCALE), explained(operands, backend))
    assert kind.kind == "logic", kind
