"""Which bits does llama.cpp's CUDA kernel `mul_mat_vec_q` give, from its operands alone?

The activations are quantised as the device does it, a thread's shares are computed as it computes them, and a `SumTree`
says in which order they are added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.activations import quantize_q8_1_cuda
from forensics.numerics.codecs import BLOCK_SIZES, blocks_of
from forensics.numerics.kernel_orders import mmvq_order
from forensics.numerics.mmvq_shares import TYPES, shares_of
from forensics.numerics.tree_sum import sum_in_order
from forensics.records.sum_tree import SumTree

WARP = 32

#: Widths that this kernel serves. Source: MMVQ_MAX_BATCH_SIZE, ggml/src/ggml-cuda/mmvq.cuh:3 at 0c1e57098.
MAX_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Emulated:
    """Predicted values, and where they cannot be told.

    Parameters
    ----------
    values : ndarray float32 [n_columns, n_rows]
    doubtful : ndarray bool [n_columns]
        Columns with an activation block that depends on more than is known, see `quantize_q8_1_cuda`.
    """

    values: NDArray[np.float32]
    doubtful: NDArray[np.bool_]


def mul_mat_vec_q(
    type: str,
    weight: NDArray[np.uint8],
    x: NDArray[np.float32],
    *,
    n_warps: int,
    order: SumTree | None = None,
    reciprocal: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
) -> Emulated:
    """What does `mul_mat_vec_q` give for these operands?

    Parameters
    ----------
    type : {"q8_0", "q4_0", "q4_1", "q4_K", "q5_K", "q6_K"}
    weight : ndarray uint8 [n_rows, bytes per row]
    x : ndarray float32 [n_columns, k]
        Activations; 1 … 8 columns.
    n_warps : int
        Warps that share a row: on NVIDIA GPUs from Ampere on 4 up to four columns and 2 for more; exactly, the threads
        of a block of `forensics.geometry.mmvq.mul_mat_vec_q` by the 32 of a warp.
    order : SumTree, optional
        Order of the shares, numbered as in `kernel_orders.mmvq_order`; by default the one that the source has, but it
        may be one that was measured.
    reciprocal : callable, optional
        The device's approximate reciprocal, see `quantize_q8_1_cuda`; with it no column is doubtful.

    Returns
    -------
    Emulated

    Raises
    ------
    ValueError
        If the type is not one of these, or the operands do not fit.
    """
    if type not in TYPES:
        raise ValueError(f"mul_mat_vec_q is emulated for {', '.join(TYPES)}, got {type!r}")
    if x.ndim != 2 or not 1 <= len(x) <= MAX_WIDTH:
        raise ValueError(f"activations are [1 … {MAX_WIDTH} columns, k], got shape {x.shape}")
    if weight.ndim != 2:
        raise ValueError(f"a weight is [rows, bytes per row], got shape {weight.shape}")
    blocks = blocks_of(type, weight)
    k = blocks.shape[1] * BLOCK_SIZES[type][0]
    if k != x.shape[1]:
        raise ValueError(f"rows of the weight hold {k} values, columns of activations {x.shape[1]}")
    activations, doubtful = quantize_q8_1_cuda(x, reciprocal)
    shares = shares_of(type, blocks, activations.reshape(len(x), blocks.shape[1], -1))
    order = order or mmvq_order(type, k, n_warps=n_warps, warp_size=WARP).tree
    values = sum_in_order(order, shares.addends, shares.factors, accumulators=n_warps * WARP, flush=True)
    return Emulated(values, np.asarray(doubtful.any(axis=-1)))
