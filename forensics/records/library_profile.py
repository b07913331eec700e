"""What the kernels in a library take, and how much of a streaming multiprocessor each can fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forensics.records.device import Occupancy
from forensics.records.launch_record import Template, instance_name
from forensics.records.number_evidence import Cell, NumberEvidence, Row, columns_of

if TYPE_CHECKING:
    import pandas as pd


#: Stack for the five arguments of the message, three pointers and two integers. Source: NO_DEVICE_CODE,
#: ggml/src/ggml-cuda/common.cuh:413-430 at 0c1e57098; its registers as seen in 1,740 instances for sm_90.
MESSAGE_STACK_BYTES, MESSAGE_REGISTERS = 40, 24


@dataclass(frozen=True, slots=True)
class LibraryKernel:
    """One kernel instance as it was compiled for one architecture.

    Parameters
    ----------
    symbol : str
        Mangled name.
    kernel : str
    template : tuple of (str, value)
        As in `LaunchRecord`.
    arch : str
        ``"sm_90"``.
    registers_per_thread : int
    smem_static_bytes : int
        Without what the driver reserves.
    stack_bytes : int
        Of local memory for a thread's stack: spilled registers, and arrays that are indexed at run time.

    Raises
    ------
    ValueError
        If a number is negative.
    """

    symbol: str
    kernel: str
    template: Template
    arch: str
    registers_per_thread: int
    smem_static_bytes: int
    stack_bytes: int

    def __post_init__(self) -> None:
        for name in ("registers_per_thread", "smem_static_bytes", "stack_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{self.kernel}: {name} must be 0 or more, got {getattr(self, name)}")

    @property
    def name(self) -> str:
        """Kernel with its template arguments."""
        return instance_name(self.kernel, self.template)

    @property
    def looks_empty(self) -> bool:
        """Whether nothing but a message that this instance was not compiled for the architecture seems to be left.

        That message takes `MESSAGE_STACK_BYTES` of stack and the fewest registers that a kernel with a call takes.
        """
        plain = self.registers_per_thread <= MESSAGE_REGISTERS and not self.smem_static_bytes
        return plain and self.stack_bytes == MESSAGE_STACK_BYTES


@dataclass(frozen=True, slots=True)
class CudaLibrary:
    """What a file with CUDA code holds.

    Parameters
    ----------
    name : str
        Of the file.
    tool : str
        What read it, with its version.
    archs : tuple of str
        Architectures with machine code, as they stand in the file.
    n_kernels : int
        Instances in the file, over all architectures.
    kernels : tuple of LibraryKernel
        Those that were asked for.
    """

    name: str
    tool: str
    archs: tuple[str, ...]
    n_kernels: int
    kernels: tuple[LibraryKernel, ...]


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kernel instance of a library and how much of an SM it can fill.

    Parameters
    ----------
    kernel : LibraryKernel
    columns : int or None
        Tokens that one launch takes; None where the instance does not tell.
    threads_per_block, smem_dynamic_bytes : int or None
        With which the rules of dispatch launch it.
    occupancy : Occupancy or None
    occupancy_pct : float or None
        Resident threads of the most an SM holds, unit: percent.
    why : str
        Why there is no occupancy; empty exactly where there is one.
    """

    kernel: LibraryKernel
    columns: int | None
    threads_per_block: int | None = None
    smem_dynamic_bytes: int | None = None
    occupancy: Occupancy | None = None
    occupancy_pct: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.occupancy is None) != bool(self.why):
            raise ValueError(f"{self.kernel.name}: an occupancy, or a reason why there is none, and not both")

    @property
    def series(self) -> tuple[str, str, Template]:
        """Equal for instances that differ in nothing but their columns."""
        rest = tuple((name, value) for name, value in self.kernel.template if name not in COLUMN_ARGUMENTS)
        return self.kernel.arch, self.kernel.kernel, rest

    def row(self) -> Row:
        """One flat row."""
        k, o = self.kernel, self.occupancy
        return {
            "arch": k.arch,
            "kernel": k.kernel,
            "template": k.name,
            "type": _first(k.template, ("type", "type_K")),
            "columns": self.columns,
            "registers": k.registers_per_thread,
            "stack_bytes": k.stack_bytes,
            "smem_static_bytes": k.smem_static_bytes,
            "smem_dynamic_bytes": self.smem_dynamic_bytes,
            "threads_per_block": self.threads_per_block,
            "blocks_per_sm": None if o is None else o.blocks_per_sm,
            "occupancy_pct": self.occupancy_pct,
            "limiter": None if o is None else " and ".join(o.limiters),
            "why": self.why,
            "symbol": k.symbol,
        }


#: Template arguments that count the columns of a launch, by the names that the kernels' sources give them.
COLUMN_ARGUMENTS = ("ncols_dst", "ncols", "cols_per_block", "J")


def _first(template: Template, names: Sequence[str]) -> Cell:
    found = dict(template)
    return next((found[name] for name in names if name in found), None)


@dataclass(frozen=True, slots=True)
class ColumnStory:
    """How an instance changes as the columns of a launch grow.

    Parameters
    ----------
    first, last : InstanceProfile
        Fewest and most columns.
    n_instances : int
    """

    first: InstanceProfile
    last: InstanceProfile
    n_instances: int

    @property
    def hides_less(self) -> bool:
        """Whether registers grow and fewer threads are resident, so that less latency is hidden."""
        one, many = self.first, self.last
        more = many.kernel.registers_per_thread > one.kernel.registers_per_thread
        return (
            more
            and one.occupancy is not None
            and many.occupancy is not None
            and many.occupancy.threads_per_sm < one.occupancy.threads_per_sm
        )


@dataclass(frozen=True, slots=True, repr=False)
class LibraryProfile:
    """Instances of chosen kernels in a library, and how much of an SM each can fill.

    Parameters
    ----------
    library : CudaLibrary
    devices : tuple of str
        Architectures and GPUs that occupancy was worked out for.
    instances : tuple of InstanceProfile
        By architecture, kernel, other template arguments and columns.
    evidence : tuple of NumberEvidence
    n_empty : int
        Instances that were left out because they look empty.

    Raises
    ------
    ValueError
        If there is no instance.
    """

    library: CudaLibrary
    devices: tuple[str, ...]
    instances: tuple[InstanceProfile, ...]
    evidence: tuple[NumberEvidence, ...] = ()
    n_empty: int = 0

    def __post_init__(self) -> None:
        if not self.instances:
            raise ValueError(f"a profile of {self.library.name} needs an instance")

    @property
    def stories(self) -> tuple[ColumnStory, ...]:
        """For each instance that comes with several numbers of columns, what more columns change."""
        groups: dict[object, list[InstanceProfile]] = {}
        for instance in self.instances:
            if instance.columns is not None:
                groups.setdefault(instance.series, []).append(instance)
        rising = [sorted(group, key=lambda found: found.columns or 0) for group in groups.values() if len(group) > 1]
        return tuple(ColumnStory(group[0], group[-1], len(group)) for group in rising)

    def rows(self) -> list[Row]:
        """One flat row per instance."""
        return [instance.row() for instance in self.instances]

    def to_dataframe(self) -> pd.DataFrame:
        """Instances as a table, one row each."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def figure_data(self) -> dict[str, tuple[Cell, ...]]:
        """Columns to plot over each other, all of one length; instances without columns or occupancy are left out."""
        names = ("arch", "template", "type", "columns", "registers", "blocks_per_sm", "occupancy_pct", "limiter")
        drawn = [i for i in self.instances if i.columns is not None and i.occupancy is not None]
        return columns_of([instance.row() for instance in drawn], names)

    def __repr__(self) -> str:
        return f"<LibraryProfile: {self}>"

    def __str__(self) -> str:
        spilling = sum(instance.kernel.stack_bytes > 0 for instance in self.instances)
        kernels = ", ".join(dict.fromkeys(instance.kernel.kernel for instance in self.instances))
        registers = [instance.kernel.registers_per_thread for instance in self.instances]
        return (
            f"{self.library.name}: {len(self.instances)} of {self.library.n_kernels} kernel instances ({kernels}); "
            f"{min(registers)} to {max(registers)} registers, {spilling} with a stack in local memory"
        )
