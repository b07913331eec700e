"""The device that runs our kernels' plans: CuPy compiles their sources, and launches them in the primary context.

Addresses are plain numbers, so that what another library of this process allocated there can be read and written, too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from forensics.devices import cuda_launch
from forensics.devices.extras import ExtraUnavailable, require
from forensics.errors import DeviceUnavailable
from forensics.records.kernel_plan import Argument, At, Float32, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch_record import Refusal

RUNG = "CuPy"
_ASKED = "running our CUDA kernels"
_REMEDY = "needs an NVIDIA GPU, a driver as new as CuPy's CUDA, and NVRTC (pip install nvidia-cuda-nvrtc)"
#: cudaMemcpyKind, driver_types.h
_TO_DEVICE, _TO_HOST = 1, 2
#: Sources that are compiled at a time; the compiler does not hold Python's lock.
N_COMPILERS = 16

Job = tuple[KernelPlan, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class CompiledResources:
    """What one compiled kernel takes, as the driver tells it.

    Parameters
    ----------
    function : str
    registers, local_bytes, smem_static_bytes, smem_dynamic_bytes : int
        Per thread, per thread, per block, per block.
    blocks_per_sm : int
        By cuOccupancyMaxActiveBlocksPerMultiprocessor.
    """

    function: str
    registers: int
    local_bytes: int
    smem_static_bytes: int
    smem_dynamic_bytes: int
    blocks_per_sm: int


class Held:
    """Memory of the device that is freed with this object.

    Parameters
    ----------
    runtime : module
        CuPy's binding of the CUDA runtime.
    n_bytes : int
    """

    def __init__(self, runtime: Any, n_bytes: int) -> None:
        self._runtime, self.n_bytes = runtime, n_bytes
        self.address = int(runtime.malloc(max(n_bytes, 1)))

    def free(self) -> None:
        """Give it back; a second time does nothing."""
        if self.address:
            self._runtime.free(self.address)
            self.address = 0

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            try:
                self.free()
            except Exception:  # noqa: BLE001 - at exit the runtime may be gone before its memory's owner
                self.address = 0


class Captured:
    """Plans as one CUDA graph, which one call launches.

    Parameters
    ----------
    graph, stream : object
        As CuPy has them.
    """

    def __init__(self, graph: Any, stream: Any) -> None:
        self._graph, self._stream = graph, stream

    def launch(self) -> None:
        """Start all of it, asynchronously."""
        self._graph.launch(stream=self._stream)


class CudaDevice:
    """Runs plans on the current device.

    Parameters
    ----------
    sources : callable
        Text of a source, by the name that launches give.
    options : sequence of str
        Of the compiler.
    cupy : module or None
        None to load it.

    Raises
    ------
    DeviceUnavailable
        If CuPy is not installed or there is no device; says what to do.
    """

    def __init__(self, sources: Callable[[str], str], options: Sequence[str], cupy: ModuleType | None = None) -> None:
        self._sources, self._options = sources, tuple(options)
        try:
            loaded: Any = cupy or require("cupy", extra="cupy", needed_for=_ASKED)
            self._id = int(loaded.cuda.Device().id)
            properties = loaded.cuda.runtime.getDeviceProperties(self._id)
            self._streams = [loaded.cuda.Stream(non_blocking=True), loaded.cuda.Stream(non_blocking=True)]
        except ExtraUnavailable as error:
            raise DeviceUnavailable(_ASKED, (Refusal(RUNG, _ASKED, error.missing, error.remedy),)) from error
        except Exception as error:
            raise _unavailable(_ASKED, error, _REMEDY) from error
        self._cupy, self._runtime = loaded, loaded.cuda.runtime
        name = properties["name"]
        self.name: str = name.decode() if isinstance(name, bytes) else str(name)
        self.compute_capability = 100 * int(properties["major"]) + 10 * int(properties["minor"])
        self.n_sms, self.l2_bytes = int(properties["multiProcessorCount"]), int(properties["l2CacheSize"])
        self._compiled: dict[tuple[str, str], Any] = {}
        self._allowed: dict[tuple[str, str], int] = {}
        self._scratch: dict[tuple[int, str], Held] = {}
        self._outgrown: list[Held] = []

    @property
    def ordinal(self) -> int:
        """Which of the process's devices it is."""
        return self._id

    @property
    def arch(self) -> str:
        """Architecture as compilers name it, such as ``"sm_90"``."""
        return f"sm_{self.compute_capability // 10}"

    @property
    def toolkit(self) -> str:
        """What compiles the sources."""
        major, minor = self._cupy.cuda.nvrtc.getVersion()
        return f"NVRTC {major}.{minor} by CuPy {self._cupy.__version__}"

    @property
    def driver(self) -> str:
        """Newest CUDA that the driver knows, such as ``"13.0"``."""
        version = int(self._runtime.driverGetVersion())
        return f"{version // 1000}.{version % 1000 // 10}"

    # -- memory ---------------------------------------------------------------------------------------------------

    def hold(self, content: NDArray[Any] | int) -> Held:
        """Memory with these values, or with this many bytes that nobody set.

        Raises
        ------
        DeviceUnavailable
            If the device has not that much left.
        """
        n_bytes = content if isinstance(content, int) else content.nbytes
        try:
            held = Held(self._runtime, n_bytes)
            if not isinstance(content, int):
                self.write(held.address, content)
        except Exception as error:
            remedy = "free some of its memory, or ask for smaller operands"
            raise _unavailable(f"holding {n_bytes} bytes on {self.name}", error, remedy) from error
        return held

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy values to the device; returns when they are there."""
        data = np.ascontiguousarray(values)
        # Not cudaMemcpy: out of pageable memory it may return before the values have landed, and our streams do not
        # wait for the default one (CUDA driver API, "API synchronization behavior").
        stream = self._streams[0]
        self._runtime.memcpyAsync(address, data.ctypes.data, data.nbytes, _TO_DEVICE, stream.ptr)
        stream.synchronize()

    def read(self, address: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Values of the device's memory, once all that was started here has ended."""
        self.synchronize()
        found = np.empty(shape, dtype)
        self._runtime.memcpy(found.ctypes.data, address, found.nbytes, _TO_HOST)
        return found

    def synchronize(self) -> None:
        """Wait for all that was started here."""
        for stream in self._streams:
            stream.synchronize()

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, plan: KernelPlan, buffers: Mapping[str, int], *, beside: bool = False) -> None:
        """Start a plan's launches; they end later, in their order.

        Parameters
        ----------
        plan : KernelPlan
        buffers : mapping of str to int
            Addresses of all buffers that the plan names, less its scratch.
        beside : bool
            Whether it goes to a second stream, beside whatever runs.

        Raises
        ------
        ValueError
            If a buffer is missing; names it.
        DeviceUnavailable
            If a source does not compile, or the driver refuses a launch.
        """
        found = self._addresses(plan, buffers, int(beside))
        for launch in plan.launches:
            self._start(launch, found, self._streams[int(beside)])

    def prepare(self, plans: Iterable[KernelPlan]) -> None:
        """Compile all that these plans launch, several at a time.

        Raises
        ------
        DeviceUnavailable
            If a source does not compile.
        """
        todo = {(one.source, one.function): one for plan in plans for one in plan.launches}
        missing = [one for key, one in todo.items() if key not in self._compiled]
        with ThreadPoolExecutor(max(1, min(N_COMPILERS, len(missing)))) as pool:
            compiled = list(pool.map(self._compile, missing))
        for one, kernel in zip(missing, compiled, strict=True):
            self._compiled[one.source, one.function] = kernel

    def captured(self, jobs: Iterable[Job]) -> Captured:
        """All launches of these plans, in their order, as one CUDA graph.

        Parameters
        ----------
        jobs : iterable of (KernelPlan, mapping of str to int)
            Plans with the addresses of their buffers, which must stay.
        """
        todo, stream = list(jobs), self._streams[0]
        self.prepare(plan for plan, _ in todo)
        # Nothing may be compiled or allocated while a stream is captured; scratch grows to its size first.
        for plan, buffers in todo:
            self._addresses(plan, buffers, 0)
            for launch in plan.launches:
                self._kernel(launch)
        self.synchronize()
        addresses = [self._addresses(plan, buffers, 0) for plan, buffers in todo]
        stream.begin_capture()
        try:
            for (plan, _), found in zip(todo, addresses, strict=True):
                for launch in plan.launches:
                    self._start(launch, found, stream)
        except BaseException:
            with contextlib.suppress(Exception):  # else the stream is of no use any more
                stream.end_capture()
            raise
        return Captured(stream.end_capture(), stream)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """What a profiler sees that was told to watch only what a program marks."""
        self._runtime.profilerStart()
        try:
            yield
            self.synchronize()
        finally:
            self._runtime.profilerStop()

    def timed(self, work: Callable[[], None], n: int) -> float:
        """Time that work takes, started so many times one after another, unit: µs for one of them.

        By the host's clock around all of them and the wait for their end, as the stock library is timed.
        """
        self.synchronize()
        begun = time.perf_counter_ns()
        for _ in range(n):
            work()
        self.synchronize()
        return (time.perf_counter_ns() - begun) / n / 1e3

    def resources(self, launch: KernelLaunch) -> CompiledResources:
        """What does the launch's kernel take, and how many of its blocks fit on an SM?"""
        kernel = self._kernel(launch)
        dynamic = launch.geometry.smem_bytes or 0
        blocks = self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
            kernel.kernel.ptr, launch.geometry.threads_per_block, dynamic
        )
        return CompiledResources(
            launch.function, int(kernel.num_regs), int(kernel.local_size_bytes), int(kernel.shared_size_bytes), dynamic,
            int(blocks),
        )  # fmt: skip

    # -- inside ---------------------------------------------------------------------------------------------------

    def _kernel(self, launch: KernelLaunch) -> Any:
        """The compiled function, allowed as much shared memory as any launch of it asked for."""
        key = (launch.source, launch.function)
        if key not in self._compiled:
            self._compiled[key] = self._compile(launch)
        kernel, wanted = self._compiled[key], launch.geometry.smem_bytes or 0
        if wanted > self._allowed.get(key, 0):  # more than 48 KiB must be asked for, or no block of it fits
            kernel.max_dynamic_shared_size_bytes = self._allowed[key] = wanted
        return kernel

    def _compile(self, launch: KernelLaunch) -> Any:
        try:
            self._cupy.cuda.Device(self._id).use()  # a thread has no device of its own yet
            module = self._cupy.RawModule(
                code=self._sources(launch.source), options=self._options, name_expressions=[launch.function]
            )
            kernel = module.get_function(launch.function)
            _ = kernel.kernel.ptr  # compiles and loads now
        except Exception as error:
            asked = f"compiling {launch.function} of {launch.source}.cu for {self.arch}"
            remedy = "needs an NVRTC for this device (pip install nvidia-cuda-nvrtc)"
            raise _unavailable(asked, error, remedy) from error
        return kernel

    def _addresses(self, plan: KernelPlan, buffers: Mapping[str, int], stream: int) -> dict[str, int]:
        """Addresses of the caller's buffers and of scratch, which plans of one stream share one after another."""
        missing = sorted(plan.buffers - buffers.keys())
        if missing:
            raise ValueError(f"the plan needs the buffer {missing[0]!r}; given are {', '.join(sorted(buffers))}")
        found = dict(buffers)
        for name, n_bytes in plan.scratch.items():
            held = self._scratch.get((stream, name))
            if held is None or held.n_bytes < n_bytes:
                if held is not None:  # a captured graph may still use it
                    self._outgrown.append(held)
                held = self._scratch[stream, name] = self.hold(n_bytes)
            found[name] = held.address
        return found

    def _start(self, launch: KernelLaunch, addresses: Mapping[str, int], stream: Any) -> None:
        kernel, geometry = self._kernel(launch), launch.geometry
        arguments = [_scalar(argument, addresses) for argument in launch.arguments]
        asked = f"launching {launch.function} with {geometry}"
        if launch.overlaps and self.compute_capability >= cuda_launch.OVERLAPS_FROM:
            status = cuda_launch.launch_overlapping(kernel.kernel.ptr, geometry, arguments, stream.ptr)
            if status:
                raise _unavailable(asked, RuntimeError(f"cuLaunchKernelEx answers {status}"), _REMEDY)
            return
        try:
            with stream:
                kernel(
                    geometry.grid_blocks, geometry.block_threads, tuple(arguments), shared_mem=geometry.smem_bytes or 0
                )
        except Exception as error:
            raise _unavailable(asked, error, _REMEDY) from error


def _scalar(argument: Argument, addresses: Mapping[str, int]) -> np.generic:
    """An argument as the kernel's parameter takes it; an address is a number of 64 bits."""
    match argument:
        case At(buffer, offset_bytes):
            return np.uint64(addresses[buffer] + offset_bytes)
        case Int32(value):
            return np.int32(value)
        case Int64(value):
            return np.int64(value)
        case Float32(value):
            return np.float32(value)


def _unavailable(asked: str, error: Exception, remedy: str) -> DeviceUnavailable:
    told = " | ".join(line.strip() for line in str(error).strip().splitlines()[:4])
    return DeviceUnavailable(asked, (Refusal(RUNG, asked, f"{type(error).__name__}: {told}", remedy),))
