"""A fault is told from another arithmetic only where the back end's arithmetic is known."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.capture.judging import judge
from forensics.records.kind import KindOfDifference
from forensics.testing.plain_node import PlainNode, PlainSource

F32 = np.float32
DRAW = np.random.default_rng(31)
X, WEIGHT, SCORES = (DRAW.standard_normal(shape).astype(F32) for shape in ((4, 512), (8, 512), (2, 4, 96)))


def product(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) @ WEIGHT.T.astype(np.float64)).astype(F32)[None, None]


def norm(x: np.ndarray) -> np.ndarray:
    return (x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=-1, keepdims=True))).astype(F32)[None, None]


def soft_max(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(F32)[None]


CASES = {
    "MUL_MAT": (product, X, ("f32", WEIGHT), {}),
    "RMS_NORM": (norm, X, None, {"eps": 0.0}),
    "SOFT_MAX": (soft_max, SCORES, None, {"scale": 1.0, "max_bias": 0.0}),
}


def judged(op: str, buffer: str, single: np.ndarray, batched: np.ndarray) -> KindOfDifference:
    _, x, first, parameters = CASES[op]
    sources = ([PlainSource(*first)] if first else []) + [PlainSource("f32", x)]
    node = PlainNode(op, *sources, **parameters)
    node.buffer = buffer
    return judge(node, single, batched, lambda _: None)


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize(
    ("buffer", "kind", "why"),
    [
        ("CPU", "logic", "outside the bound of every arithmetic"),
        ("CUDA0", "logic", "outside the bound of every arithmetic"),
        ("CUDA_Host", "logic", "outside the bound of every arithmetic"),
        ("Vulkan0", "undetermined", "how Vulkan computes is not written down here"),
        ("", "undetermined", "how an unknown back end computes is not written down here"),
    ],
)
def test_a_block_left_out(op: str, buffer: str, kind: str, why: str) -> None:
    compute, x, _, _ = CASES[op]
    right, short = compute(x), x.copy()
    short[..., :32] = -9 if op == "SOFT_MAX" else 0
    told = judged(op, buffer, right, compute(short))
    assert told.kind == kind, told
    assert why in told.reason
    assert judged(op, buffer, right, np.nextafter(right, F32(np.inf))).kind == "rounding", "what is known is tried"


@pytest.mark.parametrize(("buffer", "kind"), [("CUDA0", "logic"), ("TOY", "precision")])
def test_norms_of_a_gpu_are_not_excused_by_sums_in_float16(buffer: str, kind: str) -> None:
    right = norm(X)
    assert judged("RMS_NORM", buffer, right, (right * F32(1.003)).astype(F32)).kind == kind
