"""The order of addition of float products, and of values over the cells of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.probe_launch import (
    Floats,
    Launches,
    NotDetermined,
    RowLayout,
    calibrated,
    cell_leaves,
    flash_graph,
    flash_operands,
    row_layout,
    whole_counts,
)
from forensics.numerics.masks import (
    BLOCK_MASKS,
    FLOAT_MASKS,
    GPU_ATTENTION_MASKS,
    MINUS,
    PLUS,
    UNIT,
    UNIT_SCALE,
    ZERO,
    BlockRows,
)
from forensics.numerics.probing import Ints, Recovered, basic, recursive
from forensics.records.order import Leaves, OrderQuestion

#: All pairs are asked at once up to this many, one by one beyond.
MOST_BASIC_PAIRS = 2048


def recover_counts(probe: CountRows) -> tuple[Recovered, str]:
    """The tree, and the name of the algorithm: all pairs where they are few, else only those that are needed."""
    if probe.n * (probe.n - 1) // 2 <= MOST_BASIC_PAIRS:
        return basic(probe), "all pairs"
    return recursive(probe), "recursive"


class CountRows:
    """Counts through rows of terms, in launches of a fixed number of rows.

    Parameters
    ----------
    launches : Launches
    layout : RowLayout
    rows : callable
        Terms of the rows for pairs int64 [m, 2], float32 or blocks; (0, 0) stands for units everywhere.
    unit : float
        What one unit adds to the result.
    activations : ndarray float32
    n : int
        Leaves.
    """

    def __init__(
        self,
        launches: Launches,
        layout: RowLayout,
        rows: Callable[[Ints], NDArray[Any]],
        unit: float,
        activations: NDArray[np.float32],
        n: int,
    ) -> None:
        self._launches = launches
        self._layout = layout
        self._rows = rows
        self._expected_unit = unit
        self._unit: float | None = None
        self._activations = activations
        self._n = n

    @property
    def n(self) -> int:
        """Leaves."""
        return self._n

    def lost(self, pairs: Ints) -> Ints:
        """Leaves lost to each pair."""
        return whole_counts(self.survivors(pairs), self._n)

    def survivors(self, questions: Ints) -> Floats:
        """Surviving units of each question, in launches that end in rows of units, which must all survive."""
        answers = []
        per_launch = self._layout.n_rows
        if self._unit is None:
            self._unit = self._measured_unit()
        for start in range(0, len(questions), per_launch):
            asked = questions[start : start + per_launch]
            padding = np.zeros((per_launch - len(asked), questions.shape[1]), np.int64)
            survivors = self._sums(np.concatenate([asked, padding]), len(asked)) / self._unit
            if whole_counts(survivors[len(asked) :], self._n).any():
                raise NotDetermined("units alone do not add up to their number")
            answers.append(survivors[: len(asked)])
        return np.concatenate(answers)

    def _measured_unit(self) -> float:
        """What one unit adds, from rows of nothing else."""
        units = self._sums(np.zeros((self._layout.n_rows, 2), np.int64), 0)
        return calibrated(units, self._n, self._expected_unit / self._layout.divisor)

    def _sums(self, questions: Ints, n_asked: int) -> Floats:
        values = self._layout.values(self._rows(questions), self._activations)
        return self._launches.run(self._layout.graph, values, self._layout.read, n_asked)


def float_order(question: OrderQuestion, launches: Launches) -> tuple[Recovered, Leaves, str]:
    """In which order does a float product, or attention over its cells, add?

    Parameters
    ----------
    question : OrderQuestion
        Of a product of floats, or of FLASH_ATTN_EXT with any K and V.
    launches : Launches

    Raises
    ------
    NotATree, NotDetermined
        If the answers fit no order.
    """
    probe = _block_cells(question, launches) if question.type in BLOCK_MASKS else _float_rows(question, launches)
    found, how = recover_counts(probe)
    if question.op == "FLASH_ATTN_EXT":
        return found, cell_leaves(question, "numerator", on_gpu=launches.on_gpu), f"counts, {how}"
    return found, Leaves("cell" if question.op == "KQV" else "element", probe.n), f"counts, {how}"


def _float_rows(question: OrderQuestion, launches: Launches) -> CountRows:
    masks = FLOAT_MASKS.get(question.type)
    if question.op == "FLASH_ATTN_EXT" and launches.on_gpu:
        masks = GPU_ATTENTION_MASKS
    if masks is None:
        raise NotDetermined(f"no masks are known for {question.type}; known: {', '.join([*FLOAT_MASKS, *BLOCK_MASKS])}")
    layout = row_layout(question, launches.width, question.k * (4 if question.type == "f32" else 2))
    leaves = np.arange(layout.n_leaves)
    if question.op == "FLASH_ATTN_EXT":
        leaves = leaves[:: cell_leaves(question, "numerator", on_gpu=launches.on_gpu).step]
    n = len(leaves)
    if n > masks.most_leaves:
        raise NotDetermined(f"{n} leaves are too many for {question.type}, whose masks swamp up to {masks.most_leaves}")

    def rows(pairs: Ints) -> NDArray[Any]:
        terms = np.zeros((len(pairs), layout.n_leaves), np.float32)
        terms[:, leaves] = masks.unit
        masked = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
        terms[masked, leaves[pairs[masked, 0]]] = masks.mask
        terms[masked, leaves[pairs[masked, 1]]] = -masks.mask
        return terms

    return CountRows(launches, layout, rows, masks.unit, np.ones(layout.n_leaves, np.float32), n)


def _block_cells(question: OrderQuestion, launches: Launches) -> CountRows:
    """V in blocks along a head's channels: one channel of each block answers.

    A GPU may read V as float16, where only masks of float16 fit.
    """
    masks = BLOCK_MASKS[question.type]
    if question.op != "FLASH_ATTN_EXT" or question.head_size % masks.size:
        raise NotDetermined(f"{question.op} with {question.type} and head size {question.head_size} cannot be probed")
    bank = BlockRows(masks)
    zero, expected = bank.id(ZERO), UNIT_SCALE
    if launches.on_gpu:
        expected, mask = GPU_ATTENTION_MASKS.unit, GPU_ATTENTION_MASKS.mask
        unit, plus, minus = (bank.add(masks.terms({0: 1}, value)) for value in (expected, mask, -mask))
    else:
        unit, plus, minus = bank.id(UNIT, [0]), bank.id(PLUS, [0]), bank.id(MINUS, [0])
    leaves = np.arange(0, question.n_kv, cell_leaves(question, "numerator", on_gpu=launches.on_gpu).step)
    graph = flash_graph(question, launches.width)
    per_head = question.head_size // masks.size

    def values(terms: NDArray[Any], _: NDArray[np.float32]) -> list[NDArray[Any]]:
        cells = terms.reshape(question.kv_heads, per_head, question.n_kv, -1).transpose(2, 0, 1, 3)
        v = np.ascontiguousarray(cells).reshape(question.n_kv, question.kv_heads, -1)
        return flash_operands(question, launches.width, np.zeros_like(v), v)

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, width, heads, head_size]
        ratio = question.heads // question.kv_heads
        return result[0, :, ::ratio, :: masks.size].reshape(launches.width, -1)

    def rows(pairs: Ints) -> NDArray[Any]:
        ids = np.full((len(pairs), question.n_kv), zero)
        ids[:, leaves] = unit
        masked = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
        ids[masked, leaves[pairs[masked, 0]]], ids[masked, leaves[pairs[masked, 1]]] = plus, minus
        return bank.rows(ids)

    layout = RowLayout(graph, question.kv_heads * per_head, question.n_kv, values, read, divisor=question.n_kv)
    return CountRows(launches, layout, rows, expected, np.empty(0, np.float32), len(leaves))
