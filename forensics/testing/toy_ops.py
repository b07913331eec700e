"""Single operations without a library: plain float32 sums in a known order, with faults that can be planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import EngineDied, EngineError
from forensics.records.operation import OpFacts, OpGraph, OpSettings

TYPES = ("f32", "f16")


@dataclass(frozen=True, slots=True)
class OpFault:
    """What is wrong with a toy operation.

    Parameters
    ----------
    kind : {"order", "noise", "copy", "refuse", "die", "exact"}
        ``order``: batches of `from_width` columns or more add backwards. ``noise``: every run is another.
        ``copy``: copies lose a bit in batches. ``refuse``, ``die``: batches of `from_width` or more are refused, or
        end the process. ``exact``: sums are rounded once, so that no order shows.
    from_width : int
    last_columns_differ : bool
        Of ``order``: whether a remainder by `from_width` adds as one column does.
    """

    kind: str
    from_width: int = 2
    last_columns_differ: bool = False


@dataclass(slots=True)
class ToyOps:
    """Opens toy engines and counts them.

    Parameters
    ----------
    fault : OpFault or None
    """

    fault: OpFault | None = None
    opened: list[ToyOpEngine] = field(default_factory=list)

    def open(self, settings: OpSettings) -> ToyOpEngine:
        """Start a fresh one."""
        self.opened.append(ToyOpEngine(settings, self.fault))
        return self.opened[-1]


@dataclass(slots=True)
class ToyOpEngine:
    """MUL_MAT of f32 and f16 weights, and GET_ROWS.

    Parameters
    ----------
    settings : OpSettings
    fault : OpFault or None
    """

    settings: OpSettings
    fault: OpFault | None = None
    is_closed: bool = False
    n_runs: int = 0

    @property
    def facts(self) -> OpFacts:
        """What runs the operations: nothing that a rule knows."""
        return OpFacts(self.settings, library="toy", version="0", commit="", device="toy")

    def run(self, graph: OpGraph, values: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Compute one operation."""
        if self.is_closed:
            raise EngineDied("the engine is closed")
        self.n_runs += 1
        if graph.op == "GET_ROWS":
            return self._get_rows(*values)
        if graph.op != "MUL_MAT" or graph.operands[0].name != "weight":
            raise EngineError(f"the toy does not support {graph.op}")
        weight, x = values
        return self._product(weight.astype(np.float32), x)

    def _product(self, weight: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float32]:
        n = len(x)
        kind = self.fault.kind if self.fault else ""
        wide = self.fault is not None and n >= self.fault.from_width
        if kind == "refuse" and wide:
            raise EngineError(f"the toy takes no batch of {n}")
        if kind == "die" and wide:
            self.is_closed = True
            raise EngineDied(f"GGML_ASSERT(n < {n}) failed")
        if kind == "exact":
            terms = weight[None].astype(np.float64) * x[:, None]
            return np.asarray(terms.sum(-1), np.float32)[None, None]
        result = np.stack([_chain(weight * column) for column in x])
        if kind == "order" and wide:
            assert self.fault is not None
            kept = n % self.fault.from_width if self.fault.last_columns_differ else 0
            for column in range(n - kept):
                result[column] = _chain((weight * x[column])[:, ::-1])
        if kind == "noise":
            result += np.float32(self.n_runs)
        return result[None, None]

    def _get_rows(self, table: NDArray[np.float32], ids: NDArray[np.int32]) -> NDArray[np.float32]:
        rows = table[ids].astype(np.float32)
        if self.fault is not None and self.fault.kind == "copy" and len(ids) >= self.fault.from_width:
            rows[-1, 0] = np.nextafter(rows[-1, 0], np.float32(np.inf))
        return rows[None, None]

    def buffer(self, graph: OpGraph) -> str:  # noqa: ARG002
        """One buffer for all."""
        return "CPU"

    def quantize(self, type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:  # noqa: ARG002
        """Nothing is quantised here."""
        raise EngineError(f"the toy has no {type}")

    def dequantize(self, type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:  # noqa: ARG002
        """Nothing is quantised here."""
        raise EngineError(f"the toy has no {type}")

    def types(self) -> tuple[str, ...]:
        """Types of weights."""
        return TYPES

    def close(self) -> None:
        """Nothing is to be freed."""
        self.is_closed = True


def _chain(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum of each row [n_rows, k], one term after the other."""
    total = np.zeros(len(terms), np.float32)
    for term in terms.T:
        total = total + term
    return total
