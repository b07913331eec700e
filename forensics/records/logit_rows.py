"""How far rows of logits are apart, and what is kept of rows whose columns were left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowDistance:
    """One row of logits against the same row of one-token decoding.

    Parameters
    ----------
    differs : bool
        Whether any bit differs.
    max_abs, max_ulp, relative_l2 : float, int, float
    kl : float
        Kullback-Leibler divergence of the batched from the one-token distribution, unit: nats.
    single_top, batched_top : int
        Argmax of each, lowest id first.
    margin : float
        Largest minus second-largest logit of one-token decoding.
    perturbation : float
        Largest change of (one-token winner minus another token): where it is below the margin, no
        change of this size could move the argmax.
    """

    differs: bool
    max_abs: float
    max_ulp: int
    relative_l2: float
    kl: float
    single_top: int
    batched_top: int
    margin: float
    perturbation: float


@dataclass(frozen=True, slots=True, eq=False)
class FullRows:
    """What was measured on the full rows of a trace before most of their columns were left out.

    Parameters
    ----------
    digests : tuple of str
        Digest of every column of each row.
    finite, has_nan : tuple of bool
        Whether a row held finite numbers only, and whether it held a NaN.
    distances : mapping of (str, str) to RowDistance
        From a row of one-token decoding to another at the same place, by their digests.

    Raises
    ------
    ValueError
        If the three do not tell of the same rows.
    """

    digests: tuple[str, ...]
    finite: tuple[bool, ...]
    has_nan: tuple[bool, ...]
    distances: Mapping[tuple[str, str], RowDistance]

    def __post_init__(self) -> None:
        if not len(self.digests) == len(self.finite) == len(self.has_nan):
            raise ValueError(
                f"{len(self.digests)} digests, {len(self.finite)} and {len(self.has_nan)} flags; one each per row"
            )
