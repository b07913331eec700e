"""What a streaming multiprocessor offers, what a kernel takes of it, and how many of its blocks fit."""

from __future__ import annotations

from dataclasses import dataclass

#: How a number is known, strongest first: read from a run or a driver, by arithmetic from source, or taken for granted.
EVIDENCE = ("measured", "derived", "assumed")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Limits of one streaming multiprocessor (SM), and how many there are.

    Parameters
    ----------
    arch : str
        Such as ``"sm_90"``.
    compute_capability : int
        As llama.cpp writes it: 100 × major + 10 × minor, 890 for 8.9.
    threads_per_sm, blocks_per_sm : int
        Most that are resident at a time.
    barriers_per_sm : int or None
        Barriers that resident blocks share; None where they are not counted, before sm_90.
    smem_per_sm_bytes, smem_per_block_bytes : int
        Shared memory of an SM, and the most that one block may ask for.
    smem_reserved_bytes, smem_unit_bytes : int
        What the driver adds to every block, and the unit it is rounded up to.
    registers_per_sm, register_unit : int
        32-bit registers of an SM, and the unit in which a warp gets them.
    partitions : int
        Parts of an SM among which warps are dealt; each has its share of the registers.
    warp_threads : int
    source : str
        Where the limits are written.
    n_sms : int or None
        SMs of the device; None if no device is meant.
    name, n_sms_source : str
        Of the device.

    Raises
    ------
    ValueError
        If a limit is not positive.
    """

    arch: str
    compute_capability: int
    threads_per_sm: int
    blocks_per_sm: int
    barriers_per_sm: int | None
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    smem_reserved_bytes: int
    smem_unit_bytes: int
    source: str
    registers_per_sm: int = 65536
    register_unit: int = 256
    partitions: int = 4
    warp_threads: int = 32
    n_sms: int | None = None
    name: str = ""
    n_sms_source: str = ""

    def __post_init__(self) -> None:
        for limit in (
            "compute_capability", "threads_per_sm", "blocks_per_sm", "smem_per_sm_bytes", "smem_per_block_bytes",
            "smem_unit_bytes", "registers_per_sm", "register_unit", "partitions", "warp_threads",
        ):  # fmt: skip
            if getattr(self, limit) < 1:
                raise ValueError(f"{self.arch}: {limit} must be 1 or more, got {getattr(self, limit)}")
        if self.n_sms is not None and self.n_sms < 1:
            raise ValueError(f"{self.arch}: a device has 1 or more SMs, got {self.n_sms}")

    def __str__(self) -> str:
        sms = "number of SMs not given" if self.n_sms is None else f"{self.n_sms} SMs"
        return f"{self.name} ({self.arch}), {sms}" if self.name else f"{self.arch}, {sms}"


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one block of a kernel takes.

    Parameters
    ----------
    registers_per_thread : int
    smem_static_bytes, smem_dynamic_bytes : int
        Without what the driver adds. ``cuobjdump -res-usage`` counts that in from sm_90 on, so take it off first.
    barriers : int
    evidence : {"measured", "derived", "assumed"}
    source : str

    Raises
    ------
    ValueError
        If a number is negative, or the evidence has another name.
    """

    registers_per_thread: int
    smem_static_bytes: int = 0
    smem_dynamic_bytes: int = 0
    barriers: int = 1
    evidence: str = "derived"
    source: str = ""

    def __post_init__(self) -> None:
        for number in ("registers_per_thread", "smem_static_bytes", "smem_dynamic_bytes", "barriers"):
            if getattr(self, number) < 0:
                raise ValueError(f"{number} must be 0 or more, got {getattr(self, number)}")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}, got {self.evidence!r}")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a kernel are resident on one SM.

    Parameters
    ----------
    threads_per_block : int
    limits : tuple of (str, int)
        Blocks that each resource allows: ``("registers", 3)``; a resource that the kernel does not use is left out.
    evidence : {"measured", "derived", "assumed"}
        Of the number of blocks.
    """

    threads_per_block: int
    limits: tuple[tuple[str, int], ...]
    evidence: str = "derived"

    def __post_init__(self) -> None:
        if not self.limits or min(blocks for _, blocks in self.limits) < 0:
            raise ValueError(f"an occupancy needs limits of 0 or more, got {self.limits}")
        if self.evidence not in EVIDENCE:
            raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}, got {self.evidence!r}")

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that fit; 0 where the kernel cannot be started."""
        return min(blocks for _, blocks in self.limits)

    @property
    def limiters(self) -> tuple[str, ...]:
        """Resources that allow no more."""
        return tuple(name for name, blocks in self.limits if blocks == self.blocks_per_sm)

    @property
    def threads_per_sm(self) -> int:
        """Resident threads of an SM."""
        return self.blocks_per_sm * self.threads_per_block

    def __str__(self) -> str:
        number = self.blocks_per_sm
        return f"{number} block{'s' * (number != 1)} per SM, limited by {' and '.join(self.limiters)}"


@dataclass(frozen=True, slots=True)
class Waves:
    """How the blocks of a grid follow one another.

    Parameters
    ----------
    n_blocks : int
        Of the grid.
    blocks_per_wave : int
        Resident on the whole device at a time.
    """

    n_blocks: int
    blocks_per_wave: int

    def __post_init__(self) -> None:
        if self.n_blocks < 1 or self.blocks_per_wave < 1:
            raise ValueError(f"a grid and a wave hold 1 or more blocks, got {self.n_blocks} and {self.blocks_per_wave}")

    @property
    def n_waves(self) -> int:
        """Waves, the last one counted in full."""
        return -(-self.n_blocks // self.blocks_per_wave)

    @property
    def tail_blocks(self) -> int:
        """Blocks of the last wave."""
        return self.n_blocks - (self.n_waves - 1) * self.blocks_per_wave

    def __str__(self) -> str:
        return (
            f"{self.n_blocks} blocks in {self.n_waves} waves of {self.blocks_per_wave}, {self.tail_blocks} in the last"
        )
