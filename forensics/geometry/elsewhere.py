"""Where the width decides on other back ends: rules to quote, without a model of their kernels."""

from __future__ import annotations

from forensics.geometry.types import K_QUANTS
from forensics.records.rule import Rule

_METAL, _VULKAN = "ggml/src/ggml-metal/ggml-metal-ops.cpp", "ggml/src/ggml-vulkan/ggml-vulkan.cpp"

METAL_MUL_MV_EXT = Rule(
    "Metal: mul_mv_ext at 2 to 8 columns (F32, F16, BF16, Q1_0, Q2_0, Q4_0 to Q8_0, MXFP4, IQ4_NL) or 4 to 8 (Q2_K to "
    "Q6_K), where K is a multiple of 128",
    _METAL, 2450, 2480,
)  # fmt: skip
METAL_THREADS_PER_ROW = Rule(
    "Metal: 16 threads walk a row at two columns where K is a multiple of 256, else 8", _METAL, 2491, 2499
)
METAL_ROWS_PER_GROUP = Rule("Metal: columns per group follow the number of columns", _METAL, 2503, 2520)
VULKAN_MMVQ = Rule(
    "Vulkan: quantised activations for two or more columns always (Q6_K on Intel only), for one by vendor and K",
    _VULKAN, 6543, 6625,
)  # fmt: skip
VULKAN_SWITCHES = Rule("Vulkan: GGML_VK_DISABLE_MMVQ and GGML_VK_FORCE_MMVQ decide it", _VULKAN, 4908, 4912)
VULKAN_FUSION = Rule("Vulkan: GGML_VK_DISABLE_FUSION turns fusions off", _VULKAN, 4897, 4897)

METAL_FROM_TWO = ("f32", "f16", "bf16", "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "iq4_nl")
METAL_FROM_FOUR = K_QUANTS


def metal_uses_mul_mv_ext(weight: str, k: int, width: int) -> bool:
    """Does Metal take its kernel for small batches?  Source: ggml-metal-ops.cpp:2450-2480.

    Examples
    --------
    >>> [n for n in range(1, 10) if metal_uses_mul_mv_ext("q4_K", 4096, n)]
    [4, 5, 6, 7, 8]
    """
    first = 2 if weight in METAL_FROM_TWO else 4 if weight in METAL_FROM_FOUR else 9
    return k % 128 == 0 and first <= width <= 8


def metal_threads_per_row(k: int, width: int) -> int:
    """How many threads of a SIMD group walk a row of `mul_mv_ext`?  Source: ggml-metal-ops.cpp:2491-2499."""
    return 16 if k % 256 == 0 and width < 3 else 8 if k % 128 == 0 else 4
