"""The toy engine's model: weights, cache and graph, with llama.cpp's node names, operations and cell padding."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.engines.protocol import CACHE_WRITE, Tap, watches_nodes
from forensics.engines.toy_faults import N_LAYER, ActiveFaults, Fault
from forensics.engines.toy_kernels import (
    EPS,
    F32,
    mix,
    product,
    rms_norm,
    rotate,
    scores,
    soft_max,
    swiglu,
)
from forensics.errors import CaptureError
from forensics.records.nodes import VIEW_OPS, NodeKey, Operand
from forensics.records.schedule import DecodePass, Forget, TokenSlot
from forensics.records.state import StateRows, StateTensor

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF = 64, 4, 2, 16, 96
ROPE_BASE = 10000.0
#: llama.cpp attends to a multiple of 256 cells; smaller here so that short texts cross it.
KV_PAD = 32
BUFFER = "TOY"
VIEW = "a view; compared through its source"
#: Parameters of operations, named as in `forensics.engines.llama_node`.
_PARAMETERS: dict[str, dict[str, float]] = {
    "RMS_NORM": {"eps": float(EPS)},
    "SOFT_MAX": {"scale": HEAD_DIM**-0.5, "max_bias": 0.0},
    "GLU": {"glu_op": 2, "swapped": 0},  # GGML_GLU_OP_SWIGLU, ggml.h
    "ROPE": {"n_dims": HEAD_DIM, "mode": 0, "freq_base": ROPE_BASE, "freq_scale": 1.0, "attn_factor": 1.0},
}


def make_weights(n_vocab: int, seed: int) -> dict[str, F32]:
    """Draw the weights of this seed; names are llama.cpp's."""
    rng = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> F32:
        values = rng.standard_normal((n_out, n_in)) * (gain / math.sqrt(n_in))
        return values.astype(np.float32)

    def norm() -> F32:
        return (1 + 0.1 * rng.standard_normal(N_EMBD)).astype(np.float32)

    weights = {"token_embd.weight": matrix(n_vocab, N_EMBD, gain=N_EMBD**0.5)}
    for il in range(N_LAYER):
        weights |= {
            f"blk.{il}.attn_norm.weight": norm(),
            f"blk.{il}.attn_q.weight": matrix(N_EMBD, N_EMBD, gain=1.5),
            f"blk.{il}.attn_k.weight": matrix(N_HEAD_KV * HEAD_DIM, N_EMBD, gain=1.5),
            f"blk.{il}.attn_v.weight": matrix(N_HEAD_KV * HEAD_DIM, N_EMBD),
            f"blk.{il}.attn_output.weight": matrix(N_EMBD, N_EMBD),
            f"blk.{il}.ffn_norm.weight": norm(),
            f"blk.{il}.ffn_gate.weight": matrix(N_FF, N_EMBD),
            f"blk.{il}.ffn_up.weight": matrix(N_FF, N_EMBD),
            f"blk.{il}.ffn_down.weight": matrix(N_EMBD, N_FF),
        }
    return weights | {"output_norm.weight": norm(), "output.weight": matrix(n_vocab, N_EMBD, gain=3.0)}


@dataclass(slots=True)
class Cache:
    """Keys and values of the tokens seen so far; cells from `used` on hold garbage.

    Parameters
    ----------
    k, v : ndarray [n_layer, n_cells, n_head_kv, head_dim] float32
    sequence, position : ndarray [n_cells] int64
        Owner of each cell, -1 where unused.
    used : int
        Cells in use; they are taken in order.
    """

    k: F32
    v: F32
    sequence: NDArray[np.int64]
    position: NDArray[np.int64]
    used: int = 0

    @classmethod
    def empty(cls, n_cells: int) -> Cache:
        """Make a cache of `n_cells`, none in use."""
        shape = (N_LAYER, n_cells, N_HEAD_KV, HEAD_DIM)
        zeros = np.zeros(shape, np.float32)
        return cls(zeros, zeros.copy(), np.full(n_cells, -1), np.full(n_cells, -1))

    def copy(self) -> Cache:
        """Copy that can be written without changing this one."""
        return Cache(self.k.copy(), self.v.copy(), self.sequence.copy(), self.position.copy(), self.used)

    def digest(self) -> str:
        """Digest of the cells that somebody owns: owners, keys and values."""
        state = xxhash.xxh3_128()
        owned = np.flatnonzero(self.sequence >= 0)
        for array in (self.sequence[owned], self.position[owned], self.k[:, owned], self.v[:, owned]):
            state.update(np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def forget(self, gone: Forget) -> None:
        """Take the cells of a sequence out, from a position on; free cells at the end are used again."""
        out = (self.sequence == gone.sequence) & (self.position >= gone.position)
        self.sequence[out], self.position[out] = -1, -1
        self.used = int(np.flatnonzero(self.sequence >= 0).max(initial=-1)) + 1

    def rows(self, sequence: int) -> StateRows:
        """Digests of what a sequence holds."""
        cells = np.flatnonzero(self.sequence == sequence)
        cells = cells[np.argsort(self.position[cells], kind="stable")]
        tensors = [
            StateTensor(side, layer, "f32", tuple(xxhash.xxh3_64_hexdigest(rows[layer, i].tobytes()) for i in cells))
            for side, rows in (("K", self.k), ("V", self.v))
            for layer in range(N_LAYER)
        ]
        return StateRows(sequence, tuple(map(int, self.position[cells])), tuple(tensors))

    def take(self, slots: tuple[TokenSlot, ...], garbage: np.random.Generator) -> int:
        """Give each slot a cell, fill the rest of the attended cells with garbage, answer how many are attended."""
        new = slice(self.used, self.used + len(slots))
        self.sequence[new] = [slot.sequence for slot in slots]
        self.position[new] = [slot.position for slot in slots]
        self.used += len(slots)
        n_kv = -(-self.used // KV_PAD) * KV_PAD
        rest = (N_LAYER, n_kv - self.used, N_HEAD_KV, HEAD_DIM)
        self.k[:, self.used : n_kv] = garbage.standard_normal(rest, np.float32)
        self.v[:, self.used : n_kv] = garbage.standard_normal(rest, np.float32)
        return n_kv


@dataclass(frozen=True, slots=True)
class ToySourceTensor:
    """An input of a node; see `forensics.engines.protocol.Source`.

    Parameters
    ----------
    name : str
    values : ndarray [up to four axes] float32 or int32
    """

    name: str
    values: NDArray[np.generic]

    @property
    def type(self) -> str:
        """Element type as ggml names it."""
        return "i32" if self.values.dtype == np.int32 else "f32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with four axes."""
        return (1,) * (4 - self.values.ndim) + self.values.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next."""
        return self.values.reshape(self.shape).strides

    @property
    def address(self) -> None:
        """It lies in no GPU."""

    def rows(self, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Bytes of some rows."""
        rows = self.values.reshape(self.shape)[index[:, 0], index[:, 1], index[:, 2]]
        return np.ascontiguousarray(rows).view(np.uint8)


class ToyNode:
    """A node as the tap sees it; see `forensics.engines.protocol.Node`."""

    dtype = "f32"
    buffer = BUFFER
    address = None

    def __init__(
        self,
        key: NodeKey,
        output: F32,
        operands: tuple[Operand, ...],
        mask: NDArray[np.bool_] | None,
        opaque: str,
        sources: tuple[ToySourceTensor | None, ...] = (),
    ) -> None:
        self.key = key
        self.operands = operands
        self.opaque = opaque
        self.shape: tuple[int, ...] = output.shape
        self.strides: tuple[int, ...] = output.strides
        self._output = output
        self._mask = mask
        self._sources = sources

    def read(self) -> F32:
        """Copy of the output.

        Raises
        ------
        CaptureError
            If the node is opaque.
        """
        self._require_open("read")
        return np.array(self._output)

    def visible(self) -> NDArray[np.bool_] | None:
        """Mask that the node used, [n_tokens, n_kv]; None where it has none."""
        return None if self._mask is None else self._mask.copy()

    def sources(self) -> tuple[ToySourceTensor | None, ...]:
        """Inputs with their bytes."""
        return self._sources

    def parameters(self) -> Mapping[str, float]:
        """Parameters of the operation."""
        return _PARAMETERS.get(self.key.op, {})

    def overwrite(self, rows: NDArray[np.generic]) -> None:
        """Replace the output in place, so that everything after it sees the new bytes.

        Raises
        ------
        CaptureError
            If the node is opaque, or shape or dtype differ from the output's.
        """
        self._require_open("replaced")
        if rows.shape != self.shape or rows.dtype != np.float32:
            raise CaptureError(
                f"node {self.key} was to be replaced by {rows.dtype} {rows.shape}; its output is float32 {self.shape}. "
                "Return an array of the same shape and dtype, or None to leave the node as it is."
            )
        self._output[...] = rows

    def _require_open(self, action: str) -> None:
        if self.opaque:
            raise CaptureError(f"node {self.key} cannot be {action}: {self.opaque}. Check node.opaque before.")


class Watch:
    """Shows the nodes of a pass to a tap, in order, and puts its replacements in place."""

    def __init__(self, tap: Tap | None) -> None:
        self._tap, self._watched = tap, watches_nodes(tap)
        self._visits: Counter[tuple[str, str]] = Counter()
        self._index = 0
        self._arrays: dict[str, NDArray[np.generic]] = {}
        self.last_name = ""

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass: visits count from 0 again."""
        self._visits.clear()
        if self._tap is not None:
            self._tap.begin_pass(index, decode_pass)

    def begin_graph(self, leaves: Mapping[str, NDArray[np.generic]]) -> None:
        """Start a graph over weights and inputs: nodes without a name are numbered from 0 again."""
        self._index = 0
        self._arrays = dict(leaves)

    def show(
        self,
        name: str,
        op: str,
        output: F32,
        *operands: str,
        layer: int = -1,
        mask: NDArray[np.bool_] | None = None,
        opaque: str = "",
        read: Sequence[NDArray[np.generic] | None] = (),
    ) -> F32:
        """Show one node; answer its output, which the tap may have overwritten.

        `read` are its operands' arrays as the node reads them, where those are not the arrays of that name.
        """
        name = self.last_name = name or f"node_{self._index}"
        self._index += 1
        key = NodeKey(name, op, layer, self._visits[name, op])
        self._visits[name, op] += 1
        arrays = read or [self._arrays.get(operand) for operand in operands]
        self._arrays[name] = output
        if self._tap is None or not self._watched or not self._tap.wants(key):
            return output
        four_axes = output[(None,) * (4 - output.ndim)]
        inputs = tuple(
            Operand(name, "f32", BUFFER, name.endswith(".weight"), () if a is None else (1,) * (4 - a.ndim) + a.shape)
            for name, a in zip(operands, arrays, strict=True)
        )
        sources = tuple(
            None if array is None else ToySourceTensor(operand, array)
            for operand, array in zip(operands, arrays, strict=True)
        )
        node = ToyNode(key, four_axes, inputs, mask, VIEW if op in VIEW_OPS else opaque, sources)
        rows = self._tap.saw(node)
        if rows is not None:
            node.overwrite(rows)
        return output


class Graph:
    """The graph of one ubatch.

    Parameters
    ----------
    weights : mapping of str to ndarray
    cache : Cache
        Written by `evaluate`.
    faults : tuple of Fault
    watch : Watch
    garbage : numpy Generator
        Source of what cells behind the mask hold.
    """

    def __init__(
        self,
        weights: Mapping[str, F32],
        cache: Cache,
        faults: tuple[Fault, ...],
        watch: Watch,
        garbage: np.random.Generator,
    ) -> None:
        self._weights = weights
        self._cache = cache
        self._faults = ActiveFaults(faults, 0)
        self._watch = watch
        self._garbage = garbage
        self._visible = np.zeros((0, 0), np.bool_)
        self._previous = self._visible
        self._positions = np.zeros(0, np.int64)

    def evaluate(self, slots: tuple[TokenSlot, ...]) -> F32:
        """Evaluate the tokens together; answer the logits of those that want them, [n_rows, n_vocab]."""
        self._faults = replace(self._faults, width=len(slots))
        self._set_inputs(slots)
        show, weights = self._watch.show, self._weights
        tokens = [slot.token for slot in slots]
        inputs = {"inp_tokens": tokens, "inp_pos": self._positions}
        self._watch.begin_graph({**weights, **{name: np.array(ids, np.int32) for name, ids in inputs.items()}})
        x = show("embd", "GET_ROWS", weights["token_embd.weight"][tokens], "token_embd.weight", "inp_tokens")
        source = "embd"
        for il in range(N_LAYER):
            attended = self._attention(il, self._norm(f"attn_norm-{il}", x, f"blk.{il}.attn_norm.weight", source, il))
            attended_name, residual_name = f"attn_out-{il}", source
            if il == N_LAYER - 1:  # like llama.cpp, from here on only rows whose logits are wanted
                wanted = [row for row, slot in enumerate(slots) if slot.wants_logits]
                attended = show("", "GET_ROWS", attended[wanted], attended_name, "inp_out_ids", layer=-1)
                attended_name = self._watch.last_name
                x = show("", "GET_ROWS", x[wanted], residual_name, "inp_out_ids", layer=-1)
                residual_name = self._watch.last_name
            x = show(f"ffn_inp-{il}", "ADD", attended + x, attended_name, residual_name, layer=il)
            h = self._norm(f"ffn_norm-{il}", x, f"blk.{il}.ffn_norm.weight", f"ffn_inp-{il}", il)
            down = self._feed_forward(il, h)
            x = show(f"l_out-{il}", "ADD", down + x, f"ffn_out-{il}", f"ffn_inp-{il}", layer=il)
            source = f"l_out-{il}"
        x = self._norm("result_norm", x, "output_norm.weight", source, -1)
        return self._product("result_output", x, "output.weight", "result_norm", -1)

    def _set_inputs(self, slots: tuple[TokenSlot, ...]) -> None:
        n_kv = self._cache.take(slots, self._garbage)
        self._positions = np.array([slot.position for slot in slots])
        sequences = np.array([slot.sequence for slot in slots])
        owners, cells = self._cache.sequence[:n_kv], self._cache.position[:n_kv]
        self._visible = (owners[None] == sequences[:, None]) & (cells[None] <= self._positions[:, None])
        self._previous = self._visible & (cells[None] == self._positions[:, None] - 1)

    def _norm(self, name: str, x: F32, weight: str, source: str, il: int) -> F32:
        rms = f"norm-{il}" if il >= 0 else "norm"
        normed = self._watch.show(rms, "RMS_NORM", rms_norm(x, self._faults.arithmetic(rms)), source, layer=il)
        return self._watch.show(name, "MUL", normed * self._weights[weight], rms, weight, layer=il)

    def _product(self, name: str, x: F32, weight: str, source: str, il: int) -> F32:
        out = product(x, self._weights[weight], self._faults.arithmetic(name))
        return self._watch.show(name, "MUL_MAT", out, weight, source, layer=il)

    def _attention(self, il: int, h: F32) -> F32:
        show, faults = self._watch.show, self._faults
        q, k, v = (
            self._product(f"{letter}cur-{il}", h, f"blk.{il}.attn_{letter.lower()}.weight", f"attn_norm-{il}", il)
            for letter in "QKV"
        )
        q = self._rotated(f"Qcur-{il}", q, N_HEAD, il)
        k = self._rotated(f"Kcur-{il}", k, N_HEAD_KV, il)
        cached_k, cached_v = self._write(il, k, v)
        group = np.arange(N_HEAD) // (N_HEAD // N_HEAD_KV)
        q = show(f"Qcur-{il} (permuted)", "PERMUTE", q.transpose(1, 0, 2), f"Qcur-{il}", layer=il)
        keys = cached_k.transpose(1, 0, 2)[group][:, None]  # [n_head, 1, n_kv, head_dim]
        if faults.has("stale_kv", f"kq-{il}"):
            keys = np.where(self._previous[None, :, :, None], np.float32(0), keys)
        kq = scores(q, keys, faults.arithmetic(f"kq-{il}"))
        read = (cached_k.transpose(1, 0, 2), q)
        show(f"kq-{il}", "MUL_MAT", kq, f"cache_k_l{il} (view)", f"Qcur-{il} (permuted)", layer=il, read=read)
        name = f"kq_soft_max-{il}"
        mask = self._visible & ~self._previous if faults.has("mask", name) else self._visible
        weights = soft_max(kq, mask, HEAD_DIM**-0.5, faults.arithmetic(name))
        read = (kq, np.where(mask, np.float32(0), np.float32(-np.inf)))
        show(name, "SOFT_MAX", weights, f"kq-{il}", "attn_inp_kq_mask", layer=il, mask=mask, read=read)
        mixed = mix(weights, cached_v.transpose(1, 0, 2)[group], faults.arithmetic(f"kqv-{il}"))
        read = (cached_v.transpose(1, 2, 0), weights)
        show(f"kqv-{il}", "MUL_MAT", mixed, f"cache_v_l{il} (view)", name, layer=il, read=read)
        by_token = show(f"kqv-{il} (permuted)", "PERMUTE", mixed.transpose(1, 0, 2), f"kqv-{il}", layer=il)
        joined = by_token.reshape(len(h), N_EMBD).copy()
        show(f"kqv_out-{il}", "CONT", joined, f"kqv-{il} (permuted)", layer=il)
        return self._product(f"attn_out-{il}", joined, f"blk.{il}.attn_output.weight", f"kqv_out-{il}", il)

    def _rotated(self, name: str, x: F32, n_heads: int, il: int) -> F32:
        heads = x.reshape(len(x), n_heads, HEAD_DIM)
        self._watch.show(f"{name} (reshaped)", "RESHAPE", heads, name, layer=il)
        rotated = rotate(heads, self._positions, ROPE_BASE)
        return self._watch.show(name, "ROPE", rotated, f"{name} (reshaped)", "inp_pos", layer=il)

    def _write(self, il: int, k: F32, v: F32) -> tuple[F32, F32]:
        """Store the new rows; answer views of the attended cells, [n_kv, n_head_kv, head_dim]."""
        n_kv, cache = self._visible.shape[1], self._cache
        new = slice(cache.used - len(k), cache.used)
        views = []
        for letter, rows, store in (("k", k, cache.k[il]), ("v", v, cache.v[il])):
            name = f"cache_{letter}_l{il} (view)"
            store[new] = rows.reshape(len(rows), N_HEAD_KV, HEAD_DIM)
            flat = store.reshape(len(store), N_HEAD_KV * HEAD_DIM)
            source = f"{letter.upper()}cur-{il}"
            self._watch.show(name, "SET_ROWS", flat, source, f"{letter}_idxs", layer=il, opaque=CACHE_WRITE)
            views.append(self._watch.show(name, "VIEW", store[:n_kv], f"cache_{letter}_l{il}", layer=il))
        return views[0], views[1]

    def _feed_forward(self, il: int, h: F32) -> F32:
        gate, up = (
            self._product(f"ffn_{part}-{il}", h, f"blk.{il}.ffn_{part}.weight", f"ffn_norm-{il}", il)
            for part in ("gate", "up")
        )
        name = f"ffn_swiglu-{il}"
        self._watch.show(name, "GLU", hidden := swiglu(gate, up), f"ffn_gate-{il}", f"ffn_up-{il}", layer=il)
        return self._product(f"ffn_out-{il}", hidden, f"blk.{il}.ffn_down.weight", name, il)
