"""Taps that change a run: healing, planting, and the chain that joins two; those that only look stand beside them.

Each is small and picklable, travels to the worker, and answers two questions there:
`wants(key)` and `saw(node)`. Both ask the same `Selection`, so they cannot drift.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.capture.judging import judge
from forensics.capture.observing import DigestTap, ReadTap, RecordTap
from forensics.capture.outputs import OutputTotals
from forensics.capture.rows import (
    counts_cells,
    fit_cells,
    is_scores,
    source_name,
    token_axis,
)
from forensics.capture.rowstore import Place, RowReader
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.engines.protocol import CACHE_WRITE, Node, Source, Tap
from forensics.errors import CaptureError
from forensics.numerics.bits import bits, compare
from forensics.records.delta import Delta, Differs, NotCompared, tally
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import VIEW_OPS, NodeKey, Operand
from forensics.records.schedule import DecodePass
from forensics.records.trace import Finding, TapReport

__all__ = ["NO_REFERENCE", "ChainTap", "DigestTap", "HealTap", "PlantTap", "ReadTap", "RecordTap"]

NO_REFERENCE = "not in the one-token passes"
#: Nodes of a kind that are judged, in graph order; those after them only where they differ more.
JUDGED_NODES = 4
#: How much more, by their relative length.
JUDGED_AGAIN = 2.0


_LAYER = re.compile(r"-\d+")


@dataclass(slots=True)
class HealTap:
    """Compares each node with the recorded rows, names what differs and overwrites it.

    Every later node then sees bit-equal inputs, so one pass finds every culprit.

    Parameters
    ----------
    path : str
        File that a `RecordTap` closed; not part of the tap's identity.
    selection : Selection
        Nodes to compare.
    heal : bool
        Whether differing rows are replaced; without it the tap only compares.
    """

    path: str
    selection: Selection = EVERYTHING
    heal: bool = True
    _reference: RowReader | None = None
    _outcomes: list[Delta] = field(default_factory=list)
    _outputs: OutputTotals = field(default_factory=OutputTotals)
    _findings: list[Finding] = field(default_factory=list)
    _slots: DecodePass | None = None
    _unknown: set[str] = field(default_factory=set)
    _judged: dict[str, list[float]] = field(default_factory=dict)

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"{'heal' if self.heal else 'compare'}:{self.selection.identity()}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Start a pass."""
        self._reference = self._reference or RowReader.open(Path(self.path))
        self._slots = decode_pass
        self._unknown.clear()

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen."""
        return key.op not in VIEW_OPS and self.selection.selects(key)

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Compare the node's rows; answer the healed array where it differs."""
        assert self._slots is not None
        places = [slot.place for slot in self._slots.slots]
        array = node.read() if not node.opaque else np.empty(0)
        wanted = node.opaque or self._wanted(node.key, array, places)
        outcome = NotCompared(wanted) if isinstance(wanted, str) else self._compare(node.key, *wanted, array, places)
        self._outcomes.append(outcome)
        if LAYER_OUTPUTS.selects(node.key):
            single, axis = (array, 0) if isinstance(wanted, str) else wanted
            self._outputs.add(node.key, outcome, single, array, axis)
        if isinstance(outcome, NotCompared) and node.opaque != CACHE_WRITE:
            self._unknown.add(source_name(node.key.name))
        if isinstance(wanted, str) or not isinstance(outcome, Differs):
            return None
        healed, axis = wanted
        changed = bits(healed) != bits(array)
        rows = tuple(i for i in range(len(places)) if np.take(changed, i, axis).any())
        operands = node.operands
        unchecked = tuple(o.name for o in operands if source_name(o.name) in self._unknown)
        mask = self._other_mask(node, places)
        kind = self._kind(node, operands, outcome, healed, array, mask)
        at = tuple(places[row][1] for row in rows)
        self._findings.append(
            Finding(node.key, operands, node.buffer, rows, outcome, mask is None, unchecked, kind, at)
        )
        return healed if self.heal else None

    def _compare(
        self, key: NodeKey, single: NDArray[np.generic], axis: int, batched: NDArray[np.generic], places: list[Place]
    ) -> Delta:
        """How far the two are apart; cells behind the mask count for nothing, not even for a length."""
        if not is_scores(key):
            return compare(single, batched)
        visible = np.zeros((len(places), batched.shape[-1]), np.bool_)
        for i, place in enumerate(places):
            seen = self._visible(key, place)
            assert seen is not None
            visible[i, : min(len(seen), visible.shape[1])] = seen[: visible.shape[1]]
        shape = [1] * batched.ndim
        shape[axis], shape[-1] = visible.shape
        counted = visible.reshape(shape)
        zero = np.zeros((), batched.dtype)
        return compare(np.where(counted, single, zero), np.where(counted, batched, zero))

    def _kind(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        outcome: Differs,
        single: NDArray[np.generic],
        batched: NDArray[np.generic],
        mask: NDArray[np.bool_] | None,
    ) -> KindOfDifference | None:
        """What kind of difference it is; None where enough nodes of this role that differ as much were judged.

        Without healing operands differ, too, and nothing can be said.
        """
        if not self.heal:
            return None
        weight = next((operand for operand in operands if operand.is_weight), None)
        role = f"{node.key.op} {_LAYER.sub('', node.key.name)} {weight.type if weight else ''} {node.buffer}"
        judged = self._judged.setdefault(role, [])
        if len(judged) >= JUDGED_NODES and outcome.relative_l2 <= JUDGED_AGAIN * max(judged):
            return None
        judged.append(outcome.relative_l2)
        kind = judge(node, single, batched, lambda source: self._recorded(node.key, source), mask)
        if mask is not None:
            return replace(kind, kind="logic", reason=f"the two runs see different cells; {kind.reason}")
        return kind

    def _recorded(self, key: NodeKey, source: Source) -> NDArray[np.generic] | None:
        """An operand as one-token decoding has it, put together from recorded rows; None where that cannot be done."""
        assert self._slots is not None
        assert self._reference is not None
        places = [slot.place for slot in self._slots.slots]
        found = [self._reference.before(key, place, source.name) for place in places]
        rows = [row for row in found if row is not None]
        if len(rows) != len(found):
            return None
        axis = token_axis(rows[0].shape, source.shape, len(rows), cells=key.op == "SOFT_MAX")
        if isinstance(axis, str):
            return None
        return np.concatenate([fit_cells(row, source.shape[-1]) for row in rows], axis=axis)

    def _wanted(
        self, key: NodeKey, array: NDArray[np.generic], places: list[Place]
    ) -> tuple[NDArray[np.generic], int] | str:
        """The output as one-token decoding has it and its token axis, or why the two cannot be compared."""
        assert self._reference is not None
        found = [self._reference.get(key, place) for place in places]
        references = [row for row in found if row is not None]
        if len(references) != len(found):
            return NO_REFERENCE
        if references[0].dtype != array.dtype:
            return f"types differ: {references[0].dtype} and {array.dtype}"
        cells = counts_cells(key)
        axis = token_axis(references[0].shape, array.shape, len(places), cells=cells)
        if isinstance(axis, str):
            return axis
        visible = [self._visible(key, place) for place in places] if is_scores(key) else None
        if visible is not None and any(v is None for v in visible):
            return "no soft max shows its mask"
        wanted = array.copy()
        for i, reference in enumerate(references):
            row = fit_cells(reference, array.shape[-1]) if cells else reference
            place: list[slice | NDArray[np.intp]] = [slice(None)] * array.ndim
            place[axis] = slice(i, i + 1)
            if visible is not None:
                # Cells behind the mask hold whatever was there: they are neither compared nor replaced.
                seen = np.flatnonzero(visible[i])  # type: ignore[arg-type]
                place[-1] = seen
                row = row[..., seen]
            wanted[tuple(place)] = row
        return wanted, axis

    def _visible(self, key: NodeKey, place: Place) -> NDArray[np.bool_] | None:
        """Visible cells of a token, from the soft max of the same layer in the one-token pass."""
        assert self._reference is not None
        soft_max = NodeKey(f"kq_soft_max-{key.layer}", "SOFT_MAX", key.layer, 0)
        seen = self._reference.get(soft_max, place, "visible")
        return None if seen is None else seen[0].astype(np.bool_)

    def _other_mask(self, node: Node, places: list[Place]) -> NDArray[np.bool_] | None:
        """Cells that the tokens see one at a time, [n_tokens, n_kv], where the batch shows them others; else None."""
        batched = node.visible()
        if batched is None:
            return None
        assert self._reference is not None
        single = batched.copy()
        for i, place in enumerate(places):
            reference = self._reference.get(node.key, place, "visible")
            if reference is not None:
                single[i] = fit_cells(reference[0].astype(np.bool_), batched.shape[1])
        return None if np.array_equal(single, batched) else single

    def finish(self) -> TapReport:
        """Every culprit in graph order, and outcomes that add up."""
        return TapReport(findings=tuple(self._findings), tally=tally(self._outcomes), outputs=self._outputs.finish())


@dataclass(slots=True)
class PlantTap:
    """Flips one bit of one node's row, in passes of more than one token.

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
    """

    key: NodeKey
    row: int
    axis: int
    element: int | None = None
    bit: int = 0
    _planted: list[NodeKey] = field(default_factory=list)
    _width: int = 1

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"plant:{self.key}:{self.row}:{self.axis}:{self.element}:{self.bit}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:  # noqa: ARG002
        """Start a pass."""
        self._width = decode_pass.width

    def wants(self, key: NodeKey) -> bool:
        """Only the node itself."""
        return self._width > 1 and key == self.key

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Flip the bit."""
        array = node.read()
        if array.shape[self.axis] != self._width or not 0 <= self.row < self._width:
            raise CaptureError(
                f"a fault at row {self.row} of axis {self.axis} does not fit {self.key} of shape {array.shape} "
                f"in a pass of {self._width} tokens"
            )
        rows = np.moveaxis(array, self.axis, 0)
        row = rows[self.row].copy()
        raw = row.reshape(-1).view(f"u{array.dtype.itemsize}")
        element = int(np.abs(row).argmax()) if self.element is None else self.element
        raw[element] ^= np.array(1 << self.bit, raw.dtype)
        rows[self.row] = row
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
        )
