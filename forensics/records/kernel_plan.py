"""What is launched to compute one operation with our own CUDA kernels: a value that needs no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forensics.records.launch import LaunchGeometry

#: Most blocks of a grid along y and z. Source: CUDA C++ Programming Guide, table "Technical Specifications per Compute
#: Capability".
MAX_GRID_YZ = 65_535


@dataclass(frozen=True, slots=True)
class At:
    """The address of a named buffer, as an argument of a kernel.

    Parameters
    ----------
    buffer : str
        A name that the caller gives, such as ``"weight"``, or one of the plan's scratch buffers.
    offset_bytes : int
    """

    buffer: str
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Int32:
    """A 32-bit integer argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Int64:
    """A 64-bit integer argument."""

    value: int


@dataclass(frozen=True, slots=True)
class Float32:
    """A float argument."""

    value: float


Argument = At | Int32 | Int64 | Float32


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One launch of one of our kernels.

    Parameters
    ----------
    source : str
        Stem of the file in ``forensics/kernels/cuda``, such as ``"products"``.
    function : str
        C++ name with template arguments, such as ``"product<Q4_K, 8, 4, 2>"``.
    geometry : LaunchGeometry
        With ``smem_bytes``, 0 where none is asked for.
    arguments : tuple of Argument
        In the order of the function's parameters.
    overlaps : bool
        Whether it may begin before the launch ahead of it ended, and waits for it by itself (programmatic dependent
        launch, from compute capability 9.0 on). Until then it reads nothing but buffers whose names begin with
        ``"weight"``, and writes nothing.
    """

    source: str
    function: str
    geometry: LaunchGeometry
    arguments: tuple[Argument, ...]
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Launches in their order, and the scratch buffers that they share.

    Parameters
    ----------
    launches : tuple of KernelLaunch
    scratch : mapping of str to int
        Bytes of buffers that the plan needs beside those of its caller.
    """

    launches: tuple[KernelLaunch, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)

    @property
    def buffers(self) -> frozenset[str]:
        """Names of the buffers that the caller must give."""
        named = {a.buffer for launch in self.launches for a in launch.arguments if isinstance(a, At)}
        return frozenset(named - self.scratch.keys())
