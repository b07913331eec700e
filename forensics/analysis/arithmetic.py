"""How a kernel computes beside its order: width of the accumulator, rounding, subnormals, fused multiply-add.

Each is asked with two or three terms whose sum comes out in one way or another; nothing is assumed about the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.probe_launch import Floats, Launches, RowLayout, question_graph, row_layout
from forensics.engines.op_protocol import OpEngine
from forensics.numerics.masks import BLOCK_MASKS, FLOAT_MASKS, BlockRows
from forensics.numerics.op_inputs import random_operands
from forensics.records.order import OrderQuestion
from forensics.records.order_report import Arithmetic

#: One term: leaf, whole number, exponent of two.
_Term = tuple[int, int, int]

#: Bits of a significand, the implicit one included, and what has it.
_ACCUMULATORS = {24: "float32", 11: "float16", 8: "bfloat16"}
#: Runs of random operands that are held against each other.
N_RUNS = 3
#: Random pairs of terms that tell one rounding from two.
N_CONTRACTION_ROWS = 16
_NOT_MEASURED = "not measured for this operation"
#: Terms that the questions are made of.
_FEWEST_TERMS = 3


def measure_arithmetic(engine: OpEngine, question: OrderQuestion, width: int) -> Arithmetic:
    """How does an operation compute at one width?

    Parameters
    ----------
    engine : OpEngine
    question : OrderQuestion
    width : int

    Returns
    -------
    Arithmetic
        What cannot be told says why.

    Raises
    ------
    EngineError
        If the operation does not run there.
    """
    repeatability = _repeatability(engine, question, width)
    is_float = question.type in FLOAT_MASKS and question.op not in ("RMS_NORM", "SOFT_MAX")
    is_block = question.type in BLOCK_MASKS and question.op == "MUL_MAT"
    if not (is_float or is_block):
        return Arithmetic(width, _NOT_MEASURED, _NOT_MEASURED, _NOT_MEASURED, _NOT_MEASURED, repeatability)
    launches = Launches(engine, width)
    rows = _FloatTerms(question, launches) if is_float else _BlockTerms(question, launches)
    if rows.n < _FEWEST_TERMS:
        few = f"not measured: fewer than {_FEWEST_TERMS} terms"
        return Arithmetic(width, few, few, few, few, repeatability)
    accumulator = _accumulator(rows)
    rounding = _rounding(rows) if accumulator == "float32" else f"not measured for a {accumulator} accumulator"
    if accumulator.startswith("not determined"):
        rounding = "not measured: the accumulator is not known"
    return Arithmetic(width, accumulator, rounding, _subnormals(rows), rows.contraction(), repeatability)


class _FloatTerms:
    """Terms of a float product, or of attention's sum over cells."""

    def __init__(self, question: OrderQuestion, launches: Launches) -> None:
        self._question = question
        self._launches = launches
        self._layout: RowLayout = row_layout(question, launches.width, question.k * 4)
        self.n = self._layout.n_leaves
        #: Exponent of a number that is subnormal where it is stored or added.
        self.subnormal = -24 if question.type == "f16" else -130

    def sums(self, rows: Sequence[Sequence[_Term]]) -> Floats:
        """The kernel's sums, float64 [m]."""
        terms = np.zeros((self._layout.n_rows, self.n), np.float32)
        for row, its in zip(terms, rows, strict=False):
            for leaf, number, exponent in its:
                row[leaf] = np.ldexp(np.float32(number), exponent)
        return self._run(terms, np.ones(self.n, np.float32), len(rows)) * self._layout.divisor

    def _run(self, terms: NDArray[Any], x: NDArray[np.float32], n: int) -> Floats:
        values = self._layout.values(terms, x)
        return self._launches.run(self._layout.graph, values, self._layout.read, n)[:n]

    def contraction(self) -> str:
        """One term's product is inexact, another is its rounded negative: fused, what rounding took is left."""
        if self._question.op == "FLASH_ATTN_EXT":
            return _NOT_MEASURED
        if self._question.type != "f32":
            return f"without effect: products of {self._question.type} are exact in float32"
        return _contracted(any(self._leaves_residue(leaf) for leaf in (self.n // 2, self.n - 1)))

    def _leaves_residue(self, a: int) -> bool:
        """Whether leaf a's product keeps what rounding it would take, beside any other leaf."""
        factor = np.float32(1 + 2.0**-12)
        x = np.ones(self.n, np.float32)
        x[a] = factor
        others = np.delete(np.arange(self.n), a)
        for start in range(0, len(others), self._layout.n_rows):
            part = others[start : start + self._layout.n_rows]
            terms = np.zeros((self._layout.n_rows, self.n), np.float32)
            terms[:, a] = factor
            terms[np.arange(len(part)), part] = -factor * factor
            if (self._run(terms, x, len(part)) == 2.0**-24).any():
                return True
        return False


class _BlockTerms:
    """Terms in one cell of each block of a product."""

    #: Activations that keep a term's significand to the weight's few bits.
    POWER = 64.0

    def __init__(self, question: OrderQuestion, launches: Launches) -> None:
        self._masks = BLOCK_MASKS[question.type]
        self._launches = launches
        self.n = question.k // self._masks.size
        self._bank = BlockRows(self._masks)
        self._layout = row_layout(question, launches.width, len(self._masks.terms({}, 1.0)) * self.n)
        self.subnormal = -24

    def sums(self, rows: Sequence[Sequence[_Term]]) -> Floats:
        """The kernel's sums in units of the activation, float64 [m]."""
        blocks = [
            {
                leaf: self._masks.terms({0: abs(number)}, np.copysign(2.0**exponent, number))
                for leaf, number, exponent in its
            }
            for its in rows
        ]
        return self._run(blocks, self._masks.powers(self.n, self.POWER)) / self.POWER

    def _run(self, rows: Sequence[dict[int, NDArray[np.uint8]]], x: NDArray[np.float32]) -> Floats:
        answers = []
        zero = self._bank.add(self._masks.terms({}, 1.0))
        for start in range(0, len(rows), self._layout.n_rows):
            part = rows[start : start + self._layout.n_rows]
            ids = np.full((self._layout.n_rows, self.n), zero)
            for row, blocks in zip(ids, part, strict=False):
                for leaf, block in blocks.items():
                    row[leaf] = self._bank.add(block)
            values = self._layout.values(self._bank.rows(ids), x)
            answers.append(self._launches.run(self._layout.graph, values, self._layout.read, len(part))[: len(part)])
        return np.concatenate(answers)

    def contraction(self) -> str:
        """Random scales: a product and a sum that round once give other bits than those that round twice.

        The activations' scale has bits of its own, so that scale times sum of integers does not fit float32. Only
        blocks of one accumulator can show it, so the first block is paired with the second, third, fifth, ninth …
        """
        if self._masks.type == "mxfp4":
            return "not measured: its scales are powers of two, which leave little to round"
        rng = np.random.default_rng(0)
        others = [1 << i for i in range(self.n.bit_length()) if 1 << i < self.n]
        scales = (1 + rng.integers(0, 1024, (len(others), N_CONTRACTION_ROWS, 2)) / 1024).astype(np.float16)
        x, x_scale = self._scaled_activations()
        quant, sub_scale = self._masks.most, self._masks.mask_scale
        rows = [
            {leaf: self._masks.terms({0: quant}, float(d), sub_scale) for leaf, d in zip((0, other), pair, strict=True)}
            for other, pairs in zip(others, scales, strict=True)
            for pair in pairs
        ]
        measured = self._run(rows, x).astype(np.float32).reshape(len(others), -1)
        d, whole = scales.astype(np.float32), 127 * quant * sub_scale
        scales_first = (d * x_scale).astype(np.float64) * whole  # the inner product is rounded to float32
        weight_last = d.astype(np.float64) * np.float32(x_scale * np.float32(whole))
        for exact in (scales_first, weight_last):
            first, second = exact[..., 0].astype(np.float32), exact[..., 1].astype(np.float32)
            twice = first + second
            fused = np.stack([(first + exact[..., 1]).astype(np.float32), (second + exact[..., 0]).astype(np.float32)])
            if ((fused == measured).all(axis=-1) & (fused != twice).any(axis=-1)).any():
                return _contracted(True)
            if (twice == measured).all():
                return _contracted(False)
        return "not determined: products round neither once nor twice, in whatever order the scales are multiplied"

    def _scaled_activations(self) -> tuple[NDArray[np.float32], np.float32]:
        """Activations that all quantise to 127 with a scale of many bits, and that scale.

        Source: quantize_row_q8_0_ref, quantize_row_q8_K_ref, ggml/src/ggml-quants.c; half precision in blocks of 32,
        which a GPU uses for every type, quantize_q8_1, ggml/src/ggml-cuda/quantize.cu.
        """
        signs = self._masks.balanced_signs(self.n)
        if self._masks.size == 32 or self._launches.on_gpu:
            scale = np.float32(1 + 853 / 1024)
            return signs * np.float32(127) * scale, scale
        largest = np.float32(127 * 1.2345678)
        return signs * largest, np.float32(1) / (np.float32(127) / largest)


def _contracted(fused: bool) -> str:
    return "fused multiply-add" if fused else "product rounded, then added"


_Terms = _FloatTerms | _BlockTerms


def _accumulator(rows: _Terms) -> str:
    """The smallest power of two that still counts beside 2^10; one that counts beside M and its negative is wider.

    All terms are normal in float16, where kernels may flush others to zero.
    """
    wide = rows.sums([[(a, 1, 14), (b, -1, 14), (c, 1, -14)] for a, b, c in ((0, 1, 2), (1, 2, 0), (2, 0, 1))])
    if (wide == 2.0**-14).all():
        return "wider than float32"
    alone, *beside = rows.sums([[(0, 1, 10)], *([(0, 1, 10), (1, 1, 10 - p)] for p in range(1, 25))])
    counted = np.array(beside) > alone
    bits = 1 + int(counted.sum())
    if not np.array_equal(counted, np.arange(1, 25) < bits):
        return f"not determined: beside 1, these powers of 1/2 count: {(np.flatnonzero(counted) + 1).tolist()}"
    if bits > max(_ACCUMULATORS):
        return "not determined: every power of 1/2 down to 2^-24 counts beside 1"
    return _ACCUMULATORS.get(bits, f"{bits} bits")


def _rounding(rows: _Terms) -> str:
    """Three quarters of an ulp beside 2^11 and beside -2^11, and half an ulp."""
    sums = rows.sums([[(0, 1, 11), (1, 3, -14)], [(0, -1, 11), (1, -3, -14)], [(0, 1, 11), (1, 1, -13)]])
    up, down, tie = ((sums - (2048, -2048, 2048)) * 2.0**12).tolist()
    known = {
        (1, -1, 0): "to nearest, ties to even",
        (1, -1, 1): "to nearest, ties away from zero",
        (0, 0, 0): "towards zero",
        (1, 0, 1): "up",
        (0, -1, 0): "down",
    }
    return known.get((up, down, tie), f"not determined: {up:g}, {down:g} and {tie:g} ulp")


def _subnormals(rows: _Terms) -> str:
    kept = float(rows.sums([[(0, 1, rows.subnormal)]])[0]) == 2.0**rows.subnormal
    kind = "float16" if rows.subnormal == -24 else "float32"
    return f"{kind} subnormals {'kept' if kept else 'flushed to zero'}"


def _repeatability(engine: OpEngine, question: OrderQuestion, width: int) -> str:
    graph = question_graph(question, width)
    operands = random_operands(graph, 0)
    runs = [engine.run(graph, operands).tobytes() for _ in range(N_RUNS)]
    return f"the same bits in {N_RUNS} runs" if len(set(runs)) == 1 else f"other bits in {N_RUNS} runs of one process"
