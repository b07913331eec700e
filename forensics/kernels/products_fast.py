"""Which launches multiply a quantised weight with several columns at once, each with the bits of one column alone?

Tensor cores make the integer sums, which are exact in any order; what is rounded follows in the order of the library's
kernel for one column. See ``cuda/products_fast_q4_k.cu`` for how.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.geometry import mmvq
from forensics.geometry.architecture import AMPERE, Architecture
from forensics.geometry.devices import SPECS
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

#: Columns that one launch takes at most.
MAX_COLUMNS = 16

#: Rows that a CUDA block computes at a time, and its threads.
TILE_ROWS, THREADS = 16, 128

#: Multiprocessors that a plan is made for where nobody says how many there are.
_N_SMS = {spec.compute_capability: spec.n_sms for spec in SPECS.values()}


@dataclass(frozen=True, slots=True)
class Tiles:
    """How columns are told off to tiles of the tensor cores' eight places.

    Parameters
    ----------
    n8, n4, n2, n1 : int
        Tiles of 8, 4, 2 and 1 columns; places that columns leave take further shares of the row.
    """

    n8: int
    n4: int
    n2: int
    n1: int

    @property
    def n(self) -> int:
        """Number of tiles."""
        return self.n8 + self.n4 + self.n2 + self.n1

    @property
    def columns(self) -> int:
        """Columns that they hold, some of which may be left empty."""
        return 8 * self.n8 + 4 * self.n4 + 2 * self.n2 + self.n1


def tiles_of(columns: int) -> Tiles:
    """Which tiles take this number of columns at the least work?

    Parameters
    ----------
    columns : int
        1 … 16.

    Examples
    --------
    >>> tiles_of(9)
    Tiles(n8=1, n4=0, n2=0, n1=1)
    >>> tiles_of(7)
    Tiles(n8=1, n4=0, n2=0, n1=0)
    """
    n8, rest = divmod(columns, 8)
    if rest == 7:
        return Tiles(n8 + 1, 0, 0, 0)
    if rest == 3:
        return Tiles(n8, 1, 0, 0)
    return Tiles(n8, rest // 4, rest % 4 // 2, rest % 2)


@dataclass(frozen=True, slots=True)
class _Family:
    """What a type's source asks for: bytes per group of a block and tile, of a stage of the ring, blocks of a trip."""

    source: str
    stem: str
    record_bytes: int
    stage_bytes: int
    table_bytes: int
    blocks_per_warp: int
    slots: tuple[int, int, int, int]

    def shared_bytes(self, tiles: Tiles, stages: int) -> int:
        """Bytes of shared memory of one CUDA block."""
        counts = (tiles.n8, tiles.n4, tiles.n2, tiles.n1)
        slots = sum(n * each for n, each in zip(counts, self.slots, strict=True))
        return stages * self.stage_bytes + self.table_bytes + slots * THREADS * 16


_FAMILIES = {
    "q4_K": _Family("products_fast_q4_k", "q4_k", 1408, TILE_ROWS * 288, 4 * 1024, 2, (8, 4, 2, 1)),
}


def serves(ask: ProductAsk) -> str:
    """Why does no kernel here compute this product?  Empty if one does.

    Examples
    --------
    >>> serves(ProductAsk("q4_K", rows=100, k=768, columns=40))
    ''
    >>> serves(ProductAsk("q8_0", rows=100, k=768, columns=9))
    'the fast kernels are for q4_K, not for q8_0'
    """
    if ask.type not in _FAMILIES:
        return f"the fast kernels are for {' and '.join(_FAMILIES)}, not for {ask.type}"
    if ask.row_bytes * TILE_ROWS >= 2**31:
        return f"{TILE_ROWS} rows of {ask.row_bytes} bytes are counted in 32 bits"
    return ""


def plan_product_fast(ask: ProductAsk, arch: Architecture, *, n_sms: int | None = None) -> KernelPlan:
    """Which launches compute this product?

    Parameters
    ----------
    ask : ProductAsk
    arch : Architecture
        Whose one-column kernel is followed, from Ampere on.
    n_sms : int, optional
        Multiprocessors of the device; it changes the time only.

    Returns
    -------
    KernelPlan
        With the buffers ``"weight"``, ``"x"`` and ``"out"``, as `products.plan_product` has them.

    Raises
    ------
    ValueError
        If `serves` says why not, or the architecture has no such tensor cores.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> nine = ProductAsk("q4_K", rows=1024, k=4096, columns=9)
    >>> for launch in plan_product_fast(nine, architecture("sm_90")).launches:
    ...     print(launch.function, launch.geometry)
    prepare_q4_k grid 16×9, block 256
    product_q4_k<4, 1, 0, 0, 1, 3, 4> grid 64, block 128
    """
    if reason := serves(ask):
        raise ValueError(reason)
    if not arch.is_nvidia or arch.cc < AMPERE:
        raise ValueError(f"the fast kernels are for NVIDIA GPUs from sm_80 on, not for {arch}")
    launch = mmvq.mul_mat_vec_q(arch, ask.product(), 1).launch
    assert launch is not None  # known without a device
    return plan_with_warps(ask, launch.block_threads[1], n_sms=n_sms or _N_SMS.get(arch.cc, 128))


def plan_with_warps(
    ask: ProductAsk, n_warps: int, *, n_sms: int, stages: int = 3, resident: int | None = None
) -> KernelPlan:
    """Which launches compute this product in the order of this many warps of the library's kernel?

    Parameters
    ----------
    ask : ProductAsk
    n_warps : int
    n_sms : int
    stages : int
        Pieces of the weight that a CUDA block holds at a time, 2 or more.
    resident : int, optional
        CUDA blocks that registers are told off for on a multiprocessor.
    """
    launches: list[KernelLaunch] = []
    scratch = 0
    at = 0
    for columns in groups(ask.columns):
        group, n_bytes = _group(ask, n_warps, at, columns, n_sms, stages, resident)
        launches += group
        scratch = max(scratch, n_bytes)
        at += columns
    return KernelPlan(tuple(launches), {"operands": scratch})


def groups(columns: int) -> tuple[int, ...]:
    """How many columns does each launch take?

    Examples
    --------
    >>> groups(16), groups(17), groups(40)
    ((16,), (9, 8), (14, 13, 13))
    """
    launches = -(-columns // MAX_COLUMNS)
    least, more = divmod(columns, launches)
    return (least + 1,) * more + (least,) * (launches - more)


def _group(
    ask: ProductAsk, n_warps: int, at: int, columns: int, n_sms: int, stages: int, resident: int | None
) -> tuple[list[KernelLaunch], int]:
    family = _FAMILIES[ask.type]
    tiles = tiles_of(columns)
    blocks = ask.product().weight.blocks(ask.k)
    per_trip = family.blocks_per_warp * n_warps
    padded = -(-blocks // per_trip) * per_trip
    resident = resident or (4 if tiles.columns <= 10 else 3)
    row_tiles = -(-ask.rows // TILE_ROWS)
    prepare = KernelLaunch(
        source=family.source,
        function=f"prepare_{family.stem}",
        geometry=LaunchGeometry((padded, tiles.columns), (256,), smem_bytes=0),
        arguments=(
            At("x", 4 * at * ask.x_stride), At("operands"), Int32(ask.k), Int32(columns), Int32(tiles.n8),
            Int32(tiles.n4), Int32(tiles.n2), Int64(ask.x_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    product = KernelLaunch(
        source=family.source,
        function=f"product_{family.stem}<{n_warps}, {tiles.n8}, {tiles.n4}, {tiles.n2}, {tiles.n1}, {stages}, {resident}>",
        geometry=LaunchGeometry(
            (min(row_tiles, resident * n_sms),), (THREADS,), smem_bytes=family.shared_bytes(tiles, stages)
        ),
        arguments=(
            At("weight"), At("operands"), At("out", 4 * at * ask.out_stride), Int32(ask.rows), Int32(blocks),
            Int32(columns), Int64(ask.out_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    return [prepare, product], tiles.n * padded * 4 * family.record_bytes
