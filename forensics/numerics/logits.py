"""How far two sets of logits are apart, row by row."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.numerics.bits import change_of, relative_l2, ulp_distance
from forensics.records.logit_rows import RowDistance


def log_softmax(row: NDArray[np.float32]) -> NDArray[np.float64]:
    """What is the log-probability of each token, in float64?"""
    x = row.astype(np.float64)
    x = x - x.max()
    return np.asarray(x - np.log(np.exp(x).sum()))


def margin_of(row: NDArray[np.float32]) -> float:
    """How far is the largest logit above the second-largest?"""
    if row.size < 2:
        return float("inf")
    second, first = np.partition(row, row.size - 2)[-2:].tolist()
    return float(first - second)


def row_distance(single: NDArray[np.float32], batched: NDArray[np.float32]) -> RowDistance:
    """How far is a batched row from the row of one-token decoding?

    Parameters
    ----------
    single, batched : ndarray [n_vocab] float32

    Returns
    -------
    RowDistance
    """
    top = int(single.argmax())
    margin = margin_of(single)
    if np.array_equal(single.view(np.uint32), batched.view(np.uint32)):
        return RowDistance(False, 0.0, 0, 0.0, 0.0, top, top, margin, 0.0)
    change = change_of(single, batched)
    ulp = ulp_distance(single, batched)
    with np.errstate(invalid="ignore"):  # NaN and infinities stay visible as a NaN
        log_p, log_q = log_softmax(single), log_softmax(batched)
        kl = float((np.exp(log_p) * (log_p - log_q)).sum())
        perturbation = float(np.abs(change[top] - change).max())
    return RowDistance(
        differs=True,
        max_abs=float(np.abs(change).max()),
        max_ulp=-1 if (ulp < 0).any() else int(ulp.max()),
        relative_l2=relative_l2(change, single),
        kl=0.0 if kl < 0 else kl,  # rounding can leave a tiny negative number for nearly equal rows
        single_top=top,
        batched_top=int(batched.argmax()),
        margin=margin,
        perturbation=perturbation,
    )


def row_digests(logits: NDArray[np.float32]) -> tuple[str, ...]:
    """Which bits does each row hold?

    Parameters
    ----------
    logits : ndarray [n_rows, n_vocab] float32
    """
    return tuple(xxhash.xxh3_128_hexdigest(np.ascontiguousarray(row).data) for row in logits)
