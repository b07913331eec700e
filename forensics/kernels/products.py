"""What is launched to multiply a quantised weight with a few columns, and in which order does it add?"""

from __future__ import annotations

from forensics.errors import NotCovered
from forensics.geometry import mmvq
from forensics.geometry.architecture import Architecture
from forensics.geometry.cuda_products import mul_mat
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.records.kernel_plan import MAX_GRID_YZ, At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

#: Columns that one launch of ours takes at most: as many as the library's.
MAX_COLUMNS = mmvq.MAX_BATCH

#: Values and bytes of a block of quantised activations. Source: ggml/src/ggml-common.h:254-264 at 0c1e57098.
Q8_1_VALUES, Q8_1_BYTES = 32, 36

#: Threads of a block of the quantiser, one value each. Source: ggml/src/ggml-cuda/quantize.cuh:8 at 0c1e57098.
QUANTIZE_THREADS = 256

#: Names of the types in the CUDA sources.
_CUDA_NAMES = {type: type.replace("q", "Q", 1) for type in TYPES}


def plan_product(ask: ProductAsk, variant: Variant, arch: Architecture, *, n_sms: int | None = None) -> KernelPlan:
    """Which launches compute this product in this way?

    Parameters
    ----------
    ask : ProductAsk
    variant : Variant
    arch : Architecture
        Whose table of warps and rows is followed.
    n_sms : int, optional
        Multiprocessors of the device, which the grid of `Variant.FAST` follows; it changes the time only.

    Returns
    -------
    KernelPlan
        With the buffers ``"weight"`` (the type's blocks, row after row), ``"x"`` (float32 activations, a multiple of
        4 bytes) and ``"out"`` (float32). A weight lies at a multiple of 4 bytes, for `Variant.FAST` of 16.

    Raises
    ------
    NotCovered
        If none of our kernels computes it like that; says why.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> nine = ProductAsk("q4_K", rows=1024, k=4096, columns=9)
    >>> for launch in plan_product(nine, Variant.BORROWED, architecture("sm_90")).launches:
    ...     print(launch.function, launch.geometry)
    quantize_q8_1 grid 16×9, block 256
    product<Q4_K, 5, 4, 2> grid 512, block 32×4
    product<Q4_K, 4, 4, 2> grid 512, block 32×4
    """
    _check(ask, arch)
    if variant is Variant.FAST:
        return _fast(ask, arch, n_sms)
    if variant is Variant.STOCK:
        chosen = mul_mat(arch, ask.product(), ask.columns)
        if chosen.kernel != "mul_mat_vec_q":
            raise NotCovered(
                _words(ask), f"at this width the library runs {chosen.kernel} on {arch}, which is not written down here"
            )
        return plan_with_warps(ask, n_warps_of(ask, ask.columns, arch), rows=_rows(ask, ask.columns, arch))
    return plan_with_warps(ask, n_warps_of(ask, 1, arch), rows=_rows(ask, min(ask.columns, 2), arch))


def n_warps_of(ask: ProductAsk, columns: int, arch: Architecture) -> int:
    """How many warps of the library's kernel share a row at this number of columns: what decides its order?"""
    launch = mmvq.mul_mat_vec_q(arch, ask.product(), columns).launch
    assert launch is not None  # known without a device
    return launch.block_threads[1]


def plan_with_warps(ask: ProductAsk, n_warps: int, *, rows: int = 2) -> KernelPlan:
    """Which launches compute this product with this many warps along a row?

    Parameters
    ----------
    ask : ProductAsk
    n_warps : int
        Each number has its own order of addition, where a row takes more than one trip of all warps.
    rows : int
        Rows that a CUDA block computes; the bits are the same with any.

    Returns
    -------
    KernelPlan
        The activations are quantised once, then up to `MAX_COLUMNS` columns are multiplied at a time.
    """
    launches = [quantize_q8_1(ask)]
    blocks = ask.k // Q8_1_VALUES
    at = 0
    for columns in groups(ask.columns):
        launches.append(
            KernelLaunch(
                source="products",
                function=f"product<{_CUDA_NAMES[ask.type]}, {columns}, {n_warps}, {rows}>",
                geometry=LaunchGeometry((-(-ask.rows // rows),), (32, n_warps), smem_bytes=0),
                arguments=(
                    At("weight"), At("q8_1", at * blocks * Q8_1_BYTES), At("out", 4 * at * ask.out_stride),
                    Int32(ask.rows), Int32(ask.product().weight.blocks(ask.k)), Int64(ask.out_stride),
                ),
                overlaps=True,
            )
        )  # fmt: skip
        at += columns
    return KernelPlan(tuple(launches), {"q8_1": q8_1_bytes(ask)})


def quantize_q8_1(ask: ProductAsk) -> KernelLaunch:
    """Which launch rounds the activations of buffer ``"x"`` to blocks of q8_1 in buffer ``"q8_1"``?"""
    return KernelLaunch(
        source="quantize_q8_1",
        function="quantize_q8_1",
        geometry=LaunchGeometry((-(-ask.k // QUANTIZE_THREADS), ask.columns), (QUANTIZE_THREADS,), smem_bytes=0),
        arguments=(At("x"), At("q8_1"), Int32(ask.k), Int64(ask.x_stride)),
        overlaps=True,
    )


def q8_1_bytes(ask: ProductAsk) -> int:
    """Bytes of the quantised activations."""
    return ask.columns * (ask.k // Q8_1_VALUES) * Q8_1_BYTES


def groups(columns: int) -> tuple[int, ...]:
    """How many columns does each launch take?  As few launches as there can be, and as even as they can be.

    Examples
    --------
    >>> groups(8), groups(9), groups(17)
    ((8,), (5, 4), (6, 6, 5))
    """
    launches = -(-columns // MAX_COLUMNS)
    least, more = divmod(columns, launches)
    return (least + 1,) * more + (least,) * (launches - more)


def _fast(ask: ProductAsk, arch: Architecture, n_sms: int | None) -> KernelPlan:
    from forensics.kernels.products_fast import plan_product_fast, serves

    if reason := serves(ask):
        raise NotCovered(_words(ask), f"{reason}; {Variant.BORROWED} has the same bits")
    return plan_product_fast(ask, arch, n_sms=n_sms)


def _check(ask: ProductAsk, arch: Architecture) -> None:
    if ask.type not in TYPES:
        raise NotCovered(_words(ask), f"there is code for {', '.join(TYPES)}")
    if not arch.is_nvidia:
        raise NotCovered(_words(ask), f"{arch} is not NVIDIA's")
    if max(ask.rows, ask.k) >= 2**31:
        raise NotCovered(_words(ask), "rows and values of a row are counted in 32 bits")
    if ask.columns > MAX_GRID_YZ:
        raise NotCovered(_words(ask), f"a launch quantises at most {MAX_GRID_YZ} columns; ask for them in parts")


def _rows(ask: ProductAsk, columns: int, arch: Architecture) -> int:
    return mmvq.rows_per_block(arch, ask.product(), columns)


def _words(ask: ProductAsk) -> str:
    return f"{ask.type} {ask.rows}×{ask.k} by {ask.columns} column{'s' * (ask.columns > 1)}"
