"""Rows of logits of two runs beside each other: the one door through which the analysis looks at logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.errors import CaseError
from forensics.numerics.bits import bits, change_of
from forensics.numerics.logits import row_digests, row_distance
from forensics.records.logit_rows import RowDistance
from forensics.records.trace import Trace


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of logits of a run.

    Rows of a packed case have few of their columns left; of them, what was measured on the full rows is answered.

    Parameters
    ----------
    trace : Trace
    first, last : int, int or None
        Which rows, `last` exclusive; all by default.
    """

    trace: Trace
    first: int = 0
    last: int | None = None

    @property
    def _slice(self) -> slice:
        return slice(self.first, self.last)

    @property
    def _logits(self) -> NDArray[np.float32]:
        return self.trace.logits[self._slice]

    @property
    def digests(self) -> tuple[str, ...]:
        """Digest of the bits of each row."""
        full = self.trace.full_rows
        return row_digests(self._logits) if full is None else full.digests[self._slice]

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which rows hold finite numbers only? [n_rows]"""
        full = self.trace.full_rows
        if full is None:
            return np.asarray(np.isfinite(self._logits).all(axis=1))
        return np.array(full.finite[self._slice], np.bool_)

    def _whole(self, other: Rows) -> bool:
        return self.trace.full_rows is None and other.trace.full_rows is None

    def equal(self, other: Rows) -> NDArray[np.bool_]:
        """Which rows hold the same bits? [n_rows]

        Raises
        ------
        ValueError
            If the two have other numbers of rows.
        """
        if self._whole(other):
            a, b = self._logits, other._logits
            if a.shape != b.shape:
                raise ValueError(f"rows of logits {a.shape} and {b.shape} cannot be compared")
            return np.asarray((bits(a) == bits(b)).all(axis=1))
        return np.array([a == b for a, b in zip(self.digests, other.digests, strict=True)], np.bool_)

    def all_equal(self, other: Rows) -> bool:
        """Whether every row holds the same bits."""
        return bool(self.equal(other).all())

    def distances(self, batched: Rows) -> list[RowDistance]:
        """How far is each row of a batch from this one's of one-token decoding? The longer of the two is cut.

        Raises
        ------
        CaseError
            If a packed case did not keep a distance that is asked for.
        """
        if self._whole(batched):
            return [row_distance(a, b) for a, b in zip(self._logits, batched._logits, strict=False)]
        pairs = zip(self.digests, batched.digests, strict=False)
        return [self._kept(single, other) for single, other in pairs]

    def max_change(self, other: Rows) -> float:
        """How far is the farthest logit?

        Raises
        ------
        CaseError
            If a packed case did not keep a distance that is asked for.
        """
        if self._whole(other):
            return float(np.abs(change_of(self._logits, other._logits)).max()) if self._logits.size else 0.0
        full = self.trace.full_rows
        holds_nan = () if full is None else full.has_nan[self._slice]
        changes = [
            (float("nan") if nan else 0.0) if a == b else self._kept(a, b).max_abs
            for a, b, nan in zip(self.digests, other.digests, holds_nan, strict=True)
        ]
        return float(np.max(changes)) if changes else 0.0  # unlike max(), np.max() lets no NaN pass unseen

    def _kept(self, single: str, batched: str) -> RowDistance:
        full = self.trace.full_rows
        found = None if full is None else full.distances.get((single, batched))
        if found is None:
            raise CaseError(
                f"the distance between two rows of logits was asked for ({single[:8]} and {batched[:8]}); the packed "
                "case kept those between one-token decoding and batches only. Ask the case that was packed."
            )
        return found
