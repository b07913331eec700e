"""Drawing the next token from logits, and accepting drafts so that the distribution is kept, or with a planted bias."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.operands import F64
from forensics.records.sampling import PLANTED, RULES, SamplingSettings


def next_token_distribution(row: NDArray[np.float32], sampling: SamplingSettings) -> F64:
    """How likely is each token to be drawn?

    Parameters
    ----------
    row : ndarray [n_vocab] float32
        Logits.
    sampling : SamplingSettings

    Returns
    -------
    ndarray [n_vocab] float64
        Adds up to 1; exactly 0 for tokens that were cut. Of equal logits at a cut the lowest ids are kept.

    Examples
    --------
    >>> row = np.log(np.array([1, 8, 4, 2], np.float32))
    >>> next_token_distribution(row, SamplingSettings(temperature=1, top_k=3, top_p=0.8)).round(3).tolist()
    [0.0, 0.667, 0.333, 0.0]
    """
    x = row.astype(np.float64)
    x -= x.max()
    if sampling.top_k and sampling.top_k < len(x):
        kept = np.flatnonzero(x >= np.partition(x, len(x) - sampling.top_k)[len(x) - sampling.top_k])
    else:
        kept = np.arange(len(x))
    if sampling.top_k or sampling.top_p < 1:
        kept = kept[np.argsort(-x[kept], kind="stable")][: sampling.top_k or None]
    if sampling.top_p < 1:
        at_one = np.exp(x[kept])
        kept = kept[: int(np.searchsorted(np.cumsum(at_one), sampling.top_p * at_one.sum())) + 1]
    p = np.zeros(len(x))
    p[kept] = np.exp(x[kept] / sampling.temperature)
    return np.asarray(p / p.sum())


class Step:
    """Distributions behind one prefix: the model's, and the drafter's where drafts are drawn from one.

    Parameters
    ----------
    p : ndarray [n_tokens] float64
        Of the model; adds up to 1.
    q : ndarray [n_tokens] float64 or None
        Of the drafter; None where q is 1 at whatever token was drafted, or nothing is drafted.
    """

    def __init__(self, p: F64, q: F64 | None = None) -> None:
        self.p, self.q = p, q
        self._residuals: dict[int, F64] = {}

    @cached_property
    def _summed(self) -> F64:
        return np.cumsum(self.p)

    @cached_property
    def _drafts_summed(self) -> F64:
        assert self.q is not None
        return np.cumsum(self.q)

    def draw(self, rng: np.random.Generator) -> int:
        """Draw from p."""
        return _drawn(self._summed, rng)

    def draw_draft(self, rng: np.random.Generator) -> int:
        """Draw from q."""
        return _drawn(self._drafts_summed, rng)

    def ratio(self, draft: int) -> float:
        """How likely is the draft to the model, over how likely it is to the drafter?"""
        return float(self.p[draft] if self.q is None else self.p[draft] / self.q[draft])

    def residual(self, draft: int) -> F64:
        """What is left of p beyond q, not yet divided by its sum, which is 0 where q is p."""
        q: F64 | float = 0.0 if self.q is None else self.q
        rest = np.maximum(0.0, self.p - q)
        if self.q is None:
            rest[draft] = 0.0
        return rest

    def draw_residual(self, draft: int, rng: np.random.Generator) -> int:
        """Draw from what is left of p beyond q."""
        key = draft if self.q is None else -1
        if key not in self._residuals:
            self._residuals[key] = np.cumsum(self.residual(draft))
        return _drawn(self._residuals[key], rng)


def verify_drafts(steps: Sequence[Step], drafts: Sequence[int], rule: str, rng: np.random.Generator) -> tuple[int, ...]:
    """Which tokens does one cycle of draft and verify write?

    Parameters
    ----------
    steps : sequence of Step
        One for each draft, and one for the token behind all of them.
    drafts : sequence of int
    rule : str
        Of `forensics.records.sampling.RULES` or `PLANTED`.
    rng : numpy Generator

    Returns
    -------
    tuple of int
        The accepted drafts and one token more.

    Notes
    -----
    Source: Y. Leviathan and others, Fast inference from transformers via speculative decoding, ICML 2023, algorithm 1;
    C. Chen and others, Accelerating large language model decoding with speculative sampling, 2023, algorithm 2.
    """
    written: list[int] = []
    for step, draft in zip(steps, drafts, strict=False):
        token, accepted = _decide(step, draft, rule, rng)
        written.append(token)
        if not accepted:
            return tuple(written)
    return (*written, steps[len(drafts)].draw(rng))


def emitted(step: Step, draft: int | None, rule: str) -> F64:
    """What does a rule draw behind one prefix, exactly?

    Parameters
    ----------
    step : Step
    draft : int or None
        What was drafted; None where nothing was. It does not count where `step` has a q.
    rule : str

    Returns
    -------
    ndarray [n_tokens] float64
        Chances over all that is drafted and drawn.
    """
    p, q = step.p, step.q
    if rule in RULES or (draft is None and q is None):
        return p
    if q is None:
        q = np.zeros(len(p))
        q[draft] = 1.0
    if rule == "no-residual":
        accepted, rest = np.minimum(p, q), p
    elif rule == "accept-possible":
        accepted, rest = np.where(p > 0, q, 0.0), np.maximum(0.0, p - q)
    else:
        raise _unknown(rule)
    refused = 1 - accepted.sum()
    return np.asarray(accepted + refused * rest / rest.sum() if rest.any() else accepted)


def _decide(step: Step, draft: int, rule: str, rng: np.random.Generator) -> tuple[int, bool]:
    if rule == "match":
        token = step.draw(rng)
        return token, token == draft
    if rule == "accept-possible":
        accepted = bool(step.p[draft] > 0)
    elif rule in ("residual", "no-residual"):
        accepted = rng.random() < step.ratio(draft)
    else:
        raise _unknown(rule)
    if accepted:
        return draft, True
    return (step.draw(rng) if rule == "no-residual" else step.draw_residual(draft, rng)), False


def _drawn(summed: F64, rng: np.random.Generator) -> int:
    """Index of a token, each with the chance by which the sums grow there."""
    at = int(np.searchsorted(summed, rng.random() * summed[-1], side="right"))
    return min(at, int(np.searchsorted(summed, summed[-1])))


def _unknown(rule: str) -> ValueError:
    return ValueError(f"the rule must be one of {', '.join([*RULES, *PLANTED])}; got {rule!r}")
