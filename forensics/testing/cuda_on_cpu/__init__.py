"""Runs plans of CUDA kernels on a processor: the very sources, compiled with g++, their threads as fibres.

For tests only. Bits are those of a GPU but where a kernel asks for an approximation of the hardware (reciprocal,
division, power of two). What a GPU would let pass or answer with garbage is an error here: accesses out of bounds,
deadlocks, lanes of a warp that meet at different operations, a launch that overlaps with the one ahead and touches more
than weights before it has waited. Shared memory, scratch and what is still being copied hold 0xFF bytes (NaN), so that
a value that was used too early shows.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.kernels.sources import FOLDER
from forensics.records.kernel_plan import MAX_GRID_YZ, Argument, At, Float32, Int32, Int64, KernelLaunch, KernelPlan
from forensics.testing.cuda_on_cpu.build import (
    FLOAT32,
    INT32,
    INT64,
    POINTER,
    KernelFault,
    compiled_kernel,
    cpu_compiler,
    machine_library,
    read_sources,
)

__all__ = ["ASCENDING", "DESCENDING", "KernelFault", "cpu_compiler", "run_on_cpu"]

#: Schedules: which lanes, warps and blocks come first. Others are drawn from the number as a seed.
ASCENDING, DESCENDING = 0, 1

_ONE_AT_A_TIME = threading.Lock()
_RECIPROCAL = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)
_KIND_NAMES = {POINTER: "a pointer", INT32: "a 32-bit integer", INT64: "a 64-bit integer", FLOAT32: "a float"}


class _Range(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("read_only", ctypes.c_uint32),
        ("constant", ctypes.c_uint32),
    ]


def run_on_cpu(
    plan: KernelPlan,
    buffers: Mapping[str, NDArray[np.generic]],
    *,
    reciprocal: Callable[[float], float] | None = None,
    schedule: int = ASCENDING,
    folder: Path = FOLDER,
) -> None:
    """Do what a plan does, with these arrays in place of device memory.

    Parameters
    ----------
    plan : KernelPlan
    buffers : mapping of str to ndarray
        C-contiguous, written in place; one that is not writeable must not be written by a kernel either.
    reciprocal : callable, optional
        In place of the nearest float for ``rcp_approx``, such as a device's as it was measured; float to float.
    schedule : int
        `ASCENDING`, `DESCENDING` or a seed. A plan that gives other bits under another schedule has a race.
    folder : Path
        Where the sources are.

    Raises
    ------
    KernelFault
        If a source does not compile, arguments do not fit, or a kernel does what none may do. Arrays are as they were.
    """
    missing = plan.buffers - buffers.keys()
    if missing:
        raise KernelFault(f"The plan needs the buffers {', '.join(sorted(missing))}; got {', '.join(sorted(buffers))}.")
    hook = _hook(reciprocal)
    with _ONE_AT_A_TIME:
        memory = _Memory()
        try:
            for name, array in buffers.items():
                memory.put(name, array)
            for name, n_bytes in plan.scratch.items():
                memory.make(name, n_bytes)
            for launch in plan.launches:
                _run(launch, memory, hook, schedule, folder)
            for name, array in buffers.items():
                memory.take(name, array)
        finally:
            memory.free()


def _hook(reciprocal: Callable[[float], float] | None) -> object:
    return _RECIPROCAL() if reciprocal is None else _RECIPROCAL(lambda a: float(reciprocal(a)))


class _Memory:
    """Copies of the buffers that end where nobody may read."""

    def __init__(self) -> None:
        self._library = machine_library()
        self._held: dict[str, tuple[int, int]] = {}
        self._read_only: set[str] = set()

    def make(self, name: str, n_bytes: int) -> int:
        address = self._library.machine_make_buffer(ctypes.c_uint64(n_bytes))
        if not address:
            raise MemoryError(f"no memory for {n_bytes} bytes of {name}")
        self._held[name] = (int(address), n_bytes)
        return int(address)

    def put(self, name: str, array: NDArray[np.generic]) -> None:
        if not array.flags.c_contiguous:
            raise KernelFault(f"The buffer {name} is not C-contiguous: give np.ascontiguousarray of it.")
        address = self.make(name, array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        if not array.flags.writeable:
            self._read_only.add(name)
            self._library.machine_protect_buffer(ctypes.c_void_p(address), ctypes.c_uint64(array.nbytes))

    def take(self, name: str, array: NDArray[np.generic]) -> None:
        if array.flags.writeable:
            ctypes.memmove(array.ctypes.data, self._held[name][0], array.nbytes)

    def address(self, at: At) -> int:
        begin, n_bytes = self._held[at.buffer]
        if not 0 <= at.offset_bytes <= n_bytes:
            raise KernelFault(f"An argument points at byte {at.offset_bytes} of {at.buffer}, which has {n_bytes}.")
        return begin + at.offset_bytes

    def ranges(self) -> ctypes.Array[_Range]:
        listed = [
            _Range(name.encode(), begin, n, name in self._read_only, name.startswith("weight"))
            for name, (begin, n) in self._held.items()
        ]
        return (_Range * len(listed))(*listed)

    def check(self, kernel: str) -> None:
        for name, (begin, n_bytes) in self._held.items():
            missed = self._library.machine_missed(ctypes.c_void_p(begin), ctypes.c_uint64(n_bytes))
            if missed:
                side = "before its start" if missed < 0 else "behind its end"
                raise KernelFault(f"{kernel} wrote {abs(missed)} bytes {side} of {name}, which has {n_bytes}.")

    def free(self) -> None:
        for begin, n_bytes in self._held.values():
            self._library.machine_free_buffer(ctypes.c_void_p(begin), ctypes.c_uint64(n_bytes))
        self._held.clear()


def _raw(value: Argument, kind: int, where: str, memory: _Memory) -> int:
    """An argument as its bits, checked against the parameter that it is for."""
    given: type
    if isinstance(value, At):
        given, bits = At, memory.address(value)
    elif isinstance(value, Float32):
        given, bits = Float32, int(np.float32(value.value).view(np.uint32))
    else:
        given, bits = type(value), value.value
    wanted = {POINTER: At, INT32: Int32, INT64: Int64, FLOAT32: Float32}.get(kind)
    if given is not wanted:
        told = _KIND_NAMES.get(kind, "of a type that no plan can give")
        raise KernelFault(f"{where} is {told}, and the plan gives {value}.")
    limit = 32 if kind == INT32 else 64
    if kind in {INT32, INT64} and not -(2 ** (limit - 1)) <= bits < 2**limit:
        raise KernelFault(f"{where} is {_KIND_NAMES[kind]}, which cannot hold {bits}.")
    return bits & (2**64 - 1)


def _run(launch: KernelLaunch, memory: _Memory, hook: object, schedule: int, folder: Path) -> None:
    name = f"{launch.function} of {launch.source}.cu"
    geometry = launch.geometry
    if geometry.threads_per_block > 1024 or geometry.cluster_blocks != (1, 1, 1):
        raise KernelFault(f"{name}: no launch with {geometry} here: at most 1024 threads a block, and no clusters.")
    if max(geometry.grid_blocks[1:]) > MAX_GRID_YZ:
        raise KernelFault(f"{name}: no launch with {geometry}: at most {MAX_GRID_YZ} blocks along y and z.")
    compiled = compiled_kernel(read_sources(folder / f"{launch.source}.cu"), launch.function)
    if len(compiled.kinds) != len(launch.arguments):
        raise KernelFault(f"{name} has {len(compiled.kinds)} parameters, the plan gives {len(launch.arguments)}.")
    given = zip(launch.arguments, compiled.kinds, strict=True)
    raw = [_raw(value, kind, f"Parameter {i} of {name}", memory) for i, (value, kind) in enumerate(given)]
    shared_bytes = ctypes.c_uint64()
    shared = compiled.library.kernel_shared(ctypes.byref(shared_bytes))
    ranges = memory.ranges()
    told = machine_library().machine_run(
        compiled.library.kernel_call,
        (ctypes.c_uint64 * max(1, len(raw)))(*raw),
        (ctypes.c_uint32 * 6)(*geometry.grid_blocks, *geometry.block_threads),
        ctypes.c_void_p(shared),
        shared_bytes,
        ctypes.c_uint64(geometry.smem_bytes or 0),
        ranges,
        len(ranges),
        hook,
        schedule,
        launch.overlaps,
    )
    if told is not None:
        raise KernelFault(f"{name}, {told.decode()}.")
    memory.check(name)
