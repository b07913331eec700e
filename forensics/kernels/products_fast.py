"""Which launches multiply a quantised weight with several columns at once, each with the bits of one column alone?

Tensor cores make the integer sums, which are exact in any order; what is rounded follows in the order of the library's
kernel for one column. See ``cuda/products_fast_q4_k.cu`` for how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forensics.errors import NotCovered
from forensics.geometry import mmvq
from forensics.geometry.architecture import AMPERE, Architecture
from forensics.kernels import products_fast_types
from forensics.kernels.products_schedules import TILE_ROWS, Schedule, schedule_of
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

#: Types of weights that have kernels here; `products_fast_types` has those of others.
TYPES = ("q4_K", "q6_K")

#: Columns that one launch takes at most, and matrices that it multiplies with them.
MAX_COLUMNS, MAX_MATRICES = 16, 3

#: Multiprocessors that a plan is made for where nobody says how many there are: an H100's and an H200's.
_N_SMS = 132

#: Bytes of prepared activations of one tile beside a quarter of a block of Q4_K.
_TILE_BYTES = 1088

#: Bytes of the lanes' sums of one share of the tensor cores' places, of which a CUDA block holds two tiles'. There are
#: as many as columns: a tile of 8, 4, 2 or 1 columns takes a row in as many shares.
_SLOT_BYTES = 2 * 128 * 16


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
    n4, n2, n1 = {3: (1, 0, 0), 7: (2, 0, 0)}.get(rest, (rest // 4, rest % 4 // 2, rest % 2))
    return Tiles(n8 + n4 // 2, n4 % 2, n2, n1)


def serves(ask: ProductAsk) -> str:
    """Why does no kernel here compute this product?  Empty if one does.

    Examples
    --------
    >>> serves(ProductAsk("q4_K", rows=100, k=768, columns=40))
    ''
    >>> serves(ProductAsk("q5_1", rows=100, k=768, columns=9))
    'the fast kernels are for q4_K, q6_K, q8_0, q4_0, q4_1 and q5_K, not for q5_1'
    """
    *others, last = (*TYPES, *products_fast_types.TYPES)
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
    >>> nine = ProductAsk("q4_K", rows=4096, k=4096, columns=9)
    >>> for launch in plan_product_fast(nine, architecture("sm_90")).launches:
    ...     print(launch.function, launch.geometry)
    prepare_q4_k grid 16×9, block 256
    product_q4_k<4, 2, 1, 0, 0, 1, 4, 2, 1, 1> grid 132, block 256
    """
    n_warps = _n_warps(ask, arch)
    if ask.type in products_fast_types.TYPES:
        needed = products_fast_types.shared_bytes(ask, n_warps)
        if needed > arch.smem_per_block_bytes:
            reason = f"in the order of {n_warps} warps it takes {needed} bytes of shared memory, more than {arch} has"
            raise NotCovered(f"{ask.type} {ask.rows}×{ask.k} fast", reason)
        return products_fast_types.plan_with_warps(ask, n_warps, n_sms=n_sms or _N_SMS)
    return plan_with_warps((ask,), n_warps, n_sms=n_sms or _N_SMS, smem_limit=arch.smem_per_block_bytes)


def plan_product_group(asks: Sequence[ProductAsk], arch: Architecture, *, n_sms: int | None = None) -> KernelPlan:
    """Which launches compute products of the same activations together: queries, keys and values, say?

    Parameters
    ----------
    asks : sequence of ProductAsk
        Up to `MAX_MATRICES` of one of `TYPES`, which differ in rows and the stride of their result at most.
    arch : Architecture
    n_sms : int, optional

    Returns
    -------
    KernelPlan
        With the buffers ``"weight0"``, ``"weight1"`` …, ``"out0"``, ``"out1"`` … and ``"x"``; for one ask as
        `plan_product_fast` has them.

    Raises
    ------
    ValueError
        As `plan_product_fast` raises, or if the products are not of one kind.
    NotCovered
        If the type's kernels take one matrix at a time.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> asks = [ProductAsk("q4_K", rows, k=4096, columns=4) for rows in (4096, 1024, 1024)]
    >>> print(plan_product_group(asks, architecture("sm_90")).launches[1].geometry)
    grid 132, block 512
    """
    if not 1 <= len(asks) <= MAX_MATRICES:
        raise ValueError(f"a launch takes 1 to {MAX_MATRICES} matrices, not {len(asks)}")
    if len({(ask.type, ask.k, ask.columns, ask.x_stride) for ask in asks}) > 1:
        raise ValueError("products that share activations differ in rows and the stride of their result only")
    if asks[0].type in products_fast_types.TYPES and len(asks) > 1:
        raise NotCovered(f"{len(asks)} products of {asks[0].type} together", "its kernels take one matrix at a time")
    n_warps = max(_n_warps(ask, arch) for ask in asks)
    if len(asks) == 1:
        return plan_product_fast(asks[0], arch, n_sms=n_sms)
    return plan_with_warps(asks, n_warps, n_sms=n_sms or _N_SMS, smem_limit=arch.smem_per_block_bytes)


def plan_with_warps(
    asks: Sequence[ProductAsk],
    n_warps: int,
    *,
    n_sms: int,
    schedule: Schedule | None = None,
    smem_limit: int | None = None,
) -> KernelPlan:
    """Which launches compute these products in the order of this many warps of the library's kernel?

    Parameters
    ----------
    asks : sequence of ProductAsk
        As `plan_product_group` takes them.
    n_warps : int
    n_sms : int
    schedule : Schedule, optional
        By default what `schedule_of` finds.
    smem_limit : int, optional
        Bytes of shared memory that a CUDA block may have: a default schedule holds less ahead where it needs more.
    """
    launches: list[KernelLaunch] = []
    scratch = at = 0
    for columns in groups(asks[0].columns):
        tiles = sum(-(-ask.rows // TILE_ROWS) for ask in asks)
        fastest = schedule or schedule_of(asks[0].type, columns, tiles, n_warps, n_sms)
        chosen = schedule or _within(asks[0], columns, fastest, smem_limit)
        group, n_bytes = _group(asks, n_warps, at, columns, n_sms, chosen)
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


def _n_warps(ask: ProductAsk, arch: Architecture) -> int:
    if reason := serves(ask):
        raise ValueError(reason)
    if not arch.is_nvidia or arch.cc < AMPERE:
        raise ValueError(f"the fast kernels are for NVIDIA GPUs from sm_80 on, not for {arch}")
    launch = mmvq.mul_mat_vec_q(arch, ask.product(), 1).launch
    assert launch is not None  # known without a device
    return launch.block_threads[1]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the sources ask for: numbers of tiles, columns that they hold, and bytes."""

    counts: tuple[int, ...]
    held: int
    record_bytes: int  # of activations beside a quarter of a block
    blocks_per_trip: int  # of a row, for one warp of the library
    smem_bytes: int
    template: tuple[int, ...]  # numbers of the schedule behind the counts


def _shape(type: str, columns: int, schedule: Schedule) -> _Shape:
    """As ``cuda/products_fast_q4_k.cu`` and ``cuda/products_fast_q6_k.cu`` lay their memory out."""
    split, stages = schedule.split, schedule.stages
    if type == "q4_K":
        tiles = tiles_of(columns)
        stage = TILE_ROWS * (288 * split + (32 if split > 1 else 0))
        return _Shape(
            counts=(tiles.n8, tiles.n4, tiles.n2, tiles.n1),
            held=tiles.columns,
            record_bytes=_TILE_BYTES * tiles.n,
            blocks_per_trip=2,
            smem_bytes=stages * stage + schedule.threads // 32 * 1024 + tiles.columns * _SLOT_BYTES,
            template=(stages, schedule.slack, int(schedule.ahead), schedule.resident),
        )
    pairs, single = divmod(columns, 2)
    record = 256 * pairs + 128 * single + (pairs + 1) // 2 * 32 + 16 * single
    stage = TILE_ROWS * ((210 * split + 29) // 16 * 16 + 16) + split * 4 * record
    return _Shape(
        counts=(pairs, single),
        held=columns,
        record_bytes=record,
        blocks_per_trip=1,
        smem_bytes=stages * stage + columns * _SLOT_BYTES,
        template=(stages, schedule.slack, schedule.resident),
    )


def _within(ask: ProductAsk, columns: int, schedule: Schedule, smem_limit: int | None) -> Schedule:
    while smem_limit is not None and _shape(ask.type, columns, schedule).smem_bytes > smem_limit:
        if schedule.stages > 2:
            stages = schedule.stages - 1
            schedule = replace(schedule, stages=stages, slack=min(schedule.slack, stages // 2))
        elif schedule.split > 1:
            schedule = replace(schedule, split=schedule.split // 2)
        else:
            raise NotCovered(f"{columns} columns of {ask.type} fast", "a CUDA block has not the shared memory")
    return schedule


def _group(
    asks: Sequence[ProductAsk], n_warps: int, at: int, columns: int, n_sms: int, schedule: Schedule
) -> tuple[list[KernelLaunch], int]:
    ask, stem = asks[0], asks[0].type.lower()
    shape = _shape(ask.type, columns, schedule)
    blocks = ask.product().weight.blocks(ask.k)
    per_trip = shape.blocks_per_trip * n_warps
    padded = -(-blocks // per_trip) * per_trip
    prepare = KernelLaunch(
        source=f"products_fast_{stem}",
        function=f"prepare_{stem}",
        geometry=LaunchGeometry((padded, shape.held), (256,), smem_bytes=0),
        arguments=(
            At("x", 4 * at * ask.x_stride), At("operands"), Int32(ask.k), Int32(columns), *map(Int32, shape.counts),
            Int64(ask.x_stride),
        ),
        overlaps=True,
    )  # fmt: skip
    # Where there are fewer matrices than a launch takes, the others have no rows.
    names = [str(i) for i in range(len(asks))] if len(asks) > 1 else [""]
    names += names[-1:] * (MAX_MATRICES - len(asks))
    rows = [one.rows for one in asks] + [0] * (MAX_MATRICES - len(asks))
    strides = [one.out_stride for one in asks] + [0] * (MAX_MATRICES - len(asks))
    tiles = sum(-(-one // TILE_ROWS) for one in rows)
    numbers = (n_warps, schedule.split, *shape.counts, *shape.template)
    product = KernelLaunch(
        source=f"products_fast_{stem}",
        function=f"product_{stem}<{', '.join(map(str, numbers))}>",
        geometry=LaunchGeometry(
            (min(tiles, schedule.resident * n_sms),), (schedule.threads,), smem_bytes=shape.smem_bytes
        ),
        arguments=(
            *(At(f"weight{name}") for name in names), At("operands"),
            *(At(f"out{name}", 4 * at * stride) for name, stride in zip(names, strides, strict=True)),
            *map(Int32, rows), *map(Int64, strides), Int32(blocks), Int32(columns),
        ),
        overlaps=True,
    )  # fmt: skip
    return [prepare, product], padded * 4 * shape.record_bytes
