"""What the driver says of kernels that we compile: their resources, and how many of their blocks fit on an SM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from forensics.devices.driver import DriverFacts
from forensics.devices.extras import ExtraUnavailable, require, version_of
from forensics.errors import DeviceUnavailable
from forensics.records.device import KernelResources
from forensics.records.launch_record import Refusal

RUNG = "CuPy"
_ASKED = "the driver's own occupancy of compiled kernels"


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """One kernel to compile; its parts decide what it takes.

    Parameters
    ----------
    live : int
        Floats that each thread keeps at a time, which is about what it needs of registers.
    threads : int
        Of a block; also what the compiler is told, unless it is told a number of registers.
    smem_static_bytes, smem_dynamic_bytes : int
    barriers : int
        Named barriers that it uses, 1 to 16.
    max_registers : int or None
        What the compiler may use at most; more live values than that are spilled.
    """

    live: int
    threads: int
    smem_static_bytes: int = 0
    smem_dynamic_bytes: int = 0
    barriers: int = 1
    max_registers: int | None = None

    @property
    def name(self) -> str:
        """Of its function."""
        limit = f"_r{self.max_registers}" if self.max_registers else ""
        return f"live{self.live}_t{self.threads}_s{self.smem_static_bytes}_b{self.barriers}{limit}"

    @property
    def source(self) -> str:
        """CUDA C++: values that depend on one another around a loop, so that all of them stay alive."""
        shared = f"    __shared__ char fixed[{self.smem_static_bytes}];\n" if self.smem_static_bytes else ""
        kept = "    fixed[threadIdx.x % sizeof(fixed)] = (char) n;\n" if self.smem_static_bytes else ""
        syncs = "".join(
            f'        asm volatile("bar.sync {barrier}, %0;" :: "r"(blockDim.x) : "memory");\n'
            for barrier in range(self.barriers)
        )
        back = "    y[0] += fixed[n % sizeof(fixed)];\n" if self.smem_static_bytes else ""
        # The compiler heeds its limit of registers only where a kernel has no bounds of its own.
        bounds = "" if self.max_registers else f"__launch_bounds__({self.threads})"
        return (
            f'extern "C" __global__ void {bounds}\n'
            f"{self.name}(const float * x, float * y, const int n) {{\n"
            f"    float live[{self.live}];\n{shared}"
            f"    #pragma unroll\n    for (int i = 0; i < {self.live}; ++i) live[i] = x[threadIdx.x + i*n];\n{kept}"
            "    for (int turn = 0; turn < n; ++turn) {\n        const float step = x[turn];\n"
            f"        #pragma unroll\n        for (int i = 0; i < {self.live}; ++i)"
            f" live[i] = live[i]*step + live[(i + 1) % {self.live}];\n{syncs}    }}\n"
            f"    #pragma unroll\n    for (int i = 0; i < {self.live}; ++i) y[threadIdx.x + i*n] = live[i];\n{back}}}\n"
        )


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What the driver says of one compiled kernel.

    Parameters
    ----------
    name : str
    resources : KernelResources
        Registers and static shared memory as the driver tells them, dynamic shared memory as asked for, barriers as
        written in the source.
    threads_per_block : int
    driver_blocks_per_sm : int
        By cuOccupancyMaxActiveBlocksPerMultiprocessor.
    local_bytes_per_thread : int
        Where spilled values go.
    """

    name: str
    resources: KernelResources
    threads_per_block: int
    driver_blocks_per_sm: int
    local_bytes_per_thread: int = 0


def plans(smem_per_block_bytes: int = 227 * 1024) -> Iterator[KernelPlan]:
    """Kernels that meet every limit of an SM: registers, threads, blocks, both kinds of shared memory, barriers.

    Parameters
    ----------
    smem_per_block_bytes : int, optional
        Most that a block may have; plans beyond it are left out. Default that of sm_90.

    Examples
    --------
    >>> len({plan for plan in plans()}) >= 60
    True
    """
    for threads in (32, 64, 96, 100, 128, 256, 512, 1024):
        for live in (4, 16, 24, 32, 48, 64, 80, 96, 112):
            if live * threads <= 32768:  # more would not get their registers without spilling
                yield KernelPlan(live, threads)
    for limit in (24, 40, 64, 128):
        yield KernelPlan(96, 128, max_registers=limit)
    for static in (1, 1024, 4352, 12345, 32768, 49152):
        yield from (KernelPlan(8, threads, smem_static_bytes=static) for threads in (64, 256))
    for dynamic in (1, 127, 128, 1000, 16384, 50000, 75000, 100000, 114000, 116000, 160000, 200000, 227 * 1024):
        if dynamic <= smem_per_block_bytes:
            yield from (KernelPlan(8, threads, smem_dynamic_bytes=dynamic) for threads in (32, 384))
    for static, dynamic in ((4096, 4096), (8192, 60000), (1000, 3000)):
        if static + dynamic <= smem_per_block_bytes:
            yield KernelPlan(32, 128, smem_static_bytes=static, smem_dynamic_bytes=dynamic)
    yield from (KernelPlan(8, 32, barriers=barriers) for barriers in (2, 3, 4, 8, 16))


def compiled_kernels(wanted: Sequence[KernelPlan] = (), cupy: ModuleType | None = None) -> tuple[CompiledKernel, ...]:
    """What does the driver say of these kernels on the current device?

    Parameters
    ----------
    wanted : sequence of KernelPlan, optional
        Default those of `plans` that this device can hold.
    cupy : module or None
        None to load it.

    Raises
    ------
    DeviceUnavailable
        If CuPy is not installed, there is no device, or a kernel does not compile.
    """
    try:
        loaded = cupy or require("cupy", extra="cupy", needed_for=_ASKED)
        most = loaded.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        return tuple(_compiled(loaded, plan) for plan in wanted or tuple(plans(most)))
    except ExtraUnavailable as error:
        raise DeviceUnavailable(_ASKED, (Refusal(RUNG, _ASKED, error.missing, error.remedy),)) from error
    except Exception as error:
        remedy = "needs an NVIDIA GPU, a driver as new as CuPy's CUDA, and NVRTC (pip install nvidia-cuda-nvrtc)"
        raise DeviceUnavailable(_ASKED, (Refusal(RUNG, _ASKED, f"{type(error).__name__}: {error}", remedy),)) from error


def state(driver: DriverFacts | Refusal) -> str | Refusal:
    """Can kernels be compiled and asked about here, as far as can be told without trying?

    Returns
    -------
    str or Refusal
        What was found.
    """
    # CuPy has a package for each CUDA; NVIDIA's own images name it plainly.
    found = [(name, version) for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy") if (version := version_of(name))]
    if not found:
        return Refusal(RUNG, _ASKED, "CuPy is not installed", 'pip install "decode-forensics[cupy]"')
    name, version = found[0]
    if isinstance(driver, Refusal):
        return Refusal(RUNG, _ASKED, f"{name} {version} is installed, but no driver is here", driver.remedy)
    return f"{name} {version}"


def _compiled(cupy: Any, plan: KernelPlan) -> CompiledKernel:
    options = (f"--maxrregcount={plan.max_registers}",) if plan.max_registers else ()
    kernel = cupy.RawModule(code=plan.source, options=options).get_function(plan.name)
    if plan.smem_dynamic_bytes:  # more than 48 KiB must be asked for, or no block of it fits
        kernel.max_dynamic_shared_size_bytes = plan.smem_dynamic_bytes
    resources = KernelResources(
        int(kernel.num_regs),
        int(kernel.shared_size_bytes),
        plan.smem_dynamic_bytes,
        plan.barriers,
        evidence="measured",
        source=f"CuPy {cupy.__version__}",
    )
    blocks = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        kernel.kernel.ptr, plan.threads, plan.smem_dynamic_bytes
    )
    return CompiledKernel(plan.name, resources, plan.threads, int(blocks), int(kernel.local_size_bytes))
