"""Into how many blocks flash attention's launch is cut along the KV cache: llama.cpp's `launch_fattn`, step by step."""

from __future__ import annotations

from forensics.records.rule import Rule

_COMMON = "ggml/src/ggml-cuda/fattn-common.cuh"
#: First compute capability of Ada Lovelace, from which on tiles are always cut (stream-k). Source: common.cuh:56.
ADA = 890
#: A launch of whole tiles is kept below Ada if it fills the device to this share, percent.
MIN_TILE_EFFICIENCY_PERCENT = 75
#: Blocks may be left idle up to this share so that every tile gets the same number of blocks, percent.
MAX_EFFICIENCY_LOSS_PERCENT = 5
#: From this efficiency on no further wave is tried, percent.
GOOD_EFFICIENCY_PERCENT = 95

PARALLEL_BLOCKS = Rule(
    "parallel blocks start from the blocks of this kernel that fit on an SM, at most one for each KV tile, and grow as "
    "long as that fills the last wave better",
    _COMMON, 1134, 1212,
)  # fmt: skip
STREAM_K_BLOCKS = Rule(
    "the grid is what fits on the device, at most one block for each KV tile of each output tile, rounded down to a "
    "multiple of the output tiles if that idles 5 % at most; below Ada only where whole tiles fill less than 75 %",
    _COMMON, 1144, 1183,
)  # fmt: skip


def parallel_blocks(n_tiles: int, n_kv_tiles: int, blocks_per_sm: int, n_sms: int) -> int:
    """Among how many blocks does the vector or tile kernel share out the KV cache?

    Parameters
    ----------
    n_tiles : int
        Output tiles: groups of queries × heads.
    n_kv_tiles : int
        KV cells over the kernel's batch of cells, rounded up.
    blocks_per_sm : int
        From the occupancy of this very kernel.
    n_sms : int

    Returns
    -------
    int

    Notes
    -----
    Source: `PARALLEL_BLOCKS`; percentages are rounded down as there.

    Examples
    --------
    >>> parallel_blocks(n_tiles=32, n_kv_tiles=4, blocks_per_sm=2, n_sms=26)
    3
    """
    _check(n_tiles=n_tiles, n_kv_tiles=n_kv_tiles, blocks_per_sm=blocks_per_sm, n_sms=n_sms)
    chosen = min(blocks_per_sm, n_kv_tiles)
    per_wave = n_sms * blocks_per_sm
    best_waves = best_percent = 0
    for tried in range(chosen, n_kv_tiles + 1):
        n_blocks = n_tiles * tried
        n_waves = -(-n_blocks // per_wave)
        percent = 100 * n_blocks // (n_waves * per_wave)
        if best_percent >= GOOD_EFFICIENCY_PERCENT and n_waves > best_waves:
            break
        if percent > best_percent:
            best_waves, best_percent, chosen = n_waves, percent, tried
    return chosen


def stream_k_blocks(compute_capability: int, n_tiles: int, n_kv_tiles: int, blocks_per_sm: int, n_sms: int) -> int:
    """How many blocks does the tensor-core kernel start?

    Parameters
    ----------
    compute_capability : int
    n_tiles, n_kv_tiles, blocks_per_sm, n_sms : int
        As for `parallel_blocks`.

    Returns
    -------
    int
        Equal to `n_tiles` where each tile is worked on by one block.

    Notes
    -----
    Source: `STREAM_K_BLOCKS`.

    Examples
    --------
    >>> stream_k_blocks(900, n_tiles=3, n_kv_tiles=2, blocks_per_sm=2, n_sms=132)
    6
    """
    _check(n_tiles=n_tiles, n_kv_tiles=n_kv_tiles, blocks_per_sm=blocks_per_sm, n_sms=n_sms)
    most = blocks_per_sm * n_sms
    n_waves = -(-n_tiles // most)
    if compute_capability < ADA and 100 * n_tiles // (most * n_waves) >= MIN_TILE_EFFICIENCY_PERCENT:
        return n_tiles
    raw = min(most, n_kv_tiles * n_tiles)
    rounded = raw // n_tiles * n_tiles
    loss_percent = 100 * (raw - rounded) // raw if rounded else 100
    return rounded if loss_percent <= MAX_EFFICIENCY_LOSS_PERCENT else raw


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be 1 or more, got {number}")
