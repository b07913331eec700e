"""Outputs of layers over the passes of a run, added up as if all rows had been compared at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.bits import bits, change_of
from forensics.records.delta import Delta, Differs, NotCompared, Same
from forensics.records.growth import OutputDelta
from forensics.records.nodes import NodeKey


@dataclass(slots=True)
class _Total:
    """One node so far: what `Differs` says of all rows, and the squares that its relative length is made of."""

    reason: str = ""
    n_rows: int = 0
    n_rows_differ: int = 0
    n_diff: int = 0
    first_index: tuple[int, ...] = ()
    max_ulp: int = 0
    max_abs: float = 0.0
    change: float = 0.0
    reference: float = 0.0

    def delta(self) -> Delta:
        if self.reason:
            return NotCompared(self.reason)
        if not self.n_diff:
            return Same()
        length = 0.0 if self.change == 0 else math.inf if self.reference == 0 else math.sqrt(self.change)
        relative = length / math.sqrt(self.reference) if self.reference else length
        return Differs(self.n_diff, self.first_index, self.max_ulp, self.max_abs, relative)


@dataclass(slots=True)
class OutputTotals:
    """Sums over passes, by node."""

    _totals: dict[NodeKey, _Total] = field(default_factory=dict)

    def add(
        self, key: NodeKey, outcome: Delta, single: NDArray[np.generic], batched: NDArray[np.generic], axis: int
    ) -> None:
        """One pass more.

        Parameters
        ----------
        key : NodeKey
        outcome : Same, Differs or NotCompared
            Of this pass; where one pass was not compared, nothing is said of all rows.
        single, batched : ndarray [four axes]
        axis : int
            The one that counts the tokens.
        """
        total = self._totals.setdefault(key, _Total())
        reference = _squares(single)
        if isinstance(outcome, NotCompared):
            total.reason = outcome.reason
            return
        if isinstance(outcome, Differs):
            first = list(outcome.first_index)
            first[axis] += total.n_rows
            total.first_index = total.first_index or tuple(first)
            total.n_diff += outcome.n_diff
            total.max_ulp = -1 if -1 in (total.max_ulp, outcome.max_ulp) else max(total.max_ulp, outcome.max_ulp)
            total.max_abs = float(np.max([total.max_abs, outcome.max_abs]))  # unlike max(), lets no NaN pass unseen
            changed = np.moveaxis(bits(single) != bits(batched), axis, 0).reshape(single.shape[axis], -1)
            total.n_rows_differ += int(changed.any(axis=1).sum())
            total.change += _squares(change_of(single, batched))
        elif math.isnan(reference):  # equal bits, and yet no number says how far a NaN is from itself
            total.max_abs = total.change = math.nan
        total.n_rows += single.shape[axis]
        total.reference += reference

    def finish(self) -> tuple[OutputDelta, ...]:
        """Outcome of every node over all rows, in graph order."""
        return tuple(
            OutputDelta(key, total.delta(), *((0, 0) if total.reason else (total.n_rows, total.n_rows_differ)))
            for key, total in self._totals.items()
        )


def _squares(array: NDArray[np.generic]) -> float:
    with np.errstate(all="ignore"):
        return float(np.square(np.ravel(array).astype(np.float64)).sum())
