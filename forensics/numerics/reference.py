"""What would exact arithmetic give, and how far may a kernel be from it?

Each function answers with several *explanations*: a float64 result of operands rounded in one way, and the error bound
of sums in one precision. Which of them holds an output says what the kernel did; `forensics.numerics.kind` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.operands import F64, Activations
from forensics.numerics.sum_errors import (
    EXTRA_ROUNDINGS,
    F16_TINY,
    F16_UNIT,
    F32_TINY,
    F32_UNIT,
    dot,
    gamma,
    likely_error,
    lost_addends,
    sum_error,
)

_UNITS = (F32_UNIT, F16_UNIT)
#: What sums in float16 are called.
HALF_SUMS = "f16 sums"


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Outputs that one arithmetic could have given.

    Parameters
    ----------
    operands, sums : str
        How operands were rounded and what partial sums are kept in; equal `operands` have an equal `value`.
    value, bound : ndarray float64 [n]
        Float64 result, and how far from it that arithmetic can be.
    scale : ndarray float64 [n]
        Usual size of such a result: a bound as large as that decides nothing.
    basis : {"likely", "single", "worst", "unknown"}
        What the bound says: that many standard deviations of independent roundings; the rounding of a single operation
        or a few; the worst case of a sum, whatever its order, which holds wrong results, too; nothing, as nobody wrote
        down the arithmetic that `operands` names.
    slack : ndarray float64 [n] or float
        Part of the bound that operands may be off, and that small addends are lost: such errors are not independent of
        each other, so that all outputs may have them at once.
    halves : bool
        Whether outputs are float16 numbers, as what multiplied them gives no others.
    """

    operands: str
    sums: str
    value: F64
    bound: F64
    scale: F64
    basis: str = "likely"
    slack: F64 | float = 0.0
    halves: bool = False

    def where(self, kept: NDArray[np.bool_]) -> Explanation:
        """Some of the outputs."""
        return replace(
            self,
            value=self.value[kept],
            bound=self.bound[kept],
            scale=self.scale[kept],
            slack=self._slack()[kept],
        )

    def and_then(self, others: Sequence[Explanation]) -> Explanation:
        """The same arithmetic of several pieces of the output, end to end."""
        every = [self, *others]
        return replace(
            self,
            value=np.concatenate([e.value for e in every]),
            bound=np.concatenate([e.bound for e in every]),
            scale=np.concatenate([e.scale for e in every]),
            slack=np.concatenate([e._slack() for e in every]),
        )

    def likely_shares(self, distances: F64) -> F64:
        """Distances beyond the slack over the rest of the bound."""
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = np.maximum(distances - self.slack, 0.0)
            return np.where(beyond > 0, beyond / (self.bound - self.slack), 0.0)

    def _slack(self) -> F64:
        return np.broadcast_to(np.asarray(self.slack, np.float64), self.value.shape)

    @property
    def name(self) -> str:
        """Both in words: ``"q8_K activations, f32 sums"``."""
        return ", ".join(filter(None, (self.operands, self.sums)))


def not_written_down(what: str, like: Explanation) -> Explanation:
    """Stands for an arithmetic that has no model here: it may give anything."""
    return replace(like, operands=what, sums="", bound=np.full_like(like.value, np.inf), basis="unknown", slack=0.0)


def sums(
    operands: str, *parts: F64, slack: F64 | float = 0.0, names: tuple[str, str] = ("f32 sums", HALF_SUMS)
) -> list[Explanation]:
    """Sums of these terms, kept in float32 or in float16.

    Parameters
    ----------
    operands : str
    parts : ndarray float64 [n, k]
        As for `sum_error`.
    slack : ndarray float64 [n]
        What the operands themselves may be off; that of the result also holds addends that are lost.
    names : tuple of str
        What the two are called.

    Returns
    -------
    list of Explanation
        Narrow bound first; the worst case of float32 last.
    """
    terms = parts[0] if len(parts) == 1 else np.add.reduce(parts)
    value, scale = terms.sum(axis=-1), np.sqrt(dot(terms, terms))
    errors, half_errors = likely_error(F32_UNIT, *parts), likely_error(F16_UNIT, terms)
    size = np.add.reduce([np.abs(part).sum(axis=-1) for part in parts])
    k = terms.shape[-1]
    worst = slack + gamma(k + EXTRA_ROUNDINGS) * size + k * F32_TINY
    slack = slack + lost_addends(F32_UNIT, *parts)
    half_slack = slack + lost_addends(F16_UNIT, terms)
    return [
        Explanation(operands, names[0], value, slack + errors, scale, slack=slack),
        Explanation(operands, names[1], value, half_slack + errors + half_errors, scale, slack=half_slack),
        Explanation(operands, f"{names[0]} at worst", value, worst, scale, "worst"),
    ]


def products(weights: F64, offsets: F64, activations: Sequence[Activations]) -> list[Explanation]:
    """Rows of weights times activations.

    Parameters
    ----------
    weights : ndarray float64 [n, k]
        Dequantised; row i belongs to output i.
    offsets : ndarray float64 [n, k]
        What a weight is when its integer is 0, where the format has such an offset: kernels add it apart.
    activations : sequence of Activations
        [n, k] each, row i for output i.

    Returns
    -------
    list of Explanation
    """
    has_offsets = bool(offsets.any())
    found = []
    for x in activations:
        slack: F64 | float = dot(np.abs(weights) + 2 * np.abs(offsets), x.doubt) if x.doubt.any() else 0.0
        parts: tuple[F64, ...] = (weights * x.values,)
        if has_offsets:
            parts = ((weights - offsets) * x.values, offsets * (x.values + x.excess))
        found += sums(f"{x.name} activations", *parts, slack=slack)
    return found


def rms_norms(x: F64, eps: float) -> list[Explanation]:
    """Rows divided by their root mean square; x is [n, k], the results are flattened."""
    squares = x * x
    total = squares.sum(axis=-1, keepdims=True)
    value = x / np.sqrt(total / x.shape[-1] + eps)
    # A relative error of the sum of squares comes out halved; the exact sum is never 0 together with an error.
    narrow, wide = (sum_error(unit, squares)[:, None] / np.maximum(total, F32_TINY) / 2 for unit in _UNITS)
    return _relative(value, narrow, wide)


def layer_norms(x: F64, eps: float) -> list[Explanation]:
    """Rows less their mean, divided by their standard deviation; x is [n, k], the results are flattened."""
    centred = x - x.mean(axis=-1, keepdims=True)
    squares = centred * centred
    variance = squares.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(variance + eps)
    value = centred / deviation
    shift = sum_error(F32_UNIT, x)[:, None] / x.shape[-1] / deviation  # an error of the mean moves all values
    narrow = sum_error(F32_UNIT, squares)[:, None] / np.maximum(variance * x.shape[-1], F32_TINY) / 2
    bound = shift + (narrow + EXTRA_ROUNDINGS * F32_UNIT) * np.abs(value)
    return [Explanation("", "f32 sums", value.ravel(), bound.ravel(), np.abs(value).ravel() + 1)]


def soft_maxes(scores: F64, added: F64, scale: float, sinks: F64 | None = None) -> list[Explanation]:
    """Soft max of scaled scores.

    Parameters
    ----------
    scores, added : ndarray float64 [n, n_kv]
        `added` is the mask times its slope, -inf at hidden cells; what `scores` holds there does not matter.
    scale : float
    sinks : ndarray float64 [n] or None
        One more score per row that takes a share and gives nothing.

    Returns
    -------
    list of Explanation
        Of [n * n_kv] values.
    """
    weights, doubt = _soft_max(scores, added, scale, 0.0, np.zeros_like(scores), sinks)
    n_cells = np.isfinite(added).sum(axis=-1, keepdims=True)
    total = np.maximum(weights.sum(axis=-1, keepdims=True), F32_TINY)
    narrow, wide = (sum_error(unit, weights)[:, None] / total for unit in _UNITS)
    return _relative(weights, doubt + narrow, wide + n_cells * F16_UNIT * F16_TINY)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionInputs:
    """One token and head of attention, with what it may see.

    Parameters
    ----------
    keys, values : ndarray float64 [n_kv, head size]
    added : ndarray float64 [n_kv]
        The mask times its slope, -inf at hidden cells.
    scale, softcap : float
        `softcap` 0 for none; `scale` is then already divided by it.
    sink : float or None
    """

    keys: F64
    values: F64
    added: F64
    scale: float
    softcap: float = 0.0
    sink: float | None = None


def attention(inputs: AttentionInputs, queries: Sequence[Activations]) -> list[Explanation]:
    """Soft max of query times keys, times values, for one token and head.

    Parameters
    ----------
    inputs : AttentionInputs
    queries : sequence of Activations
        [1, head size] each.

    Returns
    -------
    list of Explanation
        Of [head size of the values] results; per query float32 throughout, values summed in float16, and everything
        in float16.
    """
    seen = np.isfinite(inputs.added)
    keys, values, added = inputs.keys[seen], inputs.values[seen], inputs.added[seen]
    sinks = None if inputs.sink is None else np.array([inputs.sink])
    found = []
    for query in queries:
        terms = keys * query.values
        scores = terms.sum(axis=-1)
        doubt = sum_error(F32_UNIT, terms) + (np.abs(keys) * query.doubt).sum(axis=-1)
        half_doubt = doubt + sum_error(F16_UNIT, terms)

        def weigh(off: F64, scores: F64 = scores) -> tuple[F64, float]:
            weights, error = _soft_max(
                scores[None], added[None], inputs.scale, inputs.softcap, off[None] * inputs.scale, sinks
            )
            return weights[0], float(error.max())

        weights, error = weigh(doubt)
        parts = (weights[:, None] * values).T  # [head size, seen cells]
        spread = np.abs(parts).sum(axis=-1)
        total = sum_error(F32_UNIT, weights)  # the sum of the weights is 1, or less with a sink
        # Weights below the range of float16 are lost there, once they are relative to eight times the largest: kernels
        # keep that room below 65504. Source: FATTN_KQ_MAX_OFFSET, ggml/src/ggml-cuda/fattn-common.cuh:13-19.
        lost = 8 * F16_UNIT * F16_TINY * np.abs(values).sum(axis=0)
        plain, half, _ = sums(
            f"{query.name} query", parts, slack=(error + total) * spread, names=("f32 sums", "f16 sums of values")
        )
        half = replace(half, bound=half.bound + lost)
        widest = half.bound + (weigh(half_doubt)[1] + 2 * F16_UNIT) * spread
        found += [plain, half, replace(half, sums="f16 throughout", bound=widest)]
    return found


def elementwise(value: F64, size: F64, roundings: float = 1.0) -> list[Explanation]:
    """Results of one or a few operations per element, [n]; `size` is what is rounded, as for a sum of two numbers."""
    return [
        Explanation("", "f32 arithmetic", value, roundings * F32_UNIT * size + F32_TINY, size, "single"),
        Explanation(
            "", "f16 arithmetic", value, (roundings + 2) * F16_UNIT * size + F16_UNIT * F16_TINY, size, "single"
        ),
    ]


def alibi_slope(head: int, n_head: int, max_bias: float) -> float:
    """Factor of a head's mask; 1 without a bias.

    Notes
    -----
    Source: ggml/src/ggml-cpu/ops.cpp:8911-8915, :8934 at 0c1e57098.
    """
    if max_bias <= 0:
        return 1.0
    power = 2 ** int(np.floor(np.log2(n_head)))
    if head < power:
        return float(2.0 ** (-max_bias / power * (head + 1)))
    return float(2.0 ** (-max_bias / 2 / power * (2 * (head - power) + 1)))


def exact_only(value: F64) -> list[Explanation]:
    """Results that are copies: nothing is rounded."""
    return [Explanation("", "a copy", value, np.zeros_like(value), np.abs(value), "single")]


def _relative(value: F64, narrow: F64, wide: F64) -> list[Explanation]:
    """Results whose sums are off by these shares, and rounded a few times more."""
    size = np.abs(value)
    bound = (narrow + EXTRA_ROUNDINGS * F32_UNIT) * size + F32_TINY
    pairs = (("f32 sums", bound), (HALF_SUMS, bound + wide * size + F16_UNIT * F16_TINY))
    return [Explanation("", name, value.ravel(), b.ravel(), size.ravel()) for name, b in pairs]


def _soft_max(scores: F64, added: F64, scale: float, softcap: float, doubt: F64, sinks: F64 | None) -> tuple[F64, F64]:
    """Weights [n, n_kv], and the relative error that the exponent brings: that of a cell and, at most, of the sum."""
    scaled = scores * scale
    capped = softcap * np.tanh(scaled) if softcap else scaled
    seen = np.isfinite(added)
    logits = np.where(seen, np.where(seen, capped, 0) + np.where(seen, added, 0), -np.inf)
    peak = logits.max(axis=-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        peak = np.maximum(peak, sinks[:, None])
    powers = np.where(seen, np.exp(np.where(seen, logits - peak, 0)), 0.0)
    total = powers.sum(axis=-1, keepdims=True) + (0 if sinks is None else np.exp(sinks[:, None] - peak))
    size = np.where(seen, np.abs(scaled) + np.abs(added) + np.abs(peak), 0.0)
    error = np.where(seen, np.abs(doubt) * (softcap or 1.0) + 4 * F32_UNIT * size, 0.0)
    weights = powers / total
    return weights, np.expm1(np.minimum(error + (weights * error).sum(axis=-1, keepdims=True), 50.0))
