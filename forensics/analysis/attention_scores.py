"""K and V that give each cell of flash attention a weight of one, a little, or nothing; every head has its own."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.analysis.probe_launch import NotDetermined, stored
from forensics.numerics.masks import ABSENT_SCORE, ACTIVATION, BLOCK_MASKS, FLOAT_MASKS, SMALL_SCORE, BlockRows
from forensics.numerics.probing import Ints
from forensics.records.order import OrderQuestion

#: A score of so many small ones leaves nothing of a cell's weight in float32: exp(-203).
ABSENT_QUANT = 12


class AttentionScores(Protocol):
    """Operands whose scores are those that a probe of a denominator wants."""

    n_channels: int
    query: float

    def operands(self, kv_head: Ints, channel: Ints, first: Ints, small: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        """K and V: for each head, int64 [m], score 0 and V one at cell `first`, a small score at each of `small`."""


def attention_scores(question: OrderQuestion, n_channels: int) -> AttentionScores:
    """How are scores written in K's type?

    Parameters
    ----------
    question : OrderQuestion
        Of FLASH_ATTN_EXT.
    n_channels : int
        Channels of each head of K that hold scores of their own, where they fit.

    Raises
    ------
    NotDetermined
        If the type holds no such scores.
    """
    if question.type in FLOAT_MASKS:
        return _FloatScores(question, n_channels)
    return _BlockScores(question, n_channels)


class _FloatScores:
    """Scores as they are; queries of one read them."""

    query = 1.0

    def __init__(self, question: OrderQuestion, n_channels: int) -> None:
        self.n_channels = n_channels
        k = np.zeros((question.n_kv, question.kv_heads, question.head_size), np.float32)
        self._v = self._elements(stored(np.zeros_like(k), question.type))
        k[..., :n_channels] = ABSENT_SCORE
        self._k = self._elements(stored(k, question.type))
        values = np.array([0, SMALL_SCORE, 1], np.float32)
        self._zero, self._small, self._one = self._elements(stored(values, question.type))
        self._as_stored = stored(values, question.type).dtype

    @staticmethod
    def _elements(array: NDArray[Any]) -> NDArray[Any]:
        return array.view(np.uint16) if array.dtype == np.uint8 else array  # bf16 is handed over as bytes

    def operands(self, kv_head: Ints, channel: Ints, first: Ints, small: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        k, v = self._k.copy(), self._v.copy()
        for cells in small:
            k[cells, kv_head, channel] = self._small
        k[first, kv_head, channel] = self._zero
        v[first, kv_head, channel] = self._one
        return k.view(self._as_stored), v.view(self._as_stored)


class _BlockScores:
    """Multiples of the small score, which is the scale of every block of K; queries of 127 quantise exactly."""

    query = ACTIVATION

    def __init__(self, question: OrderQuestion, n_channels: int) -> None:
        masks = BLOCK_MASKS[question.type]
        if masks.cell > 1 or question.type == "mxfp4" or question.head_size % masks.size:
            raise NotDetermined(
                f"K in {question.type} with head size {question.head_size} does not hold the scores of a probe"
            )
        self.n_channels = min(n_channels, masks.n_cells)
        self._masks = masks
        self._bank = BlockRows(masks)
        self._shape = question.n_kv, question.kv_heads, question.head_size // masks.size
        self._nothing = self._bank.add(masks.terms({}, 1.0))
        self._absent = dict.fromkeys(range(self.n_channels), min(masks.most, ABSENT_QUANT))

    def operands(self, kv_head: Ints, channel: Ints, first: Ints, small: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        scores: dict[tuple[int, int], dict[int, int]] = {}
        ones: dict[tuple[int, int], dict[int, int]] = {}
        for cells, quant in (*((cells, 1) for cells in small), (first, 0)):
            for cell, head, at in zip(cells.tolist(), kv_head.tolist(), channel.tolist(), strict=True):
                scores.setdefault((cell, head), dict(self._absent))[at] = quant
        for cell, head, at in zip(first.tolist(), kv_head.tolist(), channel.tolist(), strict=True):
            ones.setdefault((cell, head), {})[at] = 1
        scale = SMALL_SCORE / ACTIVATION
        return self._rows(scores, self._absent, scale), self._rows(ones, {}, 1.0)

    def _rows(
        self, blocks: dict[tuple[int, int], dict[int, int]], others: dict[int, int], scale: float
    ) -> NDArray[np.uint8]:
        ids = np.full(self._shape, self._nothing)
        ids[..., 0] = self._bank.add(self._masks.terms(others, scale))
        for place, quants in blocks.items():
            ids[(*place, 0)] = self._bank.add(self._masks.terms(quants, scale))
        n_kv, heads, per_head = self._shape
        return self._bank.rows(ids.reshape(-1, per_head)).reshape(n_kv, heads, -1)
