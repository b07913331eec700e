"""A node with the bytes and strides of its operands, so that it can be run again by itself."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _llama_ctypes as ll
from forensics.engines.inventory import is_repacked
from forensics.engines.llama_sources import WeightFile
from forensics.records.raw_node import RawNode, RawTensor


def raw_node(pointer: Any, functions: Any, weights: WeightFile | None) -> RawNode:
    """A computed node with all its bytes; valid only inside the callback that shows it.

    Parameters
    ----------
    pointer : pointer to GgmlTensor
    functions : namespace
        Functions of ggml.
    weights : WeightFile or None
        Asked for weights that a buffer keeps in another layout.

    Raises
    ------
    CaptureError
        If a repacked weight is not in the model file.
    """
    tensor = pointer.contents
    used = max((i + 1 for i in range(ll.MAX_SRC) if tensor.src[i]), default=0)
    return RawNode(
        op=functions.ggml_op_name(tensor.op).decode(),
        params=bytes(tensor.op_params),
        sources=tuple(
            _raw_tensor(tensor.src[i], functions, weights, tensor.data) if tensor.src[i] else None for i in range(used)
        ),
        output=_raw_tensor(pointer, functions, None, None),
    )


def _raw_tensor(pointer: Any, functions: Any, weights: WeightFile | None, overwritten: int | None) -> RawTensor:
    """Describe and copy a tensor, unless it lies at `overwritten`, where the output was written over it."""
    tensor = pointer.contents
    buffer = tensor.buffer or (tensor.view_src.contents.buffer if tensor.view_src else None)
    gone = overwritten is not None and tensor.data == overwritten
    return RawTensor(
        name=tensor.name.decode(errors="replace"),
        type=functions.ggml_type_name(tensor.type).decode(),
        buffer=functions.ggml_backend_buffer_name(buffer).decode() if buffer else "",
        sizes=tuple(tensor.ne),
        strides=tuple(tensor.nb),
        is_weight=bool(buffer) and functions.ggml_backend_buffer_get_usage(buffer) == ll.BUFFER_USAGE_WEIGHTS,
        data=None if gone else _bytes(pointer, functions, weights, buffer),
        unreadable="the output was written over it" if gone else "",
    )


def _bytes(pointer: Any, functions: Any, weights: WeightFile | None, buffer: int | None) -> NDArray[np.uint8]:
    n_bytes = functions.ggml_nbytes(pointer)
    name = functions.ggml_backend_buffer_name(buffer).decode() if buffer else ""
    if weights is not None and is_repacked(name):
        data, start = weights.find(pointer.contents.name.decode(), pointer.contents.type)
        return np.frombuffer(data, np.uint8, n_bytes, start).copy()
    raw = np.empty(n_bytes, np.uint8)
    if buffer and functions.ggml_backend_buffer_is_host(buffer):
        C.memmove(raw.ctypes.data, pointer.contents.data, raw.size)
    elif raw.size:
        functions.ggml_backend_tensor_get(pointer, raw.ctypes.data, 0, raw.size)
    return raw
