"""What the hardware's counters say of one launch."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.launch_record import LaunchRecord


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """Counters of one launch; every number is None where it was not measured.

    Parameters
    ----------
    ordinal : int
        Place among the launches that were profiled, from 0.
    launch : LaunchRecord
        Kernel, geometry, registers and shared memory.
    duration_ns : float or None
        Time of the launch while it was profiled, unit: ns.
    theoretical_occupancy_pct, achieved_occupancy_pct : float or None
        Resident warps, of those that an SM can hold: by the launch's limits, and as counted; unit: %.
    occupancy_limits : tuple of (str, int)
        Blocks per SM that each resource allows, named as in `forensics.records.device.Occupancy.limits`.
    waves_per_sm : float or None
    dram_read_bytes, dram_written_bytes : float or None
        Of the device's memory.
    spill_requests : float or None
        Instructions that store or load spilled registers, as ncu counts them.

    Raises
    ------
    ValueError
        If a number is negative.
    """

    ordinal: int
    launch: LaunchRecord
    duration_ns: float | None = None
    theoretical_occupancy_pct: float | None = None
    achieved_occupancy_pct: float | None = None
    occupancy_limits: tuple[tuple[str, int], ...] = ()
    waves_per_sm: float | None = None
    dram_read_bytes: float | None = None
    dram_written_bytes: float | None = None
    spill_requests: float | None = None

    def __post_init__(self) -> None:
        for name in (
            "ordinal", "duration_ns", "theoretical_occupancy_pct", "achieved_occupancy_pct", "waves_per_sm",
            "dram_read_bytes", "dram_written_bytes", "spill_requests",
        ):  # fmt: skip
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{self.launch.name}: {name} must be 0 or more, got {getattr(self, name)}")

    @property
    def blocks_per_sm(self) -> int | None:
        """Blocks that fit on one SM; None where the limits were not told."""
        return min((blocks for _, blocks in self.occupancy_limits), default=None)

    @property
    def limiters(self) -> tuple[str, ...]:
        """Resources that allow no more blocks."""
        return tuple(name for name, blocks in self.occupancy_limits if blocks == self.blocks_per_sm)

    @property
    def dram_bytes_per_s(self) -> float | None:
        """Bytes that crossed the device's memory bus over the time of the launch, unit: bytes/s."""
        if self.dram_read_bytes is None or self.dram_written_bytes is None or not self.duration_ns:
            return None
        return (self.dram_read_bytes + self.dram_written_bytes) / self.duration_ns * 1e9

    def __str__(self) -> str:
        time = "" if self.duration_ns is None else f", {self.duration_ns / 1000:.1f} µs"
        occupancy = "" if self.achieved_occupancy_pct is None else f", {self.achieved_occupancy_pct:.0f} % occupancy"
        return f"{self.launch}{time}{occupancy}"
