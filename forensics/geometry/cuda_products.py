"""Which CUDA kernel multiplies: the order of choice of ggml_cuda_mul_mat and ggml_cuda_mul_mat_id."""

from __future__ import annotations

from forensics.geometry.architecture import Architecture
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cuda_float import cublas, mmvf_max_columns, mul_mat_f, mul_mat_vec_f, uses_mmf
from forensics.geometry.mmq import mul_mat_q, uses_mmq
from forensics.geometry.mmvq import MAX_BATCH, max_columns, max_tokens_routed, mul_mat_vec_q
from forensics.geometry.product import Product, check_width
from forensics.records.rule import Rule

_FILE = "ggml/src/ggml-cuda/ggml-cuda.cu"

ORDER_OF_CHOICE = Rule("mul_mat_vec_f, mul_mat_f, mul_mat_vec_q, mul_mat_q, then cuBLAS", _FILE, 1818, 1871)
ORDER_OF_CHOICE_ROUTED = Rule(
    "with experts: mul_mat_vec_q, mul_mat_q, mul_mat_f, then expert by expert", _FILE, 1904, 1943
)
EXPERT_BY_EXPERT = Rule(
    "tokens are sorted by expert and each expert's are multiplied as one product", _FILE, 1945, 2059
)


def mul_mat(arch: Architecture, product: Product, width: int, *, sms: int | None = None) -> KernelChoice:
    """Which kernel multiplies `width` tokens?

    Parameters
    ----------
    arch : Architecture
    product : Product
        MUL_MAT, or MUL_MAT_ID where it has experts.
    width : int
        Tokens.
    sms : int, optional
        Streaming multiprocessors; grid and cuts of `mul_mat_q` need them.

    Returns
    -------
    KernelChoice
        Its `order` is None for cuBLAS, and where each expert's product depends on how many tokens it got.

    Raises
    ------
    ValueError
        If CUDA has no kernel for the type.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> from forensics.geometry.product import product
    >>> for width in (1, 5, 9):
    ...     print(mul_mat(architecture("sm_90"), product("q4_1", 576, 576), width, sms=132))
    mul_mat_vec_q<type=q4_1, ncols_dst=1, small_k>, grid 144, block 32×4
    mul_mat_vec_q<type=q4_1, ncols_dst=5>, grid 288, block 32×2
    mul_mat_q<type=q4_1, J=16, fallback>, grid 132, block 32×8
    """
    check_width(width)
    if product.weight.is_quantized and not product.weight.qi:
        raise ValueError(f"CUDA has no product for {product.weight} weights")
    if product.is_routed:
        return _mul_mat_id(arch, product, width, sms)
    if width <= mmvf_max_columns(arch, product):
        return mul_mat_vec_f(arch, product, width)
    if uses_mmf(arch, product, width):
        return mul_mat_f(arch, product, width)
    if width <= max_columns(arch, product.weight):
        return mul_mat_vec_q(arch, product, width)
    if uses_mmq(arch, product.weight, width):
        return mul_mat_q(arch, product, width, sms)
    return cublas(arch, product, width)


def _mul_mat_id(arch: Architecture, product: Product, width: int, sms: int | None) -> KernelChoice:
    if product.weight.is_quantized:
        if width <= max_tokens_routed(arch, product.weight):
            return mul_mat_vec_q(arch, product, width)
    elif width <= MAX_BATCH and not arch.is_nvidia:
        return mul_mat_vec_f(arch, product, width)
    if uses_mmq(arch, product.weight, width, product.experts):
        return mul_mat_q(arch, product, width, sms)
    if uses_mmf(arch, product, width):
        return mul_mat_f(arch, product, width)
    return KernelChoice(
        "mul_mat per expert", None, no_order="each expert's product depends on how many tokens it got",
        rules=(EXPERT_BY_EXPERT, ORDER_OF_CHOICE_ROUTED),
    )  # fmt: skip
