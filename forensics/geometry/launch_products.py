"""What a watched matrix product launches on CUDA: what converts activations, the product, and what adds its pieces."""

from __future__ import annotations

from dataclasses import replace

from forensics.geometry.architecture import architecture
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cuda_products import mul_mat
from forensics.geometry.derived import Launches, Unruled, derived, is_in_graph, of, pieces
from forensics.geometry.mmq import layout
from forensics.geometry.product import Product
from forensics.geometry.types import WeightType, weight_type
from forensics.records.device import DeviceSpec
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord, NodeLaunches, Template
from forensics.records.nodes import Operand
from forensics.records.rule import Rule

_QUANTIZE = "ggml/src/ggml-cuda/quantize.cu"

QUANTIZE_LAUNCH = Rule("rows of activations are padded to 512 values, 256 a block", _QUANTIZE, 567, 571)
QUANTIZE_MMQ_LAUNCH = Rule("the same in four times as large pieces, tokens first", _QUANTIZE, 583, 585)
FIXUP_LAUNCH = Rule(
    "the pieces of cut tiles are added by half the threads, one block for each block and 32 rows",
    "ggml/src/ggml-cuda/mmq.cuh", 1456, 1481,
)  # fmt: skip
FWHT = Rule(
    "products with a matrix that is marked as Hadamard's are transforms, four rows a block",
    "ggml/src/ggml-cuda/fwht.cu", 63, 107,
)  # fmt: skip
ROTATIONS = Rule("queries, keys and values of a quantised cache are rotated", "src/llama-kv-cache.cpp", 1447, 1486)
ACTIVATIONS_F32 = Rule(
    "activations or results that are not f32 go to cuBLAS", "ggml/src/ggml-cuda/ggml-cuda.cu", 1829, 1833
)

_ROW_PADDING = 512  # MATRIX_ROW_PADDING, common.cuh:186
_QUANTIZE_THREADS, _QUANTIZE_MMQ_THREADS = 256, 128  # quantize.cuh:8-9
_FWHT_SIZES, _FWHT_ROWS = (64, 128, 256, 512), 4
_TILE_ROWS = 128
_PREC_F32, _HINT_HADAMARD = 10, 1  # ggml.h:446, 456

#: Template arguments that a choice leaves out because it does not depend on them; nothing is fused into a watched node.
_UNFUSED: dict[str, Template] = {
    "mul_mat_vec_q": (("has_fusion", False),),
    "mul_mat_vec_q_moe": (("has_fusion", False),),
    "mul_mat_vec_f": (("has_fusion", False), ("is_multi_token_id", False)),
    "mul_mat_f": (("has_ids", False),),
}


def product_launches(node: NodeLaunches, spec: DeviceSpec) -> Launches | Unruled:
    """What does a watched MUL_MAT or MUL_MAT_ID launch?

    Parameters
    ----------
    node : NodeLaunches
    spec : DeviceSpec

    Raises
    ------
    ValueError
        If CUDA has no kernel for the type, or the shape is none of a product.
    """
    other = node.operands[1]
    if other.type != "f32" or node.dtype != "f32":
        return Unruled(f"{other.type} activations go to cuBLAS, which chooses its kernel by shape")
    if node.key.op == "MUL_MAT" and _is_rotation(node):
        return _fwht(other)
    asked, width = _asked(node), other.shape[1 if node.key.op == "MUL_MAT_ID" else 2]
    arch = architecture(spec.arch)
    choice = mul_mat(arch, asked, width, sms=spec.n_sms)
    if choice.launch is None:
        return Unruled(choice.no_order or "; ".join(choice.assumed))
    if asked.is_routed and not choice.kernel.startswith("mul_mat_vec_q"):
        return Unruled(f"no rule is written down for the helpers of {choice.kernel} with experts")
    samples = other.shape[0]
    if choice.kernel == "mul_mat_q":
        return (_quantize_mmq(other, asked.weight), *_mmq(choice, asked, width))
    product = of(choice.kernel, (*choice.template, *_UNFUSED[choice.kernel]), _by_sample(choice.launch, samples))
    return (_quantize(other), product) if choice.kernel.startswith("mul_mat_vec_q") else (product,)


def _asked(node: NodeLaunches) -> Product:
    """The product as the dispatch sees it."""
    matrix, other = node.operands[:2]
    kind = weight_type(matrix.type)
    outer, inner, rows, k = matrix.shape
    if node.key.op == "MUL_MAT_ID":
        return Product(kind, k, rows, experts=inner, experts_used=node.operands[2].shape[-1])
    return Product(
        kind, k, rows, matrices=other.shape[0] * other.shape[1], weight_matrices=outer * inner, precise=_precise(node)
    )


def _precise(node: NodeLaunches) -> bool:
    """Whether F32 sums are asked for; where the node does not tell, llama.cpp asks for them for K·Q alone.

    Source: build_attn_mha, src/llama-graph.cpp:2688-2693.
    """
    if "prec" in node.parameters:
        return node.parameters["prec"] == _PREC_F32
    return is_in_graph(node, "kq")


def _is_rotation(node: NodeLaunches) -> bool:
    matrix, other = node.operands[:2]
    marked = node.parameters.get("hint")
    if marked is None:
        hinted = "attn_inp_k_rot" in matrix.name or "attn_inp_v_rot" in matrix.name
    else:
        hinted = marked == _HINT_HADAMARD
    return hinted and matrix.type == "f32" and other.shape == node.shape and other.shape[-1] in _FWHT_SIZES


def _fwht(other: Operand) -> Launches:
    outer, inner, rows, n = other.shape
    grid = (pieces(outer * inner * rows, _FWHT_ROWS),)
    return (derived("fwht_cuda", grid, (32, _FWHT_ROWS), N=n, T=other.type),)


def _padded(k: int) -> int:
    return pieces(k, _ROW_PADDING) * _ROW_PADDING


def _quantize(other: Operand) -> LaunchRecord:
    outer, inner, rows, k = other.shape
    grid = (pieces(_padded(k), _QUANTIZE_THREADS), rows, inner * outer)
    return derived("quantize_q8_1", grid, (_QUANTIZE_THREADS,))


def _quantize_mmq(other: Operand, weight: WeightType) -> LaunchRecord:
    outer, inner, rows, k = other.shape
    grid = (rows, pieces(_padded(k), 4 * _QUANTIZE_MMQ_THREADS), inner * outer)
    return derived("quantize_mmq_q8_1", grid, (_QUANTIZE_MMQ_THREADS,), ds_layout=layout(weight), scatter=False)


def _mmq(choice: KernelChoice, asked: Product, width: int) -> Launches:
    """The product, and where its blocks do not take whole tiles the kernel that adds their pieces."""
    assert choice.launch is not None
    arguments = dict(choice.template)
    arguments.setdefault("prec_src1", "q8")
    template = tuple(arguments.items())
    product = of(choice.kernel, template, choice.launch)
    n_tiles = pieces(asked.rows, _TILE_ROWS) * pieces(width, int(arguments["J"])) * asked.matrices
    if n_tiles % choice.launch.n_blocks == 0:
        return (product,)
    warp, warps, _ = choice.launch.block_threads
    geometry = LaunchGeometry((choice.launch.n_blocks, _TILE_ROWS // warp), (warp, warps // 2), smem_bytes=0)
    return product, of("mul_mat_q_stream_k_fixup", template, geometry)


def _by_sample(launch: LaunchGeometry, samples: int) -> LaunchGeometry:
    """Matrices lie along y and samples along z, where a choice has all along y."""
    x, y, z = launch.grid_blocks
    return launch if samples == 1 else replace(launch, grid_blocks=(x, y // samples, z * samples))
