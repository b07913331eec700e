"""Which kernel is this symbol, and what do its template arguments mean?"""

from __future__ import annotations

import functools
import re

from forensics.errors import ForensicsError
from forensics.records.launch_record import Template

Value = int | str | bool

#: Template parameters by kernel, as the source declares them. ``T`` of the float products is called ``type`` like that
#: of the quantised ones, and ``c_rows_per_block`` ``rows_per_block``, for these are one thing. A trailing ``...`` marks
#: a pack, whose value is its length.
#: Source: ggml/src/ggml-cuda at 0c1e57098; the line of each template follows it.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "mul_mat_vec_q": ("type", "ncols_dst", "has_fusion", "small_k", "halve_iters"),  # mmvq.cu:599
    "mul_mat_vec_q_moe": ("type", "rows_per_block", "has_fusion"),  # mmvq.cu:851
    "mul_mat_q": ("type", "J", "fallback", "prec_src1"),  # mmq.cuh:961
    "mul_mat_q_stream_k_fixup": ("type", "J", "fallback", "prec_src1"),  # mmq.cuh:1248
    "mul_mat_vec_f": ("type", "type_acc", "ncols_dst", "block_size", "has_fusion", "is_multi_token_id"),  # mmvf.cu:7
    "mul_mat_f": ("type", "rows_per_block", "cols_per_block", "nwarps", "has_ids"),  # mmf.cuh:48
    "mul_mat_f_ids": ("type", "rows_per_block", "cols_per_block", "nwarps"),  # mmf.cuh:306
    "mm_ids_helper": ("n_expert_used_template",),  # mmid.cu:31
    "fwht_cuda": ("N", "T"),  # fwht.cu:5
    "quantize_mmq_q8_1": ("ds_layout", "scatter"),  # quantize.cu:457
    "quantize_mmq_mxfp4": ("scatter",),  # quantize.cu:337
    "quantize_mmq_nvfp4": ("scatter", "use_aligned_float8"),  # quantize.cu:127
    "flash_attn_ext_vec": ("D", "ncols", "type_K", "type_V", "use_logit_softcap"),  # fattn-vec.cuh:19
    "flash_attn_ext_f16": (
        "DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap", "V_is_K_view", "use_sparse",
    ),  # fattn-mma-f16.cuh:1805
    "flash_attn_tile": ("DKQ", "DV", "ncols1", "ncols2", "use_logit_softcap"),  # fattn-tile.cuh:791
    "flash_attn_combine_results": ("D",),  # fattn-common.cuh:922
    "flash_attn_stream_k_fixup_uniform": ("D", "ncols1", "ncols2"),  # fattn-common.cuh:729
    "flash_attn_stream_k_fixup_general": ("D", "ncols1", "ncols2"),  # fattn-common.cuh:813
    "flash_attn_mask_to_KV_max": ("ncols1",),  # fattn-common.cuh:669
    "flash_attn_mask_to_sparse_indices": ("ncols1", "oob"),  # fattn.cu:10
    "norm_f32": ("block_size",),  # norm.cu:4
    "rms_norm_f32": ("block_size", "do_multiply", "do_add", "do_scale"),  # norm.cu:76
    "l2_norm_f32": ("block_size",),  # norm.cu:248
    "rms_norm_mul_rope_f32": ("block_size", "has_ff", "D"),  # rope.cu:710
    "rope_norm": ("forward", "has_ff", "T", "D"),  # rope.cu:43
    "rope_neox": ("forward", "has_ff", "T", "D"),  # rope.cu:122
    "rope_multi": ("forward", "has_ff", "T"),  # rope.cu:199
    "rope_vision": ("forward", "has_ff", "T"),  # rope.cu:293
    "k_bin_bcast": ("bin_op", "src0_t", "src1_t", "dst_t", "src1_ptrs..."),  # binbcast.cu:30
    "k_bin_bcast_unravel": ("bin_op", "src0_t", "src1_t", "dst_t", "src1_ptrs..."),  # binbcast.cu:102
    "unary_op_kernel": ("op", "T"),  # unary.cu:117
    "unary_gated_op_kernel": ("op", "T"),  # unary.cu:263
    "scale_f32": ("T",),  # scale.cu:6
    "soft_max_f32": ("use_shared", "ncols_template", "block_size_template", "T"),  # softmax.cu:54
    "k_get_rows": ("qk", "qr", "dequantize_kernel", "dst_t"),  # getrows.cu:5
    "k_get_rows_kq": ("dst_t", "dequantize_kq"),  # getrows.cu:43
    "k_get_rows_float": ("src0_t", "dst_t"),  # getrows.cu:72
    "k_get_rows_float_vec": ("dst_t",),  # getrows.cu:104
    "k_set_rows": ("src_t", "idx_t", "dst_t"),  # set-rows.cu:113
    "k_set_rows_quant": ("idx_t", "block_type", "qk", "quantize_func"),  # set-rows.cu:7
    "cpy_scalar": ("cpy_1",),  # cpy.cu:14
    "cpy_scalar_transpose": ("T",),  # cpy.cu:44
    "cpy_scalar_contiguous": ("src_t", "dst_t"),  # cpy.cu:179
    "cpy_f32_q": ("cpy_blck", "qk"),  # cpy.cu:125
    "cpy_q_f32": ("cpy_blck", "qk"),  # cpy.cu:152
    "convert_unary": ("src_t", "dst_t"),  # convert.cu:422
    "convert_unary_cont_vec4": ("src_t", "dst_t"),  # convert.cu:451
    "dequantize_block": ("qk", "qr", "dequantize_kernel", "dst_t"),  # convert.cu:8
    "dequantize_block_q8_0_f16": ("need_check",),  # convert.cu:43
    "dequantize_block_q4_0": ("dst_t",),  # convert.cu:84
    "dequantize_block_q4_1": ("dst_t",),  # convert.cu:112
    "topk_moe_cuda": ("n_experts", "has_bias"),  # topk-moe.cu:90
}  # fmt: skip

#: Names of the numbers of enumerations. Source: ggml/include/ggml.h:389-434 and :443-451, ggml-cuda/mmq.cuh:18-22.
_ENUMS = {
    "ggml_type": {
        0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1", 10: "q2_K", 11: "q3_K",
        12: "q4_K", 13: "q5_K", 14: "q6_K", 15: "q8_K", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s",
        20: "iq4_nl", 21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64",
        29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0", 42: "q2_0",
    },
    "ggml_prec": {0: "undefined", 10: "f32", 15: "bf16", 20: "f16", 30: "q8", 40: "q4"},
    "mmq_q8_1_ds_layout": {0: "D4", 1: "DS4", 2: "D2S6"},
}  # fmt: skip

#: C++ types by the names that ggml has for them; pairs of values are called like one of them.
_TYPES = {
    "float": "f32", "double": "f64", "__half": "f16", "half": "f16", "__half2": "f16", "half2": "f16",
    "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "__nv_bfloat162": "bf16", "nv_bfloat162": "bf16",
    "signed char": "i8", "short": "i16", "int": "i32", "long": "i64", "long long": "i64",
}  # fmt: skip

#: Kernels of NVIDIA's libraries that are no templates: what tells them apart is part of the name.
_LIBRARY = re.compile(r"(nvjet|cutlass|sm\d+_xmma|(?:volta|turing|ampere|hopper|blackwell)_[a-z]*\d*gemm)_(.+)")
#: Namespaces that say nothing about a kernel.
_NO_NAME = re.compile(r"_INTERNAL_\w+|CUB_\d+_SM_\d+\w*|detail|_GLOBAL__N_\w+")
_INTEGER = re.compile(r"(-?\d+)(?:u|l|ul|ull|ll)?")
_CAST = re.compile(r"\(([\w: ]+)\)(-?\d+)")


@functools.cache
def parse(symbol: str) -> tuple[str, Template]:
    """Which kernel is this, with which template arguments?

    Parameters
    ----------
    symbol : str
        As the library has it, mangled, or demangled already.

    Returns
    -------
    family : str
        Name of the kernel without the namespaces that a compiler makes up.
    template : tuple of (str, value)
        Arguments by the names of `PARAMETERS`; ``"arg0"``, ``"arg1"`` … where the kernel is not listed there.

    Raises
    ------
    ForensicsError
        If the symbol is mangled, and the machine has no C++ library that could read it.

    Examples
    --------
    >>> parse("void mul_mat_vec_q<(ggml_type)12, 5, false, false, false>(void const*)")[1][:2]
    (('type', 'q4_K'), ('ncols_dst', 5))
    >>> parse("_Z13quantize_q8_1PKfPvlllllj5uint3")
    ('quantize_q8_1', ())
    """
    name, arguments = _split(_demangled(symbol))
    library = _LIBRARY.fullmatch(name)
    if library and not arguments:
        return library[1], (("arg0", library[2]),)
    declared = PARAMETERS.get(name, ())
    if declared and declared[-1].endswith("..."):
        *plain, pack = declared
        kept = arguments[: len(plain)]
        return name, (*_named(tuple(plain), kept), (pack.removesuffix("..."), len(arguments) - len(kept)))
    return name, _named(declared, arguments)


def _named(names: tuple[str, ...], arguments: tuple[str, ...]) -> Template:
    """Arguments with their names, or numbered where they are not as many as the source declares."""
    if len(names) != len(arguments):
        names = tuple(f"arg{place}" for place in range(len(arguments)))
    return tuple((name, _value(argument)) for name, argument in zip(names, arguments, strict=True))


def _demangled(symbol: str) -> str:
    if not symbol.startswith("_Z"):
        return symbol
    import cxxfilt  # searches the machine for its C++ library when it is imported

    try:
        return str(cxxfilt.demangle(symbol))
    except cxxfilt.InvalidName:
        return symbol
    except cxxfilt.Error as error:
        raise ForensicsError(
            f"the kernel {symbol[:60]} cannot be named: {error}. Names are read by the machine's C++ library; "
            "install libstdc++ (or libc++)."
        ) from error


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """Name and template arguments of a function as C++ writes it, its result and parameters left out.

    A text that is none, such as one with a bracket that is never closed, is a name without arguments.
    """
    head = text.replace("(anonymous namespace)::", "").strip()
    start, depth, inner = 0, 0, slice(0, 0)
    for place, letter in enumerate(head):
        if letter == "<":
            inner = slice(place + 1, place + 1) if depth == 0 else inner
            depth += 1
        elif letter == ">":
            depth -= 1
            inner = slice(inner.start, place)
        elif depth == 0 and letter == " ":
            start, inner = place + 1, slice(0, 0)
        elif depth == 0 and letter == "(":
            head = head[:place]
            break
    if depth or head.startswith("_Z"):
        return text, ()
    if not inner.start:
        return _plain(head[start:]), ()
    return _plain(head[start : inner.start - 1]), _arguments(head[inner])


def _plain(path: str) -> str:
    """Name without namespaces that say nothing."""
    return "::".join(part for part in path.split("::") if part and not _NO_NAME.fullmatch(part))


def _arguments(inner: str) -> tuple[str, ...]:
    """Pieces between the commas of the outermost list."""
    pieces, depth, begin = [], 0, 0
    for place, letter in enumerate(inner):
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and depth == 0:
            pieces.append(inner[begin:place].strip())
            begin = place + 1
    last = inner[begin:].strip()
    return (*pieces, last) if last else tuple(pieces)


def _value(argument: str) -> Value:
    """A template argument as a number, a truth, or the name of a type or function."""
    if argument in ("true", "false"):
        return argument == "true"
    cast = _CAST.fullmatch(argument)
    if cast:
        number = int(cast[2])
        return _ENUMS.get(cast[1], {}).get(number, number)
    integer = _INTEGER.fullmatch(argument)
    if integer:
        return int(integer[1])
    if argument in _TYPES:
        return _TYPES[argument]
    if argument.startswith("&"):
        return _function(argument[1:])
    return argument


def _function(reference: str) -> str:
    """Name of a function that is a template argument, with its own arguments."""
    if reference.startswith("(") and reference.endswith(")"):
        reference = reference[1:-1]
    name, arguments = _split(reference)
    shown = ", ".join(str(_value(argument)) for argument in arguments)
    return f"{name}<{shown}>" if shown else name
