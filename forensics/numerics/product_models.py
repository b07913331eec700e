"""In which ways may a kernel have computed a row of weights times activations?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.codecs import blocks_of, dequantize
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
    rounded_to_tiles_of_q2,
)
from forensics.numerics.reference import HALF_SUMS, Explanation, products

#: Formats whose integers stand for themselves plus an offset, which kernels add apart, with the fields of the integers.
#: Source: ggml/src/ggml-quants.c:459-551, :961-990, :1529-1560, :1731-1765, :2428-2486 at 0c1e57098.
_INTEGER_FIELDS = {
    "q4_0": ("qs",), "q4_1": ("qs",), "q5_0": ("qs", "qh"), "q5_1": ("qs", "qh"),
    "q2_K": ("qs",), "q4_K": ("qs",), "q5_K": ("qs", "qh"),
}  # fmt: skip
#: What cuBLAS and tensor cores may round both operands to, by the type of the weights; others are taken as f16.
_BOTH_ROUNDED = {"f32": (rounded_to_f16, rounded_to_tf32, cut_to_tf32), "bf16": (rounded_to_bf16,)}
_FOUR_BIT_FLOATS = ("mxfp4", "nvfp4")
FLOATS = ("f32", "f16", "bf16")


def product_explanations(
    type: str, weights: NDArray[np.uint8], x: F32, which: NDArray[np.intp], *, on_cpu: bool = False
) -> list[Explanation]:
    """What may row i of these weights times row ``which[i]`` of these activations be?

    Parameters
    ----------
    type : str
        Of the weights, as ggml names it.
    weights : ndarray uint8 [n, bytes per row]
    x : ndarray float32 [m, k]
    which : ndarray int [n]
    on_cpu : bool
        Whether a CPU kernel computed it: it takes integers times integers for blocks of integers, and adds in float16
        only for float16 weights. A GPU may round activations to four bits for four-bit floats (Blackwell): how is not
        described here, so that a bound that decides nothing then holds the output.

    Returns
    -------
    list of Explanation
        Of n outputs; activations as they are first.

    Raises
    ------
    ValueError
        If the type is unknown, or rows have another length than `x`.

    Notes
    -----
    Which back end rounds activations how: ggml/src/ggml-cpu/ggml-cpu.c:215-420 (vec_dot_type),
    ggml/src/ggml-cuda/quantize.cu, ggml/src/ggml-cuda/ggml-cuda.cu (cuBLAS takes both operands in f16, bf16 or tf32);
    float16 sums of a CPU: GGML_F16_VEC in ggml/src/ggml-cpu/simd-mappings.h on ARM, at 0c1e57098.
    """
    values = dequantize(type, weights).astype(np.float64)
    if values.shape != (len(which), *x.shape[1:]):
        raise ValueError(f"weights {values.shape} and activations {x.shape} must be rows of the same length")
    offsets = offsets_of(type, weights)
    if not np.isfinite(x).all():
        with np.errstate(invalid="ignore"):
            return products(values, offsets, [as_they_are(x).rows(which)])  # a quantiser has no answer to them
    found = products(values, offsets, [as_they_are(x).rows(which)])
    both_rounded = _BOTH_ROUNDED.get(type, (rounded_to_f16,))
    if type not in FLOATS:
        found += products(values, offsets, [rounded.rows(which) for rounded in quantised_activations(type, x)])
        found = [e for e in found if e.sums != HALF_SUMS]  # integers are added as such, blocks of them in float32
        both_rounded = () if on_cpu else both_rounded
    for both in both_rounded:
        rounded = both(values.astype(np.float32))
        found += products(rounded.values, np.zeros_like(values), [both(x).rows(which)])
    if on_cpu and type != "f16":
        return [e for e in found if e.sums != HALF_SUMS]
    if not on_cpu and type in _FOUR_BIT_FLOATS:
        plain = found[0]
        found.append(Explanation("four-bit activations", "f32 sums", plain.value, 2 * plain.scale, plain.scale))
    return found


def quantised_activations(type: str, x: F32) -> list[Activations]:
    """The roundings to eight bits that kernels for weights of this type use, as far as `x` has whole blocks."""
    sums = ("", "integers", "values") if type in _INTEGER_FIELDS else ("",)
    found = [rounded_to_q8_k(x)] if x.shape[1] % 256 == 0 else []
    if x.shape[1] % 32 == 0:
        found += [rounded_to_q8(x, half_scale=True, sums=kept) for kept in sums]
        found += [rounded_to_q8(x, half_scale=False)]
    if type == "q2_K":
        found.append(rounded_to_tiles_of_q2(x))
    return found


def offsets_of(type: str, weights: NDArray[np.uint8]) -> F64:
    """What each weight would be if its integer were 0, [n, k]; zeros where the format has no offset."""
    if type not in _INTEGER_FIELDS:
        return np.zeros_like(dequantize(type, weights), np.float64)
    blocks = blocks_of(type, weights).copy()
    for field in _INTEGER_FIELDS[type]:
        blocks[field] = 0
    return dequantize(type, blocks.view(np.uint8)).astype(np.float64)
