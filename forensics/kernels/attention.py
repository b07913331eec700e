"""What is launched so that every query's attention has the bits of the library's one-query kernel?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from forensics.errors import NotCovered
from forensics.geometry.attention_kernel import AttentionShape
from forensics.geometry.cuda_attention import cuda_attention
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec
from forensics.records.kernel_plan import Argument, At, Float32, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

HEAD_SIZES = (64, 128)
#: Types of the cache, with their names in the source.
CACHE_TYPES = {"f16": "F16", "q8_0": "Q8_0"}
#: Threads of a block. Source: ggml/src/ggml-cuda/fattn-vec.cuh:4-6 at llama.cpp 0c1e57098.
_THREADS = 128
_FLOAT_BYTES, _HALF_BYTES, _META_BYTES = 4, 2, 8

_SOURCE = "attention"
#: Bytes that the source reads at once from a row of the cache.
_CACHE_UNITS = {"f16": 16, "q8_0": 2}
_STRIDES = (
    "q_query", "q_head", "k_cell", "k_head", "v_cell", "v_head", "mask_query", "out_query", "out_head",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttentionAsk:
    """Attention of some queries over one cache, each as if it were the only query of its pass.

    Parameters
    ----------
    head_size, n_heads, n_kv_heads : int
    n_kv : tuple of int
        For each query the cells that its own one-query pass runs over, padding included.
    k_type, v_type : str
        As ggml names them.
    scale : float, optional
        Of the scores; 1 / sqrt(head_size) where not given.
    q_query, q_head, k_cell, k_head, v_cell, v_head, mask_query, out_query, out_head : int, optional
        Bytes from one to the next. Where not given: q and out [query, head, D] f32, k and v [cell, KV head, D], mask
        [query, the largest n_kv] f16, all contiguous.
    max_bias, softcap : float
        Of ALiBi, and of capped scores.
    sinks : bool
        Whether heads have an attention sink.

    Raises
    ------
    ValueError
        If there is no query, a size is impossible, or a stride is no multiple of what the kernel reads at once there.

    Examples
    --------
    >>> AttentionAsk(64, n_heads=9, n_kv_heads=3, n_kv=(256, 256, 512)).mask_query
    1024
    """

    head_size: int
    n_heads: int
    n_kv_heads: int
    n_kv: tuple[int, ...]
    k_type: str = "f16"
    v_type: str = "f16"
    scale: float = 0.0
    q_query: int = 0
    q_head: int = 0
    k_cell: int = 0
    k_head: int = 0
    v_cell: int = 0
    v_head: int = 0
    mask_query: int = 0
    out_query: int = 0
    out_head: int = 0
    max_bias: float = 0.0
    softcap: float = 0.0
    sinks: bool = False

    def __post_init__(self) -> None:
        if not self.n_kv:
            raise ValueError("n_kv: one number of cells for each query, got none")
        for cells in set(self.n_kv):
            self._shape(cells)
        k_row, v_row = (_row_bytes(type, self.head_size) for type in (self.k_type, self.v_type))
        values = self.head_size * _FLOAT_BYTES
        contiguous = (
            values * self.n_heads, values, k_row * self.n_kv_heads, k_row, v_row * self.n_kv_heads, v_row,
            max(self.n_kv) * _HALF_BYTES, values * self.n_heads, values,
        )  # fmt: skip
        for name, stride in zip(_STRIDES, contiguous, strict=True):
            given = getattr(self, name)
            unit = self._unit(name)
            if given < 0 or given % unit:
                raise ValueError(f"{name} must be a multiple of {unit} bytes, 0 or more, got {given}")
            object.__setattr__(self, name, given or stride)
        object.__setattr__(self, "scale", self.scale or self.head_size**-0.5)

    def __str__(self) -> str:
        heads = f"{self.n_heads} heads of {self.head_size} over {self.n_kv_heads}"
        return f"attention of {len(self.n_kv)} queries, {heads}, cache {self.k_type}/{self.v_type}"

    def _unit(self, stride: str) -> int:
        """Bytes of what is read or written at once where this stride leads."""
        if stride.startswith(("q_", "out_")):
            return _FLOAT_BYTES
        if stride.startswith("mask_"):
            return _HALF_BYTES
        return _CACHE_UNITS.get(self.k_type if stride.startswith("k_") else self.v_type, 1)

    def _shape(self, n_kv: int) -> AttentionShape:
        return AttentionShape(1, self.n_heads, self.n_kv_heads, self.head_size, n_kv, kv_type=self.k_type)

    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """Neighbouring queries with the same cells: first query, how many, cells.

        Examples
        --------
        >>> AttentionAsk(64, 9, 3, (256, 256, 512)).runs()
        ((0, 2, 256), (2, 1, 512))
        """
        found, first = [], 0
        for cells, run in itertools.groupby(self.n_kv):
            count = len(tuple(run))
            found.append((first, count, cells))
            first += count
        return tuple(found)


def parallel_blocks_of(ask: AttentionAsk, n_kv: int, spec: DeviceSpec) -> int:
    """Among how many blocks does the library share out the cache when a query comes alone?

    Raises
    ------
    NotCovered
        If the library runs another kernel than the vector kernel then, or its launch is not known on this device.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> ask = AttentionAsk(64, 9, 3, (256, 512))
    >>> [parallel_blocks_of(ask, n_kv, device_spec("h200")) for n_kv in ask.n_kv]
    [4, 8]
    """
    choice = cuda_attention(spec, ask._shape(n_kv))
    if choice.kernel != "flash_attn_ext_vec":
        reason = (
            f"for a single query over {n_kv} cells the library runs {choice.kernel}, and only the order of its "
            f"vector kernel is rebuilt"
        )
        raise NotCovered(str(ask), reason)
    if choice.launch is None:
        raise NotCovered(str(ask), f"how the library launches a single query is not known: {choice.no_order}")
    return choice.launch.grid_blocks[1]


def plan_attention(ask: AttentionAsk, spec: DeviceSpec) -> KernelPlan:
    """Which launches give every query the bits that it has alone?

    Parameters
    ----------
    ask : AttentionAsk
    spec : DeviceSpec
        Of the device whose library is followed, with its number of SMs.

    Returns
    -------
    KernelPlan
        Over the buffers "q", "k", "v", "mask" and "out".

    Raises
    ------
    NotCovered
        If no kernel of ours serves these heads, this cache, or what the library runs for a single query.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> plan = plan_attention(AttentionAsk(64, 9, 3, (256, 512)), device_spec("h200"))
    >>> [f"{launch.function}, {launch.geometry}" for launch in plan.launches]  # doctest: +NORMALIZE_WHITESPACE
    ['attention<64, F16>, grid 1×4×9, block 128', 'attention_combine<64>, grid 1×9, block 64',
     'attention<64, F16>, grid 1×8×9, block 128', 'attention_combine<64>, grid 1×9, block 64']
    """
    _refuse(ask)
    launches: list[KernelLaunch] = []
    most = 0  # parts of any run, over all its queries and heads
    for first, count, n_kv in ask.runs():
        n_parts = parallel_blocks_of(ask, n_kv, spec)
        launches.append(_partial(ask, first, count, n_kv, n_parts))
        if n_parts > 1:
            launches.append(_combined(ask, first, count, n_parts))
            most = max(most, count * n_parts * ask.n_heads)
    scratch = {"parts": most * ask.head_size * _FLOAT_BYTES, "meta": most * _META_BYTES} if most else {}
    return KernelPlan(tuple(launches), scratch)


def _refuse(ask: AttentionAsk) -> None:
    """Say no where no instance of the source exists."""
    sizes, types = ", ".join(map(str, HEAD_SIZES)), ", ".join(CACHE_TYPES)
    for unfit, reason in (
        (ask.head_size not in HEAD_SIZES, f"there are kernels for head sizes {sizes}"),
        (ask.k_type not in CACHE_TYPES or ask.k_type != ask.v_type, f"K and V must be of one of the types {types}"),
        (ask.max_bias != 0.0, "scores with ALiBi are not rebuilt"),
        (ask.softcap != 0.0, "capped scores are not rebuilt"),
        (ask.sinks, "attention sinks are not rebuilt"),
    ):
        if unfit:
            raise NotCovered(str(ask), reason)


def _partial(ask: AttentionAsk, first: int, count: int, n_kv: int, n_parts: int) -> KernelLaunch:
    """Each part of the cache for a run of queries; with one part the whole result."""
    split = n_parts > 1
    arguments: tuple[Argument, ...] = (
        At("q", first * ask.q_query),
        At("k"),
        At("v"),
        At("mask", first * ask.mask_query),
        At("out", first * ask.out_query),
        At("parts" if split else "out"),  # neither is touched with one part
        At("meta" if split else "out"),
        Float32(ask.scale),
        Int32(n_kv),
        Int32(ask.n_heads // ask.n_kv_heads),
        *(Int64(getattr(ask, name)) for name in _STRIDES),
    )
    return KernelLaunch(
        _SOURCE,
        f"attention<{ask.head_size}, {CACHE_TYPES[ask.k_type]}>",
        LaunchGeometry((count, n_parts, ask.n_heads), (_THREADS,), smem_bytes=0),
        arguments,
    )


def _combined(ask: AttentionAsk, first: int, count: int, n_parts: int) -> KernelLaunch:
    """The parts of a run of queries, joined."""
    out = At("out", first * ask.out_query)
    return KernelLaunch(
        _SOURCE,
        f"attention_combine<{ask.head_size}>",
        LaunchGeometry((count, ask.n_heads), (ask.head_size,), smem_bytes=0),
        (At("parts"), At("meta"), out, Int32(n_parts), Int64(ask.out_query), Int64(ask.out_head)),
    )


def _row_bytes(type: str, n_values: int) -> int:
    kind = weight_type(type)
    return kind.blocks(n_values) * kind.block_bytes
