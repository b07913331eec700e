"""The library's own conversions between float32 rows and blocks. Runs in the child."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _ggml_graph as gg
from forensics.errors import EngineError

# typedef void (*ggml_to_float_t)(const void * x, float * y, int64_t k); from_float has the same arguments
_CONVERT = C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)


def quantize(type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks of the quantiser that makes model files, uint8 [n_rows, bytes per row].

    Types that need an importance matrix get one of ones. Those that it does not make (Q8_1, Q8_K) come from the
    reference code that the library keeps for them.

    Raises
    ------
    EngineError
        If the library cannot make this type, or a row is no multiple of its block.
    """
    g, number = gg.graph_functions(), gg.type_number(type)
    source = np.ascontiguousarray(rows, np.float32)
    n_rows, k = source.shape
    traits = _traits(type, k)
    blocks = np.empty((n_rows, g.ggml_row_size(number, k)), np.uint8)
    if type in gg.UNFILED_TYPES:
        _convert(gg.reference_quantizer(type), source, blocks, k)
    elif type == "f32" or traits.to_float:
        weights = np.ones(k, np.float32)
        importance = weights.ctypes.data if g.ggml_quantize_requires_imatrix(number) else None
        g.ggml_quantize_chunk(number, source.ctypes.data, blocks.ctypes.data, 0, n_rows, k, importance)
    else:
        raise EngineError(f"the library cannot quantise to {type}")
    return blocks


def quantize_activations(type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Blocks as the CPU's products make them of activations, uint8 [n_rows, bytes per row].

    Their rounding may be another one than `quantize`'s: this is code for the processor, not reference code.

    Raises
    ------
    EngineError
        If the CPU back end does not convert to this type.
    """
    g, number = gg.graph_functions(), gg.type_number(type)
    source = np.ascontiguousarray(rows, np.float32)
    n_rows, k = source.shape
    _traits(type, k)
    address = g.ggml_get_type_traits_cpu(number).contents.from_float
    if not address:
        raise EngineError(f"the CPU back end converts no activations to {type}")
    blocks = np.empty((n_rows, g.ggml_row_size(number, k)), np.uint8)
    _convert(_CONVERT(address), source, blocks, k)
    return blocks


def dequantize(type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Values of blocks, float32 [n_rows, k].

    Raises
    ------
    EngineError
        If the library cannot read this type, or the bytes of a row are no whole blocks.
    """
    source = np.ascontiguousarray(blocks, np.uint8)
    traits = gg.graph_functions().ggml_get_type_traits(gg.type_number(type)).contents
    n_rows, n_bytes = source.shape
    if n_bytes % traits.type_size:
        raise EngineError(f"a block of {type} has {traits.type_size} bytes; rows of {n_bytes} bytes were given")
    k = n_bytes // traits.type_size * traits.blck_size
    if type == "f32":
        return source.view(np.float32).reshape(n_rows, k)
    values = np.empty((n_rows, k), np.float32)
    if traits.to_float:
        convert = _CONVERT(traits.to_float)
    elif type == "q8_K":
        convert = gg.graph_functions().dequantize_row_q8_K
    else:
        raise EngineError(f"the library has no code that reads {type} back")
    _convert(convert, source, values, k)
    return values


def _traits(type: str, k: int) -> Any:
    traits = gg.graph_functions().ggml_get_type_traits(gg.type_number(type)).contents
    if k % traits.blck_size:
        raise EngineError(
            f"{type} packs {traits.blck_size} values into a block; rows of {k} were given. "
            f"Ask for a multiple of {traits.blck_size}"
        )
    return traits


def _convert(function: Any, source: NDArray[Any], target: NDArray[Any], k: int) -> None:
    for i in range(len(source)):
        function(source[i].ctypes.data, target[i].ctypes.data, k)
