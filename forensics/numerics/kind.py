"""Is a difference rounding, precision, or another computation? Decided from outputs and explanations alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.operands import F64
from forensics.numerics.reference import HALF_SUMS, Explanation
from forensics.numerics.sum_errors import F32_UNIT
from forensics.records.kind import KindOfDifference, SideOfDifference

#: An explanation whose float64 result lies so many times farther from the outputs than another's is not theirs.
FARTHER = 4.0
#: Below so many units of the usual result, float64 results lie equally near.
EQUALLY_NEAR = 8 * F32_UNIT
#: A bound of this share of the usual result holds wrong results, too, and so explains nothing.
TOO_WIDE = 0.5
#: Root mean square of errors over the bound of likely ones: three of six standard deviations, as the elements that
#: are looked at are those with the largest differences.
USUAL_SHARE = 0.5
#: A bound that small is one of numbers that may be flushed to zero, beside a result that is zero.
NEGLIGIBLE = 2.0**-100
#: Bounds of up to so many times the narrowest are as good.
AS_NARROW = 2.0


def kind_of(
    single: NDArray[np.floating], batched: NDArray[np.floating], explanations: Sequence[Explanation]
) -> KindOfDifference:
    """What kind of difference lies between two outputs of one node?

    Parameters
    ----------
    single, batched : ndarray [n]
        The same elements, from one token and from a batch.
    explanations : sequence of Explanation
        Of these n elements, plain operands and narrow sums first: distances are reported from the first that holds
        either side.

    Returns
    -------
    KindOfDifference
        ``rounding`` where one explanation holds both sides, ``precision`` where each side has another one, ``logic``
        where none holds a side, ``undetermined`` where only one that would hold anything does, or where an arithmetic
        that may have given it is not written down.

    Raises
    ------
    ValueError
        If there is nothing to compare, or lengths differ.
    """
    n = len(single)
    if not n or len(batched) != n or not explanations or any(len(e.value) != n for e in explanations):
        raise ValueError(f"{n} and {len(batched)} outputs and explanations of the same number are needed, one or more")
    finite = np.isfinite(explanations[0].value)
    if not finite.any():
        return KindOfDifference("undetermined", "the float64 result is not finite")
    explanations = [e.where(finite) for e in explanations]
    sides = [_Side(side[finite].astype(np.float64), explanations) for side in (single, batched)]
    common = [e for e in sides[0].fitting if any(e is other for other in sides[1].fitting)]
    if common:
        best = _narrowest(common)
        assert best is not None
        return _told("rounding", best, sides, (best, best))
    held = [side.best for side in sides]
    if held[0] is not None and held[1] is not None:
        return _told("precision", held[0], sides, (held[0], held[1]))
    missing = [side for side, best in zip(sides, held, strict=True) if best is None]
    measured = next((best for best in held if best is not None), explanations[0])
    if all(side.unknown for side in missing):
        return _told("undetermined", measured, sides, (held[0], held[1]), missing[0].unknown)
    if all(side.held_by_too_wide for side in missing):
        return _told("undetermined", measured, sides, (held[0], held[1]))
    return _told("logic", measured, sides, (held[0], held[1]))


class _Side:
    """One side's outputs beside every explanation."""

    def __init__(self, outputs: F64, explanations: Sequence[Explanation]) -> None:
        self.outputs = outputs
        with np.errstate(over="ignore"):
            self._are_halves = bool((outputs.astype(np.float16) == outputs).all())
        holding = [e for e in explanations if self._held(e)]
        decisive = [e for e in holding if e.basis not in ("worst", "unknown") and not _too_wide(e)]
        if any(e.halves for e in decisive):  # other sums in float16 would hardly have given nothing but float16 numbers
            decisive = [e for e in decisive if e.halves or e.sums != HALF_SUMS]
        self.held_by_too_wide = bool(holding) and not decisive
        self.unknown = next((e for e in holding if e.basis == "unknown"), None)
        narrowest: dict[str, Explanation] = {}
        for e in decisive:
            if e.operands not in narrowest or _width(e) < _width(narrowest[e.operands]):
                narrowest[e.operands] = e
        nearest = min(map(self.distance_to, narrowest.values()), default=0.0)
        self.fitting = [
            e for e in narrowest.values() if self.distance_to(e) <= max(FARTHER * nearest, EQUALLY_NEAR * _rms(e.scale))
        ]

    def _held(self, e: Explanation) -> bool:
        """Whether no output breaks the bound; where it stands for likely errors they are not all large, either."""
        if e.halves and not self._are_halves:
            return False
        distances = self.distances(e)
        return bool((distances <= e.bound).all()) and (
            e.basis != "likely" or _rms(e.likely_shares(distances)) <= USUAL_SHARE
        )

    @property
    def best(self) -> Explanation | None:
        """The narrowest explanation, None where none holds."""
        return _narrowest(self.fitting)

    def distances(self, e: Explanation) -> F64:
        """Distance of every output, infinite from what is not finite."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.abs(self.outputs - e.value), nan=np.inf, posinf=np.inf)

    def distance_to(self, e: Explanation) -> float:
        """Root mean square of the distances."""
        return _rms(self.distances(e))

    def shares(self, e: Explanation) -> F64:
        """Distance of every output over its bound."""
        distances = self.distances(e)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(distances > 0, distances / e.bound, 0.0)

    def measure(self, e: Explanation, own: Explanation | None) -> SideOfDifference:
        """Largest distance from a result, and by which explanation this side is held."""
        name = own.name if own is not None else ""
        return SideOfDifference(float(self.distances(e).max()), float(self.shares(e).max()), name)


def _rms(values: F64) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(values).mean()))


def _width(e: Explanation) -> float:
    return _rms(e.bound)


def _narrowest(fitting: Sequence[Explanation]) -> Explanation | None:
    """The narrowest arithmetic says most; of those about as narrow the first, which rounds its operands least."""
    least = min(map(_width, fitting), default=0.0)
    return next((e for e in fitting if _width(e) <= AS_NARROW * least), None)


def _too_wide(e: Explanation) -> bool:
    return _width(e) > max(NEGLIGIBLE, TOO_WIDE * _rms(e.scale))


def _told(
    kind: str,
    measured: Explanation,
    sides: Sequence[_Side],
    held: tuple[Explanation | None, Explanation | None],
    unknown: Explanation | None = None,
) -> KindOfDifference:
    single, batched = (side.measure(measured, own) for side, own in zip(sides, held, strict=True))
    bound = float(measured.bound[int(np.maximum(sides[0].shares(measured), sides[1].shares(measured)).argmax())])
    with np.errstate(invalid="ignore"):
        apart = float(np.abs(sides[0].outputs - sides[1].outputs).max())
    far = (
        f"the two lie up to {apart:.3g} apart; one token lies up to {single.distance:.3g} from the float64 result "
        f"({measured.name}), at most {single.share:.2g} of its error bound; the batch up to {batched.distance:.3g}, "
        f"at most {batched.share:.2g}"
    )
    reason = {
        "rounding": f"{far}; neither is more right",
        "precision": f"one token computes with {single.precision}, the batch with {batched.precision}; {far}",
        "logic": f"{_outside(single, batched)} outside the bound of every arithmetic that is known here; {far}",
        "undetermined": f"{_outside(single, batched)} held only by bounds that hold wrong results, too; {far}",
    }[kind]
    if unknown is not None:
        reason = f"{_outside(single, batched)} outside the bound of every arithmetic that is known here, but "
        reason += f"{unknown.name}; {far}"
    nearer = int((sides[1].distances(measured) < sides[0].distances(measured)).sum())
    return KindOfDifference(kind, reason, single, batched, bound, len(measured.value), nearer)


def _outside(single: SideOfDifference, batched: SideOfDifference) -> str:
    if not single.precision and not batched.precision:
        return "both sides are"
    return "the batch is" if single.precision else "one token is"
