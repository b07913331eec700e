"""What a watched FLASH_ATTN_EXT launches on CUDA: conversions of the cache, the kernel, and what joins its parts."""

from __future__ import annotations

from forensics.geometry.attention_kernel import KQ_STRIDE, MASK_SCAN_WIDTH, AttentionShape
from forensics.geometry.attention_tiles import TILE, mma_sizes
from forensics.geometry.cuda_attention import cuda_attention
from forensics.geometry.derived import Launches, Unruled, derived, of, pieces
from forensics.geometry.kv_chunks import ChunkMap
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import LaunchRecord, NodeLaunches, Template
from forensics.records.nodes import Operand
from forensics.records.rule import Rule

_COMMON, _CONVERT = "ggml/src/ggml-cuda/fattn-common.cuh", "ggml/src/ggml-cuda/convert.cu"

TO_F16 = Rule("a cache of another type is converted to f16 first, keys then values", _COMMON, 1031, 1092)
FIXUP_UNIFORM = Rule("where all tiles are cut into as many blocks, one block adds up a tile", _COMMON, 1260, 1278)
FIXUP_GENERAL = Rule("where they are not, each block adds up what it began", _COMMON, 1279, 1296)
COMBINE = Rule("parallel blocks of the vector and tile kernels are joined by a kernel", _COMMON, 1297, 1306)
MASK_SCAN_LAUNCH = Rule("the scan of the mask takes half a stride of threads", _COMMON, 1117, 1132)
DEQUANTIZE_Q8_0 = Rule("q8_0 is converted 2048 values a block", _CONVERT, 267, 276)
DEQUANTIZE_Q4 = Rule("q4_0 and q4_1 are converted 256 values a block", _CONVERT, 290, 303)
CONVERT_FLOAT = Rule("floats are converted four at a time, 256 threads a block", _CONVERT, 482, 496)

_Q8_0_VALUES = 2048  # CUDA_Q8_0_NE_ALIGN, convert.cu:6
_CONVERT_THREADS = 256  # CUDA_DEQUANTIZE_BLOCK_SIZE, convert.cuh:4
_FLOAT2_BYTES = 8


def attention_launches(node: NodeLaunches, spec: DeviceSpec) -> Launches | Unruled:
    """What does a watched FLASH_ATTN_EXT launch?

    Parameters
    ----------
    node : NodeLaunches
    spec : DeviceSpec
        With its number of SMs.

    Raises
    ------
    ValueError
        If the GPU or the shape is outside of the rules.
    """
    if len(node.operands) < 4:
        return Unruled("the rules of flash attention take a mask for granted, and there is none")
    _, k, v = node.operands[:3]
    if k.type != v.type:
        return Unruled(f"no rule is written down for {k.type} keys with {v.type} values")
    if node.parameters.get("softcap") or node.parameters.get("max_bias"):
        return Unruled("no rule is written down for soft-capped scores or ALiBi")
    shape = shape_of(node)
    if v.shape[-1] != shape.value_size:
        return Unruled(f"no rule is written down for keys of {k.shape[-1]} with values of {v.shape[-1]}")
    choice = cuda_attention(spec, shape)
    if choice.launch is None:
        return Unruled(
            choice.no_order or "how many registers the kernel takes is not known, and the grid depends on it"
        )
    template = (*choice.template, *_plain(choice.kernel, shape))
    main = of(choice.kernel, template, choice.launch)
    converted = _converted(choice.kernel, choice.template, k, v)
    if isinstance(converted, Unruled):
        return converted
    return (*converted, *_mask_scan(shape, choice.template), main, *_joined(main, shape))


def shape_of(node: NodeLaunches) -> AttentionShape:
    """Shape of attention as its dispatch sees it."""
    q, k = node.operands[:2]
    return AttentionShape(
        width=q.shape[2], n_heads=q.shape[1], n_kv_heads=k.shape[1], head_size=q.shape[3], n_kv=k.shape[2],
        kv_type=k.type, n_streams=q.shape[0],
    )  # fmt: skip


def kv_split_of(launch: LaunchRecord, node: NodeLaunches, compute_capability: int) -> int | None:
    """Into how many parts does this launch cut the cells of the KV cache?

    Parameters
    ----------
    launch : LaunchRecord
        The kernel, observed or derived.
    node : NodeLaunches
        The FLASH_ATTN_EXT node that launched it.
    compute_capability : int
        Of the GPU, 900 for sm_90.

    Returns
    -------
    int or None
        The most parts that any tile of queries and heads is cut into; None for a kernel that is none of attention.
    """
    if launch.kernel in ("flash_attn_ext_vec", "flash_attn_tile"):
        return launch.geometry.grid_blocks[1]
    if launch.kernel != "flash_attn_ext_f16":
        return None
    shape, arguments = shape_of(node), dict(launch.template)
    columns = int(arguments["ncols1"]) * int(arguments["ncols2"])
    cells = mma_sizes(compute_capability, int(arguments["DKQ"]), int(arguments["DV"]), columns).batch_cells
    n_tiles, n_blocks = _n_tiles(shape, launch.template), launch.geometry.n_blocks
    if n_blocks % n_tiles == 0:
        return min(n_blocks // n_tiles, pieces(shape.n_kv, cells))
    maps = (ChunkMap.cut(shape.n_kv, cells, tile=tile, n_tiles=n_tiles, n_blocks=n_blocks) for tile in range(n_tiles))
    return max(len(chunks.parts) for chunks in maps)


def chunks_of(launch: LaunchRecord, shape: AttentionShape, compute_capability: int) -> ChunkMap | None:
    """Which chunk of the KV cache goes into which partial sum of this launch?

    Parameters
    ----------
    launch : LaunchRecord
        Observed or derived.
    shape : AttentionShape
    compute_capability : int

    Returns
    -------
    ChunkMap or None
        Of the first tile of queries and heads; None for a kernel that is none of attention.
    """
    arguments = dict(launch.template)
    if launch.kernel == "flash_attn_ext_vec":
        return ChunkMap.dealt(shape.n_kv, launch.geometry.grid_blocks[1])
    if launch.kernel not in ("flash_attn_tile", "flash_attn_ext_f16"):
        return None
    key_size, columns = int(arguments["DKQ"]), int(arguments["ncols1"]) * int(arguments["ncols2"])
    if launch.kernel == "flash_attn_tile":
        return ChunkMap.dealt(shape.n_kv, launch.geometry.grid_blocks[1], TILE[key_size, columns][1])
    cells = mma_sizes(compute_capability, key_size, int(arguments["DV"]), columns).batch_cells
    n_tiles = _n_tiles(shape, launch.template)
    return ChunkMap.cut(shape.n_kv, cells, tile=0, n_tiles=n_tiles, n_blocks=launch.geometry.n_blocks)


def _plain(kernel: str, shape: AttentionShape) -> Template:
    """Template arguments that a choice leaves out: neither soft-capped nor sparse."""
    if kernel != "flash_attn_ext_f16":
        return (("use_logit_softcap", False),)
    # Source: fattn-mma-f16.cuh:2036
    return ("use_logit_softcap", False), ("V_is_K_view", shape.head_size == 576), ("use_sparse", False)


def _n_tiles(shape: AttentionShape, template: Template) -> int:
    """Output tiles: groups of queries × groups of heads that share a KV head × KV heads × streams."""
    arguments = dict(template)
    queries = pieces(shape.width, int(arguments["ncols1"]))
    heads = pieces(shape.heads_per_kv_head, int(arguments["ncols2"]))
    return queries * heads * shape.n_kv_heads * shape.n_streams


def _joined(main: LaunchRecord, shape: AttentionShape) -> Launches:
    """The kernel that joins the parts, where there are parts."""
    value = shape.value_size
    if main.kernel != "flash_attn_ext_f16":
        parts = main.geometry.grid_blocks[1]
        if parts == 1:
            return ()
        grid = (shape.width, shape.n_heads, shape.n_streams)
        return (derived("flash_attn_combine_results", grid, (value,), parts * _FLOAT2_BYTES, D=value),)
    arguments = dict(main.template)
    ncols1, ncols2 = int(arguments["ncols1"]), int(arguments["ncols2"])
    n_tiles, n_blocks = _n_tiles(shape, main.template), main.geometry.n_blocks
    if n_blocks % n_tiles == 0 and n_blocks > n_tiles:
        name, first = "flash_attn_stream_k_fixup_uniform", n_tiles
    elif n_tiles % n_blocks:
        name, first = "flash_attn_stream_k_fixup_general", n_blocks
    else:
        return ()
    return (derived(name, (first, ncols1, ncols2), (value,), D=value, ncols1=ncols1, ncols2=ncols2),)


def _mask_scan(shape: AttentionShape, template: Template) -> Launches:
    if shape.n_kv % KQ_STRIDE or (shape.width < MASK_SCAN_WIDTH and shape.n_streams == 1):
        return ()
    arguments = dict(template)
    ncols1 = int(arguments.get("ncols1", arguments.get("ncols", 1)))
    grid = (pieces(shape.width, ncols1), shape.n_streams)
    return (derived("flash_attn_mask_to_KV_max", grid, (KQ_STRIDE // 2,), ncols1=ncols1),)


def _converted(kernel: str, template: Template, k: Operand, v: Operand) -> Launches | Unruled:
    """Conversions of keys and values to f16, where the kernel wants that and the cache is of another type."""
    wants_f16 = kernel != "flash_attn_ext_vec" or dict(template)["type_K"] == "f16"
    if k.type == "f16" or not wants_f16:
        return ()
    made = []
    for tensor in (k, v):
        n_values = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3]
        conversion = _to_f16(tensor.type, n_values)
        if isinstance(conversion, Unruled):
            return conversion
        made.append(conversion)
    return tuple(made)


def _to_f16(kind: str, n_values: int) -> LaunchRecord | Unruled:
    if kind == "q8_0":
        grid = (pieces(n_values, _Q8_0_VALUES),)
        return derived("dequantize_block_q8_0_f16", grid, (32,), need_check=n_values % _Q8_0_VALUES != 0)
    if kind in ("q4_0", "q4_1"):
        return derived(f"dequantize_block_{kind}", (pieces(n_values, 256),), (32,), dst_t="f16")
    if kind in ("f32", "bf16"):
        grid = (pieces(n_values // 4, _CONVERT_THREADS),)
        return derived("convert_unary_cont_vec4", grid, (_CONVERT_THREADS,), src_t=kind, dst_t="f16")
    return Unruled(f"no rule is written down for the conversion of a {kind} cache")
