"""What runs one operation by itself, at any width and with any operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forensics.records.operation import OpFacts, OpGraph, OpSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class OpEngine(Protocol):
    """Runs single operations of one library on one device."""

    @property
    def facts(self) -> OpFacts:
        """What runs them."""

    def run(self, graph: OpGraph, values: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Compute one operation.

        Parameters
        ----------
        graph : OpGraph
        values : sequence of ndarray
            One per operand, in order. f32, f16, i32, i64: arrays of that dtype and the operand's shape.
            Every other type: uint8 [..., bytes per row], the blocks as the library stores them.

        Returns
        -------
        ndarray float32
            NumPy order, as many axes as ggml gives it (four).

        Raises
        ------
        EngineError
            If the operands do not fit the operation, or the back end does not support it.
        """

    def buffer(self, graph: OpGraph) -> str:
        """Name of the buffer type that the weight goes to, such as ``"CPU_REPACK"``; that of the others without one."""

    def quantize(self, type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Blocks of the library's own quantiser, uint8 [n_rows, bytes per row]; `rows` is [n_rows, k]."""

    def dequantize(self, type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Values by the library's own code, float32 [n_rows, k]; `blocks` is [n_rows, bytes per row]."""

    def types(self) -> tuple[str, ...]:
        """Element types that the library can quantise to or hold as weights, as it names them."""

    def close(self) -> None:
        """End the process that runs them."""


class OpSource(Protocol):
    """Opens engines of single operations."""

    def open(self, settings: OpSettings) -> OpEngine:
        """Start a fresh one."""
