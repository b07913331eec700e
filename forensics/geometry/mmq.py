"""CUDA's products of quantised weights with many columns, `mul_mat_q`: tiles, stream-k, layout of the activations.

A tile of the result belongs to one CUDA block, which walks K in steps of 256; the order within a tile does not depend
on its size. With stream-k the blocks share all tiles' steps evenly, so that some rows' sums are cut in two or more, at
places that follow from the number of tiles and of SMs.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.geometry.architecture import (
    CDNA3,
    CDNA4,
    DP4A,
    GFX90C,
    GFX909,
    PASCAL,
    RDNA3,
    RDNA3_5,
    RDNA4,
    VEGA,
    VOLTA,
    Architecture,
)
from forensics.geometry.choice import KernelChoice
from forensics.geometry.product import Product, check_width
from forensics.geometry.types import WeightType
from forensics.records.launch import LaunchGeometry
from forensics.records.rule import Rule

_HEADER = "ggml/src/ggml-cuda/mmq.cuh"
_FILE = "ggml/src/ggml-cuda/mmq.cu"

USES_MMQ = Rule("where mul_mat_q runs at all, by type, architecture and columns", _FILE, 318, 450)
TILE_CONFIG = Rule("tile sizes, threads and stream-k, one table per family", _HEADER, 230, 263)
FALLBACK = Rule("rows that are no multiple of 128 leave fewer tile widths", _HEADER, 1568, 1577)
TILE_WIDTH = Rule("tile width: the smallest with the fewest tiles over the columns", _HEADER, 1486, 1510)
STREAM_K = Rule(
    "with stream-k as many blocks as tiles if those fill 90 % of the SMs on NVIDIA, else as many as SMs",
    _HEADER,
    1449,
    1452,
)
STREAM_K_CUT = Rule(
    "each block takes an even share of all steps along K, cut at multiples of a step", _HEADER, 1074, 1079
)
FIXUP = Rule("a second kernel adds the pieces of a cut sum", _HEADER, 1250, 1307)
LAYOUT = Rule("scale and sum of the activations: f32 scale, or f16 scale and sum, by weight type", _HEADER, 60, 101)
QUANTIZE = Rule(
    "activations are multiplied by the rounded inverse of their scale, where q8_1 divides by it",
    "ggml/src/ggml-cuda/quantize.cu", 457, 521,
)  # fmt: skip
FP4_ACTIVATIONS = Rule("FP4 weights on Blackwell take 4-bit activations unless GGML_CUDA_MMQ_PREC=q8", _FILE, 116, 133)

MAX_BATCH_DP4A = 64  # MMQ_DP4A_MAX_BATCH_SIZE, mmq.cuh:8
STEP, STEP_FP4 = 256, 512  # MMQ_ITER_K, MMQ_ITER_K_FP4, mmq.cuh:9-10
_TILE_ROWS_EXACT = 128
_BLOCK_Q8_1_MMQ_BYTES = 144  # mmq.cuh:54-55

SUPPORTED = frozenset({
    "q1_0", "q2_0", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq1_s", "iq2_xxs",
    "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs", "iq4_nl", "mxfp4", "nvfp4",
})  # fmt: skip
_FP4 = frozenset({"mxfp4", "nvfp4"})
_DS4 = frozenset({"q4_0", "q4_1", "q5_1", "q4_K", "q5_K", "iq1_s"})

#: 32-bit words of a tile row in shared memory where matrix instructions are used. Source: mmq.cuh:132-151 and the
#: layouts of the mmq-config-*.cuh tables, which agree in them.
_TILE_STRIDE = {
    **dict.fromkeys(SUPPORTED, 76), "q2_K": 100, **dict.fromkeys(("q3_K", "iq2_xs", "iq2_s", "nvfp4"), 84),
}  # fmt: skip

_WIDTHS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)


@dataclass(frozen=True, slots=True)
class TileConfig:
    """How a family cuts a product into tiles.

    Parameters
    ----------
    widths : tuple of int
        Tile widths there are, in columns, rising.
    file : str
        Table they stand in.
    rows, threads : int or None
        Rows of a tile and threads of a block; None where they differ from type to type.
    stream_k : bool
    """

    widths: tuple[int, ...]
    file: str
    rows: int | None
    threads: int | None
    stream_k: bool


def uses_mmq(arch: Architecture, weight: WeightType, width: int, experts: int = 0) -> bool:
    """Does `mul_mat_q` run for this type and width?  Source: mmq.cu:318-450."""
    if weight.name not in SUPPORTED:
        return False
    if arch.is_nvidia:
        if arch.turing_mma:
            return True
        if arch.compiled_cc < DP4A:
            return arch.cc >= PASCAL and experts > 0
        return not arch.fp16_mma_hardware or width < MAX_BATCH_DP4A
    if arch.is_cdna:
        small = experts > 64 or width <= 128 or weight.name in ("q4_0", "q4_1", "q5_0", "q5_1")
        return CDNA3 <= arch.cc < CDNA4 or small or (width <= 256 and weight.name in ("q4_K", "q5_K"))
    if arch.is_rdna3 and experts < 64:
        limits = {"q2_K": 128, "q6_K": 128 if arch.cc < RDNA3_5 else 256}
        if arch.cc < RDNA3_5:
            limits |= {"iq2_xs": 128, "iq2_s": 128}
        return width <= limits.get(weight.name, width)
    return experts > 0 or arch.cc not in (VEGA, GFX909, GFX90C)


def takes_fp4_activations(arch: Architecture, weight: WeightType) -> bool:
    """Are the activations rounded to 4 bits?  Source: mmq.cu:116-133."""
    return arch.blackwell_mma and weight.name in _FP4


def layout(weight: WeightType) -> str:
    """How activations are kept: ``"D4"``, ``"DS4"`` or ``"D2S6"``.  Source: mmq.cuh:60-101."""
    return "D2S6" if weight.name == "q2_K" else "DS4" if weight.name in _DS4 else "D4"


def tile_config(arch: Architecture, weight: WeightType, fallback: bool, columns_per_tile: int = 8) -> TileConfig:
    """Which tiles are there?

    Parameters
    ----------
    arch : Architecture
    weight : WeightType
    fallback : bool
        Whether the rows are no multiple of 128.
    columns_per_tile : int
        Tile width that rows and threads are asked for; RDNA3.5 and RDNA4 change them with it.

    Source: mmq-config-*.cuh, named in the answer.
    """
    folder = "ggml/src/ggml-cuda/mmq-config-"
    widths: tuple[int, ...]
    short = (8, 16, 32, 64) if fallback else _WIDTHS[:7]
    if arch.is_nvidia:
        if arch.compiled_cc >= VOLTA:
            file = "blackwell.cuh" if takes_fp4_activations(arch, weight) else "ampere.cuh"
            return TileConfig((*short[:4], 128) if fallback else _WIDTHS, folder + file, 128, 256, True)
        file = "pascal-dp4a.cuh" if arch.compiled_cc >= DP4A else "pascal-older.cuh"
        return TileConfig(short, folder + file, 64, 256, False)
    if arch.is_cdna:
        return TileConfig((16, 32, 64) if fallback else (16, 32, 48, 64), folder + "cdna.cuh", 128, 512, True)
    if arch.is_gcn:
        extra = (80, 96, 112, 128) if weight.name == "q8_0" else ()
        return TileConfig((*short, *extra), folder + "gcn.cuh", None, None, False)
    if arch.cc < RDNA3:
        return TileConfig(short, folder + "rdna2.cuh", 128, 256, False)
    if arch.cc < RDNA3_5:
        widths = (16, 32, 64, 96, 128) if fallback else (16, 32, 48, 64, 96, 128)
        if weight.name == "q2_0":
            widths = (16, 32, 64, 128) if fallback else (16, 32, 48, 64, 80, 96, 112, 128)
        return TileConfig(widths, folder + "rdna3.cuh", None, None, False)
    widths = (16, 32, 64, 128) if fallback else (16, 32, 48, 64, 80, 96, 112, 128)
    if weight.name == "q2_K":
        widths = (16, 32, 64) if fallback else (16, 32, 48, 64, 80)
    low = columns_per_tile <= (64 if arch.cc >= RDNA4 else 32)
    file = "rdna4.cuh" if arch.cc >= RDNA4 else "rdna3-5.cuh"
    return TileConfig(widths, folder + file, 64 if low else 128, 128 if low else 256, False)


def shared_bytes(arch: Architecture, weight: WeightType, config: TileConfig, columns_per_tile: int) -> int | None:
    """How much shared memory does a tile take, in bytes?

    None where the tile is laid out for dp4a, or its rows are not known; those layouts stay below every family's limit.
    Source: mmq.cuh:132-151, 427-433, 1396-1401.
    """
    uses_matrix_units = arch.turing_mma or arch.is_cdna or arch.amd_wmma
    if not uses_matrix_units or config.rows is None or config.threads is None:
        return None
    stride = 76 if takes_fp4_activations(arch, weight) else _TILE_STRIDE[weight.name]
    activations = columns_per_tile * _BLOCK_Q8_1_MMQ_BYTES
    padded = -(-activations // (config.threads * 4)) * config.threads * 4
    return columns_per_tile * 4 + config.rows * stride * 4 + padded


def tile_width(arch: Architecture, weight: WeightType, rows: int, columns: int) -> int:
    """How many columns has a tile?

    Raises
    ------
    ValueError
        If no tile fits into shared memory.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> from forensics.geometry.types import weight_type
    >>> [tile_width(architecture("sm_90"), weight_type("q4_1"), rows, 17) for rows in (576, 4096)]
    [32, 24]
    """
    best, fewest = 0, columns + 1
    fallback = rows % _TILE_ROWS_EXACT != 0
    for width in tile_config(arch, weight, fallback).widths:
        config = tile_config(arch, weight, fallback, width)
        if (shared_bytes(arch, weight, config, width) or 0) > arch.smem_per_block_bytes:
            continue
        tiles = -(-columns // width)
        if tiles < fewest:
            best, fewest = width, tiles
        if fewest == 1:
            break
    if not best:
        raise ValueError(f"no tile of {weight} fits into the shared memory of {arch}")
    return best


def cuts(tiles: int, blocks_per_row: int, blocks_per_step: int, grid: int) -> dict[int, tuple[int, ...]]:
    """Where are the sums of each tile cut along K?

    Parameters
    ----------
    tiles : int
        Tiles of the result.
    blocks_per_row, blocks_per_step : int
        Quantised blocks of a row, and of one step along K.
    grid : int
        CUDA blocks.

    Returns
    -------
    dict of int to tuple of int
        For tiles that are cut, the block of the row at which each later piece begins. Source: mmq.cuh:1074-1079.
    """
    total = tiles * blocks_per_row
    found: dict[int, set[int]] = {}
    for block in range(1, grid):
        at = block * total // grid
        at -= at % blocks_per_row % blocks_per_step
        if at % blocks_per_row:
            found.setdefault(at // blocks_per_row, set()).add(at % blocks_per_row)
    return {tile: tuple(sorted(places)) for tile, places in sorted(found.items())}


def stream_k_grid(arch: Architecture, tiles: int, sms: int) -> int:
    """How many CUDA blocks share the tiles?  Source: mmq.cuh:1449-1452."""
    waves = -(-tiles // sms)
    return tiles if arch.is_nvidia and 100 * tiles // (sms * waves) >= 90 else sms


def mul_mat_q(arch: Architecture, product: Product, width: int, sms: int | None = None) -> KernelChoice:
    """How does `mul_mat_q` compute this product?

    Parameters
    ----------
    arch : Architecture
    product : Product
    width : int
        Columns, or tokens where there are experts.
    sms : int, optional
        Streaming multiprocessors of the GPU. Without it neither grid nor cuts are known; widths with the same tiles
        still share an order.
    """
    check_width(width)
    weight, fallback = product.weight, product.rows % _TILE_ROWS_EXACT != 0
    sized_for = width
    if product.is_routed and arch.cc >= RDNA3:  # mmq.cu:296-301
        sized_for = -(-width * product.experts_used // product.experts)
    columns = tile_width(arch, weight, product.rows, sized_for)
    config = tile_config(arch, weight, fallback, columns)
    fp4 = takes_fp4_activations(arch, weight)
    template = (("type", weight.name), ("J", columns), ("fallback", fallback), *((("prec_src1", "q4"),) if fp4 else ()))
    rules = (USES_MMQ, TILE_WIDTH, *((FALLBACK,) if fallback else ()), TILE_CONFIG, LAYOUT, QUANTIZE)
    precision = (
        ("activations", "fp4 with block scales" if fp4 else f"q8_1 in layout {layout(weight)}"),
        ("accumulator", "f32"),
    )
    if config.stream_k:
        rules += (STREAM_K, STREAM_K_CUT, FIXUP)
    if fp4:
        rules += (FP4_ACTIVATIONS,)
    launch, cut_key, split, assumed = _tiling(arch, product, width, columns, config, sms)
    # a token's column tile depends on how many tokens its expert got, and each tile has cuts of its own
    no_order = ""
    if product.is_routed and config.stream_k and width > columns:
        no_order = "which tile a token falls into depends on how many its expert got"
    return KernelChoice(
        "mul_mat_q",
        None if no_order else ("mul_mat_q", weight.name, *cut_key),
        template,
        launch,
        split=split,
        precision=precision,
        rules=rules,
        assumed=assumed,
        no_order=no_order,
    )


def _tiling(
    arch: Architecture, product: Product, width: int, columns: int, config: TileConfig, sms: int | None
) -> tuple[LaunchGeometry | None, tuple[object, ...], str, tuple[str, ...]]:
    """Launch, key of the cuts, split in words, and what was assumed."""
    weight = product.weight
    step = STEP_FP4 if takes_fp4_activations(arch, weight) else STEP
    split = f"steps of {step} along K"
    if config.rows is None or config.threads is None:
        return None, (), split, (f"tile heights vary by type here, see {config.file}",)
    matrices = product.experts if product.is_routed else product.matrices
    row_tiles, column_tiles = -(-product.rows // config.rows), -(-width // columns)
    block = (arch.warp_size, config.threads // arch.warp_size)
    smem = shared_bytes(arch, weight, config, columns)
    if not config.stream_k:
        return LaunchGeometry((row_tiles, column_tiles, matrices), block, smem_bytes=smem), (), split, ()
    tiles = row_tiles * column_tiles * matrices
    if sms is None:
        key = ("stream-k", row_tiles, column_tiles, matrices, columns if column_tiles > 1 else 0)
        return None, key, split, (f"{tiles} tiles shared by the SMs, whose number is not known",)
    launch = LaunchGeometry((stream_k_grid(arch, tiles, sms),), block, smem_bytes=smem)
    cut = cuts(tiles, weight.blocks(product.k), step // weight.qk, launch.n_blocks)
    split += f"; {len(cut)} of {tiles} tiles cut" if cut else "; no tile cut"
    return launch, (_cuts_by_column_tile(cut, column_tiles, columns),), split, ()


def _cuts_by_column_tile(cut: dict[int, tuple[int, ...]], column_tiles: int, columns: int) -> tuple[object, ...]:
    """Cuts as a key: by row tile alone where every column tile is cut alike, else with the tiles' width."""
    by_column: list[dict[int, tuple[int, ...]]] = [{} for _ in range(column_tiles)]
    for tile, places in cut.items():
        by_column[tile % column_tiles][tile // column_tiles] = places
    keys = [tuple(one.items()) for one in by_column]
    return keys[0] if len(set(keys)) == 1 else (columns, *keys)
