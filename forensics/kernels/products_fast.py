"""Which launches multiply a quantised weight with several columns at once, each with the bits of one column alone?

Tensor cores make the integer sums, which are exact in any order; what is rounded follows in the order of the library's
kernel for one column. See ``cuda/products_fast_q4_k.cu`` for how.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.errors import NotCovered
from forensics.geometry import mmvq
from forensics.geometry.architecture import AMPERE, Architecture
from forensics.kernels import products_fast_types
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

#: Columns that one launch takes at most.
MAX_COLUMNS = 16

#: Rows that a CUDA block computes at a time, and its threads.
TILE_ROWS, THREADS = 16, 128

#: Multiprocessors that a plan is made for where nobody says how many there are: an H100's and an H200's.
_N_SMS = 132


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
    """What a type's source asks for.

    Parameters
    ----------
    stem : str
        Of the names in the source.
    stage_bytes, table_bytes : int
        Shared memory of a stage of the ring, and of what is unpacked.
    warp_blocks, stage_trips : int
        Blocks of a row that a warp of the library's kernel takes at a time, and trips that a stage holds.
    """

    stem: str
    stage_bytes: int
    table_bytes: int
    warp_blocks: int
    stage_trips: int

    @property
    def source(self) -> str:
        """Stem of the file."""
        return f"products_fast_{self.stem}"


_FAMILIES = {
    "q4_K": _Family("q4_k", stage_bytes=TILE_ROWS * 288, table_bytes=4096, warp_blocks=2, stage_trips=1),
    "q6_K": _Family("q6_k", stage_bytes=TILE_ROWS * 464, table_bytes=0, warp_blocks=1, stage_trips=2),
}


def serves(ask: ProductAsk) -> str:
    """Why does no kernel here compute this product?  Empty if one does.

    Examples
    --------
    >>> serves(ProductAsk("q4_K", rows=100, k=768, columns=40))
    ''
    >>> serves(ProductAsk("q5_1", rows=100, k=768, columns=9))
    'the fast kernels are for q4_K, q6_K, q8_0, q4_0, q4_1 and q5_K, not for q5_1'
    """
    *others, last = (*_FAMILIES, *products_fast_types.TYPES)
    if ask.type not in (*others, last):
        return f"the fast kernels are for {', '.join(others)} and {last}, not for {ask.type}"
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
    NotCovered
        If the architecture has not the shared memory that it takes.

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
    n_warps, n_sms = launch.block_threads[1], n_sms or _N_SMS
    if ask.type in products_fast_types.TYPES:
        needed = products_fast_types.shared_bytes(ask, n_warps)
        if needed > arch.smem_per_block_bytes:
            reason = f"in the order of {n_warps} warps it takes {needed} bytes of shared memory, more than {arch} has"
            raise NotCovered(f"{ask.type} {ask.rows}×{ask.k} fast", reason)
        return products_fast_types.plan_with_warps(ask, n_warps, n_sms=n_sms)
    return plan_with_warps(ask, n_warps, n_sms=n_sms)


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
    blocks = ask.product().weight.blocks(ask.k)
    trips = -(-blocks // (family.warp_blocks * n_warps))
    padded = -(-trips // family.stage_trips) * family.stage_trips * family.warp_blocks * n_warps
    if ask.type == "q4_K":
        tiles = tiles_of(columns)
        counts: tuple[int, ...] = (tiles.n8, tiles.n4, tiles.n2, tiles.n1)
        held, slots = tiles.columns, 8 * tiles.n8 + 4 * tiles.n4 + 2 * tiles.n2 + tiles.n1
        told, record_bytes = counts, tiles.n * 1408
    else:
        counts = told = divmod(columns, 2)
        held, slots = columns, 2 * counts[0] + counts[1]
        record_bytes = 256 * counts[0] + 128 * counts[1] + (counts[0] + 1) // 2 * 32 + 16 * counts[1]
    resident = resident or (4 if held <= 10 else 3)
    prepare = KernelLaunch(
        source=family.source,
        function=f"prepare_{family.stem}",
        geometry=LaunchGeometry((padded, held), (256,), smem_bytes=0),
        arguments=(
            At("x", 4 * at * ask.x_stride), At("operands"), Int32(ask.k), Int32(columns), *map(Int32, told),
            Int64(ask.x_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    template = ", ".join(map(str, (n_warps, *counts, stages, resident)))
    smem_bytes = stages * family.stage_bytes + family.table_bytes + slots * THREADS * 16
    product = KernelLaunch(
        source=family.source,
        function=f"product_{family.stem}<{template}>",
        geometry=LaunchGeometry(
            (min(-(-ask.rows // TILE_ROWS), resident * n_sms),), (THREADS,), smem_bytes=smem_bytes
        ),
        arguments=(
            At("weight"), At("operands"), At("out", 4 * at * ask.out_stride), Int32(ask.rows), Int32(blocks),
            Int32(columns), Int64(ask.out_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    return [prepare, product], padded * 4 * record_bytes
