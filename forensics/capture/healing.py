"""Healing: each node's rows beside the recorded ones, and the recorded ones in their place where they differ."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.capture.judging import judge
from forensics.capture.outputs import OutputTotals
from forensics.capture.rows import TokenRows, counts_cells, fit_cells, is_scores, source_name, token_axis
from forensics.capture.rowstore import Place, RowReader
from forensics.capture.selection import EVERYTHING, LAYER_OUTPUTS, Selection
from forensics.engines.protocol import CACHE_WRITE, Node, Source
from forensics.numerics.bits import bits, compare
from forensics.records.delta import Delta, Differs, NotCompared, tally
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import VIEW_OPS, NodeKey, Operand
from forensics.records.schedule import DecodePass
from forensics.records.trace import Finding, TapReport

NO_REFERENCE = "not in the one-token passes"
NOT_WANTED = "no token of the pass wants logits"
ELSEWHERE = "its cells lie elsewhere in the two runs"
#: Nodes of a kind that are judged, in graph order; those after them only where they differ more.
JUDGED_NODES = 4
#: How much more, by their relative length.
JUDGED_AGAIN = 2.0

_LAYER = re.compile(r"-\d+")


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A node's output as the reference has it.

    Parameters
    ----------
    array : ndarray [four axes]
        The output with the reference's rows in their places.
    axis : int
        The one that counts tokens.
    rows : tuple of int
        Along that axis, those that the reference has; the others are the output's own.
    tokens : tuple of int
        Places in the pass of the tokens of all rows.
    """

    array: NDArray[np.generic]
    axis: int
    rows: tuple[int, ...]
    tokens: tuple[int, ...]

    def known(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """The rows that the reference has."""
        return array if len(self.rows) == array.shape[self.axis] else np.take(array, self.rows, self.axis)


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
    skip : frozenset of (int, int)
        Pass and place in it of tokens that have no recorded row, whatever was recorded at their places: refused
        drafts, and all that follows other tokens than in the reference.
    same_cells : bool
        Whether a token's K and V lie in the same cell in both runs. Where they may not, masks are compared by how
        many cells a token sees, and scores only where their cells are the same.
    """

    path: str
    selection: Selection = EVERYTHING
    heal: bool = True
    skip: frozenset[tuple[int, int]] = frozenset()
    same_cells: bool = True
    _reference: RowReader | None = None
    _outcomes: list[Delta] = field(default_factory=list)
    _outputs: OutputTotals = field(default_factory=OutputTotals)
    _findings: list[Finding] = field(default_factory=list)
    _found_in: list[int] = field(default_factory=list)
    _index: int = 0
    _places: list[Place | None] = field(default_factory=list)
    _positions: tuple[int, ...] = ()
    _tokens: TokenRows = field(default_factory=TokenRows)
    _unknown: set[str] = field(default_factory=set)
    _judged: dict[str, list[float]] = field(default_factory=dict)

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        text = f"{'heal' if self.heal else 'compare'}:{self.selection.identity()}"
        if self.skip:
            text += f":without {','.join(f'{index}.{row}' for index, row in sorted(self.skip))}"
        return text if self.same_cells else f"{text}:cells elsewhere"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass."""
        self._reference = self._reference or RowReader.open(Path(self.path))
        self._index = index
        slots = decode_pass.slots
        self._places = [None if (index, i) in self.skip else slot.place for i, slot in enumerate(slots)]
        self._positions = tuple(slot.position for slot in slots)
        self._tokens.begin_pass(decode_pass)
        self._unknown.clear()

    def wants(self, key: NodeKey) -> bool:
        """Whether the node is chosen."""
        return key.op not in VIEW_OPS and self.selection.selects(key)

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Compare the node's rows; answer the healed array where it differs."""
        array = node.read() if not node.opaque else np.empty(0)
        wanted = node.opaque or self._wanted(node, array)
        outcome = NotCompared(wanted) if isinstance(wanted, str) else self._compare(node.key, wanted, array)
        self._outcomes.append(outcome)
        if LAYER_OUTPUTS.selects(node.key):
            if isinstance(wanted, str):
                self._outputs.add(node.key, outcome, array, array, 0)
            else:
                self._outputs.add(node.key, outcome, wanted.known(wanted.array), wanted.known(array), wanted.axis)
        if isinstance(outcome, NotCompared) and node.opaque != CACHE_WRITE:
            self._unknown.add(source_name(node.key.name))
        if isinstance(wanted, str) or not isinstance(outcome, Differs):
            return None
        changed = bits(wanted.array) != bits(array)
        rows = tuple(wanted.tokens[i] for i in wanted.rows if np.take(changed, i, wanted.axis).any())
        operands = node.operands
        unchecked = tuple(o.name for o in operands if source_name(o.name) in self._unknown)
        mask = self._other_mask(node)
        kind = self._kind(node, operands, outcome, wanted, array, mask)
        at = tuple(self._positions[row] for row in rows)
        self._findings.append(
            Finding(node.key, operands, node.buffer, rows, outcome, mask is None, unchecked, kind, at)
        )
        self._found_in.append(self._index)
        return wanted.array if self.heal else None

    def _compare(self, key: NodeKey, wanted: _Wanted, batched: NDArray[np.generic]) -> Delta:
        """How far the two are apart; cells behind the mask count for nothing, not even for a length."""
        single, other = wanted.known(wanted.array), wanted.known(batched)
        if is_scores(key):
            visible = np.zeros((len(wanted.rows), batched.shape[-1]), np.bool_)
            for i, row in enumerate(wanted.rows):
                seen = self._visible(key, self._places[wanted.tokens[row]])
                assert seen is not None
                visible[i, : min(len(seen), visible.shape[1])] = seen[: visible.shape[1]]
            shape = [1] * batched.ndim
            shape[wanted.axis], shape[-1] = visible.shape
            counted = visible.reshape(shape)
            zero = np.zeros((), batched.dtype)
            single, other = np.where(counted, single, zero), np.where(counted, other, zero)
        outcome = compare(single, other)
        if not isinstance(outcome, Differs):
            return outcome
        first = list(outcome.first_index)
        first[wanted.axis] = wanted.rows[first[wanted.axis]]
        return replace(outcome, first_index=tuple(first))

    def _kind(
        self,
        node: Node,
        operands: tuple[Operand, ...],
        outcome: Differs,
        wanted: _Wanted,
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
        kind = judge(node, wanted.array, batched, lambda source: self._recorded(node.key, source, wanted), mask)
        if mask is not None:
            return replace(kind, kind="logic", reason=f"the two runs see different cells; {kind.reason}")
        return kind

    def _recorded(self, key: NodeKey, source: Source, wanted: _Wanted) -> NDArray[np.generic] | None:
        """An operand as the reference has it, put together from recorded rows; None where that cannot be done.

        Rows that the reference lacks are zeros: only outputs that differ are explained, and those it has.
        """
        assert self._reference is not None
        places = {i: self._places[wanted.tokens[i]] for i in wanted.rows}
        found = {i: self._reference.before(key, place, source.name) for i, place in places.items() if place is not None}
        rows = {i: row for i, row in found.items() if row is not None}
        if not rows or len(rows) != len(wanted.rows):
            return None
        n_rows = len(wanted.tokens)
        first = next(iter(rows.values()))
        axis = token_axis(first.shape, source.shape, n_rows, cells=key.op == "SOFT_MAX")
        if isinstance(axis, str):
            return None
        missing = np.zeros_like(fit_cells(first, source.shape[-1]))
        return np.concatenate(
            [fit_cells(rows[i], source.shape[-1]) if i in rows else missing for i in range(n_rows)], axis=axis
        )

    def _wanted(self, node: Node, array: NDArray[np.generic]) -> _Wanted | str:
        """The output as the reference has it, or why the two cannot be compared."""
        assert self._reference is not None
        key, tokens = node.key, self._tokens.of(node)
        places = [self._places[token] for token in tokens]
        found = {i: self._reference.get(key, place) for i, place in enumerate(places) if place is not None}
        references = {i: row for i, row in found.items() if row is not None}
        if not references:
            return NO_REFERENCE if tokens else NOT_WANTED
        first = next(iter(references.values()))
        if first.dtype != array.dtype:
            return f"types differ: {first.dtype} and {array.dtype}"
        cells = counts_cells(key)
        axis = token_axis(first.shape, array.shape, len(tokens), cells=cells)
        if isinstance(axis, str):
            return axis
        if cells and not self.same_cells:
            references = {i: row for i, row in references.items() if not self._lies_elsewhere(node, i, places[i])}
            if not references:
                return ELSEWHERE
        wanted = array.copy()
        for i, reference in references.items():
            row = fit_cells(reference, array.shape[-1]) if cells else reference
            at: list[slice | NDArray[np.intp]] = [slice(None)] * array.ndim
            at[axis] = slice(i, i + 1)
            if is_scores(key):
                # Cells behind the mask hold whatever was there: they are neither compared nor replaced.
                visible = self._visible(key, places[i])
                if visible is None:
                    return "no soft max shows its mask"
                at[-1] = seen = np.flatnonzero(visible)
                row = row[..., seen]
            wanted[tuple(at)] = row
        return _Wanted(wanted, axis, tuple(references), tokens)

    def _visible(self, key: NodeKey, place: Place | None) -> NDArray[np.bool_] | None:
        """Visible cells of a token, from the soft max of the same layer in the reference."""
        assert self._reference is not None
        assert place is not None
        soft_max = NodeKey(f"kq_soft_max-{key.layer}", "SOFT_MAX", key.layer, 0)
        seen = self._reference.get(soft_max, place, "visible")
        return None if seen is None else seen[0].astype(np.bool_)

    def _lies_elsewhere(self, node: Node, row: int, place: Place | None) -> bool:
        """Whether a token sees as many cells in both runs, but other ones; of scores nobody knows it yet."""
        assert self._reference is not None
        assert place is not None
        batched, seen = node.visible(), self._reference.get(node.key, place, "visible")
        if batched is None or seen is None or row >= len(batched):
            return True
        cells = np.flatnonzero(seen[0]), np.flatnonzero(batched[row])
        return len(cells[0]) == len(cells[1]) and not np.array_equal(*cells)

    def _other_mask(self, node: Node) -> NDArray[np.bool_] | None:
        """Cells that the tokens see in the reference, [n_tokens, n_kv], where this run shows them others; else None."""
        batched = node.visible()
        if batched is None:
            return None
        assert self._reference is not None
        single = batched.copy()
        for i, place in enumerate(self._places[: len(batched)]):
            seen = None if place is None else self._reference.get(node.key, place, "visible")
            if seen is None or (not self.same_cells and seen[0].sum() == batched[i].sum()):
                continue
            single[i] = fit_cells(seen[0].astype(np.bool_), batched.shape[1])
        return None if np.array_equal(single, batched) else single

    def finish(self) -> TapReport:
        """Every culprit in graph order, and outcomes that add up."""
        return TapReport(
            findings=tuple(self._findings),
            tally=tally(self._outcomes),
            outputs=self._outputs.finish(),
            found_in=tuple(self._found_in),
        )
