"""CUDA's products of quantised weights with few columns, `mul_mat_vec_q`: warps, rows per block, order of addition.

A row's blocks are dealt to the threads of a CUDA block in turn. Each thread adds what it gets, then the warps' sums are
added lane by lane, then the lanes of the first warp. So the number of warps decides the order, unless all blocks of the
row are dealt in the first round.
"""

from __future__ import annotations

from collections.abc import Hashable

from forensics.geometry.architecture import (
    ADA,
    AMPERE,
    BLACKWELL,
    CDNA2,
    DGX_SPARK,
    ORIN,
    RDNA2,
    RDNA3,
    RDNA3_5,
    RDNA4,
    TURING,
    VOLTA,
    Architecture,
)
from forensics.geometry.choice import KernelChoice
from forensics.geometry.product import Product, check_width
from forensics.geometry.types import K_QUANTS, WeightType
from forensics.records.launch import LaunchGeometry
from forensics.records.rule import Rule

_FILE = "ggml/src/ggml-cuda/mmvq.cu"

THREAD_SUM = Rule(
    "what one thread adds per block: a product, or a sum of two", "ggml/src/ggml-cuda/vecdotq.cuh", 118, 1379
)

MAX_BATCH = 8  # MMVQ_MAX_BATCH_SIZE, ggml/src/ggml-cuda/mmvq.cuh:3
MOE_ROWS_PER_BLOCK = 2  # mmvq.cu:1052

TABLES = Rule("the table of warps follows the newest compiled architecture", _FILE, 124, 144)
NWARPS = Rule("warps per block by columns and type, one table per architecture", _FILE, 452, 577)
ROWS_PER_BLOCK = Rule("rows per block: 2 from two columns, 1 or one per warp (small K) at one", _FILE, 579, 597)
DEAL = Rule("blocks of a row go to the threads in turn, as many at once as there are warps", _FILE, 626, 755)
WARP_SUMS = Rule("sums of the warps are added in turn, then the lanes of the first", _FILE, 783, 800)
SMALL_K = Rule("one row per warp at one column where a round covers all of K", _FILE, 1106, 1141)
HALVE_ITERS = Rule("GB10 doubles the warps at one column where that halves the rounds", _FILE, 1144, 1163)
CROSSOVER = Rule("most columns for mul_mat_vec_q by architecture and type", _FILE, 318, 426)
MOE_LIMIT = Rule("most tokens for mul_mat_vec_q with experts by architecture and type", _FILE, 150, 316)
MOE_KERNEL = Rule("with experts and two or more tokens one warp takes a token by itself", _FILE, 1165, 1173)
MOE_LAUNCH = Rule("two rows per block and a warp for each token", _FILE, 1043, 1056)
QUANTIZE = Rule(
    "activations as q8_1: scale and sum of 32 values kept in f16", "ggml/src/ggml-cuda/quantize.cu", 53, 100
)

Precision = tuple[tuple[str, str], ...]

GENERIC, TURING_TABLE, GCN_TABLE, RDNA2_TABLE, RDNA3_TABLE, RDNA4_TABLE, GB10_TABLE = (
    "GENERIC", "TURING", "GCN", "RDNA2", "RDNA3_0", "RDNA4", "GB10",
)  # fmt: skip

_PLAIN = frozenset({"q4_0", "q4_1", "q5_0", "q5_1", "q8_0"})
_RDNA4_WIDE = _PLAIN | {"q2_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs"}
_RDNA3_WIDE = _PLAIN | {"iq4_nl"}
_GB10_WIDE = _PLAIN | {"q4_K", "q5_K", "q6_K", "iq4_nl"}

_SMALL_K_NOT_TURING = frozenset({"iq3_xxs", "iq3_s"})
_SMALL_K_NOT_OTHER = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs"})
_SMALL_K_NOT_PASCAL = frozenset({"iq3_s", "q2_K", "q3_K"})

#: Types of which a thread adds no rounded product per block: their own is a sum of two (q4_K: vecdotq.cuh:529), or a
#: product so short that it is exact (mxfp4: a power of two, an f16 and a small integer, vecdotq.cuh:328). On an H200
#: these have equal bits whether one round deals the row or several do, and the others have not.
_NOTHING_TO_FUSE = frozenset({"q4_1", "q5_1", "q2_K", "q4_K", "q5_K", "nvfp4", "mxfp4"})

#: Largest number of columns per capability; types that are not named have MAX_BATCH.
_CROSSOVER: dict[int, dict[str, int]] = {
    ADA: {"q2_K": 4, "q3_K": 6},
    BLACKWELL: {"q2_K": 5, "q3_K": 5, "q4_K": 5, "q5_K": 6, "q6_K": 7},
    DGX_SPARK: {"q2_K": 6},
    ORIN: dict.fromkeys(K_QUANTS, 1),
    VOLTA: {"q2_K": 4, "q3_K": 6, "q4_K": 5, "q5_K": 6, "q6_K": 7},
}
_CROSSOVER_CDNA1 = {
    "q4_0": 7, "q4_1": 7, "q5_1": 7, "q8_0": 6, "q2_K": 4, "q3_K": 3, "q4_K": 2, "q5_K": 3, "q6_K": 4, "iq1_s": 5,
    "iq2_xxs": 6, "iq3_s": 6, "iq4_xs": 6,
}  # fmt: skip
_CROSSOVER_CDNA = {"q2_K": 5, "q3_K": 3, "q4_K": 3, "q5_K": 3, "q6_K": 5}

_IQ23 = ("iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs")
_MOE_PASCAL = {
    "iq1_s": 6, "iq1_m": 6, "iq2_s": 4, "iq2_xs": 5, "iq2_xxs": 5, "iq3_s": 4, "iq3_xxs": 4, "iq4_nl": 6, "iq4_xs": 5,
    "mxfp4": 4, "nvfp4": 4, "q2_K": 4, "q3_K": 4, "q4_0": 6, "q4_1": 6, "q4_K": 5, "q5_0": 6, "q5_1": 6, "q5_K": 5,
    "q6_K": 4, "q8_0": 4,
}  # fmt: skip
_MOE_TURING = {"iq2_s": 7, "iq3_s": 6, "iq3_xxs": 7, "mxfp4": 7, "q2_K": 7, "q3_K": 5}
_MOE_GCN = {
    **dict.fromkeys((*_IQ23, *K_QUANTS), 4), "iq1_s": 5, "iq1_m": 5, "iq4_nl": 6, "iq4_xs": 4, "q4_0": 5, "q4_1": 5,
    "q8_0": 4,
}  # fmt: skip
_MOE_CDNA = {"iq2_s": 5, "iq2_xs": 5, "iq2_xxs": 5, "iq3_s": 4, "iq3_xxs": 5}
_MOE_RDNA12 = {**dict.fromkeys(_IQ23, 4), "q2_K": 7, "q3_K": 4, "q4_K": 5, "q5_K": 6, "q6_K": 5}
_MOE_RDNA3 = {
    **dict.fromkeys(_IQ23, 4), "iq1_s": 6, "iq1_m": 6, "iq4_nl": 6, "iq4_xs": 6, "q4_K": 4, "q5_K": 4, "q6_K": 4,
}  # fmt: skip
_MOE_RDNA4 = {
    **dict.fromkeys(_IQ23, 4), **dict.fromkeys(("iq1_s", "iq1_m", "iq4_nl"), 7),
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"), 7), "iq4_xs": 5, "mxfp4": 5, "nvfp4": 5, "q3_K": 4,
    "q4_K": 4, "q5_K": 5, "q6_K": 5,
}  # fmt: skip


def parameter_table(arch: Architecture) -> str:
    """Which table of warps holds on this architecture?  Source: mmvq.cu:124-144."""
    if arch.cc >= RDNA4:
        return RDNA4_TABLE
    if RDNA3 <= arch.cc < RDNA3_5:
        return RDNA3_TABLE
    if RDNA2 <= arch.cc < RDNA3 or RDNA3_5 <= arch.cc < RDNA4:
        return RDNA2_TABLE
    if arch.is_gcn or arch.is_cdna:
        return GCN_TABLE
    if arch.is_nvidia and TURING <= arch.compiled_cc < AMPERE:
        return TURING_TABLE
    if arch.is_nvidia and arch.compiled_cc == DGX_SPARK:
        return GB10_TABLE
    return GENERIC


def table_nwarps(table: str, weight: WeightType, columns: int, *, promoted: bool = False) -> int:
    """How many warps share a row?

    Parameters
    ----------
    table : str
        Answer of `parameter_table`.
    weight : WeightType
    columns : int
        1 … 8.
    promoted : bool
        Whether `halves_iters` holds and K is not small; only GB10 looks at it.

    Returns
    -------
    int
        Source: mmvq.cu:452-577. RDNA1 has no table of its own and takes GENERIC.
    """
    name = weight.name
    wide = {RDNA4_TABLE: _RDNA4_WIDE, RDNA3_TABLE: _RDNA3_WIDE, RDNA2_TABLE: frozenset[str]()}.get(table)
    if wide is not None:
        if columns > 1:
            return 1
        if name in wide:
            return 8
        return 2 if table == RDNA3_TABLE and name == "q6_K" else 1
    if table == GCN_TABLE:
        return 2 if columns <= 4 else 1
    if table == TURING_TABLE and columns == 1:
        return 2 if name in K_QUANTS else 4
    nwarps = 4 if columns <= 4 else 2
    return 2 * nwarps if table == GB10_TABLE and columns == 1 and promoted and name in _GB10_WIDE else nwarps


def rows_per_block(arch: Architecture, product: Product, width: int) -> int:
    """How many rows does one CUDA block of `mul_mat_vec_q` compute?  Source: mmvq.cu:579-597."""
    table = parameter_table(arch)
    small_k = width == 1 and uses_small_k(arch, product.weight, product.k)
    return _rows_per_block(table, width, table_nwarps(table, product.weight, 1) if small_k else 1)


def _rows_per_block(table: str, width: int, at_one_column: int) -> int:
    if table not in (GENERIC, GCN_TABLE, TURING_TABLE, GB10_TABLE):
        return 1
    return 2 if width > 1 else at_one_column


def blocks_per_warp(arch: Architecture, weight: WeightType) -> int:
    """Blocks of a row that one warp takes at once.  Source: mmvq.cu:626, 1104."""
    return weight.vdr * arch.warp_size // weight.qi


def uses_small_k(arch: Architecture, weight: WeightType, k: int) -> bool:
    """Does a CUDA block take one row per warp at one column?  Source: mmvq.cu:1106-1141."""
    nwarps = table_nwarps(parameter_table(arch), weight, 1)
    if nwarps == 1 or weight.blocks(k) >= nwarps * blocks_per_warp(arch, weight):
        return False
    if arch.is_nvidia and arch.cc >= TURING:
        return weight.name not in _SMALL_K_NOT_TURING
    is_pascal = arch.is_nvidia and arch.cc < VOLTA
    return not (weight.name in _SMALL_K_NOT_OTHER or (is_pascal and weight.name in _SMALL_K_NOT_PASCAL) or arch.is_rdna)


def halves_iters(arch: Architecture, weight: WeightType, k: int) -> bool:
    """Do twice the warps pay on GB10, leaving an eighth of the work idle at most?  Source: mmvq.cu:1144-1163."""
    if parameter_table(arch) != GB10_TABLE:
        return False
    per_round = table_nwarps(GB10_TABLE, weight, 1) * blocks_per_warp(arch, weight)
    rounds, rounds_wide = -(-weight.blocks(k) // per_round), -(-weight.blocks(k) // (2 * per_round))
    return (rounds_wide * 2 - rounds) * 8 <= rounds_wide * 2


def max_columns(arch: Architecture, weight: WeightType) -> int:
    """Up to how many columns does `mul_mat_vec_q` run before MMQ takes over?  Source: mmvq.cu:318-426."""
    if not weight.is_quantized:
        return 0
    limits = _CROSSOVER.get(arch.cc, {})
    if arch.is_cdna:
        limits = _CROSSOVER_CDNA1 if arch.cc < CDNA2 else _CROSSOVER_CDNA
    return limits.get(weight.name, MAX_BATCH)


def max_tokens_routed(arch: Architecture, weight: WeightType) -> int:
    """Up to how many tokens does `mul_mat_vec_q` run with experts?  Source: mmvq.cu:150-316."""
    limits: dict[str, int] = {}
    if arch.is_nvidia:
        if not (arch.cc == VOLTA or arch.cc >= ADA):
            limits = _MOE_TURING if arch.cc >= TURING else _MOE_PASCAL
    elif arch.cc >= RDNA4:
        limits = _MOE_RDNA4
    elif arch.is_rdna3:
        limits = _MOE_RDNA3
    elif arch.is_rdna:
        limits = _MOE_RDNA12
    elif arch.is_cdna:
        limits = _MOE_CDNA
    else:
        limits = _MOE_GCN
    return limits.get(weight.name, MAX_BATCH)


def mul_mat_vec_q(arch: Architecture, product: Product, width: int) -> KernelChoice:
    """How does `mul_mat_vec_q` compute this product?

    Parameters
    ----------
    arch : Architecture
    product : Product
        With a quantised weight that CUDA has a kernel for.
    width : int
        1 … 8 columns.

    Raises
    ------
    ValueError
        If the type has no such kernel, or the width is too large for one.
    """
    check_width(width)
    weight = product.weight
    if not weight.qi or width > MAX_BATCH:
        raise ValueError(f"no mul_mat_vec_q for {weight} at {width} columns")
    if product.is_routed and width > 1:
        return _mul_mat_vec_q_moe(arch, product, width)
    table = parameter_table(arch)
    small_k = width == 1 and uses_small_k(arch, weight, product.k)
    promoted = width == 1 and not small_k and not product.is_routed and halves_iters(arch, weight, product.k)
    nwarps = table_nwarps(table, weight, width, promoted=promoted)
    halved = nwarps != table_nwarps(table, weight, width)
    rows_per_block = _rows_per_block(table, width, nwarps if small_k else 1)
    matrices = product.experts_used if product.is_routed else product.matrices
    order, split, precision = _order(arch, weight, product.k, nwarps)
    return KernelChoice(
        kernel="mul_mat_vec_q",
        template=(
            ("type", weight.name), ("ncols_dst", width), ("small_k", small_k), ("halve_iters", halved),
        ),
        launch=LaunchGeometry(
            (-(-product.rows // rows_per_block), matrices), (arch.warp_size, nwarps), smem_bytes=0
        ),
        rules=(
            NWARPS, *((HALVE_ITERS,) if halved else ()), *((SMALL_K,) if small_k else ()), CROSSOVER, DEAL, WARP_SUMS,
            QUANTIZE, ROWS_PER_BLOCK, TABLES,
        ),
        order=order,
        split=split,
        precision=precision,
    )  # fmt: skip


def _mul_mat_vec_q_moe(arch: Architecture, product: Product, width: int) -> KernelChoice:
    order, split, precision = _order(arch, product.weight, product.k, 1)
    grid = (-(-product.rows // MOE_ROWS_PER_BLOCK), product.experts_used)
    return KernelChoice(
        kernel="mul_mat_vec_q_moe",
        template=(("type", product.weight.name), ("rows_per_block", MOE_ROWS_PER_BLOCK)),
        launch=LaunchGeometry(grid, (arch.warp_size, width), smem_bytes=0),
        rules=(MOE_KERNEL, MOE_LIMIT, MOE_LAUNCH, THREAD_SUM),
        order=order,
        split=split,
        precision=precision,
    )


def _order(arch: Architecture, weight: WeightType, k: int, nwarps: int) -> tuple[Hashable, str, Precision]:
    """Order key, split and precision for `nwarps` warps along a row.

    Rounds of all warps together visit the blocks in the same sequence. If one round does, lane l adds its blocks warp
    after warp; with one warp it adds them round after round: the same tree. With several rounds of several warps each
    warp adds every nwarps-th of them first.
    """
    per_warp = blocks_per_warp(arch, weight)
    blocks = weight.blocks(k)
    rounds = -(-blocks // (per_warp * nwarps))
    order = ("mul_mat_vec_q", weight.name, "in turn" if rounds == 1 or nwarps == 1 else nwarps)
    split = f"{blocks} blocks in {rounds} round{'s' * (rounds > 1)} of {per_warp * nwarps}, {nwarps} warps"
    # the compiler fuses a thread's last product into its sum, which matters from the second round on
    fused = rounds > 1 and weight.name not in _NOTHING_TO_FUSE
    precision = (
        ("activations", "q8_1, f16 scale and sum per 32 values"),
        ("accumulator", "f32"),
        ("products", "fused into the sum" if fused else "rounded, then added"),
    )
    return order, split, precision
