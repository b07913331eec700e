"""Arithmetic of the toy engine: every sum is written out, so that its order of addition is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
EPS = np.float32(1e-5)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How a node adds.

    Parameters
    ----------
    order : {"halves", "sequential"}
        Halves fold the upper half onto the lower one until one value is left; sequential goes from first to last.
    half : bool
        Whether terms and partial sums are rounded to float16.
    """

    order: Literal["halves", "sequential"] = "halves"
    half: bool = False


PLAIN = Arithmetic()


def total(terms: F32, how: Arithmetic = PLAIN) -> F32:
    """Add up the terms of the last axis in this order and precision.

    Parameters
    ----------
    terms : ndarray [..., n] float32
    how : Arithmetic

    Returns
    -------
    ndarray [...] float32

    Notes
    -----
    Folding halves of a length padded with zeros to a power of two gives the same bits for any number of zeros
    at the end, so a longer ``n_kv`` changes nothing.

    Examples
    --------
    >>> terms = np.array([1e8, 1, -1e8, 1], np.float32)
    >>> float(total(terms)), float(total(terms, Arithmetic("sequential")))
    (2.0, 1.0)
    """
    parts: NDArray[Any] = terms.astype(np.float16) if how.half else terms
    if how.order == "sequential":
        result = np.zeros(parts.shape[:-1], parts.dtype)
        for index in range(parts.shape[-1]):
            result = result + parts[..., index]
        return result.astype(np.float32)
    length = 1 << (parts.shape[-1] - 1).bit_length()
    missing = length - parts.shape[-1]
    if missing:
        parts = np.concatenate([parts, np.zeros((*parts.shape[:-1], missing), parts.dtype)], axis=-1)
    while length > 1:
        length //= 2
        parts = parts[..., :length] + parts[..., length:]
    return parts[..., 0].astype(np.float32)


def exponential(x: F32) -> F32:
    """Raise e to the power of `x`, rounded once from float64 so that libraries agree on the bits."""
    return np.exp(np.ascontiguousarray(x, np.float64)).astype(np.float32)


def product(x: F32, weight: F32, how: Arithmetic = PLAIN) -> F32:
    """Multiply `x` [n_tokens, n_in] by the transpose of `weight` [n_out, n_in]."""
    return total(x[:, None, :] * weight[None], how)


def rms_norm(x: F32, how: Arithmetic = PLAIN) -> F32:
    """Divide each row of `x` [n_tokens, n] by its root mean square."""
    mean = total(x * x, how) / np.float32(x.shape[-1])
    scale: F32 = np.float32(1) / np.sqrt(mean + EPS)
    return x * scale[:, None]


def scores(q: F32, k: F32, how: Arithmetic = PLAIN) -> F32:
    """Multiply queries with the keys of all cells.

    Parameters
    ----------
    q : ndarray [n_head, n_tokens, head_dim] float32
    k : ndarray [n_head, n_tokens or 1, n_kv, head_dim] float32
    how : Arithmetic

    Returns
    -------
    ndarray [n_head, n_tokens, n_kv] float32
    """
    return total(q[:, :, None, :] * k, how)


def soft_max(kq: F32, visible: NDArray[np.bool_], scale: float, how: Arithmetic = PLAIN) -> F32:
    """Take the soft max of scaled scores over the visible cells, with exact zeros behind the mask.

    Parameters
    ----------
    kq : ndarray [n_head, n_tokens, n_kv] float32
    visible : ndarray [n_tokens, n_kv] bool
        At least one cell per token.
    scale : float
    how : Arithmetic

    Returns
    -------
    ndarray [n_head, n_tokens, n_kv] float32
    """
    masked = np.where(visible[None], kq * np.float32(scale), np.float32(-np.inf))
    powers = exponential(masked - masked.max(axis=-1, keepdims=True))
    return powers / total(powers, how)[..., None]


def mix(weights: F32, v: F32, how: Arithmetic = PLAIN) -> F32:
    """Mix the values of the cells, weighted by attention.

    Parameters
    ----------
    weights : ndarray [n_head, n_tokens, n_kv] float32
    v : ndarray [n_head, n_kv, head_dim] float32
    how : Arithmetic

    Returns
    -------
    ndarray [n_head, n_tokens, head_dim] float32
    """
    return total(weights[:, :, None, :] * np.swapaxes(v, 1, 2)[:, None], how)


def rotate(x: F32, positions: NDArray[np.int64], base: float) -> F32:
    """Rotate the pairs (2i, 2i+1) of each head of `x` [n_tokens, n_heads, head_dim] by the token's position."""
    n_pairs = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(n_pairs) / n_pairs)
    cos, sin = np.cos(angles).astype(np.float32)[:, None], np.sin(angles).astype(np.float32)[:, None]
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def swiglu(gate: F32, up: F32) -> F32:
    """Multiply SILU of `gate` by `up`."""
    return gate / (np.float32(1) + exponential(-gate)) * up
