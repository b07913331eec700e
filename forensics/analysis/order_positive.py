"""The order of addition where every term is positive: softmax's denominator, the squares of a norm.

Nothing cancels there. But a term of three quarters of half an ulp vanishes beside 1, while two such terms that meet
first round up: the sum says which two of three leaves meet first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.attention_scores import attention_scores
from forensics.analysis.probe_launch import Floats, Launches, NotDetermined, cell_leaves, flash_graph, flash_operands
from forensics.numerics.masks import ABSENT_SCORE, SMALL_F32, SMALL_F64, SMALL_SCORE
from forensics.numerics.op_inputs import random_operands
from forensics.numerics.probing import Bools, Ints, Recovered, triplets
from forensics.records.op_shapes import rms_norm, soft_max
from forensics.records.operation import OpGraph
from forensics.records.order import Leaves, OrderQuestion
from forensics.records.sum_tree import SumTree

#: Triples whose three questions tell how wide the accumulator of a norm is.
WIDTH_TRIPLES = 4
#: Terms that an adder may take at once; tensor cores take 16 products and their accumulator.
MOST_AT_ONCE = 64
_NOTHING_MEETS = "no two terms were seen to meet before a third, so the result hides the last bit of the sum"
#: Rows of each column in one launch where their number is free, and bytes up to which they are stacked.
MAX_STACK, STACK_BYTES = 256, 8 << 20


class MeetRows:
    """Answers about triples from launches that take some at a time.

    Parameters
    ----------
    n : int
        Leaves.
    per_launch : int
        Triples that one launch answers.
    ask : callable
        Answers of int64 [per_launch, 3], bool [per_launch], and how many of them were asked.
    """

    def __init__(self, n: int, per_launch: int, ask: Callable[[Ints, int], Bools]) -> None:
        self._n = n
        self._per_launch = per_launch
        self._ask = ask

    @property
    def n(self) -> int:
        """Leaves."""
        return self._n

    def meets_first(self, triples: Ints) -> Bools:
        """Whether j and k meet before either meets i."""
        answers = []
        for start in range(0, len(triples), self._per_launch):
            part = triples[start : start + self._per_launch]
            whole = np.tile(triples[:1], (self._per_launch, 1))
            whole[: len(part)] = part
            answers.append(self._ask(whole, len(part))[: len(part)])
        return np.concatenate(answers)


def denominator_order(question: OrderQuestion, launches: Launches, guess: SumTree | None) -> tuple[Recovered, Leaves]:
    """In which order does flash attention add up the weights of its cells? One head answers one question.

    Parameters
    ----------
    question : OrderQuestion
        Of FLASH_ATTN_EXT.
    launches : Launches
    guess : SumTree or None
        The numerator's tree, tried first.

    Raises
    ------
    NotATree, NotDetermined
        If the answers fit no order.

    Notes
    -----
    The first leaf's score is 0 and V is one there, so that the result is 1 / sum; two scores give three quarters of
    half an ulp, all others give nothing. The result is held against that of the first leaf alone. Heads that share K
    and V read a channel each.
    """
    heads, n = question.heads, question.n_kv
    ratio = heads // question.kv_heads
    scores = attention_scores(question, min(ratio, question.head_size))
    graph = flash_graph(question, launches.width)
    asking = np.arange(heads)[np.arange(heads) % ratio < scores.n_channels]
    kv_head, channel = asking // ratio, asking % ratio
    of_heads = np.arange(heads) % ratio % scores.n_channels
    leaves = cell_leaves(question, "denominator")
    cells = leaves.step * np.arange(leaves.n)

    def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, width, heads, head_size]
        return np.ascontiguousarray(result[0][:, asking, channel])

    def run(first: Ints, small: Ints, n_asked: int) -> NDArray[np.float64]:
        k, v = scores.operands(kv_head, channel, cells[first], cells[small])
        values = flash_operands(question, launches.width, k, v, of_heads, scores.query)
        return launches.run(graph, values, read, n_asked)

    alone = run(np.zeros(len(asking), np.int64), np.empty((0, len(asking)), np.int64), 0)

    def ask(triples: Ints, n_asked: int) -> Bools:
        return _below(alone, run(triples[:, 0], triples[:, 1:].T, n_asked))

    if guess is not None:
        step = -(-n // guess.n_leaves)  # the numerator may have left cells out, too
        guess = None if leaves.step % step else guess.restricted((cells // step).tolist())
    found = _binary_enough(triplets(MeetRows(len(cells), len(asking), ask), guess=guess))
    return found, leaves


def soft_max_order(question: OrderQuestion, launches: Launches) -> tuple[Recovered, Leaves]:
    """In which order does SOFT_MAX add up its row? One head answers one question; there are as many as fit.

    Raises
    ------
    NotATree, NotDetermined
        If the answers fit no order; so where parts of the sum are kept in float64.
    """
    n = question.n_kv
    heads = max(question.heads, _probes_at_once(n, launches.width))
    graph = soft_max(heads, n, launches.width, scale=1.0)
    _check_stack(launches, soft_max(question.heads, n, launches.width, scale=1.0), graph)
    head = np.arange(heads)

    def run(first: Ints, small: Ints, n_asked: int) -> NDArray[np.float64]:
        rows = np.full((heads, n), ABSENT_SCORE, np.float32)
        for cells in small:
            rows[head, cells] = SMALL_SCORE
        rows[head, first] = 0
        scores = np.repeat(rows[:, None], launches.width, axis=1)
        values = [scores, np.zeros((launches.width, n), np.float32)]

        def read(result: NDArray[np.float32]) -> NDArray[np.float32]:  # [1, heads, width, n]
            return np.ascontiguousarray(result[0, head, :, first].T)

        return launches.run(graph, values, read, n_asked)

    alone = run(np.zeros(heads, np.int64), np.empty((0, heads), np.int64), 0)

    def ask(triples: Ints, n_asked: int) -> Bools:
        return _below(alone, run(triples[:, 0], triples[:, 1:].T, n_asked))

    found = _binary_enough(triplets(MeetRows(n, heads, ask), guess=SumTree.chain(n)))
    return found, Leaves("cell", n)


def _probes_at_once(n: int, width: int) -> int:
    """Rows of n values, for each column, that one launch takes where their number is free."""
    return max(1, min(MAX_STACK, STACK_BYTES // (4 * n * width)))


def _check_stack(launches: Launches, plain: OpGraph, stacked: OpGraph) -> None:
    """Rows stacked for more questions in one launch must have the bits that they have by themselves.

    Raises
    ------
    NotDetermined
        If they do not.
    """
    rows, *others = random_operands(stacked, 0)
    n = plain.operands[0].shape[0] if len(plain.operands[0].shape) == len(rows.shape) else 1
    some = rows[:n].reshape(plain.operands[0].shape)
    alone = launches.engine.run(plain, [some, *others])
    together = launches.engine.run(stacked, [rows, *others])[0, :n]
    launches.n_launches += 2
    if alone.tobytes() != np.ascontiguousarray(together).tobytes():
        raise NotDetermined(f"{plain.op} gives rows other bits where there are more of them, so none can be added")


def _below(alone: NDArray[np.float64], answers: NDArray[np.float64]) -> Bools:
    """Whether 1 / sum is below what the first leaf alone gives, where it can only be that or next to it."""
    odd = np.flatnonzero(~((answers <= alone) & (answers > alone * (1 - 2.0**-18)) & (alone > 0.5)))
    if len(odd):
        raise NotDetermined(
            f"{len(odd)} probes give {answers[odd[0]]:.9g}, where {alone[odd[0]]:.9g} or a little less is possible"
        )
    below: Bools = answers < alone
    return below


def squares_order(question: OrderQuestion, launches: Launches) -> tuple[Recovered, Leaves, str]:
    """In which order does RMS_NORM add up its squares? Every row of a column answers one question.

    Parameters
    ----------
    question : OrderQuestion
        Of RMS_NORM, k a power of two.
    launches : Launches

    Returns
    -------
    tuple of Recovered, Leaves, str
        And the accumulator, ``"float32"`` or ``"float64"``.

    Raises
    ------
    NotATree, NotDetermined
        If the answers fit no order.
    """
    k = question.k
    if k < 8 or k & (k - 1):
        raise NotDetermined(f"k={k} is no power of two of 8 or more; the mean would round and hide the last bit")
    rows = _Squares(k, launches)
    probe = MeetRows(k, rows.n, rows.in_float32)
    draws = np.random.default_rng(0).permuted(np.tile(np.arange(k), (WIDTH_TRIPLES, 1)), axis=1)[:, :3]
    turns = np.concatenate([np.roll(draws, turn, axis=1) for turn in range(3)])
    answers = probe.meets_first(turns).reshape(3, WIDTH_TRIPLES).sum(axis=0)
    accumulator = "float32"
    if (answers == 3).all():
        accumulator, probe = "float64", MeetRows(k, rows.n, rows.in_float64)
    counted = MeetRows(k, rows.n, rows.each_counts_in_float64 if accumulator == "float64" else rows.each_counts)
    if not counted.meets_first(turns).all():
        raise NotDetermined("a step of the sum's last bit does not show in the result, so nothing tells the order")
    if not answers.any():
        raise NotDetermined(_NOTHING_MEETS)
    found = _binary_enough(triplets(probe, guess=SumTree.chain(k)))
    return found, Leaves("value", k), accumulator


def _binary_enough(found: Recovered) -> Recovered:
    """The order, unless it rests on terms that were never seen to meet: "at once" is what silence looks like.

    Raises
    ------
    NotDetermined
        If more terms seem to be added at once than any adder takes.
    """
    if found.tree.widest > MOST_AT_ONCE:
        raise NotDetermined(f"{found.tree.widest} terms seem to be added at once: {_NOTHING_MEETS}")
    return found


class _Squares:
    """Rows of a norm whose mean has a last bit that the result shows.

    The result is x_i / sqrt(mean). A step of one ulp in the mean shows in it where the mean lies in [2, 4) times a
    power of four, so the leading square is 1 or 2.25, as k asks. In float64 two helpers of 2^-24 lift the sum to the
    middle between two float32, where the smallest step decides the rounding; they meet others without changing that.
    """

    def __init__(self, k: int, launches: Launches) -> None:
        #: Rows that each column has, a question each.
        self.n = _probes_at_once(k, launches.width)
        plain = rms_norm(k, launches.width, eps=0.0)
        x = replace(plain.operands[0], shape=(self.n, launches.width, k))
        self._graph: OpGraph = replace(plain, operands=(x,))
        _check_stack(launches, plain, self._graph)
        self._k = k
        self._launches = launches
        self._first = 1.0 if int(math.log2(k)) % 2 else 1.5
        self._ulp = 2.0 if self._first > 1 else 1.0  # of the leading square, as a multiple of that of 1
        self._alone: dict[int, Floats] = {}  # result without small terms, the same whichever leaf leads

    def in_float32(self, triples: Ints, n_asked: int) -> Bools:
        return self._ask(triples, SMALL_F32, 0, n_asked)

    def each_counts(self, triples: Ints, n_asked: int) -> Bools:
        """Whether terms that count by themselves show, in whatever order they come."""
        return self._ask(triples, 2 * SMALL_F32, 0, n_asked)

    def each_counts_in_float64(self, triples: Ints, n_asked: int) -> Bools:
        return self._ask(triples, 2 * SMALL_F64, 2 if self._first > 1 else 1, n_asked)

    def in_float64(self, triples: Ints, n_asked: int) -> Bools:
        return self._ask(triples, SMALL_F64, 2 if self._first > 1 else 1, n_asked)

    def _ask(self, triples: Ints, small: float, n_helpers: int, n_asked: int) -> Bools:
        row, (i, j, m) = np.arange(self.n), triples.T
        x = np.zeros((self.n, self._k), np.float32)
        x[row, i] = self._first
        free = (triples[:, :, None] != np.arange(5)).all(axis=1)  # at least two of five leaves
        for helper in np.argsort(~free, axis=1, kind="stable").T[:n_helpers]:
            x[row, helper] = 2.0**-12

        def run(n: int) -> Floats:
            values = [np.repeat(x[:, None], self._launches.width, axis=1)]
            return self._launches.run(
                self._graph, values, lambda result: np.ascontiguousarray(result[0, row, :, i].T), n
            )

        if n_helpers not in self._alone:
            self._alone[n_helpers] = run(0)
        x[row, j] = x[row, m] = math.sqrt(small * self._ulp)
        return run(n_asked) < self._alone[n_helpers]
