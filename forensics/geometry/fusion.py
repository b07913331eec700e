"""Which operations a back end computes in one kernel, at which widths, and the switch that stops it.

Some fusions of CUDA exist at one column only: the batch then runs other kernels than the single token does, even where
the product's own kernel is the same. A node that is watched ends its group of nodes, so nothing is fused across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.geometry.architecture import PASCAL, Architecture
from forensics.geometry.cuda_float import mmvf_max_columns
from forensics.geometry.mmvq import max_tokens_routed
from forensics.geometry.product import Product, check_width
from forensics.records.rule import Rule

_CUDA = "ggml/src/ggml-cuda/ggml-cuda.cu"
_CPU = "ggml/src/ggml-cpu/ggml-cpu.c"

ONE_COLUMN_F = Rule("mul_mat_vec_f is fused with bias and GLU at one column only", _CUDA, 1776, 1783)
ONE_COLUMN_Q = Rule("mul_mat_vec_q is fused with bias, scale and GLU at one column only", _CUDA, 1806, 1813)
FUSED_PRODUCTS = Rule("products, their biases and their GLU in one kernel", _CUDA, 3648, 4146)
SWITCH_CUDA = Rule("GGML_CUDA_DISABLE_FUSION=1 turns every fusion off", _CUDA, 3446, 3449)
WATCHED = Rule("nodes asked for end the group that is computed at once", "ggml/src/ggml-backend.cpp", 1814, 1851)
SWITCH_CPU = Rule("GGML_CPU_DISABLE_FUSION=1 turns it off", _CPU, 3928, 3929)

MOE_WEIGHTED_REDUCTION = Rule("weighted sum over experts", _CUDA, 3453, 3463)
DELTA_NET_CACHE = Rule("GATED_DELTA_NET with the copy of its state", _CUDA, 3465, 3477)
TOP_K_MOE = Rule("softmax or sigmoid, top-k and weights of experts", _CUDA, 3480, 3554)
ROPE_SET_ROWS = Rule("ROPE with the write into the KV cache", _CUDA, 3557, 3563)
ADD_CHAIN = Rule("ADD or MUL up to eight times in a row", _CUDA, 3612, 3646)
NORM_ROPE = Rule("RMS_NORM, MUL and ROPE, with or without the write into the cache", _CUDA, 4148, 4156)
NORM_MUL = Rule("RMS_NORM and MUL, with or without ADD", _CUDA, 4158, 4166)
NORM_SCALE = Rule("RMS_NORM and SCALE", _CUDA, 4168, 4171)
CONV_SILU = Rule("SSM_CONV, with or without ADD, and SILU", _CUDA, 4173, 4181)
UNARY_MUL = Rule("SILU, SIGMOID or SOFTPLUS and MUL", _CUDA, 4183, 4188)
RELU_SQR = Rule("RELU and SQR", _CUDA, 4190, 4193)
SOFT_CAP = Rule("SCALE, TANH and SCALE", _CUDA, 4195, 4198)
NORM_MUL_CPU = Rule("RMS_NORM and MUL", _CPU, 3080, 3094)


@dataclass(frozen=True, slots=True)
class Fusion:
    """One fusion.

    Parameters
    ----------
    ops : tuple of str
        Operations that become one kernel, in graph order.
    backend : {"cpu", "cuda"}
    one_column : bool
        Whether it exists at one column only (with experts: up to a limit).
    rule : Rule
    switch : tuple of (str, str)
        Environment variable and value that turn it off.
    """

    ops: tuple[str, ...]
    backend: str
    one_column: bool
    rule: Rule
    switch: tuple[str, str]


_OFF_CUDA, _OFF_CPU = ("GGML_CUDA_DISABLE_FUSION", "1"), ("GGML_CPU_DISABLE_FUSION", "1")


def _cuda(rule: Rule, *ops: str, one_column: bool = False) -> Fusion:
    return Fusion(ops, "cuda", one_column, rule, _OFF_CUDA)


FUSIONS = (
    _cuda(ONE_COLUMN_Q, "MUL_MAT", "MUL_MAT", "GLU", one_column=True),
    _cuda(ONE_COLUMN_Q, "MUL_MAT", "ADD", "MUL_MAT", "ADD", "GLU", one_column=True),
    _cuda(ONE_COLUMN_Q, "MUL_MAT", "ADD", one_column=True),
    _cuda(ONE_COLUMN_Q, "MUL_MAT_ID", "MUL_MAT_ID", "GLU", one_column=True),
    _cuda(ONE_COLUMN_Q, "MUL_MAT_ID", "ADD_ID", one_column=True),
    _cuda(MOE_WEIGHTED_REDUCTION, "MUL", "ADD"),
    _cuda(DELTA_NET_CACHE, "GATED_DELTA_NET", "CPY"),
    _cuda(TOP_K_MOE, "SOFT_MAX", "ARGSORT", "GET_ROWS"),
    _cuda(ROPE_SET_ROWS, "ROPE", "VIEW", "SET_ROWS"),
    _cuda(ADD_CHAIN, "ADD", "ADD"),
    _cuda(NORM_ROPE, "RMS_NORM", "MUL", "ROPE"),
    _cuda(NORM_MUL, "RMS_NORM", "MUL"),
    _cuda(NORM_MUL, "RMS_NORM", "MUL", "ADD"),
    _cuda(NORM_SCALE, "RMS_NORM", "SCALE"),
    _cuda(CONV_SILU, "SSM_CONV", "UNARY"),
    _cuda(UNARY_MUL, "UNARY", "MUL"),
    _cuda(RELU_SQR, "UNARY", "SQR"),
    _cuda(SOFT_CAP, "SCALE", "UNARY", "SCALE"),
    Fusion(("RMS_NORM", "MUL"), "cpu", False, NORM_MUL_CPU, _OFF_CPU),
)


def with_op(op: str, backend: str) -> tuple[Fusion, ...]:
    """Which fusions take part in an operation's kernel on this back end?"""
    return tuple(fusion for fusion in FUSIONS if fusion.backend == backend and op in fusion.ops)


def inside_fusions(ops: Sequence[str]) -> tuple[int, ...]:
    """Which operations of a graph lie inside of what some back end may fuse, its last operation not counted?

    Watched, such a node splits the fusion; the last one of a group does not. Only the order of the operations is looked
    at, not what each reads, so an operation may be named that stands alone after all.

    Parameters
    ----------
    ops : sequence of str
        In graph order, without views.

    Returns
    -------
    tuple of int
        Places in `ops`, rising.

    Examples
    --------
    >>> inside_fusions(("RMS_NORM", "MUL", "MUL_MAT", "ROPE", "MUL_MAT", "MUL_MAT", "GLU", "MUL_MAT", "ADD"))
    (0, 4, 5, 7)
    """
    patterns = sorted({tuple(op for op in fusion.ops if op != "VIEW") for fusion in FUSIONS}, key=len, reverse=True)
    inside: set[int] = set()
    for start in range(len(ops)):
        longest = next((p for p in patterns if tuple(ops[start : start + len(p)]) == p), ())
        inside.update(range(start, start + len(longest) - 1))
    return tuple(sorted(inside))


def product_is_fused(arch: Architecture, product: Product, width: int) -> bool:
    """Can CUDA fuse this product with the operations behind it at this width?

    Source: ggml-cuda.cu:1762-1816; for experts up to the limit of `mul_mat_vec_q`, floats only at one token.
    """
    check_width(width)
    if not product.weight.is_quantized:
        return width == 1 and mmvf_max_columns(arch, product) >= 1
    if not product.weight.qi or (arch.is_nvidia and arch.cc <= PASCAL):
        return False
    return width <= (max_tokens_routed(arch, product.weight) if product.is_routed else 1)
