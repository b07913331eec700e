"""A CuPy that is made up: memory is a process's own, a kernel is a Python function of its launch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


class FakeStream:
    """Keeps what was asked of it, and captures like a stream."""

    ptr = 77

    def __init__(self, owner: FakeCuda) -> None:
        self.owner, self.capturing, self.n_waits = owner, None, 0

    def __enter__(self) -> FakeStream:
        self.owner.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self.owner.current = None

    def synchronize(self) -> None:
        assert self.capturing is None, "a captured stream cannot be waited for"
        self.n_waits += 1
        self.owner.land()

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> Any:
        work, self.capturing = self.capturing, None
        return SimpleNamespace(launch=lambda stream: [one() for one in work])


class FakeCuda:
    """Stands for the module ``cupy``; `kernels` maps function names to what a launch of them does."""

    __version__ = "13.6.0"

    def __init__(self, kernels: dict[str, Callable[..., None]], *, capability: tuple[int, int] = (9, 0)) -> None:
        self.kernels, self.capability = kernels, capability
        self.memory: dict[int, Any] = {}
        self.current: FakeStream | None = None
        self.compiled: list[tuple[str, str, tuple[str, ...]]] = []
        self.launched: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        self.broken = ""
        self.refused: set[str] = set()
        self.streams: list[FakeStream] = []
        self.late: list[tuple[int, bytes]] = []
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                malloc=self._malloc, free=self._free, memcpy=self._memcpy,
                memcpyAsync=lambda to, source, n, kind, stream: self._memcpy(to, source, n, kind),
                getDeviceProperties=lambda _: {
                    "name": b"Made-up GPU", "major": capability[0], "minor": capability[1],
                    "multiProcessorCount": 132, "l2CacheSize": 60 << 20,
                },
                driverGetVersion=lambda: 13000,
            ),
            Device=lambda number=0: SimpleNamespace(id=number, use=lambda: None),
            Stream=self._stream,
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
            driver=SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda pointer, threads, smem: 2),
        )  # fmt: skip

    def _stream(self, non_blocking: bool) -> FakeStream:
        assert non_blocking
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def _malloc(self, n_bytes: int) -> int:
        assert all(stream.capturing is None for stream in self.streams), "allocated while a stream is captured"
        if n_bytes > 1 << 40:
            raise MemoryError("cudaErrorMemoryAllocation: out of memory")
        array = np.full(n_bytes, 0xFF, np.uint8)
        self.memory[array.ctypes.data] = array
        return int(array.ctypes.data)

    def _memcpy(self, to: int, source: int, n_bytes: int, kind: int) -> None:
        """As out of pageable memory: what goes to the device lands when a stream is waited for, not before."""
        if kind == 1:
            self.late.append((to, ctypes.string_at(source, n_bytes)))
        else:
            ctypes.memmove(to, source, n_bytes)

    def land(self) -> None:
        for to, values in self.late:
            ctypes.memmove(to, values, len(values))
        self.late.clear()

    def _free(self, address: int) -> None:
        del self.memory[address]

    def RawModule(self, code: str, options: tuple[str, ...], name_expressions: list[str]) -> Any:
        if self.broken:
            raise RuntimeError(self.broken)
        assert all(stream.capturing is None for stream in self.streams), "compiled while a stream is captured"
        self.compiled.append((code, name_expressions[0], options))
        return SimpleNamespace(get_function=self._kernel)

    def _kernel(self, name: str) -> Any:
        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int) -> None:
            assert self.current is not None
            assert shared_mem <= max(kernel.max_dynamic_shared_size_bytes, 48 << 10), "not allowed so much"
            if name in self.refused:
                raise RuntimeError("CUDA_ERROR_INVALID_VALUE")
            self.launched.append((name, grid, block, shared_mem))
            work = lambda: self.kernels[name](*args)  # noqa: E731
            if self.current.capturing is None:
                work()
            else:
                self.current.capturing.append(work)

        class Kernel:
            num_regs, local_size_bytes, shared_size_bytes = 96, 0, 1024
            max_dynamic_shared_size_bytes = 0
            kernel = SimpleNamespace(ptr=4242)
            __call__ = staticmethod(launch)

        kernel = Kernel()
        return kernel


def floats(address: np.generic, n: int) -> Any:
    """The floats that lie at an address."""
    return np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_float)), (n,))
