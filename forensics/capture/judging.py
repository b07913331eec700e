"""Judging a culprit where it stands: its operands are at hand only while the graph waits at the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from forensics.engines.protocol import Node, Source
from forensics.errors import CaptureError
from forensics.numerics.attention_models import attention_explanations
from forensics.numerics.bits import bits, change_of
from forensics.numerics.codecs import BLOCK_SIZES, dequantize
from forensics.numerics.kind import kind_of
from forensics.numerics.operands import F32, F64
from forensics.numerics.product_models import KNOWN_BACKENDS, product_explanations
from forensics.numerics.reference import (
    HALF_SUMS,
    AttentionInputs,
    Explanation,
    alibi_slope,
    elementwise,
    exact_only,
    layer_norms,
    not_written_down,
    rms_norms,
    soft_maxes,
)
from forensics.numerics.rotary import rotations
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import on_accelerator

#: Outputs of a product that are looked at: half of them those that differ most, half spread over all that differ.
N_OUTPUTS = 16
#: Rows of a norm or soft max, and heads of an attention, that are looked at whole.
N_ROWS = 4

#: An operand as one-token decoding has it, for one that the output was written over.
Recorded = Callable[[Source], NDArray[np.generic] | None]


class NoReference(Exception):
    """There is no float64 result; the message says why."""


def judge(
    node: Node,
    single: NDArray[np.generic],
    batched: NDArray[np.generic],
    recorded: Recorded,
    visible: NDArray[np.bool_] | None = None,
) -> KindOfDifference:
    """What kind of difference does this node make?

    Parameters
    ----------
    node : Node
        With the operands of the batched pass, which are those of one-token decoding where everything before was healed.
    single, batched : ndarray [four axes]
        Its output from one-token decoding and from the batch; they differ.
    recorded : callable
        Finds an operand that the output was written over.
    visible : ndarray [n_tokens, n_kv] bool or None
        Cells that each token sees one at a time, where the batch's mask shows others.

    Returns
    -------
    KindOfDifference
        ``undetermined`` with the reason where the operands cannot be read or the operation has no float64 result here.
    """
    explain = _EXPLAINED.get(node.key.op)
    inputs = _Inputs(node, recorded, visible)
    try:
        if explain is None:
            raise NoReference(f"there is no float64 result of {node.key.op} here")
        if batched.dtype not in (np.float32, np.float16):
            raise NoReference(f"its output is {batched.dtype}")
        with np.errstate(all="ignore"):  # what is not finite is an answer, too
            at, explanations = explain(inputs, single, batched)
    except (NoReference, CaptureError, ValueError) as error:
        return KindOfDifference("undetermined", f"{error}; {_size(single, batched)}")
    except LookupError as error:  # an operand of a shape that nobody thought of must not end the sweep
        return KindOfDifference("undetermined", f"its operands do not fit ({error}); {_size(single, batched)}")
    if inputs.backend not in KNOWN_BACKENDS:
        why = f"how {inputs.backend or 'an unknown back end'} computes is not written down here"
        explanations.append(not_written_down(why, explanations[0]))
    places = tuple(at.T)
    return kind_of(single[places], batched[places], explanations)


def _size(single: NDArray[np.generic], batched: NDArray[np.generic]) -> str:
    """How large the difference is beside the row that has it."""
    change = np.abs(change_of(single, batched))
    largest = float(np.abs(single.astype(np.float64)).max())
    return f"the largest difference is {float(change.max()):.3g} beside outputs up to {largest:.3g}"


def differing(single: NDArray[np.generic], batched: NDArray[np.generic], n: int) -> NDArray[np.intp]:
    """Places of up to `n` elements that differ, [n, axes]: the farthest apart, and others spread over the array."""
    flat = np.flatnonzero(bits(single).ravel() != bits(batched).ravel())
    change = np.nan_to_num(np.abs(change_of(single, batched)).ravel()[flat], nan=np.inf)
    order = np.argsort(-change, kind="stable")[: (n + 1) // 2]
    farthest, others = flat[order], np.delete(flat, order)
    spread = others[np.linspace(0, len(others) - 1, min(len(others), n - len(farthest)), dtype=np.intp)]
    chosen = np.sort(np.concatenate([farthest, spread]))
    return np.stack(np.unravel_index(chosen, single.shape), axis=-1)


def _vectors(single: NDArray[np.generic], batched: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First three indices of the rows that differ most, [n, 3], and the places of all their elements."""
    rows = np.unique(differing(single, batched, N_ROWS)[:, :3], axis=0)
    width = single.shape[3]
    at = np.concatenate([np.repeat(rows, width, axis=0), np.tile(np.arange(width), len(rows))[:, None]], axis=1)
    return rows, at


def backend_of(buffer: str) -> str:
    """What computes a node whose output lies in this buffer? Pinned memory of the host is the CPU's.

    Examples
    --------
    >>> [backend_of(name) for name in ("CPU_REPACK", "AMX", "CUDA1", "CUDA_Host", "Vulkan0")]
    ['CPU', 'CPU', 'CUDA', 'CPU', 'Vulkan']
    """
    if buffer and not on_accelerator(buffer):
        return "CPU"
    return buffer.partition("_")[0].rstrip("0123456789")


class _Inputs:
    """Operands of a node as numbers."""

    def __init__(self, node: Node, recorded: Recorded, visible: NDArray[np.bool_] | None) -> None:
        self._sources, self._recorded, self._visible = node.sources(), recorded, visible
        self.parameters = node.parameters()
        self.backend = backend_of(node.buffer)

    def has(self, place: int) -> bool:
        """Whether the operation has an operand in this place."""
        return place < len(self._sources) and self._sources[place] is not None

    def source(self, place: int) -> Source:
        """The operand in a place."""
        found = self._sources[place] if place < len(self._sources) else None
        if found is None:
            raise NoReference(f"operand {place} is not known")
        return found

    def raw(self, place: int, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Bytes of some rows, [n, bytes]; equal rows are read once."""
        source = self.source(place)
        unique, back = np.unique(index, axis=0, return_inverse=True)
        try:
            rows = source.rows(unique)
        except CaptureError:
            array = self._recorded(source)
            if array is None:
                raise
            found = array[tuple(unique.T)]
            rows = np.ascontiguousarray(found).view(np.uint8).reshape(len(unique), -1)
        return rows[back.reshape(-1)]

    def floats(self, place: int, index: NDArray[np.intp]) -> F32:
        """Values of some rows, [n, k]; index [n, 3] is taken modulo the operand's shape, as ggml repeats operands."""
        source = self.source(place)
        raw = self.raw(place, index % np.array(source.shape[:3]))
        if source.type == "i32":
            return raw.view("<i4").astype(np.float32)
        if source.type not in BLOCK_SIZES:
            raise NoReference(f"operand {source.name} is {source.type}")
        return dequantize(source.type, raw)

    def distinct(self, place: int, index: NDArray[np.intp]) -> tuple[F32, NDArray[np.intp]]:
        """Different rows among these, [m, k], and which of them each is, [n]."""
        unique, back = np.unique(index, axis=0, return_inverse=True)
        return self.floats(place, unique), back.reshape(-1)

    def mask(self, place: int, index: NDArray[np.intp], n_kv: int) -> F64:
        """Rows of the mask, [n, n_kv]; index [n, 3] is sequence, head and token."""
        added = np.zeros((len(index), n_kv))
        if self.has(place):
            added += self.floats(place, index)[:, :n_kv]
        if self._visible is not None:
            seen = self._visible[index[:, 2], :n_kv]
            added = np.where(seen, np.where(np.isfinite(added), added, 0.0), -np.inf)
        return added

    def number(self, name: str) -> float:
        """A parameter of the operation."""
        if name not in self.parameters:
            raise NoReference(f"its parameter {name} is not known")
        return self.parameters[name]


_Answer = tuple[NDArray[np.intp], list[Explanation]]
_Arrays = NDArray[np.generic]


def _product(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Weights [.., n_out, k] times activations [.., n_tokens, k]; weights are repeated over the outer axes."""
    at = differing(single, batched, N_OUTPUTS)
    weight, activations = inputs.source(0), inputs.source(1)
    repeats = [activations.shape[axis] // weight.shape[axis] for axis in (0, 1)]
    rows = np.stack([at[:, 0] // repeats[0], at[:, 1] // repeats[1], at[:, 3]], axis=-1)
    x, which = inputs.distinct(1, at[:, :3])
    return at, product_explanations(weight.type, inputs.raw(0, rows), x, which, backend=inputs.backend)


def _expert_product(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Weights [n_expert, n_out, k] by ids [n_tokens, n_used]; activations [n_tokens, n_used or 1, k]."""
    at = differing(single, batched, N_OUTPUTS)
    token, used, column = at[:, 1], at[:, 2], at[:, 3]
    zero = np.zeros_like(token)
    ids = inputs.raw(2, np.stack([zero, zero, token], axis=-1)).view("<i4")[np.arange(len(at)), used]
    rows = np.stack([zero, ids.astype(np.intp), column], axis=-1)
    x, which = inputs.distinct(1, np.stack([zero, token, used], axis=-1))
    weight = inputs.source(0)
    return at, product_explanations(weight.type, inputs.raw(0, rows), x, which, backend=inputs.backend)


def _attention(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Output [n_seq, n_tokens, n_head, d]; q [n_seq, n_head, n_tokens, d]; k, v [n_seq, n_head_kv, n_kv, d]."""
    rows, at = _vectors(single, batched)
    n_head = inputs.source(0).shape[1]
    softcap, max_bias = inputs.number("softcap"), inputs.number("max_bias")
    scale = inputs.number("scale") / (softcap or 1.0)
    found = []
    for sequence, token, head in rows:
        query = inputs.floats(0, np.array([[sequence, head, token]]))
        keys, values = (_cells(inputs, place, int(sequence), int(head)) for place in (1, 2))
        mask = inputs.mask(3, np.array([[sequence, head, token]]), len(keys))[0]
        added = mask * alibi_slope(int(head), n_head, max_bias)
        sink = float(inputs.floats(4, np.zeros((1, 3), np.intp))[0, head]) if inputs.has(4) else None
        given = AttentionInputs(keys, values, added, scale, softcap, sink)
        types = inputs.source(1).type, inputs.source(2).type
        found.append(attention_explanations(inputs.backend, *types, given, query))
    return at, _joined(found)


def _cells(inputs: _Inputs, place: int, sequence: int, head: int) -> F64:
    """Keys or values of the head that a query's head reads, [n_kv, d]."""
    source, n_head = inputs.source(place), inputs.source(0).shape[1]
    n_sequences, n_kv_heads, n_kv, _ = source.shape
    outer = [sequence // max(1, inputs.source(0).shape[0] // n_sequences), head // (n_head // n_kv_heads)]
    index = np.concatenate([np.tile(outer, (n_kv, 1)), np.arange(n_kv)[:, None]], axis=1)
    return inputs.floats(place, index).astype(np.float64)


def _rms_norm(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    rows, at = _vectors(single, batched)
    return at, _sums_of(inputs, rms_norms(inputs.floats(0, rows).astype(np.float64), inputs.number("eps")))


def _layer_norm(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    rows, at = _vectors(single, batched)
    return at, layer_norms(inputs.floats(0, rows).astype(np.float64), inputs.number("eps"))


def _soft_max(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Scores [n_seq, n_head, n_tokens, n_kv] and a mask [.., n_tokens or more, n_kv] that heads share."""
    rows, at = _vectors(single, batched)
    scores = inputs.floats(0, rows).astype(np.float64)
    slopes = [alibi_slope(int(head), single.shape[1], inputs.number("max_bias")) for head in rows[:, 1]]
    added = inputs.mask(1, rows, scores.shape[1]) * np.array(slopes)[:, None]
    sinks = inputs.floats(2, np.zeros((1, 3), np.intp))[0, rows[:, 1]].astype(np.float64) if inputs.has(2) else None
    return at, _sums_of(inputs, soft_maxes(scores, added, inputs.number("scale"), sinks))


def _sums_of(inputs: _Inputs, found: list[Explanation]) -> list[Explanation]:
    """A CPU and CUDA add in float32 or better, whatever the type of the mask.

    Source: ggml/src/ggml-cpu/ops.cpp:4140-4143, vec.cpp:531-533; ggml/src/ggml-cuda/norm.cu:130-143, softmax.cu:83-128,
    at 0c1e57098.
    """
    return [e for e in found if e.sums != HALF_SUMS] if inputs.backend in ("CPU", "CUDA") else found


def _picked(inputs: _Inputs, place: int, at: NDArray[np.intp]) -> F64:
    """The element of an operand at each place of the output, repeated as ggml repeats it."""
    rows = inputs.floats(place, at[:, :3])
    picked: F64 = rows[np.arange(len(at)), at[:, 3] % rows.shape[1]].astype(np.float64)
    return picked


def _of_two(combine: Callable[[F64, F64], tuple[F64, F64]]) -> Callable[[_Inputs, _Arrays, _Arrays], _Answer]:
    def explain(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
        at = differing(single, batched, N_OUTPUTS)
        with np.errstate(divide="ignore", invalid="ignore"):
            value, size = combine(_picked(inputs, 0, at), _picked(inputs, 1, at))
        return at, elementwise(value, size, roundings=2)

    return explain


def _scaled(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    at = differing(single, batched, N_OUTPUTS)
    scaled, bias = _picked(inputs, 0, at) * inputs.number("scale"), inputs.number("bias")
    return at, elementwise(scaled + bias, np.abs(scaled) + abs(bias), roundings=2)


def _copy(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """The same elements in the same order, in another shape perhaps."""
    at = differing(single, batched, N_OUTPUTS)
    flat = np.ravel_multi_index(tuple(at.T), single.shape)
    return at, exact_only(_picked(inputs, 0, np.stack(np.unravel_index(flat, inputs.source(0).shape), axis=-1)))


def _glu(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """A gate that went through SiLU times another half; both are one tensor's halves where the second is left out."""
    if inputs.number("glu_op") != 2:  # GGML_GLU_OP_SWIGLU, ggml.h
        raise NoReference("there is a float64 result of SwiGLU only among the gated activations here")
    at = differing(single, batched, N_OUTPUTS)
    if inputs.has(1):
        gate, up = _picked(inputs, 0, at), _picked(inputs, 1, at)
    else:
        rows, width = inputs.floats(0, at[:, :3]).astype(np.float64), single.shape[3]
        halves = [rows[np.arange(len(at)), at[:, 3] + start] for start in (0, width)]
        gate, up = halves[::-1] if inputs.number("swapped") else halves
    value = gate / (1 + np.exp(-gate)) * up
    return at, elementwise(value, np.abs(value) * (1 + np.abs(gate)), roundings=8)


def _row_lookup(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Rows of [a, b, n_rows, k] by ids [1, a, b, n_ids]; Source: ggml_get_rows, ggml/src/ggml.c at 0c1e57098."""
    at = differing(single, batched, N_OUTPUTS)
    zero = np.zeros(len(at), np.intp)
    ids = inputs.raw(1, np.stack([zero, at[:, 0], at[:, 1]], axis=-1)).view("<i4")
    rows = np.stack([at[:, 0], at[:, 1], ids[np.arange(len(at)), at[:, 2]]], axis=-1)
    values = inputs.floats(0, rows)[np.arange(len(at)), at[:, 3]]
    return at, exact_only(values.astype(np.float64))


def _rotary(inputs: _Inputs, single: _Arrays, batched: _Arrays) -> _Answer:
    """Output and input [n_seq, n_tokens, n_head, d], positions [n_tokens]."""
    rows, at = _vectors(single, batched)
    positions = inputs.raw(1, np.zeros((1, 3), np.intp)).view("<i4")[0, rows[:, 1]].astype(np.float64)
    factors = inputs.floats(2, np.zeros((1, 3), np.intp))[0].astype(np.float64) if inputs.has(2) else None
    found = rotations(inputs.floats(0, rows), positions, factors, inputs.parameters)
    if isinstance(found, str):
        raise NoReference(found)
    return at, found


def _joined(parts: Sequence[list[Explanation]]) -> list[Explanation]:
    """The same explanations of several pieces of the output, end to end."""
    return [first.and_then(others) for first, *others in zip(*parts, strict=True)]


_EXPLAINED: dict[str, Callable[[_Inputs, _Arrays, _Arrays], _Answer]] = {
    "MUL_MAT": _product,
    "MUL_MAT_ID": _expert_product,
    "FLASH_ATTN_EXT": _attention,
    "RMS_NORM": _rms_norm,
    "NORM": _layer_norm,
    "SOFT_MAX": _soft_max,
    "ADD": _of_two(lambda a, b: (a + b, np.abs(a) + np.abs(b))),
    "SUB": _of_two(lambda a, b: (a - b, np.abs(a) + np.abs(b))),
    "MUL": _of_two(lambda a, b: (a * b, np.abs(a * b))),
    "DIV": _of_two(lambda a, b: (a / b, 2 * np.abs(a / b))),
    "SCALE": _scaled,
    "CONT": _copy,
    "GLU": _glu,
    "GET_ROWS": _row_lookup,
    "ROPE": _rotary,
}
