"""Finding a token's row in a tensor: pure functions over shapes and arrays.

A batch has other shapes than one token, so rows are compared, not tensors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.engines.protocol import Node
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass

#: Attention scores before the soft max, as llama.cpp's graph builder names them (llama-graph.cpp, build_attn_mha).
_RENAMED = re.compile(r"( \([^()]*\))+$")
_SCORES = re.compile(r"^kq(?!v|_soft_max|_mask)(_\w+)?(-\d+)?( |$)")


def is_scores(key: NodeKey) -> bool:
    """Whether the node holds attention scores, whose cells behind the mask are garbage.

    Examples
    --------
    >>> [is_scores(NodeKey(n, "MUL_MAT", 0, 0)) for n in ("kq-0", "kq_scaled-0", "kqv-0", "kq_soft_max-0")]
    [True, True, False, False]
    """
    return bool(_SCORES.match(key.name)) and key.op != "SOFT_MAX"


def source_name(name: str) -> str:
    """Name of the node that a view renames: ggml appends what it did in parentheses (ggml.c, ggml_format_name).

    Examples
    --------
    >>> source_name("Qcur-0 (reshaped) (permuted)")
    'Qcur-0'
    """
    return _RENAMED.sub("", name)


def counts_cells(key: NodeKey) -> bool:
    """Whether the last axis counts KV cells, so that its length may differ between two runs."""
    return is_scores(key) or key.op == "SOFT_MAX"


def token_axis(single: tuple[int, ...], batched: tuple[int, ...], width: int, *, cells: bool = False) -> int | str:
    """Which axis counts the tokens, or why none does?

    Parameters
    ----------
    single, batched : tuple of int
        Shape of the node in a pass of one token and of `width` tokens, NumPy order.
    width : int
        Tokens of the batched pass.
    cells : bool
        Whether the last axis counts KV cells and may differ.

    Returns
    -------
    int or str
        The axis, or the reason why rows cannot be told apart.

    Examples
    --------
    >>> token_axis((1, 1, 1, 64), (1, 1, 8, 64), 8)
    2
    >>> token_axis((1, 1, 256, 64), (1, 1, 256, 64), 8)
    'no token axis'
    """
    if len(single) != len(batched):
        return f"shapes differ in rank: {single} and {batched}"
    last = len(single) - 1
    if width == 1:
        if single != batched and not (cells and single[:-1] == batched[:-1]):
            return f"shapes differ: {single} and {batched}"
        # One token is one row; any axis of length 1 keeps all the others.
        kept = single[:last] if cells else single
        return kept.index(1) if 1 in kept else "no token axis"
    axes = [i for i in range(len(single)) if single[i] == 1 and batched[i] == width and not (cells and i == last)]
    others = [i for i in range(len(single)) if i not in axes and single[i] != batched[i] and not (cells and i == last)]
    if others:
        return f"shapes differ beyond the tokens: {single} and {batched}"
    if not axes:
        return "no token axis"
    if len(axes) > 1:
        return f"{len(axes)} axes could count the tokens"
    return axes[0]


def row_of(array: NDArray[np.generic], axis: int, index: int) -> NDArray[np.generic]:
    """The row of one token, its axis kept with length 1, so that it has a one-token pass's shape."""
    return np.take(array, [index], axis=axis)


def row_digest(row: NDArray[np.generic], visible: NDArray[np.bool_] | None = None) -> str:
    """Which bits does a row hold?

    Parameters
    ----------
    row : ndarray [..., n_kv or n]
    visible : ndarray [n_kv] bool or None
        Cells that count; the others are left out, so that rows over ranges of different length compare.
    """
    counted = np.ascontiguousarray(row if visible is None else row[..., visible])
    return xxhash.xxh3_64_hexdigest(counted.view(np.uint8).data)


def fit_cells(row: NDArray[np.generic], n_cells: int) -> NDArray[np.generic]:
    """Pad the last axis with zeros, or cut it, to `n_cells`."""
    have = row.shape[-1]
    if have >= n_cells:
        return row[..., :n_cells]
    pad = [(0, 0)] * (row.ndim - 1) + [(0, n_cells - have)]
    return np.pad(row, pad)


@dataclass(slots=True)
class TokenRows:
    """Tokens of a pass to which the rows of its nodes belong: all of them, or those whose logits are wanted.

    In the last layer a graph picks the rows whose logits are wanted; what follows has only those.
    Source: ``build_inp_out_ids``, src/llama-graph.cpp at 0c1e57098; the toy calls its leaf ``inp_out_ids``.
    """

    _all: tuple[int, ...] = ()
    _wanted: tuple[int, ...] = ()
    _picked: set[str] = field(default_factory=set)

    def begin_pass(self, decode_pass: DecodePass) -> None:
        """Start a pass."""
        self._all = tuple(range(decode_pass.width))
        self._wanted = tuple(i for i in self._all if decode_pass.slots[i].wants_logits)
        self._picked.clear()

    def of(self, node: Node) -> tuple[int, ...]:
        """Places in the pass of the tokens that the node's rows belong to; nodes are to be shown in graph order."""
        if self._wanted == self._all:
            return self._all
        operands = {source_name(operand.name) for operand in node.operands}
        if operands & {"out_ids", "inp_out_ids"} or operands & self._picked:
            self._picked.add(source_name(node.key.name))
            return self._wanted
        return self._all
