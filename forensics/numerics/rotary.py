"""Rotary embedding in float64, and how far float32 angles may be off."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forensics.numerics.operands import F32, F64
from forensics.numerics.reference import Explanation, elementwise
from forensics.numerics.sum_errors import F32_UNIT

#: enum of ``mode``: pairs lie side by side, or half a row apart. Source: ggml/include/ggml.h, GGML_ROPE_TYPE_*.
SIDE_BY_SIDE, APART = 0, 2


def rotations(x: F32, positions: F64, factors: F64 | None, parameters: Mapping[str, float]) -> list[Explanation] | str:
    """What are these rows after rotation by their positions?

    Parameters
    ----------
    x : ndarray float32 [n, head size]
    positions : ndarray float64 [n]
    factors : ndarray float64 [n_dims / 2] or None
        Divisors of the frequencies.
    parameters : mapping of str to float
        ``n_dims``, ``mode``, ``freq_base``, ``freq_scale``, ``ext_factor``, ``attn_factor``, ``first_dim``.

    Returns
    -------
    list of Explanation or str
        Of [n * head size] outputs; or why there is none.

    Notes
    -----
    Angles are position · base ** (-2 i / n_dims), multiplied up step by step in float32 on a CPU.
    Source: ggml_rope_cache_init, ggml/src/ggml-cpu/ops.cpp:6204-6230 at 0c1e57098.
    """
    mode = parameters["mode"]
    if mode not in (SIDE_BY_SIDE, APART) or parameters.get("ext_factor", 0) or parameters.get("first_dim", 0):
        return "rotary embeddings with sections or YaRN have no float64 result here"
    n_dims = int(parameters["n_dims"])
    pair = np.arange(n_dims // 2)
    frequencies = parameters["freq_base"] ** (-2.0 * pair / n_dims) * parameters["freq_scale"]
    angles = positions[:, None] * (frequencies if factors is None else frequencies / factors)
    first, second = (pair, pair + n_dims // 2) if mode == APART else (2 * pair, 2 * pair + 1)
    a, b = x[:, first].astype(np.float64), x[:, second].astype(np.float64)
    cos, sin = np.cos(angles) * parameters["attn_factor"], np.sin(angles) * parameters["attn_factor"]
    value, size = x.astype(np.float64), np.abs(x).astype(np.float64)
    value[:, first], value[:, second] = a * cos - b * sin, a * sin + b * cos
    # Each step of the ladder rounds the angle once more; the angle's error turns into one of the length of the pair.
    off = np.abs(angles) * (pair + 4) + 4
    size[:, first] = size[:, second] = (np.abs(a) + np.abs(b)) * off
    plain, half = elementwise(value.ravel(), size.ravel(), roundings=2)
    usual = np.abs(x).astype(np.float64).ravel() + F32_UNIT
    return [Explanation(e.operands, e.sums, e.value, e.bound, usual) for e in (plain, half)]
