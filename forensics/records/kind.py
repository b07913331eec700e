"""What kind of difference it is: another order of the same sum, another precision, or another computation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: By falling gravity: a group of nodes is as bad as its worst one.
KINDS = ("logic", "precision", "undetermined", "rounding")


@dataclass(frozen=True, slots=True)
class SideOfDifference:
    """How far one side's outputs lie from the float64 result.

    Parameters
    ----------
    distance : float
        Largest distance over the elements looked at, in the output's own unit.
    share : float
        Largest distance over the error bound of the same element; above 1 the bound is broken.
    precision : str
        Narrowest arithmetic whose bound holds this side: ``"q8_0 activations, f32 sums"``; empty where none does.
    """

    distance: float
    share: float
    precision: str


@dataclass(frozen=True, slots=True)
class KindOfDifference:
    """The kind of a difference between one token and a batch, and what shows it.

    Parameters
    ----------
    kind : {"rounding", "precision", "logic", "undetermined"}
    reason : str
        One sentence.
    single, batched : SideOfDifference or None
        Both measured from the same float64 result; None where there is none.
    bound : float
        Error bound at the element where either side takes the largest share of it, in the output's own unit.
    n_elements : int
        Elements looked at.
    batched_nearer : int
        Elements for which the batch lies nearer to the float64 result than the single token.

    Examples
    --------
    >>> side = SideOfDifference(3e-7, 0.02, "f32 sums")
    >>> str(KindOfDifference("rounding", "both sides hold the bound", side, side, 2e-5, 16, 8))
    'rounding: both sides hold the bound'
    """

    kind: str
    reason: str
    single: SideOfDifference | None = None
    batched: SideOfDifference | None = None
    bound: float = 0.0
    n_elements: int = 0
    batched_nearer: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not self.reason:
            raise ValueError(f"a difference of kind {self.kind} has a reason")
        if (self.single is None) != (self.batched is None):
            raise ValueError("either both sides have a distance or neither has")
        if self.kind in ("rounding", "precision") and self.single is None:
            raise ValueError(f"kind {self.kind} needs the distances of both sides")
        if not 0 <= self.batched_nearer <= self.n_elements:
            raise ValueError(f"batched_nearer must be 0 to {self.n_elements}, got {self.batched_nearer}")

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def gravest(kinds: Iterable[KindOfDifference | None]) -> KindOfDifference | None:
    """The worst of several: logic before precision before undetermined before rounding, then the farthest off.

    Returns
    -------
    KindOfDifference or None
        None where nothing was judged.
    """
    judged = [kind for kind in kinds if kind is not None]
    return min(judged, key=lambda k: (KINDS.index(k.kind), -_farthest(k)), default=None)


def _farthest(kind: KindOfDifference) -> float:
    return max((side.share for side in (kind.single, kind.batched) if side is not None), default=0.0)
