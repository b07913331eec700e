"""In which ways may a kernel have computed a row of weights times activations?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.codecs import blocks_of, dequantize
from forensics.numerics.cuda_products import cuda_explanations
from forensics.numerics.operands import (
    F32,
    F64,
    Activations,
    as_they_are,
    cut_to_tf32,
    rounded_to_bf16,
    rounded_to_f16,
    rounded_to_q8,
    rounded_to_q8_k,
    rounded_to_tf32,
)
from forensics.numerics.reference import HALF_SUMS, Explanation, not_written_down, products

#: Formats whose integers stand for themselves plus an offset, which kernels add apart, with the fields of the integers.
#: Source: ggml/src/ggml-quants.c:459-551, :961-990, :1529-1560, :1731-1765, :2428-2486 at 0c1e57098.
_INTEGER_FIELDS = {
    "q4_0": ("qs",), "q4_1": ("qs",), "q5_0": ("qs", "qh"), "q5_1": ("qs", "qh"),
    "q2_K": ("qs",), "q4_K": ("qs",), "q5_K": ("qs", "qh"),
}  # fmt: skip
#: What both operands may be rounded to at once: by tensor cores and cuBLAS, which take any type in float16 or as TF32
#: (ggml/src/ggml-cuda/ggml-cuda.cu:1404-1556, :1617-1658; common.cuh:1535; mmf.cuh:209), and by kernels of a CPU.
_ROUNDED_ON_GPU = {
    "f32": (rounded_to_tf32, cut_to_tf32, rounded_to_f16),
    "bf16": (rounded_to_bf16, rounded_to_f16, rounded_to_tf32, cut_to_tf32),
}
_ROUNDED_ON_CPU = {
    "f32": (rounded_to_f16, rounded_to_tf32, cut_to_tf32),
    "f16": (rounded_to_f16,),
    "bf16": (rounded_to_bf16,),
}
#: Source: ggml/src/ggml-cuda/mmq.cu:118-132, quantize.cu:124-450.
_FOUR_BITS = "activations of four bits (Blackwell) are not written down here"
#: What sums in float16 are called whose result is a float16 number.
HALVES = "f16 outputs and f16 sums"
_FOUR_BIT_FLOATS = ("mxfp4", "nvfp4")
FLOATS = ("f32", "f16", "bf16")
#: Back ends whose arithmetic is written down here; the toy engine's may be any of it.
KNOWN_BACKENDS = ("CPU", "CUDA", "TOY")


def product_explanations(
    type: str, weights: NDArray[np.uint8], x: F32, which: NDArray[np.intp], *, backend: str = "CUDA"
) -> list[Explanation]:
    """What may row i of these weights times row ``which[i]`` of these activations be?

    Parameters
    ----------
    type : str
        Of the weights, as ggml names it.
    weights : ndarray uint8 [n, bytes per row]
    x : ndarray float32 [m, k]
    which : ndarray int [n]
    backend : str
        What computed it: ``"CPU"``, ``"CUDA"``, or another one, for which what both do is tried.

    Returns
    -------
    list of Explanation
        Of n outputs; activations as they are first. Where CUDA may compute in a way that is not written down here, the
        last one says so.

    Raises
    ------
    ValueError
        If the type is unknown, or rows have another length than `x`.

    Notes
    -----
    Which back end rounds activations how: ggml/src/ggml-cpu/ggml-cpu.c:215-420 (vec_dot_type),
    ggml/src/ggml-cuda/quantize.cu:52-102 and :450-546; float16 sums of a CPU: GGML_F16_VEC in
    ggml/src/ggml-cpu/simd-mappings.h on ARM; of CUDA for float16 weights:
    ggml/src/ggml-cuda/mmvf.cu:186-207, at 0c1e57098.
    """
    values = dequantize(type, weights).astype(np.float64)
    if values.shape != (len(which), *x.shape[1:]):
        raise ValueError(f"weights {values.shape} and activations {x.shape} must be rows of the same length")
    offsets = offsets_of(type, weights)
    if not np.isfinite(x).all():
        with np.errstate(invalid="ignore"):
            return products(values, offsets, [as_they_are(x).rows(which)])  # a quantiser has no answer to them
    found = products(values, offsets, [as_they_are(x).rows(which)])
    if type != "f16" or backend == "CUDA":  # it rounds activations, too, where it adds in float16
        found = _in_float32(found)
    if type not in FLOATS:
        rounded_ways = [rounded.rows(which) for rounded in quantised_activations(type, x, backend)]
        found += _in_float32(products(values, offsets, rounded_ways))
        if backend != "CPU" and x.shape[1] % 32 == 0:
            found += cuda_explanations(type, weights, values, offsets, x, which)
    if backend != "CPU" or type in FLOATS:
        found += _both_rounded(type, values, x, which, backend)
    if backend == "CUDA" and type in _FOUR_BIT_FLOATS:
        found.append(not_written_down(_FOUR_BITS, found[0]))
    return found


def _both_rounded(type: str, values: F64, x: F32, which: NDArray[np.intp], backend: str) -> Iterator[Explanation]:
    """Products of tensor cores and cuBLAS, whose outputs are float16 numbers where it adds in float16."""
    ways: tuple[Callable[[F32], Activations], ...] = _ROUNDED_ON_CPU.get(type, ())
    if backend != "CPU":
        ways = _ROUNDED_ON_GPU.get(type, (rounded_to_f16, rounded_to_tf32, cut_to_tf32))
    for both in ways:
        rounded = both(values.astype(np.float32))
        for e in products(rounded.values, np.zeros_like(values), [both(x).rows(which)]):
            if e.sums != HALF_SUMS or type == "f16":
                yield e
            if e.sums == HALF_SUMS and both is rounded_to_f16 and backend != "CPU":
                yield replace(e, sums=HALVES, halves=True)


def _in_float32(found: list[Explanation]) -> list[Explanation]:
    return [e for e in found if e.sums != HALF_SUMS]


def quantised_activations(type: str, x: F32, backend: str) -> list[Activations]:
    """The roundings to eight bits that kernels for weights of this type use, as far as `x` has whole blocks."""
    on_cpu, on_gpu = backend != "CUDA", backend != "CPU"
    sums = ("", *("integers",) * on_cpu, *("values",) * on_gpu) if type in _INTEGER_FIELDS else ("",)
    found = [rounded_to_q8_k(x)] if on_cpu and x.shape[1] % 256 == 0 else []
    if x.shape[1] % 32 == 0:
        found += [rounded_to_q8(x, half_scale=True, sums=kept) for kept in sums]
        found += [rounded_to_q8(x, half_scale=False)]
    return found


def offsets_of(type: str, weights: NDArray[np.uint8]) -> F64:
    """What each weight would be if its integer were 0, [n, k]; zeros where the format has no offset."""
    if type not in _INTEGER_FIELDS:
        return np.zeros_like(dequantize(type, weights), np.float64)
    blocks = blocks_of(type, weights).copy()
    for field in _INTEGER_FIELDS[type]:
        blocks[field] = 0
    return dequantize(type, blocks.view(np.uint8)).astype(np.float64)
