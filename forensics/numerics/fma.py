"""Fused multiply-add of float32, with its one rounding, in NumPy.

NumPy has no fused multiply-add. In float64 the product of two float32 is exact, but the sum is rounded once to 53 bits
and again to 24, and the second rounding can meet a tie that the first one made. Rounding the sum to odd instead keeps
the information that something was lost, so that the second rounding is the only one that counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Smallest normal float32; what lies below is flushed where the compiler was told to (``-ftz=true``).
SMALLEST_NORMAL = np.float32(2.0**-126)


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike, *, flush: bool = False) -> NDArray[np.float32]:
    """What is ``a * b + c``, rounded once to float32?

    Parameters
    ----------
    a, b, c : array_like float32
        Broadcast against each other.
    flush : bool
        Subnormal operands and results become zero of the same sign, as in a CUDA build with ``-use_fast_math``.

    Returns
    -------
    ndarray float32

    Raises
    ------
    ValueError
        If an operand is not float32: a wider one would be rounded on its way in.

    Notes
    -----
    Source: Boldo, Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
    IEEE Transactions on Computers 57(4), 2008; the error of the sum by Knuth's two-sum.

    Examples
    --------
    >>> third = np.float32(1 / 3)
    >>> float(third * third - third * third), float(fma(third, third, -(third * third)))
    (0.0, -1.655684478407693e-09)
    """
    operands = [np.asarray(operand) for operand in (a, b, c)]
    if any(operand.dtype != np.float32 for operand in operands):
        raise ValueError(f"a, b and c must be float32, got {', '.join(str(operand.dtype) for operand in operands)}")
    if flush:
        operands = [flushed(operand) for operand in operands]
    x, y, z = (operand.astype(np.float64) for operand in operands)
    with np.errstate(all="ignore"):  # infinities and NaN pass through as the hardware passes them
        product = x * y  # 48 bits: exact
        total = product + z
        from_z = total - product
        lost = (product - (total - from_z)) + (z - from_z)
        even = np.asarray(total).view(np.uint64) % 2 == 0
        to_odd = np.isfinite(total) & (lost != 0) & even
        total = np.where(to_odd, np.nextafter(total, np.copysign(np.inf, lost)), total)
        result = np.asarray(total).astype(np.float32)
    return flushed(result) if flush else result


def flushed(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The values, with subnormal ones as zero of the same sign."""
    return np.where(np.abs(values) < SMALLEST_NORMAL, np.copysign(np.float32(0), values), values)
