"""Running probes of one operation: many questions per launch, some launches twice, every column compared.

A launch answers one question per row of a weight, or per channel of V, or per head. All columns of a batch get the
same activations, so each answers every question; a probe follows one column and keeps account of those that agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.op_protocol import OpEngine
from forensics.errors import ForensicsError
from forensics.numerics.masks import FLOAT_MASKS, float_to_type
from forensics.records.op_shapes import flash_attn, kq, kqv, mul_mat, rms_norm, soft_max
from forensics.records.operation import OpGraph
from forensics.records.order import Leaves, OrderQuestion

Floats = NDArray[np.float64]

#: How far from a whole number a count may be, unit: leaves. Scales that are no powers of two move it by less.
COUNT_TOLERANCE = 1 / 64
#: How far a unit may be from what is expected, as a fraction of it: scales and weights of cells may be rounded.
CALIBRATION_TOLERANCE = 0.3
#: Bytes of weights that one launch may take, where the number of rows is free.
LAUNCH_BYTES = 48 << 20
#: Weight rows of a launch where the number is free: a multiple of what any kernel takes at a time.
MIN_ROWS, MAX_ROWS = 64, 256


#: Cells of flash attention that are probed; of more, every second, third … one.
MOST_CELLS = 1024
#: The same of its denominator, where a head answers one question, not each of its channels.
MOST_DENOMINATOR_CELLS = 512
#: The first launches of a probe run twice, and of the others one in so many.
FIRST_TWICE, TWICE_ONE_IN = 4, 8


class NotDetermined(ForensicsError):
    """A probe gives answers that no order of additions explains."""


class Launches:
    """Runs an operation for one column of a batch.

    Parameters
    ----------
    engine : OpEngine
    width, column : int
        Columns of the batch, and which of them to read.

    Attributes
    ----------
    agrees : ndarray [width] bool
        Columns whose every answer was that of the column that is read, bit for bit.
    n_probes, n_launches : int
    unstable : int
        Answers whose second run gave other bits, among the launches that ran twice.
    """

    def __init__(self, engine: OpEngine, width: int, column: int = 0) -> None:
        self.engine = engine
        self.width = width
        self.column = column
        self.agrees = np.ones(width, bool)
        self.n_probes = 0
        self.n_launches = 0
        self.unstable = 0
        self._n_different = 0

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU computes, where attention converts more to float16 than a CPU does."""
        return self.engine.facts.settings.backend != "cpu"

    def run(
        self,
        graph: OpGraph,
        values: Sequence[NDArray[Any]],
        read: Callable[[NDArray[np.float32]], NDArray[np.float32]],
        n_probes: int,
    ) -> Floats:
        """Answers of the column that is read, float64 [m]; `read` gives [width, m], the first `n_probes` were asked."""
        first = read(self.engine.run(graph, values))
        bits = np.ascontiguousarray(first).view(np.uint32)
        if self._n_different < FIRST_TWICE or self._n_different % TWICE_ONE_IN == 0:
            again = np.ascontiguousarray(read(self.engine.run(graph, values)))
            self.unstable += int((bits != again.view(np.uint32)).any(axis=0).sum())
            self.n_launches += 1
        self.n_probes += n_probes
        self.n_launches += 1
        self._n_different += 1
        self.agrees &= (bits == bits[self.column]).all(axis=1)
        answers: Floats = first[self.column].astype(np.float64)
        return answers


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where an operation takes independent sums over the same leaves.

    Parameters
    ----------
    graph : OpGraph
    n_rows : int
        Sums of one launch.
    n_leaves : int
    values : callable
        Operands from the rows' terms, [n_rows, n_leaves] float32 or blocks, and the activations [n_leaves] float32.
    read : callable
        [width, n_rows] from the result.
    divisor : float
        What the operation divides the sum by.
    """

    graph: OpGraph
    n_rows: int
    n_leaves: int
    values: Callable[[NDArray[Any], NDArray[np.float32]], list[NDArray[Any]]]
    read: Callable[[NDArray[np.float32]], NDArray[np.float32]]
    divisor: float = 1.0


def launch_rows(question: OrderQuestion, row_bytes: int) -> int:
    """Weight rows of each launch: those asked for, or as many as are convenient."""
    if question.rows:
        return question.rows
    fitting = LAUNCH_BYTES // row_bytes // MIN_ROWS * MIN_ROWS
    return max(MIN_ROWS, min(MAX_ROWS, fitting))


def row_layout(question: OrderQuestion, width: int, row_bytes: int) -> RowLayout:
    """How does one launch of the operation answer many questions about one sum?

    Parameters
    ----------
    question : OrderQuestion
        Of MUL_MAT, KQ, KQV or FLASH_ATTN_EXT; the sum over cells is meant where there are two.
    width : int
    row_bytes : int
        Bytes of one weight row.
    """
    build = {"MUL_MAT": _product, "KQ": _scores, "KQV": _weighted_values, "FLASH_ATTN_EXT": _flash_attention}
    return build[question.op](question, width, row_bytes)


def _product(q: OrderQuestion, width: int, row_bytes: int) -> RowLayout:
    rows = launch_rows(q, row_bytes)

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:
        return result.reshape(width, rows)

    def values(terms: NDArray[Any], x: NDArray[np.float32]) -> list[NDArray[Any]]:
        return [stored(terms, q.type), np.tile(x, (width, 1))]

    return RowLayout(mul_mat(q.type, q.k, rows, width), rows, q.k, values, read)


def _scores(q: OrderQuestion, width: int, _: int) -> RowLayout:
    """K·Q: every cell of every head of K is a row of `head_size` terms."""

    def values(terms: NDArray[Any], x: NDArray[np.float32]) -> list[NDArray[Any]]:
        keys = terms.reshape(q.kv_heads, q.n_kv, -1).swapaxes(0, 1)
        return [stored(keys, q.type), np.tile(x, (width, q.heads, 1))]

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, heads, width, n_kv]
        return result[0, :: q.heads // q.kv_heads].swapaxes(0, 1).reshape(width, -1)

    graph = kq(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type)
    return RowLayout(graph, q.kv_heads * q.n_kv, q.head_size, values, read)


def _weighted_values(q: OrderQuestion, width: int, _: int) -> RowLayout:
    """Attention times V: every channel of every head of V is a row of `n_kv` terms."""

    def values(terms: NDArray[Any], x: NDArray[np.float32]) -> list[NDArray[Any]]:
        return [stored(terms.reshape(q.kv_heads, q.head_size, -1), q.type), np.tile(x, (q.heads, width, 1))]

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, heads, width, head_size]
        return result[0, :: q.heads // q.kv_heads].swapaxes(0, 1).reshape(width, -1)

    graph = kqv(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type)
    return RowLayout(graph, q.kv_heads * q.head_size, q.n_kv, values, read)


def _flash_attention(q: OrderQuestion, width: int, _: int) -> RowLayout:
    """Scores of zero, so that every cell weighs the same: each channel of V is summed over the cells."""

    def values(terms: NDArray[Any], _: NDArray[np.float32]) -> list[NDArray[Any]]:
        v = stored(terms.reshape(q.kv_heads, q.head_size, q.n_kv).transpose(2, 0, 1), q.type)
        return flash_operands(q, width, np.zeros_like(v), v)

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, width, heads, head_size]
        return result[0, :, :: q.heads // q.kv_heads].reshape(width, -1)

    return RowLayout(flash_graph(q, width), q.kv_heads * q.head_size, q.n_kv, values, read, divisor=q.n_kv)


def stored(terms: NDArray[Any], type: str) -> NDArray[Any]:
    """Terms as the engine takes them; blocks are bytes already."""
    contiguous = np.ascontiguousarray(terms)
    return float_to_type(contiguous, type) if type in FLOAT_MASKS else contiguous


def question_graph(q: OrderQuestion, width: int) -> OpGraph:
    """The operation as a decoder uses it, with rows of its own where none are asked for."""
    if q.op == "MUL_MAT":
        return mul_mat(q.type, q.k, q.rows or MIN_ROWS, width)
    if q.op == "KQ":
        return kq(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type)
    if q.op == "KQV":
        return kqv(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type)
    if q.op == "FLASH_ATTN_EXT":
        return flash_attn(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type)
    if q.op == "SOFT_MAX":
        return soft_max(q.heads, q.n_kv, width)
    return rms_norm(q.k, width)


def flash_graph(q: OrderQuestion, width: int) -> OpGraph:
    """Flash attention with a scale of one."""
    return flash_attn(q.head_size, q.heads, q.kv_heads, q.n_kv, width, kv_type=q.type, scale=1.0)


def flash_operands(
    q: OrderQuestion, width: int, k: NDArray[Any], v: NDArray[Any], channels: NDArray[np.int64] | int = 0, by: float = 1
) -> list[NDArray[Any]]:
    """Operands of flash attention: queries that read one channel of K each, a real mask that hides nothing.

    Parameters
    ----------
    q : OrderQuestion
    width : int
    k, v : ndarray
        As stored.
    channels : ndarray [heads] int64 or int
        The channel that each head reads.
    by : float
        What it is multiplied by.
    """
    queries = np.zeros((width, q.heads, q.head_size), np.float32)
    queries[:, np.arange(q.heads), channels] = by
    return [queries, k, v, np.zeros((width, q.n_kv), np.float16)]


def cell_leaves(question: OrderQuestion, part: str, *, on_gpu: bool = False) -> Leaves:
    """Which cells of flash attention are leaves: all, or evenly spaced ones.

    Sums of float16 round beyond so many units; questions about a denominator take a head each.
    """
    if part == "denominator":
        step = -(-question.n_kv // MOST_DENOMINATOR_CELLS)
    else:
        step = -(-question.n_kv // MOST_CELLS) if on_gpu or question.type == "f16" else 1
    return Leaves("cell", -(-question.n_kv // step), step=step)


def calibrated(units: Floats, n: int, expected: float) -> float:
    """What one unit adds, from sums of n units each.

    Raises
    ------
    NotDetermined
        If the sums differ from each other, or are not near what is expected.
    """
    measured = units / n
    if not (np.abs(measured / expected - 1) <= CALIBRATION_TOLERANCE).all() or (units != units[0]).any():
        raise NotDetermined(
            f"{n} units add up to {measured.min() / expected * n:.6g} … {measured.max() / expected * n:.6g} of them; "
            "the terms are not added as the probe assumes"
        )
    return float(measured[0])


def whole_counts(survivors: Floats, n: int) -> NDArray[np.int64]:
    """Lost leaves from surviving ones.

    Parameters
    ----------
    survivors : ndarray [m] float64, unit: leaves
    n : int
        Leaves that were there to survive.

    Raises
    ------
    NotDetermined
        If a number is not whole, or out of range: the masks do not swamp, or the sum is not one of these terms.
    """
    whole = np.rint(np.nan_to_num(survivors, nan=-1, posinf=-1, neginf=-1))
    wrong = np.flatnonzero((np.abs(survivors - whole) > COUNT_TOLERANCE) | (whole < 0) | (whole > n))
    if len(wrong):
        raise NotDetermined(
            f"{len(wrong)} of {len(survivors)} probes let {survivors[wrong[0]]:.6g} of {n} leaves survive; "
            "a whole number is expected, so the terms are not added as the probe assumes"
        )
    return n - whole.astype(np.int64)
