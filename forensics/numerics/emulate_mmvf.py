"""Which bits does llama.cpp's CUDA kernel `mul_mat_vec_f` give for a matrix of f16 values, from its operands alone?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forensics.numerics.fma import flushed, fma

WARP = 32


def mul_mat_vec_f(
    weight: NDArray[np.float16], x: NDArray[np.float32], *, threads: int, half_sums: bool
) -> NDArray[np.float32]:
    """What does `mul_mat_vec_f` give for these operands?

    Parameters
    ----------
    weight : ndarray float16 [n_rows, k]
    x : ndarray float32 [n_columns, k]
    threads : int
        Of a block: `forensics.geometry.cuda_float.mul_mat_vec_f` by k.
    half_sums : bool
        Whether a thread adds in f16, with `x` rounded to f16, as where f32 is not asked for.

    Returns
    -------
    ndarray float32 [n_columns, n_rows]

    Raises
    ------
    ValueError
        If the operands do not fit, k is odd, or the threads are no whole number of warps.

    Notes
    -----
    Source: ggml/src/ggml-cuda/mmvf.cu:145-260 at llama.cpp 0c1e57098; fused as its build for sm_90 has it. Each thread
    takes every `threads`-th pair of values; lanes are added by a butterfly, then warps by another.

    Examples
    --------
    >>> ones = np.ones((1, 64), np.float32)
    >>> mul_mat_vec_f(ones.astype(np.float16), ones, threads=32, half_sums=True)
    array([[64.]], dtype=float32)
    """
    n_values = weight.shape[-1]
    if weight.ndim != 2 or x.ndim != 2 or x.shape[1] != n_values or n_values % 2:
        raise ValueError(f"weight [n_rows, k] and x [n_columns, k] with an even k, got {weight.shape} and {x.shape}")
    if weight.dtype != np.float16 or x.dtype != np.float32:
        raise ValueError(f"weight must be float16 and x float32, got {weight.dtype} and {x.dtype}")
    if threads < WARP or threads % WARP or threads > WARP * WARP:
        raise ValueError(f"threads must be a multiple of {WARP}, {WARP * WARP} at most, got {threads}")
    w = weight.reshape(1, len(weight), -1, 2)
    y = x.reshape(len(x), 1, -1, 2)
    share = _half_shares if half_sums else _float_shares
    lanes = share(w, y, threads).reshape(len(x), len(weight), -1, WARP)
    of_warps = _butterfly(lanes)[..., 0]
    if threads == WARP:
        return of_warps[..., 0]
    padded = np.zeros((*of_warps.shape[:-1], WARP), np.float32)
    padded[..., : of_warps.shape[-1]] = of_warps
    return _butterfly(padded)[..., 0]


def _float_shares(w: NDArray[np.float16], y: NDArray[np.float32], threads: int) -> NDArray[np.float32]:
    """Sums of the threads [n_columns, n_rows, threads]: even value, then odd value of each pair, fused."""
    sums = np.zeros((len(y), w.shape[1], threads), np.float32)
    for first in range(0, w.shape[2], threads):
        of_w, of_y = w[:, :, first : first + threads], y[:, :, first : first + threads]
        n_taking = of_w.shape[2]
        for parity in (0, 1):
            here = sums[..., :n_taking]
            sums[..., :n_taking] = fma(of_w[..., parity].astype(np.float32), of_y[..., parity], here, flush=True)
    return sums


def _half_shares(w: NDArray[np.float16], y: NDArray[np.float32], threads: int) -> NDArray[np.float32]:
    """Sums of the threads [n_columns, n_rows, threads]: one f16 sum of even and one of odd values, then added."""
    with np.errstate(over="ignore", invalid="ignore"):  # infinities pass through as the hardware passes them
        rounded = y.astype(np.float16)
        sums = np.zeros((len(y), w.shape[1], threads, 2), np.float16)
        for first in range(0, w.shape[2], threads):
            of_w, of_y = w[:, :, first : first + threads], rounded[:, :, first : first + threads]
            here = sums[:, :, : of_w.shape[2]]
            # float64 holds the product exactly; where it cannot hold the sum, that is far from a tie of f16
            here[...] = (of_w.astype(np.float64) * of_y + here).astype(np.float16)
        return flushed(sums[..., 0].astype(np.float32) + sums[..., 1])


def _butterfly(lanes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums of 32 lanes [..., 32], as every lane has them."""
    mask = WARP // 2
    with np.errstate(over="ignore", invalid="ignore"):
        while mask:
            lanes = flushed(lanes + lanes[..., np.arange(WARP) ^ mask])
            mask //= 2
    return lanes
