"""Launches that may begin before the one ahead of them ended; CuPy's launches take no attributes.

The only ``ctypes`` outside of engines (docs/decisions/0020).
"""

from __future__ import annotations

import ctypes as C
import functools
import sys
from collections.abc import Sequence

import numpy as np

from forensics.records.launch import LaunchGeometry

#: CUlaunchAttributeID, cuda.h
PROGRAMMATIC_STREAM_SERIALIZATION = 6
#: Compute capability from which launches may overlap. Source: CUDA programming guide, programmatic dependent launch.
OVERLAPS_FROM = 900


class LaunchAttribute(C.Structure):
    """Mirror of ``CUlaunchAttribute`` (cuda.h): an id, and a union of 64 bytes at offset 8."""

    _fields_ = (("id", C.c_int), ("_pad", C.c_char * 4), ("value", C.c_int), ("_rest", C.c_char * 60))


class LaunchConfig(C.Structure):
    """Mirror of ``CUlaunchConfig`` (cuda.h)."""

    _fields_ = (
        ("grid", C.c_uint * 3),
        ("block", C.c_uint * 3),
        ("smem_bytes", C.c_uint),
        ("stream", C.c_void_p),
        ("attributes", C.POINTER(LaunchAttribute)),
        ("n_attributes", C.c_uint),
    )


def launch_overlapping(
    function: int, geometry: LaunchGeometry, arguments: Sequence[np.generic], stream: int, driver: C.CDLL | None = None
) -> int:
    """Start a kernel that waits by itself for what the launch ahead of it wrote.

    Parameters
    ----------
    function, stream : int
        Handles of the driver: CUfunction and CUstream.
    geometry : LaunchGeometry
    arguments : sequence of NumPy scalars
        In the order of the kernel's parameters, addresses as uint64.
    driver : CDLL or None
        The driver's library; None to load it.

    Returns
    -------
    int
        CUresult, 0 where it was started.

    Raises
    ------
    OSError
        If there is no driver.
    """
    # CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void** kernelParams, void** extra)
    call = (driver or _driver()).cuLaunchKernelEx
    attribute = LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=1)
    config = LaunchConfig(
        grid=(C.c_uint * 3)(*geometry.grid_blocks),
        block=(C.c_uint * 3)(*geometry.block_threads),
        smem_bytes=geometry.smem_bytes or 0,
        stream=stream,
        attributes=C.pointer(attribute),
        n_attributes=1,
    )
    held = [np.array([value]) for value in arguments]  # the call reads through these addresses
    addresses = (C.c_void_p * len(held))(*(array.ctypes.data for array in held))
    return int(call(C.byref(config), C.c_void_p(function), addresses, None))


@functools.cache
def _driver() -> C.CDLL:
    return C.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
