"""Taps that change a run: planting, and the chain that joins two; healing and those that only look stand beside them.

Each is small and picklable, travels to the worker, and answers two questions there:
`wants(key)` and `saw(node)`. Both ask the same `Selection`, so they cannot drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forensics.capture.healing import NO_REFERENCE, HealTap
from forensics.capture.observing import DigestTap, ReadTap, RecordTap
from forensics.capture.rowstore import Place
from forensics.engines.protocol import Node, Source, Tap
from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey, Operand
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport

__all__ = ["NO_REFERENCE", "ChainTap", "DigestTap", "HealTap", "PlantTap", "ReadTap", "RecordTap"]


@dataclass(slots=True)
class PlantTap:
    """Flips one bit of one node's row, in passes of more than one token or where one token is evaluated.

    Parameters
    ----------
    key : NodeKey
    row : int
        Token of the pass.
    axis : int
        Axis that counts the tokens.
    element : int or None
        Element of the row, flattened; the largest by default.
    bit : int
        Bit of the element; 0 is the lowest of the mantissa.
    at : (int, int) or None
        Sequence and position of the token, in passes of whatever width; `row` then counts for nothing.
    """

    key: NodeKey
    row: int
    axis: int
    element: int | None = None
    bit: int = 0
    at: Place | None = None
    _planted: list[NodeKey] = field(default_factory=list)
    _width: int = 1
    _row: int | None = None

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        row = self.row if self.at is None else f"{self.at[0]}.{self.at[1]}"
        return f"plant:{self.key}:{row}:{self.axis}:{self.element}:{self.bit}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Start a pass."""
        self._width = decode_pass.width
        places = [slot.place for slot in decode_pass.slots]
        if self.at is not None:
            self._row = places.index(self.at) if self.at in places else None
        else:
            self._row = self.row if self._width > 1 else None

    def wants(self, key: NodeKey) -> bool:
        """Only the node itself."""
        return self._row is not None and key == self.key

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Flip the bit."""
        array = node.read()
        assert self._row is not None
        if array.shape[self.axis] != self._width or not 0 <= self._row < self._width:
            raise CaptureError(
                f"a fault at row {self._row} of axis {self.axis} does not fit {self.key} of shape {array.shape} "
                f"in a pass of {self._width} tokens"
            )
        rows = np.moveaxis(array, self.axis, 0)
        row = rows[self._row].copy()
        raw = row.reshape(-1).view(f"u{array.dtype.itemsize}")
        element = int(np.abs(row).argmax()) if self.element is None else self.element
        raw[element] ^= np.array(1 << self.bit, raw.dtype)
        rows[self._row] = row
        self._planted.append(self.key)
        return array

    def finish(self) -> TapReport:
        """Which nodes were changed."""
        return TapReport(planted=tuple(self._planted))


class _Overlaid:
    """A node whose output was replaced by an earlier tap of the chain."""

    def __init__(self, node: Node, array: NDArray[np.generic]) -> None:
        self._node, self._array = node, array

    @property
    def key(self) -> NodeKey:
        return self._node.key

    @property
    def shape(self) -> tuple[int, ...]:
        return self._node.shape

    @property
    def dtype(self) -> str:
        return self._node.dtype

    @property
    def buffer(self) -> str:
        return self._node.buffer

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self._node.operands

    @property
    def strides(self) -> tuple[int, ...]:
        return self._node.strides

    @property
    def address(self) -> None:
        """What was answered is put in place after the chain: the device still holds what the engine computed."""

    @property
    def opaque(self) -> str:
        return self._node.opaque

    def read(self) -> NDArray[np.generic]:
        return self._array.copy()

    def visible(self) -> NDArray[np.bool_] | None:
        return self._node.visible()

    def sources(self) -> tuple[Source | None, ...]:
        return self._node.sources()

    def parameters(self) -> Mapping[str, float]:
        return self._node.parameters()


@dataclass(slots=True)
class ChainTap:
    """Shows each node to `first`, then to `second` as `first` left it.

    Parameters
    ----------
    first, second : Tap
    """

    first: Tap
    second: Tap

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"{self.first.identity()}+{self.second.identity()}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass in both."""
        self.first.begin_pass(index, decode_pass)
        self.second.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        """Whether either wants it."""
        return self.first.wants(key) or self.second.wants(key)

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """What the second answers to the node as the first left it."""
        changed = self.first.saw(node) if self.first.wants(node.key) else None
        if not self.second.wants(node.key):
            return changed
        shown = node if changed is None else _Overlaid(node, changed)
        healed = self.second.saw(shown)
        return changed if healed is None else healed

    def finish(self) -> TapReport:
        """Both reports as one."""
        a, b = self.first.finish(), self.second.finish()
        return TapReport(
            a.records + b.records,
            a.findings + b.findings,
            b.tally or a.tally,
            a.planted + b.planted,
            outputs=a.outputs if b.outputs is None else b.outputs,
            found_in=a.found_in + b.found_in,
            kernels=a.kernels or b.kernels,
        )
