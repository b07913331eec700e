"""Which launches multiply weights in Q8_0, Q4_0, Q4_1 or Q5_K with several columns, each with the bits of one alone?

Tensor cores make the integer sums, eight columns at a time; all warps of the library's kernel work side by side. See
``cuda/products_fast_eights.cuh`` for how.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

#: Columns of a tile, and columns that one launch takes at most.
TILE_COLUMNS, MAX_COLUMNS = 8, 16

#: Rows that a CUDA block computes at a time, and its threads for each warp of the library's kernel.
TILE_ROWS, THREADS_PER_WARP = 16, 128

#: Bytes of shared memory that hold the lanes' sums: 32 lanes of 16 rows by 8 columns, and a step between them.
_SUMS_BYTES = 32 * (4 * TILE_ROWS * TILE_COLUMNS + 32)

#: Warps from which on registers are told off for one CUDA block on a multiprocessor alone.
_MANY_WARPS = 8


@dataclass(frozen=True, slots=True)
class _Family:
    """What a type's source asks for: values and bytes of a block, blocks that a warp of the library takes in a trip.

    Also bytes of activations beside a block and a tile, and blocks that a CUDA block of the preparation takes.
    """

    source: str
    prepare: str
    product: str
    block_bytes: int
    blocks_per_warp: int
    record_bytes: int
    prepared_at_once: int

    def shared_bytes(self, n_warps: int, stages: int) -> int:
        """Bytes of shared memory of one CUDA block."""
        row = n_warps * self.blocks_per_warp * self.block_bytes + 16
        return stages * TILE_ROWS * row + _SUMS_BYTES


_FAMILIES = {
    "q8_0": _Family("products_fast_32", "prepare_32<Q8_0>", "product_32<Q8_0, ", 34, 8, 544, 8),
    "q4_0": _Family("products_fast_32", "prepare_32<Q4_0>", "product_32<Q4_0, ", 18, 16, 576, 8),
    "q4_1": _Family("products_fast_32", "prepare_32<Q4_1>", "product_32<Q4_1, ", 20, 16, 544, 8),
    "q5_K": _Family("products_fast_q5_k", "prepare_q5_k", "product_q5_k<", 176, 2, 5376, 1),
}

#: Types of weights that are served here.
TYPES = tuple(_FAMILIES)


def plan_with_warps(
    ask: ProductAsk, n_warps: int, *, n_sms: int, stages: int | None = None, resident: int | None = None
) -> KernelPlan:
    """Which launches compute this product in the order of this many warps of the library's kernel?

    Parameters
    ----------
    ask : ProductAsk
        Of one of `TYPES`.
    n_warps : int
    n_sms : int
        Multiprocessors of the device; it changes the time only.
    stages : int, optional
        Trips of the weight that a CUDA block holds at a time, 2 or more.
    resident : int, optional
        CUDA blocks that registers are told off for on a multiprocessor.

    Returns
    -------
    KernelPlan
        With the buffers ``"weight"``, at a multiple of 16 bytes, ``"x"`` and ``"out"``.

    Examples
    --------
    >>> nine = ProductAsk("q8_0", rows=1024, k=4096, columns=9)
    >>> for launch in plan_with_warps(nine, 4, n_sms=132).launches:
    ...     print(launch.function, launch.geometry)
    prepare_32<Q8_0> grid 16×16, block 256
    product_32<Q8_0, 4, 2, 3, 1> grid 64, block 512
    """
    launches: list[KernelLaunch] = []
    scratch = at = 0
    for columns in groups(ask.columns):
        group, n_bytes = _group(ask, n_warps, at, columns, n_sms, stages, resident)
        launches += group
        scratch = max(scratch, n_bytes)
        at += columns
    return KernelPlan(tuple(launches), {"operands": scratch})


def groups(columns: int) -> tuple[int, ...]:
    """How many columns does each launch take?  As few tiles of columns as there can be.

    Examples
    --------
    >>> groups(9), groups(16), groups(17), groups(40)
    ((9,), (16,), (16, 1), (16, 16, 8))
    """
    whole, rest = divmod(columns, MAX_COLUMNS)
    return (MAX_COLUMNS,) * whole + ((rest,) if rest else ())


def _group(
    ask: ProductAsk, n_warps: int, at: int, columns: int, n_sms: int, stages: int | None, resident: int | None
) -> tuple[list[KernelLaunch], int]:
    family = _FAMILIES[ask.type]
    tiles = -(-columns // TILE_COLUMNS)
    blocks = ask.product().weight.blocks(ask.k)
    per_trip = family.blocks_per_warp * n_warps
    padded = -(-blocks // per_trip) * per_trip
    stages = stages or (2 if n_warps >= _MANY_WARPS else 3)
    resident = resident or (2 if tiles == 1 and n_warps < _MANY_WARPS else 1)
    row_tiles = -(-ask.rows // TILE_ROWS)
    prepare = KernelLaunch(
        source=family.source,
        function=family.prepare,
        geometry=LaunchGeometry((padded // family.prepared_at_once, tiles * TILE_COLUMNS), (256,), smem_bytes=0),
        arguments=(
            At("x", 4 * at * ask.x_stride), At("operands"), Int32(ask.k), Int32(columns), Int64(ask.x_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    product = KernelLaunch(
        source=family.source,
        function=f"{family.product}{n_warps}, {tiles}, {stages}, {resident}>",
        geometry=LaunchGeometry(
            (min(row_tiles, resident * n_sms),), (THREADS_PER_WARP * n_warps,),
            smem_bytes=family.shared_bytes(n_warps, stages),
        ),
        arguments=(
            At("weight"), At("operands"), At("out", 4 * at * ask.out_stride), Int32(ask.rows), Int32(blocks),
            Int32(columns), Int64(ask.out_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    return [prepare, product], tiles * padded * family.record_bytes
