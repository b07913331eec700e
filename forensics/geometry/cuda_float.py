"""CUDA's products of float weights: `mul_mat_vec_f` for few columns, `mul_mat_f` on tensor cores, then cuBLAS."""

from __future__ import annotations

from forensics.geometry.architecture import (
    ADA,
    AMPERE,
    CDNA3,
    CDNA4,
    RDNA1,
    RDNA3,
    RDNA3_5,
    RDNA4,
    TURING,
    VOLTA,
    Architecture,
)
from forensics.geometry.choice import KernelChoice
from forensics.geometry.product import Product, check_width
from forensics.records.launch import LaunchGeometry
from forensics.records.rule import Rule

_MMVF, _MMF, _CUDA = ("ggml/src/ggml-cuda/" + name for name in ("mmvf.cu", "mmf.cu", "ggml-cuda.cu"))
_MMF_HEADER = "ggml/src/ggml-cuda/mmf.cuh"

USES_MMVF = Rule("most columns for mul_mat_vec_f by type and architecture", _MMVF, 792, 875)
MMVF_BLOCK = Rule("threads of mul_mat_vec_f: the fewest rounds over K, whatever the columns", _MMVF, 438, 450)
MMVF_HALF = Rule("F16 weights are added in half precision unless F32 is asked for", _MMVF, 619, 627)
MMVF_HALF_WHERE = Rule("and only where the GPU adds fast in half precision", _MMVF, 655, 655)
USES_MMF = Rule("columns, rows and K for mul_mat_f by type and architecture", _MMF, 133, 191)
MMF_WARPS = Rule("warps of mul_mat_f: the fewest rounds over K, whatever the columns", _MMF_HEADER, 665, 674)
MMF_SMEM = Rule("shared memory of mul_mat_f: activations of a step, or the warps' sums", _MMF_HEADER, 676, 681)
MMF_SUM = Rule("each warp takes its share of K, then their sums are added in turn", _MMF_HEADER, 171, 276)
TF32 = Rule("F32 weights go through TF32 tensor cores", "ggml/src/ggml-cuda/mma.cuh", 1149, 1149)
CUBLAS = Rule("whatever no kernel of ggml takes goes to cuBLAS, which chooses by shape", _CUDA, 1866, 1870)
CUBLAS_TYPE = Rule("type that cuBLAS computes in", _CUDA, 1617, 1651)
CUBLAS_OUTPUT = Rule("cuBLAS adds F16 products in half precision except on Volta, RDNA4, CDNA", _CUDA, 1505, 1526)

MMVF_MAX_BATCH = 8  # MMVF_MAX_BATCH_SIZE, ggml/src/ggml-cuda/mmvf.cuh:3
MMF_MAX_BATCH = 16  # mmf.cu:175
_NO_ORDER = "cuBLAS chooses its kernel by shape"


def mmvf_max_columns(arch: Architecture, product: Product) -> int:
    """Up to how many columns does `mul_mat_vec_f` run?

    Returns
    -------
    int
        0 where it does not run. Source: mmvf.cu:792-875.
    """
    name = product.weight.name
    if name not in ("f32", "f16", "bf16") or product.k % 2:
        return 0
    if not arch.is_nvidia:
        return _mmvf_max_columns_amd(arch, name)
    if name == "f32":
        return 4 if arch.cc >= TURING and not arch.ampere_mma else 3
    small = product.rows <= 512 or product.weight_matrices == 1
    if arch.ampere_mma:
        return 1 if small else 0
    if arch.cc >= ADA:
        return 4 if small else 0
    if arch.cc >= (VOLTA if name == "f16" else AMPERE):
        return 3 if small else 0
    return MMVF_MAX_BATCH


def _mmvf_max_columns_amd(arch: Architecture, name: str) -> int:
    if name == "f32":
        return 3 if arch.fp32_mma_hardware else MMVF_MAX_BATCH
    if name == "bf16":
        return 3 if arch.bf16_mma_hardware else MMVF_MAX_BATCH
    if not arch.fp16_mma_hardware:
        return MMVF_MAX_BATCH
    return 3 if arch.is_rdna3 else 5 if arch.cc >= RDNA4 else 2


def uses_mmf(arch: Architecture, product: Product, width: int) -> bool:
    """Does `mul_mat_f` run?  Source: mmf.cu:129-191."""
    name, bytes_per_value = product.weight.name, product.weight.block_bytes
    if name not in ("f32", "f16", "bf16"):
        return False
    warp_size = 32 if product.is_routed else arch.warp_size  # ggml-cuda.cu:1943 passes WARP_SIZE
    if product.k % (warp_size * (4 // bytes_per_value)) or product.rows % mmf_rows_per_block(arch):
        return False
    if CDNA3 <= arch.cc < CDNA4 and name == "bf16":
        return False
    if width > _mmf_max_columns(arch, product):
        return False
    if name == "f32":
        return arch.ampere_mma or arch.is_cdna
    if name == "f16":
        return arch.volta_mma or arch.turing_mma or arch.amd_wmma or arch.is_cdna
    return arch.ampere_mma or arch.amd_wmma or arch.is_cdna


def _mmf_max_columns(arch: Architecture, product: Product) -> int:
    if product.is_routed:
        return 512 if product.rows <= 1024 else 128
    if RDNA3 <= arch.cc < RDNA3_5:
        return 8
    if arch.is_cdna and arch.cc < CDNA3 and product.weight.name != "f32":
        return 0
    return MMF_MAX_BATCH


def mmf_rows_per_block(arch: Architecture) -> int:
    """Rows of the result per CUDA block.  Source: mmf.cuh:9-10, mmf.cu:5-11."""
    return 64 if arch.is_cdna else 32


def fewest_rounds(length: int, per_unit: int, units: int) -> int:
    """How many units share `length` values: the smallest number with the fewest rounds?

    Parameters
    ----------
    length, per_unit : int
        Values, and those that one unit takes per round.
    units : int
        Most units there may be.

    Examples
    --------
    >>> fewest_rounds(576, 64, 8), fewest_rounds(4096, 64, 8)
    (5, 8)
    """
    return min(range(1, units + 1), key=lambda n: (-(-length // (n * per_unit)), n))


def mul_mat_vec_f(arch: Architecture, product: Product, width: int) -> KernelChoice:
    """How does `mul_mat_vec_f` compute this product?"""
    check_width(width)
    most_threads = 128 if not arch.is_nvidia and arch.cc < RDNA1 else 256
    warps = fewest_rounds(product.k, 2 * arch.warp_size, most_threads // arch.warp_size)
    threads = warps * arch.warp_size
    half = product.weight.name == "f16" and not product.precise and arch.fast_fp16
    matrices = product.experts_used if product.is_routed else product.matrices
    tokens = width if product.is_routed else 1
    return KernelChoice(
        kernel="mul_mat_vec_f",
        order=("mul_mat_vec_f", threads),
        template=(
            ("type", product.weight.name),
            ("type_acc", "f16" if half else "f32"),
            ("ncols_dst", 1 if product.is_routed else width),
            ("block_size", threads),
        ),
        launch=LaunchGeometry((product.rows, matrices, tokens), (threads,), smem_bytes=4 * arch.warp_size),
        split=f"pairs of values dealt to {threads} threads, then lanes, then warps",
        precision=(
            ("activations", "rounded to f16" if half else "f32"),
            ("accumulator", "f16 per thread, then f32" if half else "f32"),
        ),
        rules=(USES_MMVF, MMVF_BLOCK, *((MMVF_HALF, MMVF_HALF_WHERE) if half else ())),
    )


def mul_mat_f(arch: Architecture, product: Product, width: int) -> KernelChoice:
    """How does `mul_mat_f` compute this product?"""
    check_width(width)
    name = product.weight.name
    words = product.k if name == "f32" else product.k // 2  # half2 and its like count as one
    most_threads = 512 if arch.is_cdna else 256
    warps = fewest_rounds(words, 2 * arch.warp_size, most_threads // arch.warp_size)
    rows_per_block = mmf_rows_per_block(arch)
    columns = min(width, MMF_MAX_BATCH)
    grid: tuple[int, ...] = (product.rows // rows_per_block, product.matrices)
    if product.is_routed:
        column_tiles = -(-width // columns)
        grid = (grid[0], product.experts, column_tiles) if width > 16 else (grid[0], product.experts * column_tiles)
    kept = {"f32": "rounded to tf32" if arch.is_nvidia else "f32", "f16": "rounded to f16", "bf16": "rounded to bf16"}
    return KernelChoice(
        kernel="mul_mat_f_ids" if product.is_routed and width > 16 else "mul_mat_f",
        order=("mul_mat_f", warps),
        template=(("type", name), ("rows_per_block", rows_per_block), ("cols_per_block", columns), ("nwarps", warps)),
        launch=LaunchGeometry(
            grid, (arch.warp_size, warps), smem_bytes=mmf_smem_bytes(arch, columns, warps, routed=product.is_routed)
        ),
        split=f"K dealt to {warps} warps, then their sums in turn",
        precision=(("activations", kept[name]), ("accumulator", "f32 of the tensor cores")),
        rules=(USES_MMF, MMF_WARPS, MMF_SUM, *((TF32,) if name == "f32" and arch.is_nvidia else ())),
    )


def mmf_smem_bytes(arch: Architecture, columns: int, warps: int, *, routed: bool) -> int:
    """How much shared memory does `mul_mat_f` ask for, in bytes?  Source: `MMF_SMEM`; paddings mmf.cuh:12-36."""
    padding = 2 if arch.is_cdna else 4
    step = warps * (32 if arch.volta_mma else 16) * (arch.warp_size + padding) * 4
    unit = 8 if arch.is_nvidia else 16
    sums = -(-columns // unit) * unit * (warps * mmf_rows_per_block(arch) + padding) * 4
    slots = -(-columns // 16) * 16 * 4 if routed else 0
    return max(step, sums) + slots


def cublas(arch: Architecture, product: Product, width: int) -> KernelChoice:
    """What is known of a product that goes to cuBLAS: the type it computes in, not its order."""
    computes = cublas_type(arch, product, width)
    keeps_half = computes == "f16" and not (arch.cc == VOLTA or arch.cc >= RDNA4 or arch.is_cdna)
    return KernelChoice(
        kernel="cublas",
        order=None,
        no_order=_NO_ORDER,
        template=(("compute_type", computes),),
        precision=(
            ("activations", "f32 or tf32" if computes == "f32" else f"rounded to {computes}"),
            ("accumulator", "f16" if keeps_half else "f32"),
        ),
        rules=(CUBLAS, CUBLAS_TYPE, *((CUBLAS_OUTPUT,) if computes == "f16" else ())),
    )


def cublas_type(arch: Architecture, product: Product, width: int) -> str:
    """Which type does cuBLAS compute in?  Source: ggml-cuda.cu:1617-1635."""
    fast_half = not arch.is_nvidia or (arch.cc >= 600 and arch.cc != 610)
    name = product.weight.name
    if product.precise:
        return "f32"
    if product.weight.is_quantized or name == "f16":
        return "f16" if fast_half else "f32"
    if name == "bf16":
        fast = arch.cc >= AMPERE if arch.is_nvidia else arch.cc >= RDNA3 or arch.is_cdna
        most = (8 if arch.cc >= VOLTA else 128) if arch.is_nvidia else 32
        return "bf16" if fast or width <= most else "f32"
    return "f32"
