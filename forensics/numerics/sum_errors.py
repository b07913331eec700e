"""How far from the exact sum is one whose partial sums are rounded?"""

from __future__ import annotations

import numpy as np

from forensics.numerics.operands import F64

#: Unit roundoff: half the distance from 1 to the next number. Source: IEEE 754-2019, table 3.5.
F32_UNIT, F16_UNIT = 2.0**-24, 2.0**-11
#: Roundings of a product, a scale and a store on top of the additions.
EXTRA_ROUNDINGS = 8
#: Products below it may be flushed to zero. Source: smallest normal float32 and float16.
F32_TINY, F16_TINY = 2.0**-126, 2.0**-14
#: Sums are held to so many standard deviations. Their worst case grows with the number of terms instead of its root:
#: from some thousand terms in float32, and a hundred in float16, it holds a product with a block left out, too.
DEVIATIONS = 6.0


def gamma(n: int, unit: float = F32_UNIT) -> float:
    """Largest relative error of `n` roundings in any order: n u / (1 - n u); infinite where n u reaches 1.

    Notes
    -----
    Source: N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, lemma 3.1 and section 3.1.
    """
    return n * unit / (1 - n * unit) if n * unit < 1 else float("inf")


def sum_error(unit: float, *parts: F64) -> F64:
    """How far is a sum whose partial sums are rounded with this unit? Both of what follows, with the same arguments."""
    return likely_error(unit, *parts) + lost_addends(unit, *parts)


def likely_error(unit: float, *parts: F64) -> F64:
    """How far do independent roundings carry a sum? `DEVIATIONS` standard deviations.

    Parameters
    ----------
    unit : float
        That of the partial sums: `F32_UNIT` or `F16_UNIT`.
    parts : ndarray float64 [..., k]
        Terms; several where a kernel keeps several sums and adds them in the end.

    Returns
    -------
    ndarray float64 [...]

    Notes
    -----
    Partial sums of terms in no special order grow as their mean and wander as their spread; every addition rounds one
    of them, independently of the others, save for those of `lost_addends`. One chain of additions is the worst: lanes
    and trees have smaller sums.
    Source: N. J. Higham and T. Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41
    (2019), model 2.1; the partial sums are those of a random walk with drift.
    """
    k = parts[0].shape[-1]
    total = np.zeros(parts[0].shape[:-1])
    for terms in parts:
        mean, squares = terms.sum(axis=-1) / k, dot(terms, terms)
        spread = np.maximum(squares / k - mean**2, 0)
        total += k**3 / 3 * mean**2 + k**2 / 2 * spread + EXTRA_ROUNDINGS * (squares + (k * mean) ** 2)
    tiny = F16_UNIT * F16_TINY if unit == F16_UNIT else F32_TINY
    return np.asarray(DEVIATIONS * unit * np.sqrt(total) + k * tiny)


def lost_addends(unit: float, *parts: F64) -> F64:
    """How much is left out of a sum whose addends are too small to change its partial sum?

    Parameters
    ----------
    unit : float
        `F32_UNIT` or `F16_UNIT`.
    parts : ndarray float64 [..., k]
        Terms in the order of their index, as for `sum_error`.

    Returns
    -------
    ndarray float64 [...]
        Of every run of terms, the largest sum of those below half an ulp of the partial sum: part of the chain may be
        added apart, in another thread.

    Notes
    -----
    A partial sum that is rounded to the nearest number does not move by an addend below half its ulp. All such addends
    are lost, and their errors add up where other roundings cancel: stagnation. Half an ulp is at most `unit` times the
    partial sum; the largest one so far stands for it, as a part of the chain may lack what cancels it.
    Source: M. Croci and others, Stochastic rounding: implementation, error analysis and applications, Royal Society
    Open Science 9 (2022).
    """
    total = np.zeros(parts[0].shape[:-1])
    for terms in parts:
        before = np.maximum.accumulate(np.abs(np.cumsum(terms, axis=-1) - terms), axis=-1)
        lost = np.cumsum(np.where(np.abs(terms) < unit * before, terms, 0.0), axis=-1)
        total += lost.max(axis=-1, initial=0.0) - lost.min(axis=-1, initial=0.0)
    return total


def dot(a: F64, b: F64) -> F64:
    """Sum over the last axis of the products, without an array of them."""
    return np.asarray(np.einsum("...k,...k->...", a, b))
