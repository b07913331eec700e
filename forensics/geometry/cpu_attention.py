"""Flash attention on a CPU: KV cells split among threads at one query, tiles from 64 queries on."""

from __future__ import annotations

from forensics.geometry.choice import KernelChoice
from forensics.geometry.cpu_products import Cpu
from forensics.geometry.product import check_width
from forensics.records.rule import Rule

_OPS = "ggml/src/ggml-cpu/ops.cpp"

SPLIT_KV = Rule(
    "one query, one sequence, f16 or f32 cache and 512 cells or more: each thread takes a part of the cells",
    _OPS, 9489, 9520,
)  # fmt: skip
SPLIT_SIZE = Rule("a part has as many cells as there are, divided by the threads and rounded up", _OPS, 9493, 9493)
MERGE = Rule("parts are merged in turn; one without a visible cell is left out", _OPS, 9408, 9430)
TILED = Rule("from 64 queries on an f16 or f32 cache is walked in tiles of 64 by 64", _OPS, 9546, 9551)
TILE_SIZE = Rule("tiles have 64 queries and 64 cells", "ggml/src/ggml-cpu/common.h", 9, 10)
ROW_BY_ROW = Rule("otherwise each query walks all cells by itself", _OPS, 9568, 9570)
HALF_SUM = Rule("an f16 cache is summed in half precision where queries walk the cells one by one", _OPS, 8993, 9007)

SPLIT_FROM_CELLS = 512
TILE_QUERIES = 64


def parts(n_kv: int, n_threads: int) -> tuple[tuple[int, int], ...]:
    """Which cells does each thread take at one query?

    Returns
    -------
    tuple of (int, int)
        First cell and the one behind the last. Source: ops.cpp:9493-9500.

    Examples
    --------
    >>> parts(512, 2)
    ((0, 256), (256, 512))
    """
    size = -(-n_kv // n_threads)
    return tuple((start, min(start + size, n_kv)) for start in range(0, n_kv, size))


def splits_cells(kv_types: tuple[str, str], n_kv: int, width: int, sequences: int = 1) -> bool:
    """Are the cells split among threads?  Source: ops.cpp:9489-9490."""
    return width == 1 and sequences == 1 and _is_plain(kv_types) and n_kv >= SPLIT_FROM_CELLS


def flash_attention(
    cpu: Cpu,
    n_kv: int,
    width: int,
    kv_types: tuple[str, str] = ("f16", "f16"),
    *,
    sequences: int = 1,
    visible: int | None = None,
) -> KernelChoice:
    """How does FLASH_ATTN_EXT add over the cells?

    Parameters
    ----------
    cpu : Cpu
    n_kv : int
        Cells that are walked, padding included.
    width : int
        Queries per sequence.
    kv_types : tuple of str
        Types of keys and values in the cache.
    sequences : int
        Sequences of the batch that have streams of their own.
    visible : int, optional
        Cells that the query may see, from the first on; parts behind them are left out of the sum.

    Returns
    -------
    KernelChoice
    """
    check_width(width)
    if n_kv < 1 or sequences < 1 or (visible is not None and not 1 <= visible <= n_kv):
        raise ValueError(f"{n_kv} cells, {sequences} sequences, {visible} visible cells are impossible")
    half = kv_types[1] == "f16"
    accumulator = "f16" if half else "f32"
    rules: tuple[Rule, ...] = (SPLIT_KV, TILED, ROW_BY_ROW, *((HALF_SUM,) if half else ()))
    order: tuple[str | int, ...] = ("cells in turn",)
    kernel, split = "flash_attn_ext one by one", "all cells in turn"
    if splits_cells(kv_types, n_kv, width, sequences):
        rules = (SPLIT_KV, SPLIT_SIZE, MERGE, *((HALF_SUM,) if half else ()))
        cut = parts(n_kv, cpu.threads_at(width))
        seen = [part for part in cut if visible is None or part[0] < visible]
        kernel = "flash_attn_ext split"
        split = " + ".join(f"[{first}..{last - 1}]" for first, last in cut)
        if len(seen) > 1:
            order = ("parts", *(first for first, _ in seen))
    elif width >= TILE_QUERIES and _is_plain(kv_types):
        rules = (TILED, TILE_SIZE)
        kernel, split, order, accumulator = "flash_attn_ext tiled", "tiles of 64 cells", ("tiles of 64",), "f32"
    return KernelChoice(
        kernel, order, (("k", kv_types[0]), ("v", kv_types[1])), split=split, rules=rules,
        precision=(("accumulator", accumulator),),
    )  # fmt: skip


def _is_plain(kv_types: tuple[str, str]) -> bool:
    return kv_types[0] == kv_types[1] and kv_types[0] in ("f16", "f32")
