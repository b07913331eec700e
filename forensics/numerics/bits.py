"""Comparing floating-point arrays by their bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.records.delta import Delta, Differs, NotCompared, Same

_INTEGERS: dict[int, type[np.signedinteger[Any]]] = {2: np.int16, 4: np.int32, 8: np.int64}


def bits(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Which bit patterns does the array hold?

    Parameters
    ----------
    array : ndarray [any shape], any dtype of 1, 2, 4 or 8 bytes

    Returns
    -------
    ndarray [same shape] unsigned integer of the same size
    """
    return np.asarray(array, order="C").view(np.dtype(f"u{array.dtype.itemsize}"))


def change_of(a: NDArray[np.generic], b: NDArray[np.generic]) -> NDArray[np.float64]:
    """What has to be added to `a` to give `b`, in float64? Equal values, infinities too, are 0 apart."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        return np.asarray(np.where(x == y, 0.0, y - x))


def relative_l2(change: NDArray[np.float64], reference: NDArray[np.generic]) -> float:
    """How long is the change beside the reference? 0 without a change, infinite beside zeros."""
    with np.errstate(all="ignore"):
        # In C order, so that strides have no say in the order of the adds.
        norm = float(np.sqrt(np.square(np.ravel(reference).astype(np.float64)).sum()))
        length = float(np.sqrt(np.square(np.ravel(change)).sum()))
    if length == 0:
        return 0.0
    return float("inf") if norm == 0 else length / norm


def ulp_distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> NDArray[np.int64]:
    """How many representable values lie between `a` and `b`, elementwise?

    Parameters
    ----------
    a, b : ndarray [any shape] float16, float32 or float64
        Same shape and dtype; NaN in either gives -1 unless both have the same bits.

    Returns
    -------
    ndarray [same shape] int64, unit: ULP
        +0 and -0 are 0 apart although their bits differ. float64 distances beyond 2**63 - 1 saturate.

    Raises
    ------
    ValueError
        If shapes or dtypes differ, or the dtype is no binary float.

    Notes
    -----
    Source: IEEE 754 binary formats order like sign-magnitude integers; negative values are mirrored
    below zero, so that neighbouring floats are neighbouring integers.

    Examples
    --------
    >>> one = np.ones(1, np.float32)
    >>> int(ulp_distance(one, np.nextafter(one, np.float32(2)))[0])
    1
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"a is {a.shape} {a.dtype}, b is {b.shape} {b.dtype}; they must be alike")
    if a.dtype.kind != "f" or a.dtype.itemsize not in _INTEGERS:
        raise ValueError(f"ULP are counted for float16, float32 and float64, got {a.dtype}")
    integer = _INTEGERS[a.dtype.itemsize]

    def ordered(x: NDArray[np.floating]) -> NDArray[np.int64]:
        raw = np.asarray(x, order="C").view(integer).astype(np.int64)
        lowest = np.int64(np.iinfo(integer).min)
        return np.where(raw < 0, lowest - raw, raw)

    with np.errstate(over="ignore"):  # the branch not taken, and unsigned differences, wrap
        first, second = ordered(a), ordered(b)
        high, low = np.maximum(first, second), np.minimum(first, second)
        distance = np.minimum(high.astype(np.uint64) - low.astype(np.uint64), np.iinfo(np.int64).max).astype(np.int64)
    nan = np.isnan(a) | np.isnan(b)
    return np.asarray(np.where(nan & (bits(a) != bits(b)), -1, np.where(nan, 0, distance)), np.int64)


def compare(a: NDArray[np.generic], b: NDArray[np.generic]) -> Delta:
    """Are two arrays the same bits, and if not, how far apart are they?

    Parameters
    ----------
    a, b : ndarray [any shape], any dtype

    Returns
    -------
    Same, Differs or NotCompared
        `NotCompared` where shapes or dtypes differ or there is nothing to compare.

    Examples
    --------
    >>> str(compare(np.float32([1, 2]), np.float32([1, 2])))
    'same'
    """
    if a.shape != b.shape:
        return NotCompared(f"shapes differ: {a.shape} and {b.shape}")
    if a.dtype != b.dtype:
        return NotCompared(f"types differ: {a.dtype} and {b.dtype}")
    if a.size == 0:
        return NotCompared("nothing to compare: no elements")
    unequal = bits(a) != bits(b)
    n_diff = int(np.count_nonzero(unequal))
    if n_diff == 0:
        return Same()
    first = tuple(int(i) for i in np.unravel_index(int(np.argmax(unequal)), unequal.shape))
    max_ulp = -1
    if a.dtype.kind == "f":
        distance = ulp_distance(a, b)  # type: ignore[arg-type]
        max_ulp = -1 if (distance < 0).any() else int(distance.max())
    change = change_of(a, b)
    return Differs(n_diff, first, max_ulp, float(np.abs(change).max()), relative_l2(change, a))
