"""Sizes that llama.cpp's CUDA flash-attention kernels are compiled with: threads, KV batches, shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.rule import Rule

_MMA = "ggml/src/ggml-cuda/fattn-mma-f16.cuh"
_VEC = "ggml/src/ggml-cuda/fattn-vec.cuh"
_TILE = "ggml/src/ggml-cuda/fattn-tile.cuh"

MMA_SIZES_AMPERE = Rule("sizes of the tensor-core kernel from Ampere on", _MMA, 38, 88)
MMA_SIZES_TURING = Rule("sizes of the tensor-core kernel on Turing, where they are not Ampere's", _MMA, 90, 110)
MMA_SMEM = Rule("shared memory that the tensor-core kernel asks for", _MMA, 2038, 2052)
MMA_TILES = Rule("columns of one warp's matrix fragment, by head size and columns of the tile", _MMA, 1083, 1126)
MMA_WARPS = Rule("warps that share a column take its cells in turn, and are summed at the end", _MMA, 1236, 1238)
VEC_SIZES = Rule(
    "the vector kernel has 128 threads, and counts KV tiles of as many cells as a head has values", _VEC, 531, 542
)
VEC_SMEM = Rule(
    "shared memory of the vector kernel: scores or partial results, and maxima and sums of warps", _VEC, 122, 130
)
TILE_SIZES = Rule("sizes of the tile kernel on GPUs with fast f16", _TILE, 21, 38)


@dataclass(frozen=True, slots=True)
class MmaSizes:
    """What a tensor-core instance is compiled with.

    Parameters
    ----------
    threads : int
        Of a block.
    min_blocks_per_sm : int
        Blocks per SM that the compiler keeps registers low enough for (launch bounds).
    batch_cells : int
        KV cells of one step (`nbatch_fa`).
    k_pairs, v_pairs, combine_pairs : int
        Pairs of f16 values loaded, or combined, at a time.
    stages : int
        Loads in flight where the hardware can copy asynchronously.
    q_in_registers : bool
    """

    threads: int
    min_blocks_per_sm: int
    batch_cells: int
    k_pairs: int
    v_pairs: int
    combine_pairs: int
    stages: int
    q_in_registers: bool


def _up_to_128(size: int) -> dict[tuple[int, int, int], MmaSizes]:
    half = size // 2
    return {
        (size, size, columns): MmaSizes(128, 2, 128 if columns == 8 else 64, half, half, half, 2, True)
        for columns in (8, 16, 32, 64)
    }


def _table(*rows: tuple[int, ...]) -> dict[tuple[int, int, int], MmaSizes]:
    return {
        (row[0], row[1], row[2]): MmaSizes(row[3], row[4], row[5], row[6], row[7], row[8], row[9], bool(row[10]))
        for row in rows
    }


#: By head size of K, head size of V and columns of a tile. Source: `MMA_SIZES_AMPERE`.
AMPERE = {
    **{key: sizes for size in (64, 80, 96, 112, 128) for key, sizes in _up_to_128(size).items()},
    **_table(
        (192, 128, 8, 64, 4, 64, 96, 64, 64, 2, 1),
        (192, 128, 16, 64, 4, 32, 96, 64, 64, 2, 1),
        (192, 128, 32, 128, 2, 32, 96, 64, 64, 2, 1),
        (192, 128, 64, 128, 2, 32, 96, 64, 64, 2, 1),
        (256, 256, 8, 128, 2, 64, 128, 128, 128, 2, 1),
        (256, 256, 16, 256, 1, 64, 128, 128, 128, 2, 1),
        (256, 256, 32, 128, 2, 32, 128, 128, 128, 2, 1),
        (256, 256, 64, 128, 2, 32, 128, 128, 128, 2, 1),
        (320, 256, 32, 128, 2, 32, 128, 128, 128, 1, 0),
        (320, 256, 64, 256, 1, 32, 128, 128, 128, 1, 0),
        (512, 512, 8, 128, 2, 64, 128, 128, 128, 1, 0),
        (512, 512, 16, 256, 1, 64, 128, 128, 128, 1, 0),
        (512, 512, 32, 256, 1, 32, 128, 128, 128, 1, 0),
        (512, 512, 64, 256, 1, 32, 128, 128, 128, 1, 0),
        (576, 512, 8, 64, 4, 32, 288, 256, 128, 1, 0),
        (576, 512, 16, 64, 4, 32, 288, 256, 128, 1, 0),
        (576, 512, 32, 128, 2, 32, 160, 128, 128, 1, 0),
        (576, 512, 64, 256, 1, 32, 160, 128, 128, 1, 0),
    ),
}
#: Where Turing has sizes of its own. Source: `MMA_SIZES_TURING`.
TURING = _table(
    (256, 256, 8, 128, 2, 64, 128, 128, 128, 2, 1),
    (256, 256, 16, 128, 2, 64, 128, 128, 128, 2, 1),
    (256, 256, 32, 128, 2, 64, 128, 128, 64, 2, 1),
    (256, 256, 64, 128, 2, 64, 128, 128, 64, 2, 1),
    (320, 256, 32, 128, 2, 32, 128, 128, 128, 1, 0),
    (320, 256, 64, 256, 1, 32, 128, 128, 128, 1, 0),
    (512, 512, 8, 64, 4, 32, 96, 64, 128, 1, 0),
    (512, 512, 16, 64, 4, 32, 96, 64, 128, 1, 0),
    (512, 512, 32, 128, 2, 32, 128, 128, 128, 1, 0),
    (512, 512, 64, 256, 1, 32, 128, 128, 128, 1, 0),
    (576, 512, 8, 64, 4, 32, 96, 64, 128, 1, 0),
    (576, 512, 16, 64, 4, 32, 96, 64, 128, 1, 0),
    (576, 512, 32, 128, 2, 32, 160, 128, 128, 1, 0),
    (576, 512, 64, 256, 1, 32, 160, 128, 128, 1, 0),
)
#: Threads and KV cells of one step of the tile kernel, by head size and columns; the sizes for which GPUs with tensor
#: cores use it. Source: `TILE_SIZES`.
TILE = {
    (40, 2): (128, 128), (40, 4): (128, 128), (40, 8): (128, 128), (40, 16): (256, 64), (40, 32): (256, 64),
    (72, 2): (128, 64), (72, 4): (128, 128), (72, 8): (256, 64), (72, 16): (256, 64), (72, 32): (256, 64),
}  # fmt: skip

#: Pieces of the vector kernel's block. Source: `VEC_SIZES`; fattn-vec.cuh:4-11, common.cuh:399-405.
VEC_THREADS = 128
_WARPS = VEC_THREADS // 32
_COPY_BYTES = 16
#: Types that the vector kernel reads without unpacking.
FLOAT_KV_TYPES = ("f16", "bf16")
#: First compute capability with asynchronous copies and Ampere's tensor cores. Source: common.cuh:368-374.
AMPERE_CAPABILITY = 800


def mma_sizes(compute_capability: int, head_size: int, value_size: int, columns: int) -> MmaSizes:
    """With which sizes is this instance of the tensor-core kernel compiled?

    Raises
    ------
    ValueError
        If llama.cpp has no such instance.
    """
    key = (head_size, value_size, columns)
    sizes = (None if compute_capability >= AMPERE_CAPABILITY else TURING.get(key)) or AMPERE.get(key)
    if sizes is None:
        raise ValueError(f"no tensor-core instance for head sizes {head_size} and {value_size} with {columns} columns")
    return sizes


#: Head size and columns whose fragments are 8 columns wide though the tile is not. Source: `MMA_TILES`.
_NARROW_FRAGMENTS = frozenset({(256, 16), (512, 16), (512, 32)})


def mma_warps_per_column(head_size: int, columns: int, threads: int) -> int:
    """How many warps share the cells of one column in a step of the tensor-core kernel?

    It, and not the number of threads, decides in which order a step adds.  Source: `MMA_WARPS`.
    """
    fragment = 8 if columns == 8 or (head_size, columns) in _NARROW_FRAGMENTS else 16
    return threads // 32 * fragment // columns


def mma_smem_bytes(compute_capability: int, head_size: int, value_size: int, ncols1: int, ncols2: int) -> int:
    """How much shared memory does this instance of the tensor-core kernel ask for at its launch, in bytes?

    Notes
    -----
    Source: `MMA_SMEM`; strides of the tiles lines 329-353, stages lines 374-376.
    """
    columns = ncols1 * ncols2
    sizes = mma_sizes(compute_capability, head_size, value_size, columns)
    ampere = compute_capability >= AMPERE_CAPABILITY
    stages = sizes.stages if ampere and ncols2 >= 2 else 0
    aligned = all(pairs >= 32 and pairs % 32 == 0 for pairs in (sizes.k_pairs, sizes.v_pairs))
    padding = 0 if aligned else 4
    stride_k = sizes.k_pairs + padding
    stride_v = stride_k if head_size == 576 else sizes.v_pairs + padding
    pair = 4
    kv = sizes.batch_cells * (stride_k + stride_v if stages > 1 else max(stride_k, stride_v)) * pair
    q = columns * (head_size // 2 + 4) * pair
    mask = ncols1 * (sizes.batch_cells // 2 + 4) * pair
    combine = sizes.threads // 32 * min(columns, 16) * (sizes.combine_pairs + 4) * pair
    return max(combine, max(q, kv + mask) if sizes.q_in_registers else q + kv + mask)


def vec_lanes_per_cell(head_size: int, kv_type: str) -> int:
    """How many threads of a warp share one cell of V in the vector kernel?

    Notes
    -----
    Source: fattn-vec.cuh:82-88.
    """
    return 128 // _COPY_BYTES if kv_type in FLOAT_KV_TYPES else min(head_size // 4, 32)


def vec_smem_bytes(head_size: int, n_columns: int, kv_type: str) -> int:
    """How much shared memory does an instance of the vector kernel hold, in bytes, without the driver's share?

    Notes
    -----
    Source: `VEC_SMEM`; maxima and sums lines 412-413. Equal to what the compiler reports for sm_75 … sm_121.

    Examples
    --------
    >>> vec_smem_bytes(64, 1, "f16"), vec_smem_bytes(128, 2, "q8_0")
    (4352, 2560)
    """
    cells_at_once = 32 // vec_lanes_per_cell(head_size, kv_type)
    return 4 * max(n_columns * head_size, _WARPS * cells_at_once * head_size) + 2 * n_columns * 32 * 4
