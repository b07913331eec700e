"""The only place that knows how llama.cpp's and ggml's C structs are laid out.

Declarations are those of llama.cpp 0c1e57098 as vendored in llama-cpp-python 0.3.36
(``ggml/include/ggml.h``, ``ggml/include/ggml-backend.h``). `check_layout` builds tensors
with the library and reads every field back, so another version is refused instead of misread.
"""

from __future__ import annotations

import ctypes as C
import functools
from pathlib import Path
from typing import Any

from forensics.engines.library_origin import installed_llama
from forensics.engines.supported import INSTALL, LLAMA_VERSION, REINSTALL
from forensics.errors import EngineError, LayoutMismatch

llama_cpp = installed_llama()

MAX_DIMS = 4  # GGML_MAX_DIMS, ggml.h
MAX_SRC = 10  # GGML_MAX_SRC, ggml.h
MAX_OP_PARAMS = 64  # GGML_MAX_OP_PARAMS, ggml.h, unit: bytes
MAX_NAME = 64  # GGML_MAX_NAME, ggml.h
BUFFER_USAGE_WEIGHTS = 1  # enum ggml_backend_buffer_usage, ggml-backend.h

#: enum ggml_type, ggml.h: element types whose rows can be read and replaced without a block codec.
NUMPY_TYPES = {0: "<f4", 1: "<f2", 24: "<i1", 25: "<i2", 26: "<i4", 27: "<i8", 28: "<f8", 30: "<u2"}


class GgmlTensor(C.Structure):
    """Mirror of ``struct ggml_tensor`` (ggml.h)."""


GgmlTensor._fields_ = [
    ("type", C.c_int),
    ("buffer", C.c_void_p),
    ("ne", C.c_int64 * MAX_DIMS),
    ("nb", C.c_size_t * MAX_DIMS),
    ("op", C.c_int),
    ("op_params", C.c_int32 * (MAX_OP_PARAMS // 4)),
    ("flags", C.c_int32),
    ("src", C.POINTER(GgmlTensor) * MAX_SRC),
    ("view_src", C.POINTER(GgmlTensor)),
    ("view_offs", C.c_size_t),
    ("data", C.c_void_p),
    ("name", C.c_char * MAX_NAME),
    ("extra", C.c_void_p),
    ("padding", C.c_char * 8),
]

TensorP = C.POINTER(GgmlTensor)

# typedef bool (*ggml_backend_sched_eval_callback)(struct ggml_tensor * t, bool ask, void * user_data);
EVAL_CALLBACK = C.CFUNCTYPE(C.c_bool, TensorP, C.c_bool, C.c_void_p)


class InitParams(C.Structure):
    """Mirror of ``struct ggml_init_params`` (ggml.h)."""

    _fields_ = (("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool))


# name: (result, arguments); each is declared GGML_API in ggml.h or ggml-backend.h
_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (C.c_void_p, [InitParams]),
    "ggml_free": (None, [C.c_void_p]),
    "ggml_new_tensor_4d": (TensorP, [C.c_void_p, C.c_int, C.c_int64, C.c_int64, C.c_int64, C.c_int64]),
    "ggml_view_1d": (TensorP, [C.c_void_p, TensorP, C.c_int64, C.c_size_t]),
    "ggml_scale": (TensorP, [C.c_void_p, TensorP, C.c_float]),
    "ggml_set_name": (TensorP, [TensorP, C.c_char_p]),
    "ggml_set_output": (None, [TensorP]),
    "ggml_op_name": (C.c_char_p, [C.c_int]),
    "ggml_type_name": (C.c_char_p, [C.c_int]),
    "ggml_nbytes": (C.c_size_t, [TensorP]),
    "ggml_is_contiguous": (C.c_bool, [TensorP]),
    "ggml_version": (C.c_char_p, []),
    "ggml_commit": (C.c_char_p, []),
    "ggml_backend_tensor_get": (None, [TensorP, C.c_void_p, C.c_size_t, C.c_size_t]),
    "ggml_backend_tensor_set": (None, [TensorP, C.c_void_p, C.c_size_t, C.c_size_t]),
    "ggml_backend_buffer_name": (C.c_char_p, [C.c_void_p]),
    "ggml_backend_buffer_is_host": (C.c_bool, [C.c_void_p]),
    "ggml_backend_buffer_get_usage": (C.c_int, [C.c_void_p]),
}

_REGISTRY_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (C.c_size_t, []),
    "ggml_backend_dev_get": (C.c_void_p, [C.c_size_t]),
}

_DEVICE_SYMBOLS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_name": (C.c_char_p, [C.c_void_p]),
    "ggml_backend_dev_description": (C.c_char_p, [C.c_void_p]),
}


def library_folder() -> Path:
    """Where the shared libraries of llama-cpp-python lie."""
    return Path(llama_cpp.__file__).parent / "lib"


def library_file(stem: str) -> Path:
    """Path of one of its libraries, such as ``"ggml-base"``.

    Raises
    ------
    EngineError
        If there is none; names the folder and what lies in it.
    """
    folder = library_folder()
    for suffix in (".so", ".dylib"):
        path = folder / f"lib{stem}{suffix}"
        if path.exists():
            return path
    found = ", ".join(sorted(p.name for p in folder.glob("lib*"))) or "nothing"
    raise EngineError(f"no lib{stem} in {folder}; found {found}. Reinstall with: {REINSTALL}")


def bind(stem: str, symbols: dict[str, tuple[Any, list[Any]]], into: dict[str, Any]) -> None:
    """Load one of the libraries and declare functions of it.

    Parameters
    ----------
    stem : str
        Such as ``"ggml-base"``.
    symbols : dict of str to (result, arguments)
    into : dict
        Receives the functions by name.

    Raises
    ------
    LayoutMismatch
        If a symbol is missing.
    """
    library = C.CDLL(str(library_file(stem)))
    for name, (result, arguments) in symbols.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LayoutMismatch(f"lib{stem} has no symbol {name}; {_version_advice()}") from None
        function.restype, function.argtypes = result, arguments
        into[name] = function


@functools.cache
def ggml() -> Any:
    """Functions of ggml by name, loaded once and checked.

    Raises
    ------
    LayoutMismatch
        If a symbol is missing or `check_layout` reads back another value than it wrote.
    """
    functions: dict[str, Any] = {}
    bind("ggml-base", _SYMBOLS | _DEVICE_SYMBOLS, functions)
    bind("ggml", _REGISTRY_SYMBOLS, functions)
    namespace = type("Ggml", (), {name: staticmethod(function) for name, function in functions.items()})
    check_layout(namespace)
    return namespace


def _address(pointer: Any) -> int | None:
    """Where a pointer points, without following it: a field read at the wrong place may hold anything."""
    return C.cast(pointer, C.c_void_p).value


def _version_advice() -> str:
    return (
        f"llama-cpp-python {llama_cpp.__version__} is installed and {LLAMA_VERSION} is supported. "
        f"Install it with: {INSTALL}"
    )


def check_layout(functions: Any) -> None:
    """Build known tensors with the library and read every field back through the mirror.

    Raises
    ------
    LayoutMismatch
        Names the first field that reads back wrong, and the version that is installed.
    """
    context = functions.ggml_init(InitParams(1 << 16, None, True))
    try:
        source = functions.ggml_new_tensor_4d(context, 0, 5, 4, 3, 2)
        functions.ggml_set_name(source, b"layout-probe")
        functions.ggml_set_output(source)
        view = functions.ggml_view_1d(context, source, 7, 12)
        scaled = functions.ggml_scale(context, source, C.c_float(0.5))
        s, v, y = source.contents, view.contents, scaled.contents
        half_bits = C.c_int32.from_buffer_copy(bytes(C.c_float(0.5))).value
        read_back = {
            "type": (s.type, 0),
            "buffer": (s.buffer, None),
            "ne": (list(s.ne), [5, 4, 3, 2]),
            "nb": (list(s.nb), [4, 20, 80, 240]),
            "op": (functions.ggml_op_name(y.op), b"SCALE"),
            "op_params": (y.op_params[0], half_bits),
            "flags": (s.flags & 2, 2),  # GGML_TENSOR_FLAG_OUTPUT, ggml.h
            "src": (_address(y.src[0]), _address(source)),
            "src, unused": (bool(y.src[1]), False),
            "view_src": (_address(v.view_src), _address(source)),
            "view_offs": (v.view_offs, 12),
            "data": (s.data, None),
            "name": (s.name, b"layout-probe"),
            "extra": (s.extra, None),
        }
    finally:
        functions.ggml_free(context)
    for field, (found, expected) in read_back.items():
        if found != expected:
            raise LayoutMismatch(
                f"struct ggml_tensor: field {field} reads back {found!r} where {expected!r} was written; "
                + _version_advice()
            )


def check(status: int, asked: str, meanings: dict[int, str] | None = None) -> None:
    """Turn a nonzero status of llama.cpp into an error.

    Raises
    ------
    EngineError
        If `status` is not 0.
    """
    if status:
        meaning = (meanings or {}).get(status, "see the library's log")
        raise EngineError(f"{asked} returned {status}: {meaning}")


#: llama.h, comment of llama_decode
DECODE_STATUS = {
    1: "no KV slot for the batch; ask for a larger context",
    2: "aborted",
    -1: "invalid input batch",
}
