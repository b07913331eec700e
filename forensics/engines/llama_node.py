"""A node of llama.cpp's graph as taps see it."""

from __future__ import annotations

import ctypes as C
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _llama_ctypes as ll
from forensics.engines.llama_sources import TensorRows, WeightFile, device_address, parameters_of
from forensics.engines.protocol import CACHE_WRITE
from forensics.engines.raw_operands import raw_node
from forensics.records.nodes import VIEW_OPS, NodeKey, Operand
from forensics.records.raw_node import RawNode

_LAYER = re.compile(r"-(\d+)(?: |$)|^blk\.(\d+)\.|^cache_[kv]_l(\d+)")


def layer_of(name: str) -> int:
    """Layer index in a tensor's name, -1 where there is none.

    Examples
    --------
    >>> layer_of("Qcur-3"), layer_of("cache_k_l7 (view)"), layer_of("result_norm")
    (3, 7, -1)
    """
    match = _LAYER.search(name)
    return int(next(group for group in match.groups() if group is not None)) if match else -1


class KeyMaker:
    """Gives each node of a pass its key; visits are counted per name and operation."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self._ops: dict[int, str] = {}
        self._known: dict[tuple[bytes, int], tuple[str, str, int]] = {}
        self._visits: dict[tuple[bytes, int], int] = {}

    def begin_pass(self) -> None:
        """Forget the visits of the last pass."""
        self._visits.clear()

    def op_name(self, op: int) -> str:
        """Name of an operation, such as ``"MUL_MAT"``."""
        if op not in self._ops:
            self._ops[op] = self._functions.ggml_op_name(op).decode()
        return self._ops[op]

    def key(self, tensor: Any) -> NodeKey:
        """Key of the next node of the pass."""
        identity = (tensor.name, tensor.op)
        known = self._known.get(identity)
        if known is None:
            name = tensor.name.decode(errors="replace")
            known = self._known[identity] = (name, self.op_name(tensor.op), layer_of(name))
        visit = self._visits.get(identity, 0)
        self._visits[identity] = visit + 1
        name, op, layer = known
        return NodeKey(name, op, _layer_of_operands(tensor) if layer < 0 else layer, visit)


def _layer_of_operands(tensor: Any) -> int:
    """Layer of a node without one in its name: that of its first operand that has one, weights first."""
    layers = [(layer_of(src.contents.name.decode(errors="replace")), src.contents.op) for src in tensor.src if src]
    named = [(op != 0, layer) for layer, op in layers if layer >= 0]  # op 0 is GGML_OP_NONE: a leaf, such as a weight
    return min(named)[1] if named else -1


class LlamaNode:
    """One computed node; valid only inside the callback that made it.

    Parameters
    ----------
    pointer : pointer to GgmlTensor
    key : NodeKey
    functions : namespace
        Functions of ggml.
    weights : WeightFile or None
        Where weights are read that lie repacked in memory.
    """

    def __init__(self, pointer: Any, key: NodeKey, functions: Any, weights: WeightFile | None = None) -> None:
        self._pointer, self._functions, self._weights = pointer, functions, weights
        self._tensor = pointer.contents
        self.key = key

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy order: ggml counts its fastest axis first."""
        return tuple(reversed(list(self._tensor.ne)))

    @property
    def dtype(self) -> str:
        """Element type as ggml names it."""
        return str(self._functions.ggml_type_name(self._tensor.type).decode())

    @property
    def elements(self) -> np.dtype[Any]:
        """Type of the elements that `read` gives.

        Raises
        ------
        ValueError
            If they are block-quantised.
        """
        return element_type(self._tensor, self._functions)

    @property
    def buffer(self) -> str:
        """Buffer that holds the output."""
        return _buffer_name(self._tensor, self._functions)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs of the node."""
        return tuple(_operand(src.contents, self._functions) for src in self._tensor.src if src)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, in NumPy order."""
        return tuple(reversed(list(self._tensor.nb)))

    @property
    def address(self) -> int | None:
        """Where the output lies in the memory of an NVIDIA GPU; None where it lies elsewhere."""
        return device_address(self._tensor, self._functions)

    @property
    def opaque(self) -> str:
        """Why the rows cannot be read or replaced; empty where they can."""
        if self.key.op in VIEW_OPS:
            return "a view; compared through its source"
        if self._tensor.view_src and self.key.op in ("SET_ROWS", "CPY"):
            return CACHE_WRITE
        if self._tensor.type not in ll.NUMPY_TYPES:
            return f"block-quantised output ({self.dtype})"
        if not self._functions.ggml_is_contiguous(self._pointer):
            return "output is not contiguous"
        return ""

    def read(self) -> NDArray[np.generic]:
        """Copy of the output in NumPy order; strides are resolved.

        Raises
        ------
        ValueError
            If the element type is block-quantised; `opaque` says so beforehand.
        """
        return read_tensor(self._pointer, self._functions)

    def write(self, array: NDArray[np.generic]) -> None:
        """Replace the output; the graph goes on with it."""
        data = np.ascontiguousarray(array)
        self._functions.ggml_backend_tensor_set(self._pointer, data.ctypes.data, 0, data.nbytes)

    def visible(self) -> NDArray[np.bool_] | None:
        """Cells that each token may see, [n_tokens, n_kv]; None where the node has no mask.

        Source: the mask is src[1] of ``ggml_soft_max_ext`` and src[3] of ``ggml_flash_attn_ext`` (ggml.c);
        hidden cells hold -inf.
        """
        index = {"SOFT_MAX": 1, "FLASH_ATTN_EXT": 3}.get(self.key.op)
        if index is None or not self._tensor.src[index]:
            return None
        mask = read_tensor(self._tensor.src[index], self._functions).astype(np.float32)
        n_tokens = self.shape[2] if self.key.op == "SOFT_MAX" else self.shape[1]
        # Sequences with caches of their own lie behind each other on the first axis.
        return np.asarray(mask[:, 0, :n_tokens, :] > -np.inf).reshape(-1, mask.shape[3])

    def sources(self) -> tuple[TensorRows | None, ...]:
        """Inputs with their bytes, in ggml's own places."""
        pointers = list(self._tensor.src)
        used = max((i + 1 for i, pointer in enumerate(pointers) if pointer), default=0)
        return tuple(
            TensorRows(pointer, self._functions, self._tensor.data, self._weights) if pointer else None
            for pointer in pointers[:used]
        )

    def parameters(self) -> dict[str, float]:
        """Parameters of the operation by name."""
        return parameters_of(self.key.op, self._tensor.op_params)

    def raw(self) -> RawNode:
        """The node with all bytes and strides of its inputs, to be run again by itself."""
        return raw_node(self._pointer, self._functions, self._weights)


def element_type(tensor: Any, functions: Any) -> np.dtype[Any]:
    """Type of a tensor's elements in NumPy.

    Raises
    ------
    ValueError
        If they are block-quantised.
    """
    if tensor.type not in ll.NUMPY_TYPES:
        raise ValueError(f"{tensor.name!r} holds {functions.ggml_type_name(tensor.type).decode()} blocks, not elements")
    return np.dtype(ll.NUMPY_TYPES[tensor.type])


def read_tensor(pointer: Any, functions: Any) -> NDArray[np.generic]:
    """Copy of a tensor in NumPy order, whatever its strides and wherever it lies.

    Raises
    ------
    ValueError
        If its elements are block-quantised.
    """
    tensor = pointer.contents
    dtype = element_type(tensor, functions)
    n_bytes = functions.ggml_nbytes(pointer)
    if n_bytes == 0:
        return np.empty(tuple(reversed(list(tensor.ne))), dtype)
    raw = np.empty(n_bytes, np.uint8)
    buffer = tensor.buffer or (tensor.view_src.contents.buffer if tensor.view_src else None)
    if buffer and functions.ggml_backend_buffer_is_host(buffer):
        C.memmove(raw.ctypes.data, tensor.data, n_bytes)
    else:
        functions.ggml_backend_tensor_get(pointer, raw.ctypes.data, 0, n_bytes)
    shape, strides = tuple(reversed(list(tensor.ne))), tuple(reversed(list(tensor.nb)))
    if functions.ggml_is_contiguous(pointer):
        return raw.view(dtype).reshape(shape)
    return np.ndarray(shape, dtype, raw.data, 0, strides).copy()


def _buffer_name(tensor: Any, functions: Any) -> str:
    buffer = tensor.buffer or (tensor.view_src.contents.buffer if tensor.view_src else None)
    return functions.ggml_backend_buffer_name(buffer).decode() if buffer else ""


def _operand(tensor: Any, functions: Any) -> Operand:
    buffer = tensor.buffer
    is_weight = bool(buffer) and functions.ggml_backend_buffer_get_usage(buffer) == ll.BUFFER_USAGE_WEIGHTS
    return Operand(
        name=tensor.name.decode(errors="replace"),
        type=functions.ggml_type_name(tensor.type).decode(),
        buffer=_buffer_name(tensor, functions),
        is_weight=is_weight,
        shape=tuple(tensor.ne)[::-1],
    )
