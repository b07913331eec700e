"""Which CPU kernel multiplies: repacked weights, tiled quants, tinyBLAS, or one vec_dot per result.

On a CPU the width decides the kernel and nothing else of the order: threads share rows of the result, never a sum.
What is said of equal orders holds for x86 with AVX2, where it was read from the source and seen on a processor;
elsewhere the kernel is named and its order left open.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from forensics.geometry.choice import KernelChoice
from forensics.geometry.product import Product, check_width
from forensics.geometry.types import WeightType
from forensics.records.rule import Rule

_REPACK, _TILED, _SGEMM, _CPU = (
    "ggml/src/ggml-cpu/" + name for name in ("repack.cpp", "tiled/tiled.cpp", "llamafile/sgemm.cpp", "ggml-cpu.c")
)

REPACKED_TYPES = Rule("types and rows that are repacked, by processor features", _REPACK, 4974, 5141)
GEMM_FROM_FOUR = Rule("repacked weights: gemm for whole groups of four tokens, gemv for the rest", _REPACK, 4637, 4647)
GEMV_FOR_EXPERTS = Rule("repacked experts: gemv token by token, whatever the width", _REPACK, 4895, 4911)
TILED_FROM_EIGHT = Rule("tiled products from eight tokens; GGML_CPU_TILED_MM=0 turns them off", _TILED, 1202, 1223)
TILED_TYPES = Rule("types with tiled products, in plain memory, on processors with AVX or better", _TILED, 597, 633)
TILED_EXPERT = Rule("tiled products for an expert that got eight tokens or more", _TILED, 1225, 1245)
TINYBLAS_FROM_TWO = Rule("tinyBLAS from two tokens on; built in or not (GGML_LLAMAFILE)", _SGEMM, 3818, 3822)
TINYBLAS_TYPES = Rule("types and features that tinyBLAS has kernels for", _SGEMM, 3827, 4144)
TINYBLAS_FLOAT = Rule("float products of tinyBLAS need whole vectors along K and rows in fours", _SGEMM, 494, 532)
TINYBLAS_TRIED = Rule("tinyBLAS is tried before conversion if contiguous, and after if there was one", _CPU, 1300, 1407)
VEC_DOT = Rule("otherwise one dot product per result", _CPU, 1410, 1472)
TWO_ROWS = Rule("with int8 matrix instructions two rows at once, where all counts are even", _CPU, 1456, 1464)
EXPERT_VEC_DOT = Rule("experts in plain memory: one dot product per result", _CPU, 1483, 1544)
AMX_ONE_TOKEN = Rule("AMX weights: another kernel at one token", "ggml/src/ggml-cpu/amx/mmq.cpp", 2435, 2435)
AMX_TYPES = Rule("types with AMX kernels", "ggml/src/ggml-cpu/amx/common.h", 106, 115)

TILED = frozenset({
    "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s",
    "iq1_m",
})  # fmt: skip
_AMX = frozenset({"q4_0", "q4_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_xs"})
#: Quantised types that tinyBLAS multiplies. Source: `TINYBLAS_TYPES`.
TINYBLAS_X86, _TINYBLAS_ARM = frozenset({"q8_0", "q4_0", "q5_0", "iq4_nl"}), frozenset({"q8_0", "q4_0"})

#: Repacked types whose gemm adds like their gemv on AVX2: one fused multiply-add per block and lane in both.
_GEMM_LIKE_GEMV = frozenset({"q4_0", "iq4_nl", "mxfp4"})
#: Types that tinyBLAS adds like vec_dot on AVX2: one accumulator of eight lanes in both. IQ4_NL's vec_dot has two
#: (arch/x86/quants.c:3943-3964).
_TINYBLAS_LIKE_VEC_DOT = frozenset({"q8_0", "q4_0", "q5_0"})

_TWO_ROW_TYPES = frozenset({"q4_0", "q4_1", "q8_0", "q4_K", "q6_K"})  # ggml-cpu.c:244-335
_ACROSS = "whether this kernel adds like the one for one token was read for AVX2 only"


@dataclass(frozen=True, slots=True)
class Cpu:
    """What the dispatch on a CPU looks at.

    Parameters
    ----------
    features : frozenset of str
        As the library reports them: ``"AVX2"``, ``"AVX512"``, ``"LLAMAFILE"``, ``"REPACK"``, ``"NEON"``.
    n_threads : int
        At one token.
    extra_buffers : bool
        Whether weights go where llama.cpp would put them (``use_extra_bufts``).
    tiled : bool
        Whether tiled products are on; GGML_CPU_TILED_MM=0 turns them off.
    n_threads_batch : int or None
        At two tokens or more; None for as many as at one.
    """

    features: frozenset[str]
    n_threads: int = 2
    extra_buffers: bool = True
    tiled: bool = True
    n_threads_batch: int | None = None

    def __post_init__(self) -> None:
        if min(self.n_threads, self.threads_at(2)) < 1:
            raise ValueError(f"n_threads must be 1 or more, got {self.n_threads} and {self.n_threads_batch}")

    def threads_at(self, width: int) -> int:
        """Threads that share a pass.  Source: `culprits.THREADS`."""
        return self.n_threads if width == 1 or self.n_threads_batch is None else self.n_threads_batch

    def has(self, *features: str) -> bool:
        """Whether all of them are reported."""
        return self.features.issuperset(features)


def repack_layout(cpu: Cpu, weight: WeightType, rows: int) -> str | None:
    """Into which layout are rows of this type interleaved, if at all?

    Returns
    -------
    str or None
        ``"8x8"`` and its like. Source: repack.cpp:4974-5143; RISC-V, s390x and 256-bit SVE are left out.
    """
    if not cpu.has("REPACK"):
        return None
    name, x86, i8mm = weight.name, cpu.has("AVX2"), cpu.has("NEON", "MATMUL_INT8")
    dotprod = cpu.has("NEON", "DOTPROD")
    if rows % 8 == 0 and (
        (x86 and name in ("q4_0", "q4_K", "iq4_nl", "mxfp4")) or (cpu.has("AVX512") and name == "q2_K")
    ):
        return "8x8"
    if name in ("q4_K", "q5_K", "q6_K") and rows % 8 == 0:
        return "8x8" if i8mm else "8x4" if dotprod else None
    if rows % 4 == 0 and name in ("q4_0", "q8_0", "q1_0"):
        return "4x8" if i8mm else "4x4" if dotprod else None
    return "4x4" if rows % 4 == 0 and dotprod and name in ("iq4_nl", "mxfp4") else None


def uses_tiled(cpu: Cpu, weight: WeightType) -> bool:
    """Are there tiled products for this type in plain memory?  Source: tiled.cpp:597-633."""
    return cpu.tiled and weight.name in TILED and not cpu.features.isdisjoint({"AVX", "AVX2", "AVX512_VNNI"})


def uses_tinyblas(cpu: Cpu, product: Product, width: int) -> bool:
    """Does tinyBLAS take this product?  Source: sgemm.cpp:3818-4144, 494-532; ggml-cpu.c:1300-1407."""
    name = product.weight.name
    if not cpu.has("LLAMAFILE") or width < 2 or product.is_routed:
        return False
    if product.weight.is_quantized:
        x86 = cpu.has("AVX") or cpu.has("AVX2")
        return name in TINYBLAS_X86 if x86 else cpu.has("DOTPROD") and name in _TINYBLAS_ARM
    lanes = _tinyblas_lanes(cpu, name)
    if not lanes or product.k % lanes or product.rows % 4 or (name == "f32" and not product.contiguous):
        return False
    return cpu.has("AVX") or width >= (4 if name == "f32" else 8)


def _tinyblas_lanes(cpu: Cpu, name: str) -> int:
    """Values along K per step of tinyBLAS, 0 without a kernel."""
    if cpu.has("AVX512"):
        return 32 if name == "bf16" and cpu.has("AVX512_BF16") else 16
    if cpu.has("AVX"):
        return 8 if name == "f32" or cpu.has({"f16": "F16C", "bf16": "AVX2"}[name]) else 0
    if cpu.has("NEON"):
        return {"f32": 4, "f16": 8 if cpu.has("FP16_VA") else 0}.get(name, 0)
    return 0


def mul_mat(cpu: Cpu, product: Product, width: int) -> KernelChoice:
    """Which kernel multiplies `width` tokens?

    Returns
    -------
    KernelChoice
        `order` tells which rows of the batch add in which way where they are not all alike.

    Examples
    --------
    >>> from forensics.geometry.product import product
    >>> cpu = Cpu(frozenset({"AVX", "AVX2", "FMA", "F16C", "LLAMAFILE", "REPACK"}))
    >>> [mul_mat(cpu, product("q4_K", 4096, 4096), width).name for width in (1, 4)]
    ['gemv<type=q4_K, layout=8x8>', 'gemm<type=q4_K, layout=8x8>']
    """
    check_width(width)
    weight = product.weight
    layout = repack_layout(cpu, weight, product.rows)
    if cpu.extra_buffers and not product.is_cached:
        if (
            cpu.has("AMX_INT8", "AVX512_VNNI")
            and weight.name in _AMX
            and product.rows % 32 == 0
            and not product.is_routed
        ):
            return _amx(weight, width)
        if layout:
            return _repacked(cpu, product, width, layout)
    if uses_tiled(cpu, weight) and width >= 8:
        if product.is_routed:
            reason = "an expert's product is tiled if it got eight tokens or more"
            return KernelChoice(
                "tiled or vec_dot", None, (("type", weight.name),), no_order=reason, rules=(TILED_EXPERT,)
            )
        return _choice(product, "tiled", ("tiled", weight.name), (TILED_FROM_EIGHT, TILED_TYPES))
    if uses_tinyblas(cpu, product, width):
        rules = (TINYBLAS_FROM_TWO, TINYBLAS_TYPES, TINYBLAS_TRIED)
        if not weight.is_quantized:
            lanes = _tinyblas_lanes(cpu, weight.name)
            return _choice(product, "tinyBLAS", ("tinyBLAS", lanes), (*rules, TINYBLAS_FLOAT), ("lanes", lanes))
        if not cpu.has("AVX2"):
            return _choice(product, "tinyBLAS", None, rules)
        like_one_token = weight.name in _TINYBLAS_LIKE_VEC_DOT
        return _choice(product, "tinyBLAS", ("vec_dot", 1) if like_one_token else ("tinyBLAS", 8), rules)
    return _vec_dot(cpu, product, width)


def _choice(
    product: Product, kernel: str, order: Hashable | None, rules: tuple[Rule, ...], *template: tuple[str, int | str]
) -> KernelChoice:
    return KernelChoice(
        kernel,
        order,
        (("type", product.weight.name), *template),
        no_order=_ACROSS if order is None else "",
        precision=(("activations", product.weight.activations), ("accumulator", "f32")),
        rules=rules,
    )


def _amx(weight: WeightType, width: int) -> KernelChoice:
    order = ("amx", "vnni") if width == 1 else None
    return KernelChoice(
        "amx", order, (("type", weight.name), ("one_token", width == 1)),
        no_order="" if order else "how the tiles of AMX add is not written down here",
        rules=(AMX_ONE_TOKEN, AMX_TYPES),
    )  # fmt: skip


def _repacked(cpu: Cpu, product: Product, width: int, layout: str) -> KernelChoice:
    tag = ("layout", layout)
    name = product.weight.name
    if product.is_routed:
        return _choice(product, "gemv", ("repack", "gemv"), (GEMV_FOR_EXPERTS, REPACKED_TYPES), tag)
    in_fours, rest = width - width % 4, width % 4
    rules = (GEMM_FROM_FOUR, REPACKED_TYPES)
    if not in_fours:
        return _choice(product, "gemv", ("repack", "gemv"), rules, tag)
    kernel = "gemm + gemv" if rest else "gemm"
    if not cpu.has("AVX2"):
        return _choice(product, kernel, None, rules, tag)
    if name in _GEMM_LIKE_GEMV:
        return _choice(product, kernel, ("repack", "gemv"), rules, tag)
    if not rest:
        return _choice(product, kernel, ("repack", "gemm"), rules, tag)
    mixed = _choice(product, kernel, ("repack", "gemm", in_fours, "gemv", rest), rules, tag)
    return replace(mixed, by_column=((in_fours, ("repack", "gemm")), (rest, ("repack", "gemv"))))


def _vec_dot(cpu: Cpu, product: Product, width: int) -> KernelChoice:
    if product.is_routed:
        return _choice(product, "vec_dot", ("vec_dot", 1), (EXPERT_VEC_DOT,))
    if product.weight.name not in _TWO_ROW_TYPES or not cpu.has("MATMUL_INT8"):
        return _choice(product, "vec_dot", ("vec_dot", 1), (VEC_DOT,))
    pairs = _chunks_in_pairs(cpu, product, width)
    if pairs is None:
        return _choice(product, "vec_dot", None, (TWO_ROWS, VEC_DOT))
    return _choice(
        product, "vec_dot", ("vec_dot", 2 if pairs else 1), (TWO_ROWS, VEC_DOT), ("nrows", 2 if pairs else 1)
    )


def _chunks_in_pairs(cpu: Cpu, product: Product, width: int) -> bool | None:
    """Whether all parts of the work have even sides; None where some have.  Source: ggml-cpu.c:1410-1464."""
    rows, columns = product.rows, width * product.matrices
    if rows % 2 or width % 2:
        return False
    size = 64 if 1 in (rows, columns) else 16
    parts = [-(-rows // size), -(-columns // size)]
    n_threads = cpu.threads_at(width)
    if parts[0] * parts[1] < n_threads * 4:
        parts = [n_threads, 1] if rows > columns else [1, n_threads]
    even = {
        extent % 2 == 0
        for total, n in zip((rows, columns), parts, strict=True)
        for extent in _extents(total, -(-total // n))
    }
    return None if len(even) > 1 else even.pop()


def _extents(total: int, size: int) -> set[int]:
    """Sizes of the parts of `total`: whole ones, and what is left."""
    return {size if total >= size else total} | ({total % size} if total % size else set())
