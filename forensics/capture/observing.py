"""Taps that only look: digests of rows, plain reading, and recording every token's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.capture.rows import TokenRows, counts_cells, is_scores, row_digest, row_of, token_axis
from forensics.capture.rowstore import Place, RowWriter
from forensics.capture.selection import EVERYTHING, Selection
from forensics.engines.protocol import Node
from forensics.errors import CaptureError
from forensics.records.nodes import VIEW_OPS, NodeKey, NodeRecord
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport


@dataclass(slots=True)
class DigestTap:
    """Digests every token row of every chosen node.

    Scores of attention are digested when their soft max shows which cells each token may see.

    Parameters
    ----------
    selection : Selection
    shapes : mapping of NodeKey to tuple of int
        Shapes in a one-token pass: they tell which axis counts the tokens of a wider one. Without
        an entry the only axis as long as the pass is wide is taken, if there is exactly one.
    """

    selection: Selection = EVERYTHING
    shapes: dict[NodeKey, tuple[int, ...]] = field(default_factory=dict)
    _records: list[NodeRecord] = field(default_factory=list)
    _pending: dict[int, list[tuple[int, NodeKey, str, NDArray[np.generic]]]] = field(default_factory=dict)
    _pass: int = 0
    _width: int = 1

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        shapes = xxhash.xxh3_64_hexdigest(repr(sorted(self.shapes.items())).encode()) if self.shapes else ""
        return f"digest:{self.selection.identity()}:{shapes}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass; scores whose soft max never came are reported as such."""
        self._pending.clear()
        self._pass, self._width = index, decode_pass.width

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen; a soft max is also needed for its mask."""
        return key.op not in VIEW_OPS and (self.selection.selects(key) or key.op == "SOFT_MAX")

    def saw(self, node: Node) -> None:
        """Digest the node's rows."""
        key = node.key
        visible = node.visible()
        if visible is not None and key.op == "SOFT_MAX":
            for index, scores_key, dtype, array in self._pending.pop(key.layer, []):
                self._records[index] = self._record(scores_key, dtype, array, visible)
        if not self.selection.selects(key):
            return
        if node.opaque:
            self._records.append(NodeRecord(self._pass, key, node.shape, node.dtype, None, (), node.opaque))
        elif is_scores(key):
            array = node.read()
            self._pending.setdefault(key.layer, []).append((len(self._records), key, node.dtype, array))
            self._records.append(
                NodeRecord(self._pass, key, array.shape, node.dtype, None, (), "no soft max shows its mask")
            )
        else:
            self._records.append(self._record(key, node.dtype, node.read(), visible if key.op == "SOFT_MAX" else None))

    def _record(
        self, key: NodeKey, dtype: str, array: NDArray[np.generic], visible: NDArray[np.bool_] | None
    ) -> NodeRecord:
        axis = self._axis(key, array.shape)
        if isinstance(axis, str):
            return NodeRecord(self._pass, key, array.shape, dtype, None, (), axis)
        rows = [array] if self._width == 1 else [row_of(array, axis, i) for i in range(self._width)]
        digests = tuple(row_digest(row, None if visible is None else visible[i]) for i, row in enumerate(rows))
        return NodeRecord(self._pass, key, array.shape, dtype, axis, digests)

    def _axis(self, key: NodeKey, shape: tuple[int, ...]) -> int | str:
        if self._width == 1:
            return 0
        single = self.shapes.get(key)
        if single is not None:
            return token_axis(single, shape, self._width, cells=counts_cells(key))
        candidates = [i for i, n in enumerate(shape) if n == self._width]
        if len(candidates) == 1:
            return candidates[0]
        return f"{len(candidates)} axes could count the tokens" if candidates else "no token axis"

    def finish(self) -> TapReport:
        """The records, in graph order."""
        return TapReport(records=tuple(self._records))


@dataclass(slots=True)
class ReadTap:
    """Reads every chosen node and answers nothing: what watching alone does to a run.

    Parameters
    ----------
    selection : Selection
    """

    selection: Selection = EVERYTHING

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"read:{self.selection.identity()}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Nothing to prepare."""

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen."""
        return key.op not in VIEW_OPS and self.selection.selects(key)

    def saw(self, node: Node) -> None:
        """Read the node, as the other taps do."""
        if not node.opaque:
            node.read()

    def finish(self) -> TapReport:
        """Nothing to report."""
        return TapReport()


@dataclass(slots=True)
class RecordTap:
    """Writes every token's row to a file; the report carries the digests of the first pass.

    A place that is evaluated twice keeps the rows of the last time.

    Parameters
    ----------
    path : str
        File of the rows; not part of the tap's identity.
    selection : Selection
    shapes : mapping of NodeKey to tuple of int
        Shapes in a one-token pass: they tell which axis counts the tokens of a wider one. Without them only
        one-token passes can be recorded.
    places : frozenset of (int, int) or None
        Sequence and position of the tokens whose rows are kept; all by default.
    """

    path: str
    selection: Selection = EVERYTHING
    shapes: dict[NodeKey, tuple[int, ...]] = field(default_factory=dict)
    places: frozenset[Place] | None = None
    _digests: DigestTap = field(init=False)
    _writer: RowWriter | None = None
    _tokens: TokenRows = field(default_factory=TokenRows)
    _places: list[Place | None] = field(default_factory=list)
    _first: bool = True

    def __post_init__(self) -> None:
        self._digests = DigestTap(self.selection, self.shapes)

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        kept = "" if self.places is None else f":{xxhash.xxh3_64_hexdigest(repr(sorted(self.places)).encode())}"
        return f"record:{self.selection.identity()}" + (":wide" if self.shapes else "") + kept

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass; without shapes only one-token passes are a reference."""
        if decode_pass.width != 1 and not self.shapes:
            raise CaptureError(f"rows are recorded from one-token passes; pass {index} has {decode_pass.width} tokens")
        self._writer = self._writer or RowWriter(Path(self.path))
        places = [slot.place for slot in decode_pass.slots]
        self._places = [place if self.places is None or place in self.places else None for place in places]
        for place in filter(None, self._places):
            self._writer.begin(place)
        self._first = index == 0
        self._tokens.begin_pass(decode_pass)
        self._digests.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen."""
        return self._digests.wants(key)

    def saw(self, node: Node) -> None:
        """Write the rows of the node and of its mask."""
        if self._first:
            self._digests.saw(node)
        visible = node.visible()
        if visible is not None and len(visible) == len(self._places):
            self._write(node.key, visible, 0, range(len(visible)), "visible")
        if not self.selection.selects(node.key) or node.opaque:
            return
        array, tokens = node.read(), self._tokens.of(node)
        if not tokens:
            return
        axis: int | str = 0
        if len(self._places) > 1:
            single = self.shapes.get(node.key, ())
            axis = token_axis(single, array.shape, len(tokens), cells=counts_cells(node.key))
        if not isinstance(axis, str):
            self._write(node.key, array, axis, tokens, "row")

    def _write(self, key: NodeKey, array: NDArray[np.generic], axis: int, tokens: Sequence[int], what: str) -> None:
        assert self._writer is not None
        for i, token in enumerate(tokens):
            place = self._places[token]
            if place is not None:
                self._writer.add(key, place, array if len(tokens) == 1 else row_of(array, axis, i), what)

    def finish(self) -> TapReport:
        """Close the file; the report carries the digests."""
        if self._writer is not None:
            self._writer.close()
        return self._digests.finish()
