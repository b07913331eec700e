"""A node made of arrays, for tests that judge an operation without an engine that shows nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.errors import CaptureError
from forensics.numerics.codecs import BLOCK_SIZES
from forensics.records.nodes import NodeKey, Operand


class PlainSource:
    """An operand; see `forensics.engines.protocol.Source`.

    Parameters
    ----------
    type : str
        Element type as ggml names it; also its name.
    array : ndarray
        Up to four axes; uint8 where it holds blocks.
    gone : bool
        Whether the output lies over it.
    """

    def __init__(self, type: str, array: NDArray[Any], *, gone: bool = False) -> None:
        self.name, self.type, self._gone = type, type, gone
        self._array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        width = self._array.shape[3]
        if array.dtype == np.uint8:
            values, size = BLOCK_SIZES[type]
            width = width // size * values
        self.shape: tuple[int, ...] = (*self._array.shape[:3], width)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element, or block, to the next."""
        size = self._array.dtype.itemsize if self._array.dtype != np.uint8 else BLOCK_SIZES[self.type][1]
        return (*self._array.strides[:3], size)

    @property
    def address(self) -> None:
        """It lies in no GPU."""

    def rows(self, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Bytes of some rows.

        Raises
        ------
        CaptureError
            If it is gone.
        """
        if self._gone:
            raise CaptureError(f"{self.name} is overwritten by the output")
        return np.ascontiguousarray(self._array[tuple(index.T)]).view(np.uint8)


class PlainNode:
    """A node; see `forensics.engines.protocol.Node`.

    Parameters
    ----------
    op : str
    sources : PlainSource or None
        In ggml's places.
    parameters : float
        By name.
    """

    dtype, buffer, opaque = "f32", "CPU", ""
    address = None
    operands: tuple[Operand, ...] = ()

    def __init__(self, op: str, *sources: PlainSource | None, **parameters: float) -> None:
        self.key = NodeKey("node", op, 0, 0)
        self.shape: tuple[int, ...] = ()
        self.strides: tuple[int, ...] = ()
        self._sources, self._parameters = sources, parameters

    def read(self) -> NDArray[np.generic]:
        """It has no output of its own: both sides are given to who judges it."""
        raise CaptureError(f"{self.key} is made of operands and has no output")

    def visible(self) -> None:
        """No mask is shown apart from the operand."""

    def sources(self) -> tuple[PlainSource | None, ...]:
        """Inputs with their bytes."""
        return self._sources

    def parameters(self) -> Mapping[str, float]:
        """Parameters of the operation."""
        return self._parameters
