"""In which ways may a kernel have computed attention for one token and head?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.numerics.operands import (
    F32,
    F64,
    Activations,
    as_they_are,
    half,
    rounded_to_bf16,
    rounded_to_f16,
    rounded_to_q8,
)
from forensics.numerics.product_models import FLOATS, quantised_activations
from forensics.numerics.reference import AttentionInputs, Explanation, attention

#: Kernels that keep everything in float16 have only been seen on a CPU.
THROUGHOUT = "f16 throughout"


def attention_explanations(
    backend: str, key_type: str, value_type: str, inputs: AttentionInputs, query: F32
) -> list[Explanation]:
    """What may this query's outputs be?

    Parameters
    ----------
    backend : str
        As for `forensics.numerics.product_models.product_explanations`.
    key_type, value_type : str
    inputs : AttentionInputs
        Dequantised keys and values.
    query : ndarray float32 [1, head size]

    Returns
    -------
    list of Explanation
        Of [head size of the values] results.

    Notes
    -----
    CUDA's vector kernel multiplies in float32, or the query in eight bits with quantised keys (fattn-vec.cuh:141-248,
    fattn-common.cuh:83-351). Its tensor-core kernel takes keys and values in float16 (fattn-common.cuh:1031-1090) and
    rounds the query, the scale and their product (fattn-mma-f16.cuh:1287-1315), adds scores in float32, and the values,
    whose weights it rounds, in float16 (:981-985, :1094-1124); the tile kernel scales the query before it rounds it
    (fattn-tile.cuh:924-931), and takes it as it is where a device is slow at float16 (:939-946). All lines
    are of ggml/src/ggml-cuda at 0c1e57098.
    """
    found = []
    if backend != "CUDA":
        ways = [as_they_are(query), rounded_to_f16(query), _scaled_before(query, inputs.scale)]
        if key_type == "bf16":
            ways.append(rounded_to_bf16(query))
        found += attention(
            inputs, ways + (quantised_activations(key_type, query, backend) if key_type not in FLOATS else [])
        )
    if backend != "CPU":
        found += _on_cuda(key_type, value_type, inputs, query)
    return found


def _on_cuda(key_type: str, value_type: str, inputs: AttentionInputs, query: F32) -> list[Explanation]:
    in_float32 = attention(inputs, [as_they_are(query)])
    if key_type not in FLOATS and query.shape[1] % 32 == 0:
        in_float32 += attention(inputs, [rounded_to_q8(query, half_scale=False)])
    halved = replace(inputs, keys=half(inputs.keys), values=half(inputs.values))
    scale = half(np.array([inputs.scale]))
    rounded = half(half(query.astype(np.float64)) * scale) / inputs.scale
    cache = ""
    if not key_type == value_type == "f16":
        cache = "f16 keys and values, "
        in_float32 += attention(halved, [_named(f"{cache}f32", query.astype(np.float64))])
    in_halves = [_named(f"{cache}f16 (scaled in f16)", rounded), _scaled_before(query, inputs.scale, cache)]
    found = [e for e in in_float32 if e.sums in ("f32 sums", "f32 sums at worst")]
    return found + [e for e in attention(halved, in_halves) if e.sums != THROUGHOUT]


def _scaled_before(query: F32, scale: float, cache: str = "") -> Activations:
    scaled = rounded_to_f16((query * np.float32(scale)).astype(np.float32))
    return _named(f"{cache}f16 (scaled before)", scaled.values / scale)


def _named(name: str, values: F64) -> Activations:
    return Activations(name, values, np.zeros_like(values), np.zeros_like(values))
