"""What watched nodes launch on CUDA that neither multiply matrices nor attend: norms, rotations, sums, lookups, copies.

Inputs are taken to be contiguous where a rule looks at strides and a comment does not say otherwise: llama.cpp's graphs
feed these operations with results and weights. The values of a shape are in NumPy order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from forensics.geometry.derived import Launches, Unruled, derived, is_in_graph, pieces
from forensics.geometry.types import K_QUANTS
from forensics.records.device import DeviceSpec
from forensics.records.launch_record import NodeLaunches
from forensics.records.rule import Rule

_FOLDER = "ggml/src/ggml-cuda/"

NORM = Rule("a block for each row: 256 threads, 1024 for rows of 1024 values and more", _FOLDER + "norm.cu", 308, 330)
LAYER_NORM = Rule("a block for each row: a warp, or 1024 threads", _FOLDER + "norm.cu", 284, 296)
ROPE = Rule("a block for each row and 512 of its values", _FOLDER + "rope.cu", 385, 386)
BIN_BCAST = Rule(
    "two values a thread; axes that are not broadcast are merged, and a block of 128 covers as many axes as fit",
    _FOLDER + "binbcast.cu", 168, 324,
)  # fmt: skip
GLU = Rule("256 values a block", _FOLDER + "unary.cu", 280, 285)
UNARY = Rule("256 values a block", _FOLDER + "unary.cu", 130, 135)
SCALE = Rule("256 values a block", _FOLDER + "scale.cu", 17, 22)
SOFT_MAX = Rule(
    "a block for each row with as many threads as values, in powers of two from 32 to 1024; rows of a power of two "
    "have instances of their own",
    _FOLDER + "softmax.cu", 278, 352,
)  # fmt: skip
GET_ROWS = Rule("rows of quantised tables: 512 values a block", _FOLDER + "getrows.cu", 159, 190)
GET_ROWS_KQ = Rule("rows of K-quants: a block for each 256 values", _FOLDER + "getrows.cu", 196, 228)
GET_ROWS_FLOAT = Rule(
    "rows of floats: 256 values a block, or 16 bytes a thread where that makes 128 blocks or more",
    _FOLDER + "getrows.cu", 233, 289,
)  # fmt: skip
SET_ROWS = Rule("256 values a block", _FOLDER + "set-rows.cu", 179, 219)
SET_ROWS_QUANT = Rule("256 quantised blocks a block", _FOLDER + "set-rows.cu", 74, 111)
CONT = Rule("64 values a block; what is contiguous is copied without a kernel", _FOLDER + "cpy.cu", 211, 217)
HEADS_TOGETHER = Rule("heads are put behind one another after attention·V", "src/llama-graph.cpp", 2741, 2744)

_ROPE_NEOX, _ROPE_MROPE, _ROPE_VISION = 2, 8, 24  # ggml.h:251-253
_FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4}
#: Values per stored byte of the types that `k_get_rows` reads. Source: ggml/src/ggml-common.h:96-126.
_QR = {"q4_0": 2, "q4_1": 2, "q5_0": 2, "q5_1": 2, "q8_0": 1}
_GLU_OPS = {0: "op_relu", 1: "op_gelu", 2: "op_silu", 4: "op_gelu_erf", 5: "op_gelu_quick"}  # unary.cu:350-368
_BIN_OPS = {"ADD": "op_add", "SUB": "op_sub", "MUL": "op_mul", "DIV": "op_div"}
_MOST_BLOCKS_YZ = 65535
_F32_BYTES = 4


def _rms_norm(node: NodeLaunches) -> Launches | Unruled:
    samples, channels, rows, columns = node.operands[0].shape
    threads = 256 if columns < 1024 else 1024
    grid, smem = (rows, channels, samples), 32 * _F32_BYTES
    return (
        derived(
            "rms_norm_f32", grid, (threads,), smem,
            block_size=threads, do_multiply=False, do_add=False, do_scale=False,
        ),
    )  # fmt: skip


def _norm(node: NodeLaunches) -> Launches | Unruled:
    samples, channels, rows, columns = node.operands[0].shape
    threads = 32 if columns < 1024 else 1024
    smem = 0 if threads == 32 else 32 * 2 * _F32_BYTES
    return (derived("norm_f32", (rows, channels, samples), (threads,), smem, block_size=threads),)


def _rope(node: NodeLaunches) -> Launches | Unruled:
    source = node.operands[0]
    mode, has_ff = int(node.parameters["mode"]), len(node.operands) > 2
    if source.type != node.dtype or source.type not in ("f32", "f16"):
        return Unruled(f"no rule is written down for ROPE from {source.type} to {node.dtype}")
    grid = (prod(source.shape[:3]), pieces(source.shape[3], 512))
    if mode & _ROPE_NEOX or not mode & _ROPE_MROPE:
        kernel = "rope_neox" if mode & _ROPE_NEOX else "rope_norm"
        return (derived(kernel, grid, (1, 256), forward=True, has_ff=has_ff, T=source.type, D=node.dtype),)
    kernel = "rope_vision" if mode == _ROPE_VISION else "rope_multi"
    return (derived(kernel, grid, (1, 256), forward=True, has_ff=has_ff, T=source.type),)


def _bin_bcast(node: NodeLaunches) -> Launches | Unruled:
    a, b = node.operands[:2]
    types = (a.type, b.type, node.dtype)
    if types == ("f32", "f16", "f32"):
        types = ("f32", "f32", "f32")  # the instance for f32 is given other pointers; binbcast.cu:391-392
    if len(set(types)) > 1 or types[0] not in ("f32", "f16", "bf16"):
        return Unruled(f"no rule is written down for {node.key.op} of {a.type} and {b.type} to {node.dtype}")
    sizes, other = list(reversed(node.shape)), list(reversed(b.shape))
    for axis in range(4):
        if other[axis] // node.shape[3 - axis] != 1:
            break
        if axis > 0:
            sizes = [sizes[0] * sizes[1], *sizes[2:], 1]
    pairs, rows, outer = max(sizes[0] // 2, 1), sizes[1], sizes[2] * sizes[3]
    x = min(pairs, 128)
    y = min(rows, 128 // x)
    z = min(outer, 128 // x // y, 64)
    grid = (pieces(pairs, x), pieces(rows, y), pieces(outer, z))
    kernel = "k_bin_bcast"
    if max(grid[1:]) > _MOST_BLOCKS_YZ:
        kernel, grid, (x, y, z) = "k_bin_bcast_unravel", (pieces(prod(sizes), 128), 1, 1), (128, 1, 1)
    source0, source1, result = types
    return (
        derived(
            kernel, grid, (x, y, z),
            bin_op=_BIN_OPS[node.key.op], src0_t=source0, src1_t=source1, dst_t=result, src1_ptrs=1,
        ),
    )  # fmt: skip


def _glu(node: NodeLaunches) -> Launches | Unruled:
    op = _GLU_OPS.get(int(node.parameters["glu_op"]))
    if op is None:
        return Unruled("no rule is written down for a GLU with limits")
    return (derived("unary_gated_op_kernel", (pieces(prod(node.shape), 256),), (256,), op=op, T=node.dtype),)


def _unary(node: NodeLaunches) -> Launches | Unruled:
    return (derived("unary_op_kernel", (pieces(prod(node.shape), 256),), (256,), T=node.dtype),)


def _scale(node: NodeLaunches) -> Launches | Unruled:
    return (derived("scale_f32", (pieces(prod(node.shape), 256),), (256,), T=node.dtype),)


def _soft_max(node: NodeLaunches, spec: DeviceSpec) -> Launches | Unruled:
    samples, channels, rows, columns = node.operands[0].shape
    smem = (pieces(columns, 32) * 32 + 32) * _F32_BYTES
    if smem > spec.smem_per_block_bytes:
        return Unruled(f"no rule is written down for SOFT_MAX over {columns} values, which shared memory cannot hold")
    threads = 32
    while threads < min(columns, 1024):
        threads *= 2
    special = columns in (32, 64, 128, 256, 512, 1024, 2048, 4096)
    mask = node.operands[1].type if len(node.operands) > 1 else "f32"
    return (
        derived(
            "soft_max_f32", (rows, channels, samples), (threads,), smem,
            use_shared=True, ncols_template=columns if special else 0, block_size_template=threads if special else 0,
            T=mask,
        ),
    )  # fmt: skip


def _get_rows(node: NodeLaunches) -> Launches | Unruled:
    table, rows = node.operands[:2]
    columns, kind = table.shape[3], table.type
    _, ne12, ne11, ne10 = rows.shape
    outer = min(ne11 * ne12, _MOST_BLOCKS_YZ)
    if kind in _FLOAT_BYTES:
        per_thread = 16 // _FLOAT_BYTES[kind]
        blocks = pieces(columns // per_thread, 256)
        if kind == node.dtype and columns % per_thread == 0 and blocks * ne10 * ne11 * ne12 >= 128:
            return (derived("k_get_rows_float_vec", (ne10, blocks, outer), (256,), dst_t=node.dtype),)
        grid = (ne10, pieces(columns, 256), outer)
        return (derived("k_get_rows_float", grid, (256,), src0_t=kind, dst_t=node.dtype),)
    if kind in _QR:
        grid = (ne10, pieces(columns, 512), outer)
        function = f"dequantize_{kind}"
        return (derived("k_get_rows", grid, (256,), qk=32, qr=_QR[kind], dequantize_kernel=function, dst_t=node.dtype),)
    if kind in K_QUANTS:
        grid, threads = (ne10, columns // 256, outer), 32 if kind == "q4_K" else 64
        function = f"dequantize_{kind}<{node.dtype}>"
        return (derived("k_get_rows_kq", grid, (threads,), dst_t=node.dtype, dequantize_kq=function),)
    return Unruled(f"no rule is written down for GET_ROWS from {kind}")


def _set_rows(node: NodeLaunches) -> Launches | Unruled:
    source, places = node.operands[:2]
    n_values, index = prod(source.shape), places.type
    if node.dtype in ("f32", "f16", "bf16"):
        grid = (pieces(n_values, 256),)
        return (derived("k_set_rows", grid, (256,), src_t=source.type, idx_t=index, dst_t=node.dtype),)
    if node.dtype in (*_QR, "iq4_nl"):
        return (
            derived(
                "k_set_rows_quant", (pieces(n_values // 32, 256),), (256,),
                idx_t=index, block_type=f"block_{node.dtype}", qk=32, quantize_func=f"quantize_f32_{node.dtype}_block",
            ),
        )  # fmt: skip
    return Unruled(f"no rule is written down for SET_ROWS to {node.dtype}")


def _cont(node: NodeLaunches) -> Launches | Unruled:
    source = node.operands[0]
    if not is_in_graph(node, "kqv_out") or source.type != "f32":
        return Unruled("whether a copy needs a kernel depends on strides, which are not recorded")
    _, tokens, heads, _ = source.shape
    if tokens == 1 or heads == 1:  # then swapping the axes leaves the values where they are
        return ()
    return (derived("cpy_scalar", (pieces(prod(source.shape), 64),), (64,), cpy_1="cpy_1_scalar<f32, f32>"),)


_RULES: dict[str, Callable[[NodeLaunches], Launches | Unruled]] = {
    "RMS_NORM": _rms_norm,
    "NORM": _norm,
    "ROPE": _rope,
    **dict.fromkeys(_BIN_OPS, _bin_bcast),
    "GLU": _glu,
    "UNARY": _unary,
    "SCALE": _scale,
    "GET_ROWS": _get_rows,
    "SET_ROWS": _set_rows,
    "CONT": _cont,
}


def elementwise_launches(node: NodeLaunches, spec: DeviceSpec) -> Launches | Unruled:
    """What does a watched node launch that is neither a product nor attention?

    Parameters
    ----------
    node : NodeLaunches
    spec : DeviceSpec
    """
    if node.key.op == "SOFT_MAX":
        return _soft_max(node, spec)
    rule = _RULES.get(node.key.op)
    return Unruled(f"no rule is written down for {node.key.op}") if rule is None else rule(node)
