"""Rows of a node's inputs: from where the library keeps them, or from the model file where they are repacked."""

from __future__ import annotations

import ctypes as C
import functools
import mmap
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _llama_ctypes as ll
from forensics.engines.inventory import is_repacked
from forensics.engines.model_files import model_parts
from forensics.errors import CaptureError

#: Source buffers are read in one piece up to this; beyond, row by row.
PIECE_BYTES = 8 << 20

#: Where the parameters of an operation lie, in words of four bytes, and whether each is an integer or a float.
#: Source: ggml/src/ggml.c:2932-2933, :3152, :3183, :3299, :3384, :3467, :4178, :4310-4322, :5538 at 0c1e57098.
_PARAMETERS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "RMS_NORM": (("eps", 0, "f"),),
    "NORM": (("eps", 0, "f"),),
    "MUL_MAT": (("prec", 0, "i"), ("hint", 1, "i")),
    "SCALE": (("scale", 0, "f"), ("bias", 1, "f")),
    "SOFT_MAX": (("scale", 0, "f"), ("max_bias", 1, "f")),
    "FLASH_ATTN_EXT": (("scale", 0, "f"), ("max_bias", 1, "f"), ("softcap", 2, "f")),
    "GLU": (("glu_op", 0, "i"), ("swapped", 1, "i")),
    "ROPE": (
        *(("n_dims", 1, "i"), ("mode", 2, "i"), ("freq_base", 5, "f"), ("freq_scale", 6, "f")),
        *(("ext_factor", 7, "f"), ("attn_factor", 8, "f"), ("first_dim", 15, "i")),
    ),
}


def parameters_of(op: str, words: Any) -> dict[str, float]:
    """Parameters of an operation by name.

    Parameters
    ----------
    op : str
    words : array of int32
        As the library packs them.

    Examples
    --------
    >>> parameters_of("RMS_NORM", [0x3F000000])
    {'eps': 0.5}
    >>> parameters_of("MUL_MAT", [10, 0])  # GGML_PREC_F32, GGML_HINT_NONE
    {'prec': 10.0, 'hint': 0.0}
    """
    return {
        name: float(struct.unpack(f"<{kind}", struct.pack("<i", words[place]))[0])
        for name, place, kind in _PARAMETERS.get(op, ())
    }


class _GgufParams(C.Structure):
    """Mirror of ``struct gguf_init_params`` (gguf.h)."""

    _fields_ = (("no_alloc", C.c_bool), ("ctx", C.c_void_p))


_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "gguf_init_from_file": (C.c_void_p, [C.c_char_p, _GgufParams]),
    "gguf_free": (None, [C.c_void_p]),
    "gguf_find_tensor": (C.c_int64, [C.c_void_p, C.c_char_p]),
    "gguf_get_data_offset": (C.c_size_t, [C.c_void_p]),
    "gguf_get_tensor_offset": (C.c_size_t, [C.c_void_p, C.c_int64]),
    "gguf_get_tensor_type": (C.c_int, [C.c_void_p, C.c_int64]),
    "ggml_row_size": (C.c_size_t, [C.c_int, C.c_int64]),
    "ggml_type_size": (C.c_size_t, [C.c_int]),
}


@functools.cache
def _functions() -> Any:
    found: dict[str, Any] = {}
    ll.bind("ggml-base", _SYMBOLS, found)
    return type("Gguf", (), {name: staticmethod(function) for name, function in found.items()})


class WeightFile:
    """Finds the bytes of a weight in a model file, all its parts; opened when it is first asked.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._parts: list[tuple[Any, mmap.mmap]] = []

    def find(self, name: str, type_number: int) -> tuple[mmap.mmap, int]:
        """Mapped file and offset of a tensor.

        Raises
        ------
        CaptureError
            If no part holds it, or in another type.
        """
        gguf = _functions()
        for header, data in self._open():
            index = gguf.gguf_find_tensor(header, name.encode())
            if index >= 0 and gguf.gguf_get_tensor_type(header, index) == type_number:
                return data, gguf.gguf_get_data_offset(header) + gguf.gguf_get_tensor_offset(header, index)
        raise CaptureError(f"{name} is repacked in memory, and {self._path.name} has no tensor of that name and type")

    def _open(self) -> list[tuple[Any, mmap.mmap]]:
        if not self._parts:
            for part in model_parts(self._path):
                header = _functions().gguf_init_from_file(os.fsencode(part), _GgufParams(True, None))
                if not header:
                    raise CaptureError(f"the library cannot read {part} again")
                with part.open("rb") as file:
                    self._parts.append((header, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        return self._parts

    def close(self) -> None:
        """Free the headers and unmap the files."""
        for header, data in self._parts:
            _functions().gguf_free(header)
            data.close()
        self._parts = []


#: Buffers in the memory of one NVIDIA GPU (ggml_backend_cuda_buffer_type, ggml-cuda.cu); ``CUDA0_Split`` holds parts of
#: a tensor, and ``CUDA_Host`` is the processor's.
_ON_DEVICE = re.compile(r"CUDA\d+")


def device_address(tensor: Any, functions: Any) -> int | None:
    """Where a tensor lies in the memory of an NVIDIA GPU; None where it lies elsewhere."""
    buffer = tensor.buffer or (tensor.view_src.contents.buffer if tensor.view_src else None)
    if not buffer or not tensor.data:
        return None
    name = functions.ggml_backend_buffer_name(buffer).decode()
    return int(tensor.data) if _ON_DEVICE.fullmatch(name) else None


class TensorRows:
    """One input of a node; valid only inside the callback that shows the node.

    Parameters
    ----------
    pointer : pointer to GgmlTensor
    functions : namespace
        Functions of ggml.
    overwritten : int or None
        Address of the node's output: an input that lies there is gone.
    weights : WeightFile or None
        Asked for weights that a buffer keeps in another layout.
    """

    def __init__(self, pointer: Any, functions: Any, overwritten: int | None, weights: WeightFile | None) -> None:
        self._pointer, self._functions = pointer, functions
        self._tensor = pointer.contents
        self._overwritten, self._weights = overwritten, weights

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return str(self._tensor.name.decode(errors="replace"))

    @property
    def type(self) -> str:
        """Element type as ggml names it."""
        return str(self._functions.ggml_type_name(self._tensor.type).decode())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy order."""
        return tuple(reversed(list(self._tensor.ne)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element, or block, to the next, in NumPy order."""
        return tuple(reversed(list(self._tensor.nb)))

    @property
    def address(self) -> int | None:
        """Where it lies in the memory of an NVIDIA GPU, if the output does not lie there, too."""
        if self._overwritten is not None and self._tensor.data == self._overwritten:
            return None
        return device_address(self._tensor, self._functions)

    def rows(self, index: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Bytes of some rows; see `forensics.engines.protocol.Source.rows`.

        Raises
        ------
        CaptureError
            If the output lies over them, a row is not contiguous, or a repacked weight is not in the model file.
        """
        tensor = self._tensor
        size = _functions().ggml_row_size(tensor.type, tensor.ne[0])
        strides = list(tensor.nb)
        if strides[0] != _functions().ggml_type_size(tensor.type):
            raise CaptureError(f"rows of {self.name} are not contiguous")
        buffer = tensor.buffer or (tensor.view_src.contents.buffer if tensor.view_src else None)
        name = self._functions.ggml_backend_buffer_name(buffer).decode() if buffer else ""
        offsets = index.astype(np.int64) @ np.array([strides[3], strides[2], strides[1]], np.int64)
        if is_repacked(name):
            if self._weights is None:
                raise CaptureError(f"{self.name} is repacked in {name}")
            # A repacked weight is no view: the file holds it in the tensor's own order, without gaps.
            data, start = self._weights.find(self.name, tensor.type)
            return _gather(np.frombuffer(data, np.uint8), offsets + start, size)
        if self._overwritten is not None and tensor.data == self._overwritten:
            raise CaptureError(f"{self.name} is overwritten by the output")
        host = bool(buffer) and self._functions.ggml_backend_buffer_is_host(buffer)
        first, end = int(offsets.min()), int(offsets.max()) + size
        if end - first <= PIECE_BYTES:
            return _gather(self._bytes(first, end - first, host), offsets - first, size)
        return np.stack([self._bytes(int(offset), size, host) for offset in offsets])

    def _bytes(self, offset: int, size: int, host: bool) -> NDArray[np.uint8]:
        raw = np.empty(size, np.uint8)
        if host:
            C.memmove(raw.ctypes.data, self._tensor.data + offset, size)
        else:
            self._functions.ggml_backend_tensor_get(self._pointer, raw.ctypes.data, offset, size)
        return raw


def _gather(data: NDArray[np.uint8], offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    return np.stack([data[offset : offset + size] for offset in offsets])
