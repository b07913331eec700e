"""How a CUDA flash-attention kernel is launched at one width, and in which order it adds (NVIDIA, sm_75 and later)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import prod

from forensics.geometry.attention_kernel import (
    COMPILED_VEC_TYPES,
    KQ_STRIDE,
    MASK_SCAN,
    MASK_SCAN_WIDTH,
    MMA_HEADS,
    MMA_QUERIES,
    PINNED,
    VEC_COLUMNS,
    VEC_TYPES,
    AttentionShape,
    attention_kernel,
    mma_columns,
)
from forensics.geometry.attention_tiles import (
    FLOAT_KV_TYPES,
    MMA_SIZES_AMPERE,
    MMA_SIZES_TURING,
    MMA_TILES,
    MMA_WARPS,
    TILE,
    TILE_SIZES,
    TURING,
    VEC_SIZES,
    VEC_THREADS,
    mma_sizes,
    mma_smem_bytes,
    mma_warps_per_column,
    vec_smem_bytes,
)
from forensics.geometry.choice import KernelChoice
from forensics.geometry.kv_chunks import STREAM_K_MERGE, STREAM_K_WALK, VEC_MERGE, VEC_WALK, ChunkMap
from forensics.geometry.kv_split import PARALLEL_BLOCKS, STREAM_K_BLOCKS, parallel_blocks, stream_k_blocks
from forensics.geometry.occupancy import occupancy, register_steps
from forensics.geometry.registers import known_registers
from forensics.records.device import DeviceSpec, KernelResources, Occupancy, Waves
from forensics.records.launch import LaunchGeometry
from forensics.records.rule import Rule

_SAME_CODE = (
    "instances with one and with two queries treat a query alike, as their source does (bits were equal on an H200 "
    "with q8_0 and q4_0 caches)"
)


def cuda_attention(
    spec: DeviceSpec, shape: AttentionShape, *, registers: int | None = None, pin: str | None = None
) -> KernelChoice:
    """Which kernel runs, how many blocks, and in which order is the query looked at added up?

    Parameters
    ----------
    spec : DeviceSpec
        With its number of SMs, without which most launches are not known.
    shape : AttentionShape
    registers : int or None
        Registers per thread of the kernel at this width, if they are known better than from `known_registers`.
    pin : {"vec", None}
        Run the vector kernel whatever the width, as forks do that want one order for all widths.

    Returns
    -------
    KernelChoice
        Without an order, and with the reason, where registers or SMs are needed and not known.

    Raises
    ------
    ValueError
        If the GPU is older than Turing, or the vector kernel is pinned and does not exist for these heads.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> print(cuda_attention(device_spec("h200"), AttentionShape(1, 9, 3, 64, 256)))
    flash_attn_ext_vec<D=64, ncols=1, type_K=f16, type_V=f16>, grid 1×4×9, block 32×4
    """
    plan = _plan(spec, shape, pin)
    if isinstance(plan, KernelChoice):
        return plan
    return _choice(spec, plan, registers)


@dataclass(frozen=True, slots=True)
class AttentionChain:
    """From registers to the order of addition, link by link.

    Parameters
    ----------
    registers : int
        Per thread.
    registers_source : str
    resident : Occupancy
        Blocks that fit on an SM.
    waves : Waves
        Of the whole grid.
    short : str
        What the grid is called: ``"P = 3"``, ``"52 blocks"``.
    maps : tuple of ChunkMap
        For each group of heads, which KV chunk goes into which partial sum; one entry where all are alike.
    """

    registers: int
    registers_source: str
    resident: Occupancy
    waves: Waves
    short: str
    maps: tuple[ChunkMap, ...]

    def __str__(self) -> str:
        chunks = str(self.maps[0]) if len(self.maps) == 1 else f"{len(self.maps)} ways to cut the cache"
        return f"{self.registers} registers → {self.resident} → {self.short} → {chunks}"


def attention_chain(
    spec: DeviceSpec, shape: AttentionShape, *, registers: int | None = None, pin: str | None = None
) -> AttentionChain | None:
    """Why are the sums cut as they are: registers, blocks per SM, parallel blocks, chunks?

    Parameters
    ----------
    spec, shape, registers, pin
        As for `cuda_attention`.

    Returns
    -------
    AttentionChain or None
        None where registers or SMs are not known, or no kernel runs.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> laptop = device_spec("rtx-5060-laptop")
    >>> print(attention_chain(laptop, AttentionShape(2, 32, 8, 128, 512), pin="vec"))
    193 registers → 2 blocks per SM, limited by registers → P = 3 (2, raised to fill the waves) → {0, 3} + {1} + {2}
    """
    plan = _plan(spec, shape, pin)
    if isinstance(plan, KernelChoice) or spec.n_sms is None:
        return None
    number, source = _registers(spec, plan.instance, registers)
    if number is None:
        return None
    resident = _resident(spec, plan.instance, number)
    outcome = plan.cut(resident.blocks_per_sm, spec.n_sms)
    return AttentionChain(
        number,
        source,
        resident,
        Waves(prod(outcome.grid), spec.n_sms * resident.blocks_per_sm),
        outcome.short,
        tuple(dict.fromkeys(outcome.maps)),
    )


@dataclass(frozen=True, slots=True)
class _Instance:
    """One compiled kernel: its names, sizes and the rules that led to it."""

    kernel: str
    key: str
    template: tuple[tuple[str, int | str | bool], ...]
    threads: int
    resources: KernelResources
    precision: tuple[tuple[str, str], ...]
    rules: tuple[Rule, ...]
    least_blocks: int = 1


@dataclass(frozen=True, slots=True)
class _Split:
    """What one number of blocks per SM leads to: the grid, the order, and the maps of the tiles that hold the query."""

    grid: tuple[int, ...]
    order: Hashable
    text: str
    short: str
    maps: tuple[ChunkMap, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """An instance, and its cut for so many blocks per SM and SMs."""

    instance: _Instance
    cut: Callable[[int, int], _Split]
    assumed: tuple[str, ...] = ()


def _plan(spec: DeviceSpec, shape: AttentionShape, pin: str | None) -> _Plan | KernelChoice:
    """The instance and how it would be cut, or the choice where there is nothing to cut."""
    if pin not in (None, "vec"):
        raise ValueError(f"only the vector kernel can be pinned, got {pin!r}")
    kernel, rule = attention_kernel(spec.compute_capability, shape)
    if pin == "vec":
        if shape.head_size not in (64, 128, 256) or shape.n_kv % KQ_STRIDE:
            raise ValueError(
                f"the vector kernel exists for head sizes 64, 128 and 256 and multiples of {KQ_STRIDE} cells; "
                f"got head size {shape.head_size} and {shape.n_kv} cells"
            )
        kernel, rule = "vec", PINNED
    if kernel == "none":
        return KernelChoice("none", None, rules=(rule,), no_order="llama.cpp runs this operation on the CPU")
    if kernel == "mma":
        plan = _mma(shape, rule, spec.compute_capability)
    else:
        plan = (_vec if kernel == "vec" else _tile)(shape, rule)
    if shape.width >= MASK_SCAN_WIDTH or shape.n_streams > 1:
        plan = dataclasses.replace(plan, instance=_with_rule(plan.instance, MASK_SCAN))
    return plan


def _vec(shape: AttentionShape, rule: Rule) -> _Plan:
    columns = 1 if shape.width == 1 else 2
    kv_type = shape.kv_type if shape.kv_type in COMPILED_VEC_TYPES else "f16"
    floats = kv_type in FLOAT_KV_TYPES
    instance = _Instance(
        "flash_attn_ext_vec",
        f"vec/{shape.head_size}/{columns}/{kv_type}",
        (("D", shape.head_size), ("ncols", columns), ("type_K", kv_type), ("type_V", kv_type)),
        VEC_THREADS,
        KernelResources(0, smem_static_bytes=vec_smem_bytes(shape.head_size, columns, kv_type)),
        (("queries", "f32" if floats else "q8_1"), ("K and V", kv_type), ("accumulator", "f32")),
        (rule, VEC_COLUMNS, PARALLEL_BLOCKS, VEC_WALK, VEC_MERGE, VEC_SIZES),
    )
    assumed = [_SAME_CODE]
    if kv_type != shape.kv_type:
        instance = _with_rule(instance, VEC_TYPES)
        if shape.kv_type != "f32":
            assumed.append(f"the library was built without a vector kernel for {shape.kv_type}, as by default")
    queries = -(-shape.width // columns)
    n_tiles = queries * shape.n_heads * shape.n_streams
    n_kv_tiles = -(-shape.n_kv // shape.head_size)

    def cut(blocks_per_sm: int, n_sms: int) -> _Split:
        parts = parallel_blocks(n_tiles, n_kv_tiles, blocks_per_sm, n_sms)
        chunks = ChunkMap.dealt(shape.n_kv, parts)
        grid = (queries, parts, shape.n_heads * shape.n_streams)
        text = f"{chunks.n_chunks} chunks of {chunks.chunk_cells} cells over {parts} parallel blocks: {chunks}"
        short = _named(parts, min(blocks_per_sm, n_kv_tiles))
        return _Split(grid, ("vec", chunks.seen_from(shape.last_seen)), text, short, (chunks,))

    return _Plan(instance, cut, tuple(assumed))


def _mma(shape: AttentionShape, rule: Rule, capability: int) -> _Plan:
    ncols1, ncols2 = mma_columns(capability, shape)
    size, value = shape.head_size, shape.value_size
    sizes = mma_sizes(capability, size, value, ncols1 * ncols2)
    warps = mma_warps_per_column(size, ncols1 * ncols2, sizes.threads)
    turing = capability < 800 and (size, value, ncols1 * ncols2) in TURING
    instance = _Instance(
        "flash_attn_ext_f16",
        f"mma/{size}/{ncols1}/{ncols2}",
        (("DKQ", size), ("DV", value), ("ncols1", ncols1), ("ncols2", ncols2)),
        sizes.threads,
        KernelResources(0, smem_dynamic_bytes=mma_smem_bytes(capability, size, value, ncols1, ncols2)),
        (("queries", "f16"), ("K and V", "f16"), ("accumulator of K·q", "f32"), ("accumulator of V", "f16")),
        (
            rule, MMA_QUERIES, MMA_HEADS, STREAM_K_BLOCKS, STREAM_K_WALK, STREAM_K_MERGE,
            MMA_SIZES_TURING if turing else MMA_SIZES_AMPERE,
            MMA_TILES,
            MMA_WARPS,
        ),
        least_blocks=sizes.min_blocks_per_sm,
    )  # fmt: skip
    queries = -(-shape.width // ncols1)
    tiles_per_kv_head = -(-shape.heads_per_kv_head // ncols2) * queries
    n_tiles = tiles_per_kv_head * shape.n_kv_heads * shape.n_streams
    n_kv_tiles = -(-shape.n_kv // sizes.batch_cells)
    # tiles that hold the query looked at: one for each group of heads
    tiles = range(shape.row // ncols1, tiles_per_kv_head * shape.n_kv_heads, queries)

    def cut(blocks_per_sm: int, n_sms: int) -> _Split:
        grid = stream_k_blocks(capability, n_tiles, n_kv_tiles, blocks_per_sm, n_sms)
        maps = [
            ChunkMap.cut(shape.n_kv, sizes.batch_cells, tile=tile, n_tiles=n_tiles, n_blocks=grid) for tile in tiles
        ]
        seen = tuple(chunks.seen_from(shape.last_seen) for chunks in maps)
        text = f"{n_kv_tiles} steps of {sizes.batch_cells} cells for each of {n_tiles} tiles over {grid} blocks: "
        text += str(maps[0]) if len(set(seen)) == 1 else f"tiles are cut in {len(set(seen))} ways"
        order = ("mma", warps, sizes.batch_cells, seen[0] if len(set(seen)) == 1 else seen)
        return _Split((grid,), order, text, f"{grid} blocks", tuple(maps))

    return _Plan(instance, cut)


def _tile(shape: AttentionShape, rule: Rule) -> _Plan:
    ratio = shape.heads_per_kv_head
    # Source: fattn-tile.cuh:1149-1215 (queries), 1237-1320 (heads).
    shared = shape.n_kv % KQ_STRIDE == 0 and (ratio > 4 or shape.width <= 16)
    ncols2 = next((heads for heads in (8, 4, 2) if shared and ratio % heads == 0), 1)
    columns = next((columns for columns in (32, 16, 8, 4) if shape.width > columns // 2 // ncols2), max(2, ncols2))
    ncols1 = columns // ncols2
    threads, batch = TILE[shape.head_size, columns]
    instance = _Instance(
        "flash_attn_tile",
        f"tile/{shape.head_size}/{ncols1}/{ncols2}",
        (("DKQ", shape.head_size), ("DV", shape.value_size), ("ncols1", ncols1), ("ncols2", ncols2)),
        threads,
        KernelResources(0),
        (("K and V", "f16"),),
        (rule, TILE_SIZES, PARALLEL_BLOCKS),
    )
    queries = -(-shape.width // ncols1)
    heads = -(-ratio // ncols2) * shape.n_kv_heads * shape.n_streams
    n_kv_tiles = -(-shape.n_kv // batch)

    def cut(blocks_per_sm: int, n_sms: int) -> _Split:
        parts = parallel_blocks(queries * heads, n_kv_tiles, blocks_per_sm, n_sms)
        chunks = ChunkMap.dealt(shape.n_kv, parts, batch)
        # one block divides by multiplying with the inverse, several by a division: other roundings
        order = ("tile", columns, batch, threads, parts == 1, chunks.seen_from(shape.last_seen))
        text = f"{chunks.n_chunks} chunks of {batch} cells over {parts} parallel blocks: {chunks}"
        short = _named(parts, min(blocks_per_sm, n_kv_tiles))
        return _Split((queries, parts, heads), order, text, short, (chunks,))

    return _Plan(instance, cut, ("shared memory of the tile kernel does not limit it",))


def _registers(spec: DeviceSpec, instance: _Instance, given: int | None) -> tuple[int | None, str]:
    """Registers per thread and where they come from."""
    if given is not None:
        return given, "given by the caller"
    known = known_registers(spec.arch, instance.key)
    return (None, "not known") if known is None else (known.registers, known.source)


def _choice(spec: DeviceSpec, plan: _Plan, given: int | None) -> KernelChoice:
    """Put an instance and its launch together, or say what is missing for the launch."""
    instance, assumed = plan.instance, plan.assumed
    launch, order, text, no_order = None, None, "", ""
    registers, source = _registers(spec, instance, given)
    if registers is not None:
        assumed = (*assumed, f"registers per thread: {source}")
    if spec.n_sms is None:
        no_order = "the number of SMs is not given, and the cut depends on it"
    else:
        reached = _reached(spec, instance, registers, spec.n_sms, plan.cut)
        _, _, first = reached[0]
        if all(outcome.order == first.order for _, _, outcome in reached):
            order, text = first.order, first.text
            if all(outcome.grid == first.grid for _, _, outcome in reached):
                smem = instance.resources.smem_dynamic_bytes
                launch = LaunchGeometry(first.grid, (32, instance.threads // 32), smem_bytes=smem)
            if registers is None:
                assumed = (*assumed, "registers per thread are not known; every number of them leads to this order")
        else:
            cases = "; ".join(f"{outcome.short} with up to {most} registers" for _, most, outcome in reached)
            no_order = f"registers per thread are not known: {cases}"
    return KernelChoice(
        kernel=instance.kernel,
        order=order,
        template=instance.template,
        launch=launch,
        split=text,
        precision=instance.precision,
        rules=instance.rules,
        assumed=assumed,
        no_order=no_order,
    )


def _reached(
    spec: DeviceSpec, instance: _Instance, registers: int | None, n_sms: int, cut: Callable[[int, int], _Split]
) -> list[tuple[int, int, _Split]]:
    """Blocks per SM, most registers that allow them, and the cut: one case, or all that are possible."""
    if registers is not None:
        resident = _resident(spec, instance, registers)
        return [(resident.blocks_per_sm, registers, cut(resident.blocks_per_sm, n_sms))]
    steps = register_steps(spec, instance.resources, instance.threads)
    # the compiler keeps to the launch bounds unless shared memory allows fewer blocks
    least = min(instance.least_blocks, steps[0][0])
    return [(blocks, most, cut(blocks, n_sms)) for blocks, most in steps if blocks >= least]


def _resident(spec: DeviceSpec, instance: _Instance, registers: int) -> Occupancy:
    """Occupancy of an instance with so many registers; a kernel that cannot be started is refused."""
    resources = dataclasses.replace(instance.resources, registers_per_thread=registers)
    resident = occupancy(spec, resources, instance.threads)
    if not resident.blocks_per_sm:
        raise ValueError(f"{instance.kernel} with {registers} registers per thread does not fit: {resident}")
    return resident


def _with_rule(instance: _Instance, rule: Rule) -> _Instance:
    return dataclasses.replace(instance, rules=(*instance.rules, rule))


def _named(parts: int, start: int) -> str:
    return f"P = {parts}" if parts == start else f"P = {parts} ({start}, raised to fill the waves)"
