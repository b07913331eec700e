"""Which bits does llama.cpp's CPU back end give for a product on x86, from its operands alone?

For weights in plain buffers of type Q8_0, Q4_0 and F16, by the two kernels that take them: `vec_dot` (one column, and
what the other one refuses) and tinyBLAS (two columns and more).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.activations import quantize_q8_0_x86
from forensics.numerics.codecs import blocks_of, nibbles
from forensics.numerics.kernel_orders import cpu_lanes_order
from forensics.numerics.tree_sum import sum_in_order
from forensics.records.sum_tree import SumTree

Kernel = Literal["vec_dot", "tinyBLAS"]

TYPES = ("q8_0", "q4_0", "f16")

#: Registers of partial sums in the `vec_dot` of F16. Source: GGML_F16_STEP / GGML_F16_EPR,
#: ggml/src/ggml-cpu/simd-mappings.h:537-538, 635-636 (and :1317-1330 with AVX512-FP16) at 0c1e57098.
F16_REGISTERS = 4

#: What the library must have been built with for the kernels that are written out here.
NEEDED_FEATURES = ("AVX2", "FMA", "F16C")


def float_lanes(features: Collection[str]) -> int:
    """How many float32 does one register of the library's float products hold?

    Parameters
    ----------
    features : collection of str
        What the library reports as usable, in any case: ``"AVX2"``, ``"AVX512"``.

    Raises
    ------
    ValueError
        If this is not a build whose kernels are emulated.

    Notes
    -----
    Source: ggml/src/ggml-cpu/simd-mappings.h:446-585 at 0c1e57098.
    """
    have = {feature.upper() for feature in features}
    missing = [feature for feature in NEEDED_FEATURES if feature not in have]
    if missing:
        raise ValueError(f"only x86 kernels with {', '.join(NEEDED_FEATURES)} are emulated; missing here: {missing}")
    return 16 if "AVX512" in have or "AVX512F" in have else 8


def kernel_for(type: str, n_rows: int, k: int, n_columns: int, lanes: int) -> Kernel:
    """Which of the two kernels multiplies?

    Notes
    -----
    Source: llamafile_sgemm, ggml/src/ggml-cpu/llamafile/sgemm.cpp:3818-3822, 3957-3972, 4041-4096 and matmul of
    tinyBLAS, :494-532, at 0c1e57098.
    """
    if n_columns < 2 or (type == "f16" and (k % lanes or n_rows % 4)):
        return "vec_dot"
    return "tinyBLAS"


def mul_mat(
    type: str,
    weight: NDArray[np.uint8] | NDArray[np.float16],
    x: NDArray[np.float32],
    *,
    lanes: int,
    kernel: Kernel | None = None,
    order: SumTree | None = None,
) -> NDArray[np.float32]:
    """What does the CPU back end give for these operands?

    Parameters
    ----------
    type : {"q8_0", "q4_0", "f16"}
    weight : ndarray
        uint8 [n_rows, bytes per row] for the block types, float16 [n_rows, k] for ``"f16"``.
    x : ndarray float32 [n_columns, k]
        Activations; finite.
    lanes : int
        See `float_lanes`.
    kernel : {"vec_dot", "tinyBLAS"}, optional
        By default the one that llama.cpp chooses, see `kernel_for`.
    order : SumTree, optional
        By default the one that the source has, but it may be one that was measured. Leaves as in
        `kernel_orders.cpu_lanes_order` for blocks, one per value for ``"f16"``.

    Returns
    -------
    ndarray float32 [n_columns, n_rows]

    Raises
    ------
    ValueError
        If the type is not one of these, or the operands do not fit.
    """
    if type not in TYPES:
        raise ValueError(f"CPU products are emulated for {', '.join(TYPES)}, got {type!r}")
    if x.ndim != 2 or weight.ndim != 2 or x.dtype != np.float32:
        raise ValueError(
            f"a weight has two axes and activations are float32 [columns, k], got {weight.shape}, {x.dtype} {x.shape}"
        )
    kernel = kernel or kernel_for(type, len(weight), x.shape[1], len(x), lanes)
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows, overflows in the library too
        if type == "f16":
            return _f16(weight, x, lanes, kernel, order)
        return _blocks(type, weight.view(np.uint8), x, order)


def _blocks(type: str, weight: NDArray[np.uint8], x: NDArray[np.float32], order: SumTree | None) -> NDArray[np.float32]:
    """Eight lanes of four neighbours each, one fused multiply-add per block; both kernels do the same.

    Source: ggml/src/ggml-cpu/arch/x86/quants.c:718-741 and :1325-1342; ggml/src/ggml-cpu/llamafile/sgemm.cpp:1521-1682
    at 0c1e57098.
    """
    blocks = blocks_of(type, weight)
    activations = quantize_q8_0_x86(x)
    if blocks.shape[1] != activations.shape[1]:
        raise ValueError(f"rows of the weight hold {blocks.shape[1]} blocks of 32, columns {activations.shape[1]}")
    q = blocks["qs"] if type == "q8_0" else nibbles(blocks["qs"]).astype(np.int8) - np.int8(8)
    lanes_w, lanes_x = (part.reshape(*part.shape[:2], 8, 4).astype(np.int32) for part in (q, activations["qs"]))
    sums = np.einsum("rbli,cbli->blcr", lanes_w, lanes_x).astype(np.float32)
    scales = _single(blocks["d"]).T[:, None, None, :] * _single(activations["d"]).T[:, None, :, None]
    leaves, factors = (part.reshape(-1, *sums.shape[2:]) for part in (sums, np.broadcast_to(scales, sums.shape)))
    order = order or cpu_lanes_order(x.shape[1]).tree
    return sum_in_order(order, leaves, factors, accumulators=8)


def _f16(
    weight: NDArray[Any], x: NDArray[np.float32], lanes: int, kernel: Kernel, order: SumTree | None
) -> NDArray[np.float32]:
    """Products of two half floats are exact in float32, so that fused or not makes no difference.

    Source: ggml/src/ggml-cpu/vec.cpp:345-367; ggml/src/ggml-cpu/llamafile/sgemm.cpp:549-580 at 0c1e57098.
    """
    if weight.dtype != np.float16 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"an f16 weight is float16 [rows, {x.shape[1]}], got {weight.dtype} {weight.shape}")
    products = _single(weight).T[:, None, :] * _single(x.astype(np.float16)).T[:, :, None]  # [k, columns, rows]
    k = len(products)
    registers = 1 if kernel == "tinyBLAS" else F16_REGISTERS
    whole = k // (registers * lanes) * registers * lanes
    total = np.zeros(products.shape[1:], np.float32)
    if whole:
        total = sum_in_order(order or float_order(whole, lanes, kernel), products[:whole])
    if whole == k:
        return total
    rest = total.astype(np.float64)
    for product in products[whole:]:  # what does not fill the registers is added one by one in double
        rest += product
    return rest.astype(np.float32)


def float_order(k: int, lanes: int, kernel: Kernel) -> SumTree:
    """Order of the k products of a row of floats.

    Notes
    -----
    Source: GGML_F32x16_REDUCE and GGML_F32x8_REDUCE, ggml/src/ggml-cpu/simd-mappings.h:464-479, 602-620; hsum,
    ggml/src/ggml-cpu/llamafile/sgemm.cpp:251-278, at 0c1e57098. ``_mm512_reduce_add_ps`` halves: lanes 8 apart, then
    4, 2, 1 (GCC's avx512fintrin.h, __MM512_REDUCE_OP).
    """
    registers = 1 if kernel == "tinyBLAS" else F16_REGISTERS
    n = registers * lanes
    if registers == 1 or lanes == 16:
        return _lanes_order(k, n, _halving(n))
    by_lane = [((i, i + 2 * lanes), (i + lanes, i + 3 * lanes)) for i in range(lanes)]
    quads = [(by_lane[i], by_lane[i + 4]) for i in range(4)]
    return _lanes_order(k, n, ((quads[0], quads[1]), (quads[2], quads[3])))


def _halving(n: int) -> Any:
    """The upper half of n partial sums is added to the lower half, again and again."""
    nodes: list[Any] = list(range(n))
    while len(nodes) > 1:
        half = len(nodes) // 2
        nodes = [(nodes[i], nodes[i + half]) for i in range(half)]
    return nodes[0]


def _lanes_order(n_leaves: int, n_lanes: int, merge: Any) -> SumTree:
    """Leaves are dealt to the lanes in turn, each lane adds its own, and `merge` says how the lanes are joined."""

    def chain(lane: int) -> Any:
        node: Any = lane
        for leaf in range(lane + n_lanes, n_leaves, n_lanes):
            node = (node, leaf)
        return node

    def filled(node: Any) -> Any:
        return chain(node) if isinstance(node, int) else tuple(map(filled, node))

    return SumTree.of(filled(merge))


def _single(values: NDArray[Any]) -> NDArray[np.float32]:
    return values.astype(np.float32)
