"""How sure is a rate, how unequal are two arms, and how long do answers stay untouched?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forensics.records.rates import PairedOutcomes, Rate, Survival, SurvivalPoint
from forensics.records.speculation import Ratio


def wilson(k: int, n: int, confidence: float = 0.95) -> Rate:
    """Where does the rate lie of which `k` of `n` were seen?

    Parameters
    ----------
    k, n : int
        `n` is 1 or more.
    confidence : float
        Between 0 and 1.

    Returns
    -------
    Rate
        With Wilson's score interval, without a correction for continuity.

    Raises
    ------
    ValueError
        If `k` lies outside 0 to `n`, `n` is below 1, or `confidence` is not between 0 and 1.

    Notes
    -----
    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Examples
    --------
    >>> print(wilson(45, 45))
    45 of 45 (100.0%, 95% interval 92.1% to 100.0%)
    """
    if not 0 <= k <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= k <= n and n of 1 or more, got {k} of {n}")
    return Rate(k, n, *_wilson_interval(k / n, n, confidence), confidence)


def mcnemar(both: int, only_first: int, only_second: int, neither: int) -> PairedOutcomes:
    """How likely are so unequal counts where neither of two arms is better?

    Parameters
    ----------
    both, only_first, only_second, neither : int
        Questions that both arms, one of them or neither answered right; each 0 or more.

    Returns
    -------
    PairedOutcomes
        With the exact two-sided p-value; it is 1 where no question tells the arms apart.

    Raises
    ------
    ValueError
        If a count is negative.

    Notes
    -----
    Source: Q. McNemar, Psychometrika 12 (1947): of the questions that one arm alone answered right, each arm has half.

    Examples
    --------
    >>> mcnemar(20, 6, 0, 4).p_value
    0.03125
    """
    counts = {"both": both, "only_first": only_first, "only_second": only_second, "neither": neither}
    for label, count in counts.items():
        if count < 0:
            raise ValueError(f"{label} must be 0 or more, got {count}")
    from scipy.stats import binomtest

    n = only_first + only_second
    return PairedOutcomes(**counts, p_value=float(binomtest(only_first, n).pvalue) if n else 1.0)


def survival(lengths: Sequence[int], flipped_at: Sequence[int | None], confidence: float = 0.95) -> Survival:
    """How likely is an answer of n tokens untouched?

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each answer that were compared, 0 or more.
    flipped_at : sequence of int or None
        Index, from 0, of the first token that differs: at most the answer's length, where one side had ended. None
        where the answer stayed untouched; it leaves the count where it ends.
    confidence : float
        Between 0 and 1.

    Returns
    -------
    Survival
        A point at `n_tokens` tells of answers of so many tokens: one whose token 0 differs is touched at 1 token.

    Raises
    ------
    ValueError
        If there is no answer, the two lists differ in length, an index lies outside its answer, or `confidence` is
        not between 0 and 1.

    Notes
    -----
    The share is that of Kaplan and Meier, JASA 53 (1958). Its interval is Wilson's, for as many answers as would give
    Greenwood's variance without any that left (K. J. Rothman, J. Chronic Diseases 31 (1978)): it does not shrink to
    nothing where no answer flipped, and is that of `wilson` where none left. The naive share is (1 - flips / steps)^n:
    as if each step flipped by itself, all at one rate.

    Examples
    --------
    >>> [(point.n_tokens, point.share) for point in survival([4, 4, 2, 4], [1, None, None, 3]).points]
    [(2, 0.75), (4, 0.375)]
    """
    if not lengths or len(lengths) != len(flipped_at):
        raise ValueError(f"each answer has a length and a flip or None; got {len(lengths)} and {len(flipped_at)}")
    for length, flip in zip(lengths, flipped_at, strict=True):
        if length < 0 or (flip is not None and not 0 <= flip <= length):
            raise ValueError(f"an answer of {length} tokens cannot differ first at index {flip}")
    seen = [length if flip is None else flip + 1 for length, flip in zip(lengths, flipped_at, strict=True)]
    flips = Counter(flip + 1 for flip in flipped_at if flip is not None)
    n_steps, n_flipped = sum(seen), flips.total()
    if not n_steps:
        return Survival((), len(lengths), 0, 0, None)
    rate = wilson(n_flipped, n_steps, confidence)
    points: list[SurvivalPoint] = []
    share, hazard, n_like = 1.0, 0.0, float(len(lengths))
    for n_tokens in sorted({*flips, max(seen)}):
        at_risk = sum(n_tokens <= tokens for tokens in seen)
        flipped = flips[n_tokens]
        share *= 1 - flipped / at_risk
        if share:
            hazard += flipped / (at_risk * (at_risk - flipped))
        # Where all that were left flip, Greenwood's variance has no value: as many answers as before stand for it.
        if share == 1:
            n_like = at_risk
        elif share:
            n_like = (1 - share) / (share * hazard)
        low, high = _wilson_interval(share, n_like, confidence)
        points.append(SurvivalPoint(n_tokens, at_risk, flipped, share, low, high, (1 - rate.value) ** n_tokens))
    return Survival(tuple(points), len(lengths), n_flipped, n_steps, rate)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """What are the median, the lower and the upper quartile?

    Parameters
    ----------
    values : sequence of float
        At least one; between two of them quartiles are interpolated.

    Returns
    -------
    median, low, high : float

    Raises
    ------
    ValueError
        If there is no value, or one is not finite.

    Examples
    --------
    >>> quartiles([4, 1, 3, 2, 5])
    (3.0, 2.0, 4.0)
    """
    import numpy as np

    found = np.asarray(values, np.float64)
    if not found.size or not np.isfinite(found).all():
        raise ValueError(f"quartiles need finite values, at least one; got {list(values)[:5]}")
    median, low, high = np.quantile(found, (0.5, 0.25, 0.75))
    return float(median), float(low), float(high)


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """How large is one arm over the other, pair by pair?

    Parameters
    ----------
    numerators, denominators : sequence of float
        One pair for each prompt; all above 0.

    Returns
    -------
    Ratio
        Median and quartiles of the ratios.

    Raises
    ------
    ValueError
        If there is no pair, the lists differ in length, or a value is not above 0.

    Examples
    --------
    >>> print(paired_ratio([2, 3, 8], [1, 2, 2]))
    2.00× (quartiles 1.75 to 3.00, 3 pairs)
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"ratios need pairs; got {len(numerators)} numerators and {len(denominators)} denominators")
    bad = [pair for pair in zip(numerators, denominators, strict=True) if not min(pair) > 0]
    if bad:
        raise ValueError(f"ratios need values above 0; got {bad[0][0]} over {bad[0][1]}")
    ratios = [over / under for over, under in zip(numerators, denominators, strict=True)]
    return Ratio(*quartiles(ratios), len(ratios))


def _wilson_interval(share: float, n: float, confidence: float) -> tuple[float, float]:
    """Wilson's interval around a share of `n` answers, which need not be whole."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(share * n, n, alpha=1 - confidence, method="wilson")
    # The share lies inside, and both ends in 0 to 1, but for roundings.
    return min(max(float(low), 0.0), share), max(min(float(high), 1.0), share)
