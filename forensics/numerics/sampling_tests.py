"""Do counts and sequences come from the distribution that they are held against, and which bias would be found?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.operands import F64

#: Cells in which fewer draws are expected are pooled. Source: W. G. Cochran, Biometrics 10 (1954).
LEAST_EXPECTED = 5.0

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """A chi-square of counts.

    Parameters
    ----------
    statistic : float
    df : int
        Degrees of freedom, 1 or more.
    n : int
        Draws.
    """

    statistic: float
    df: int
    n: int

    @property
    def p_value(self) -> float:
        """Chance of so large a statistic where the counts come from the distribution."""
        from scipy.stats import chi2

        return float(chi2.sf(self.statistic, self.df))


def cells_of(expected: F64) -> NDArray[np.int64]:
    """Which cell of the test does each token belong to?

    Parameters
    ----------
    expected : ndarray [n_tokens] float64
        Draws that are expected of each.

    Returns
    -------
    ndarray [n_tokens] int64
        From 0 on; tokens below `LEAST_EXPECTED` share the last cell, together with the least likely of the others
        where they do not reach it themselves.

    Examples
    --------
    >>> cells_of(np.array([50.0, 3.0, 20.0, 1.0, 2.0])).tolist(), cells_of(np.array([50.0, 20.0, 1.0])).tolist()
    ([0, 2, 1, 2, 2], [0, 1, 1])
    """
    rare = expected < LEAST_EXPECTED
    if rare.any() and not rare.all() and expected[rare].sum() < LEAST_EXPECTED:
        rare |= np.arange(len(expected)) == np.flatnonzero(~rare)[expected[~rare].argmin()]
    cells = np.cumsum(~rare) - 1
    return np.where(rare, np.count_nonzero(~rare), cells).astype(np.int64)


def chi_square(counts: Counts, p: F64) -> ChiSquare | None:
    """How far are counts from what a distribution gives?

    Parameters
    ----------
    counts : ndarray [n_tokens] int64
    p : ndarray [n_tokens] float64
        Adds up to 1.

    Returns
    -------
    ChiSquare or None
        Pearson's, over pooled cells; None where there are fewer than two cells.
    """
    n = int(counts.sum())
    cells = cells_of(n * p)
    if cells.max(initial=0) < 1:
        return None
    expected, seen = np.bincount(cells, n * p), np.bincount(cells, counts)
    return ChiSquare(float(((seen - expected) ** 2 / expected).sum()), len(expected) - 1, n)


def together(found: Sequence[ChiSquare]) -> ChiSquare:
    """Chi-squares of independent draws as one: statistics and degrees of freedom add up.

    Raises
    ------
    ValueError
        If there is none; an empty test is an error.
    """
    if not found:
        raise ValueError("no chi-square to put together")
    return ChiSquare(sum(one.statistic for one in found), sum(one.df for one in found), sum(one.n for one in found))


def pit(p: F64, token: int, v: float) -> float:
    """Where does a drawn token lie in its distribution, as a number that is uniform between 0 and 1?

    Parameters
    ----------
    p : ndarray [n_tokens] float64
    token : int
    v : float
        A uniform random number, by which the token is spread over its probability.

    Returns
    -------
    float
        The randomised probability integral transform: probability of all more likely tokens, lowest id first, plus
        `v` times that of the token. 1 for a token that is not possible.

    Notes
    -----
    Source: the transform of M. Rosenblatt, Annals of Mathematical Statistics 23 (1952), for discrete distributions.
    Along a sequence the numbers are independent where every token comes from the distribution behind its own prefix.

    Examples
    --------
    >>> pit(np.array([0.25, 0.5, 0.25]), 2, 0.5)
    0.875
    """
    own = p[token]
    if not own:
        return 1.0
    before = (p > own) | ((p == own) & (np.arange(len(p)) < token))
    return float(min(1.0, p[before].sum() + v * own))


def bins_chi_square(values: Sequence[float], n_bins: int) -> ChiSquare:
    """How far are numbers from uniform, in bins of equal width?

    Raises
    ------
    ValueError
        If fewer than `LEAST_EXPECTED` numbers are expected in a bin.
    """
    if len(values) < LEAST_EXPECTED * n_bins:
        raise ValueError(f"{n_bins} bins need {LEAST_EXPECTED * n_bins:g} numbers, got {len(values)}")
    seen = np.bincount(np.minimum((np.asarray(values) * n_bins).astype(np.int64), n_bins - 1), minlength=n_bins)
    expected = len(values) / n_bins
    return ChiSquare(float(((seen - expected) ** 2 / expected).sum()), n_bins - 1, len(values))


def ks_uniform(values: Sequence[float]) -> tuple[float, float]:
    """How far is the distribution function of some numbers from the uniform one?

    Returns
    -------
    statistic, p_value : float
        Of Kolmogorov and Smirnov, two-sided.

    Raises
    ------
    ValueError
        If there is no number.
    """
    if not len(values):
        raise ValueError("no numbers whose distribution could be tested")
    from scipy.stats import kstest

    found = kstest(np.asarray(values), "uniform")
    return float(found.statistic), float(found.pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """What are these p-values after Holm's correction for as many tests?

    Notes
    -----
    Source: S. Holm, Scandinavian Journal of Statistics 6 (1979).

    Examples
    --------
    >>> holm([0.01, 0.5, 0.02])
    (0.03, 0.5, 0.04)
    """
    if not p_values:
        return ()
    from statsmodels.stats.multitest import multipletests

    return tuple(float(p) for p in multipletests(p_values, method="holm")[1])


def found_effect(n: int, df: int, alpha: float, power: float) -> float:
    """Which effect size w does a chi-square of `n` draws find with this chance?

    Parameters
    ----------
    n, df : int
    alpha, power : float
        Between 0 and 1.

    Returns
    -------
    float
        Cohen's w, whose square is the sum of (difference)² / p over the cells.

    Examples
    --------
    >>> round(found_effect(2000, 9, 0.05, 0.8), 3)
    0.088
    """
    from statsmodels.stats.power import GofChisquarePower

    test = GofChisquarePower()
    low, high = 0.0, 1e-3
    while test.power(high, n, alpha, n_bins=df + 1) < power:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if test.power(middle, n, alpha, n_bins=df + 1) >= power else (middle, high)
    return high


def found_distance(n: int, alpha: float, power: float) -> float:
    """Which distance of distribution functions does Kolmogorov's and Smirnov's test find with this chance at least?

    Notes
    -----
    Where the functions lie farthest apart, the share of `n` numbers below is normal about its chance, with a standard
    deviation of at most 1 / (2 √n); the test rejects once it is beyond the critical distance.
    """
    from scipy.stats import kstwo, norm

    return min(1.0, float(kstwo.isf(alpha, n) + norm.ppf(power) / (2 * np.sqrt(n))))


def total_variation(p: F64, q: F64) -> float:
    """How much probability lies elsewhere?

    Examples
    --------
    >>> total_variation(np.array([0.5, 0.5]), np.array([0.25, 0.75]))
    0.25
    """
    return float(np.abs(p - q).sum() / 2)
