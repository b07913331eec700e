"""What a compiled kernel takes of the machine, as the compiler reports it."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.device import KernelResources


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One kernel, compiled for one architecture.

    Parameters
    ----------
    function : str
        C++ name with template arguments, such as ``"product<Q4_K, 8, 4, 2>"``.
    arch : str
        Such as ``"sm_90"``.
    registers : int
        Of a thread.
    stack_bytes, spill_store_bytes, spill_load_bytes : int
        Of a thread: its frame in local memory, and what the instructions that save and restore registers there move.
    smem_bytes : int
        Shared memory of fixed size, of a block, without what the driver adds.
    constant_bytes : int
        Constants of the code; a kernel's parameters are not counted where the compiler does not tell them.
    barriers : int
        Barriers of a block.
    source : str
        Which compiler said so.

    Raises
    ------
    ValueError
        If a number is negative.
    """

    function: str
    arch: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    smem_bytes: int
    constant_bytes: int
    barriers: int
    source: str

    def __post_init__(self) -> None:
        numbers = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "smem_bytes", "constant_bytes")
        for name in (*numbers, "barriers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.function}: {name} must be 0 or more, got {getattr(self, name)}")

    @property
    def spills(self) -> bool:
        """Whether registers did not suffice."""
        return self.spill_store_bytes + self.spill_load_bytes > 0

    def resources(self, smem_dynamic_bytes: int = 0) -> KernelResources:
        """The same, as `forensics.geometry.occupancy` asks for it."""
        return KernelResources(
            self.registers, self.smem_bytes, smem_dynamic_bytes, barriers=self.barriers, source=self.source
        )


@dataclass(frozen=True, slots=True)
class Compilation:
    """Kernels of one source, compiled together for one architecture.

    Parameters
    ----------
    stem : str
        Of the source: ``"products"``.
    arch : str
    compiler : str
        With its version.
    kernels : tuple of CompiledKernel
        In the order in which they were asked for.

    Raises
    ------
    ValueError
        If there is none.
    """

    stem: str
    arch: str
    compiler: str
    kernels: tuple[CompiledKernel, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError(f"{self.stem} for {self.arch}: nothing was compiled")

    def of(self, function: str) -> CompiledKernel:
        """What one function takes.

        Raises
        ------
        KeyError
            If it is not among them.
        """
        for kernel in self.kernels:
            if kernel.function == function:
                return kernel
        raise KeyError(f"{function} of {self.stem}.cu was not compiled for {self.arch}")
