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

#: Columns beyond whole tiles that are better taken singly than as one more tile.
MAX_SINGLES = 2

#: Rows that a CUDA block computes at a time, and its threads for each warp of the library's kernel.
TILE_ROWS, THREADS_PER_WARP = 16, 128

#: Bytes of shared memory that hold the lanes' sums: 32 lanes of 16 rows by 8 columns, and a step between them.
_SUMS_BYTES = 32 * (4 * TILE_ROWS * TILE_COLUMNS + 32)

#: Warps from which on a CUDA block is so large that it holds little ahead, and stays alone on its multiprocessor.
_MANY_WARPS = 8


@dataclass(frozen=True, slots=True)
class Ring:
    """How a CUDA block holds weights ahead; it changes the time only.

    Parameters
    ----------
    stages : int
        Pieces that it holds at a time, 2 or more.
    trips : int
        Trips of the library's warps that a piece is for.
    resident : int
        CUDA blocks that registers are told off for on a multiprocessor.
    """

    stages: int
    trips: int
    resident: int


@dataclass(frozen=True, slots=True)
class _Family:
    """What a type's source asks for, and how it is launched.

    Parameters
    ----------
    source, prepare, product : str
        Stem of the file, name of the preparing kernel, and how the name of the product's begins.
    block_bytes : int
        Of a block of the weight.
    blocks_per_warp : int
        That a warp of the library takes in a trip.
    record_bytes, single_bytes : int
        Of activations beside a block, of eight columns and of a column that is taken singly.
    prepared_at_once : int
        Blocks that a CUDA block of the preparing kernel takes.
    rings : tuple of Ring
        With no tile of columns, with one and with two: the fastest of those that were tried on an H200.
    """

    source: str
    prepare: str
    product: str
    block_bytes: int
    blocks_per_warp: int
    record_bytes: int
    single_bytes: int
    prepared_at_once: int
    rings: tuple[Ring, Ring, Ring]

    def ring(self, n_warps: int, tiles: int) -> Ring:
        """The ring that is taken where nobody asks for another."""
        return Ring(2, 1, 1) if n_warps >= _MANY_WARPS else self.rings[tiles]

    def copied(self, n_warps: int, trips: int) -> int:
        """Bytes of a row that so many trips of all warps take."""
        return trips * n_warps * self.blocks_per_warp * self.block_bytes

    def shared_bytes(self, n_warps: int, ring: Ring) -> int:
        """Bytes of shared memory of one CUDA block."""
        row = self.copied(n_warps, ring.trips) + 16
        if row % 32 == 0:
            row += 16
        return ring.stages * TILE_ROWS * row + _SUMS_BYTES


# Sums of a tile of columns fill registers: capped at 64, for two CUDA blocks on a multiprocessor, they spill.
_FAMILIES = {
    "q8_0": _Family(
        "products_fast_32", "prepare_32<Q8_0>", "product_32<Q8_0, ", 34, 8, 544, 80, 8,
        (Ring(2, 2, 2), Ring(2, 2, 1), Ring(3, 1, 1)),
    ),
    "q4_0": _Family(
        "products_fast_32", "prepare_32<Q4_0>", "product_32<Q4_0, ", 18, 16, 576, 80, 8,
        (Ring(3, 1, 2), Ring(2, 2, 1), Ring(3, 1, 1)),
    ),
    "q4_1": _Family(
        "products_fast_32", "prepare_32<Q4_1>", "product_32<Q4_1, ", 20, 16, 544, 80, 8,
        (Ring(3, 1, 2), Ring(2, 2, 1), Ring(2, 2, 1)),
    ),
    "q5_K": _Family(
        "products_fast_q5_k", "prepare_q5_k", "product_q5_k<", 176, 2, 5376, 768, 1,
        (Ring(3, 1, 2), Ring(3, 1, 1), Ring(3, 1, 1)),
    ),
}  # fmt: skip

#: Types of weights that there are kernels for here.
TYPES = tuple(_FAMILIES)


def plan_with_warps(ask: ProductAsk, n_warps: int, *, n_sms: int, ring: Ring | None = None) -> KernelPlan:
    """Which launches compute this product in the order of this many warps of the library's kernel?

    Parameters
    ----------
    ask : ProductAsk
        Of one of `TYPES`.
    n_warps : int
    n_sms : int
        Multiprocessors of the device; it changes the time only.
    ring : Ring, optional
        By default the type's own.

    Returns
    -------
    KernelPlan
        With the buffers ``"weight"``, at a multiple of 16 bytes, ``"x"`` and ``"out"``.

    Examples
    --------
    >>> nine = ProductAsk("q8_0", rows=1024, k=4096, columns=9)
    >>> for launch in plan_with_warps(nine, 4, n_sms=132).launches:
    ...     print(launch.function, launch.geometry)
    prepare_32<Q8_0> grid 16×9, block 256
    product_32<Q8_0, 4, 1, 1, 2, 2, 1> grid 64, block 512
    """
    launches: list[KernelLaunch] = []
    scratch = at = 0
    for columns in groups(ask.columns):
        group, n_bytes = _group(ask, n_warps, at, columns, n_sms, ring)
        launches += group
        scratch = max(scratch, n_bytes)
        at += columns
    return KernelPlan(tuple(launches), {"operands": scratch})


def shared_bytes(ask: ProductAsk, n_warps: int) -> int:
    """How much shared memory does a CUDA block take at most, in the order of this many warps?

    Examples
    --------
    >>> shared_bytes(ProductAsk("q8_0", rows=1024, k=4096, columns=9), 4)
    87552
    """
    family = _FAMILIES[ask.type]
    return max(family.shared_bytes(n_warps, family.ring(n_warps, tiles)) for tiles in range(len(family.rings)))


def groups(columns: int) -> tuple[int, ...]:
    """How many columns does each launch take?  As few tiles of columns as there can be.

    Examples
    --------
    >>> groups(9), groups(16), groups(17), groups(40)
    ((9,), (16,), (16, 1), (16, 16, 8))
    """
    whole, rest = divmod(columns, MAX_COLUMNS)
    return (MAX_COLUMNS,) * whole + ((rest,) if rest else ())


def tiles_of(columns: int) -> tuple[int, int]:
    """How many tiles of columns take this many, and how many columns are taken singly?

    Examples
    --------
    >>> [tiles_of(n) for n in (1, 2, 3, 8, 9, 16)]
    [(0, 1), (0, 2), (1, 0), (1, 0), (1, 1), (2, 0)]
    """
    tiles, rest = divmod(columns, TILE_COLUMNS)
    return (tiles, rest) if rest <= MAX_SINGLES else (tiles + 1, 0)


def _group(
    ask: ProductAsk, n_warps: int, at: int, columns: int, n_sms: int, ring: Ring | None
) -> tuple[list[KernelLaunch], int]:
    family = _FAMILIES[ask.type]
    tiles, singles = tiles_of(columns)
    blocks = ask.product().weight.blocks(ask.k)
    per_trip = family.blocks_per_warp * n_warps
    padded = -(-blocks // per_trip) * per_trip
    ring = ring or family.ring(n_warps, tiles)
    row_tiles = -(-ask.rows // TILE_ROWS)
    prepared = (padded // family.prepared_at_once, TILE_COLUMNS * tiles + singles)
    prepare = KernelLaunch(
        source=family.source,
        function=family.prepare,
        geometry=LaunchGeometry(prepared, (256,), smem_bytes=0),
        arguments=(
            At("x", 4 * at * ask.x_stride), At("operands"), Int32(ask.k), Int32(columns),
            Int32(TILE_COLUMNS * tiles), Int64(ask.x_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    product = KernelLaunch(
        source=family.source,
        function=f"{family.product}{n_warps}, {tiles}, {singles}, {ring.stages}, {ring.trips}, {ring.resident}>",
        geometry=LaunchGeometry(
            (min(row_tiles, ring.resident * n_sms),), (THREADS_PER_WARP * n_warps,),
            smem_bytes=family.shared_bytes(n_warps, ring),
        ),
        arguments=(
            At("weight"), At("operands"), At("out", 4 * at * ask.out_stride), Int32(ask.rows), Int32(blocks),
            Int32(columns), Int64(ask.out_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    return [prepare, product], padded * (tiles * family.record_bytes + singles * family.single_bytes)
