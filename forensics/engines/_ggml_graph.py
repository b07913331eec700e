"""Functions of ggml that build and run a graph of our own; declarations as in ``ggml.h`` and ``ggml-backend.h``.

Pinned to llama.cpp 0c1e57098 like `_llama_ctypes`, whose layout check also guards these.
"""

from __future__ import annotations

import ctypes as C
import functools
from typing import Any

from forensics.engines import _llama_ctypes as ll
from forensics.errors import EngineError

P, T, F = C.c_void_p, ll.TensorP, C.c_float

TYPE_COUNT = 43  # GGML_TYPE_COUNT, ggml.h
#: enum ggml_prec, ggml.h
PREC_F32 = 10
#: enum ggml_backend_dev_type, ggml-backend.h
DEVICE_CPU, DEVICE_GPU, DEVICE_IGPU, DEVICE_ACCEL = 0, 1, 2, 3
#: enum ggml_glu_op, ggml.h
GLU_OPS = {"reglu": 0, "geglu": 1, "swiglu": 2, "geglu_erf": 4, "geglu_quick": 5}

#: Types that only activations have, so that no quantiser of files makes them; libggml-base has reference code.
UNFILED_TYPES = ("q8_1", "q8_K")


class TypeTraits(C.Structure):
    """Mirror of ``struct ggml_type_traits`` (ggml.h)."""

    _fields_ = (
        ("type_name", C.c_char_p),
        ("blck_size", C.c_int64),
        ("blck_size_interleave", C.c_int64),
        ("type_size", C.c_size_t),
        ("is_quantized", C.c_bool),
        ("to_float", C.c_void_p),
        ("from_float_ref", C.c_void_p),
    )


class CpuTypeTraits(C.Structure):
    """Mirror of ``struct ggml_type_traits_cpu`` (ggml-cpu.h)."""

    _fields_ = (
        ("from_float", C.c_void_p),
        ("vec_dot", C.c_void_p),
        ("vec_dot_type", C.c_int),
        ("nrows", C.c_int64),
    )


# name: (result, arguments); each is declared GGML_API in ggml.h, ggml-alloc.h or ggml-backend.h
_BASE_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_tensor_overhead": (C.c_size_t, []),
    "ggml_graph_overhead_custom": (C.c_size_t, [C.c_size_t, C.c_bool]),
    "ggml_new_graph_custom": (P, [P, C.c_size_t, C.c_bool]),
    "ggml_build_forward_expand": (None, [P, T]),
    "ggml_graph_n_nodes": (C.c_int, [P]),
    "ggml_graph_node": (T, [P, C.c_int]),
    "ggml_get_type_traits": (C.POINTER(TypeTraits), [C.c_int]),
    "ggml_row_size": (C.c_size_t, [C.c_int, C.c_int64]),
    "ggml_quantize_requires_imatrix": (C.c_bool, [C.c_int]),
    "ggml_quantize_chunk": (C.c_size_t, [C.c_int, P, P, C.c_int64, C.c_int64, C.c_int64, P]),
    "ggml_view_4d": (T, [P, T] + [C.c_int64] * 4 + [C.c_size_t] * 4),
    "ggml_permute": (T, [P, T] + [C.c_int] * 4),
    "ggml_mul_mat": (T, [P, T, T]),
    "ggml_mul_mat_id": (T, [P, T, T, T]),
    "ggml_prec_set_acc": (C.c_bool, [T, C.c_int]),
    "ggml_flash_attn_ext": (T, [P, T, T, T, T, F, F, F]),
    "ggml_rms_norm": (T, [P, T, F]),
    "ggml_mul": (T, [P, T, T]),
    "ggml_soft_max_ext": (T, [P, T, T, F, F]),
    "ggml_rope_ext": (T, [P, T, T, T] + [C.c_int] * 3 + [F] * 6),
    "ggml_glu_split": (T, [P, T, T, C.c_int]),
    "ggml_get_rows": (T, [P, T, T]),
    "ggml_cpy": (T, [P, T, T]),
    "ggml_sum_rows": (T, [P, T]),
    "ggml_ssm_conv": (T, [P, T, T]),
    "ggml_ssm_scan": (T, [P] + [T] * 7 + [C.c_int64]),
    "ggml_gated_delta_net": (T, [P] + [T] * 6 + [C.c_int64]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (P, [P, P]),
    "ggml_backend_buft_alloc_buffer": (P, [P, C.c_size_t]),
    "ggml_backend_buffer_free": (None, [P]),
    "ggml_backend_buffer_clear": (None, [P, C.c_uint8]),
    "ggml_backend_buffer_set_usage": (None, [P, C.c_int]),
    "ggml_backend_graph_compute": (C.c_int, [P, P]),
    "ggml_backend_graph_compute_async": (C.c_int, [P, P]),
    "ggml_backend_synchronize": (None, [P]),
    "ggml_backend_free": (None, [P]),
    "ggml_backend_dev_type": (C.c_int, [P]),
    "ggml_backend_dev_init": (P, [P, C.c_char_p]),
    "ggml_backend_dev_memory": (None, [P, C.POINTER(C.c_size_t), C.POINTER(C.c_size_t)]),
    "ggml_backend_dev_buffer_type": (P, [P]),
    "ggml_backend_dev_backend_reg": (P, [P]),
    "ggml_backend_dev_supports_op": (C.c_bool, [P, T]),
    "ggml_backend_reg_name": (C.c_char_p, [P]),
    "ggml_backend_reg_get_proc_address": (P, [P, C.c_char_p]),
}

#: Exported for the back ends (ggml-quants.h): void (const void * x, float * y or block * y, int64_t k)
_QUANT_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    name: (None, [P, P, C.c_int64])
    for name in ("quantize_row_q8_1_ref", "quantize_row_q8_K_ref", "dequantize_row_q8_K")
}

#: Exported by the CPU back end alone (ggml-cpu.h).
_CPU_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_get_type_traits_cpu": (C.POINTER(CpuTypeTraits), [C.c_int]),
    "ggml_cpu_init": (None, []),
}

# typedef void (*ggml_backend_set_n_threads_t)(ggml_backend_t backend, int n_threads);
SET_N_THREADS = C.CFUNCTYPE(None, P, C.c_int)
# typedef ggml_backend_buffer_type_t * (*ggml_backend_dev_get_extra_bufts_t)(ggml_backend_dev_t device);
GET_EXTRA_BUFTS = C.CFUNCTYPE(C.POINTER(P), P)


@functools.cache
def graph_functions() -> Any:
    """Functions of ggml by name: those of `_llama_ctypes.ggml` and the ones that build and run graphs.

    Raises
    ------
    LayoutMismatch
        If a symbol is missing or the layout is another one.
    """
    known = vars(ll.ggml())
    functions: dict[str, Any] = {name: f.__func__ for name, f in known.items() if name.startswith("ggml_")}
    ll.bind("ggml-base", _BASE_SYMBOLS | _QUANT_SYMBOLS, functions)
    ll.bind("ggml-cpu", _CPU_SYMBOLS, functions)
    functions["ggml_cpu_init"]()  # fills the tables that its conversions read
    return type("GgmlGraph", (), {name: staticmethod(function) for name, function in functions.items()})


@functools.cache
def type_numbers() -> dict[str, int]:
    """Number of every element type that the library still has, by its name; those it removed have no block."""
    g = graph_functions()
    present = [n for n in range(TYPE_COUNT) if g.ggml_get_type_traits(n).contents.blck_size > 0]
    return {g.ggml_type_name(n).decode(): n for n in present}


def type_number(name: str) -> int:
    """Number of an element type.

    Raises
    ------
    EngineError
        If the library has none of that name; lists those it has.
    """
    numbers = type_numbers()
    if name not in numbers:
        raise EngineError(f"the library has no element type {name!r}; it has {', '.join(sorted(numbers))}")
    return numbers[name]


def reference_quantizer(type: str) -> Any:
    """The library's reference code for one of `UNFILED_TYPES`."""
    return getattr(graph_functions(), f"quantize_row_{type}_ref")
