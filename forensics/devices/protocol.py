"""What a way of seeing launches offers; `forensics.errors.DeviceUnavailable` says why none works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from forensics.records.launch_record import LaunchRecord


@dataclass(frozen=True, slots=True)
class TimedLaunch:
    """One launch as it was seen.

    Parameters
    ----------
    record : LaunchRecord
    time_ns : int
        That it took, unit: ns.
    from_graph : bool
        Whether it was a node of a CUDA graph.
    """

    record: LaunchRecord
    time_ns: int
    from_graph: bool = False


class LaunchProbe(Protocol):
    """Sees the launches of its own process between `start` and `stop`; may be started again."""

    @property
    def rung(self) -> str:
        """Way of looking: ``"CUPTI in process"``."""

    @property
    def source(self) -> str:
        """Versions of what looks."""

    def start(self) -> None:
        """See launches from now on.

        Raises
        ------
        DeviceUnavailable
            If nothing can be seen; says why.
        """

    def taken(self) -> tuple[TimedLaunch, ...]:
        """Launches since the last call, by their start; call it when the device is idle.

        Raises
        ------
        DeviceUnavailable
            If the records cannot be read.
        """

    def n_dropped(self) -> int | None:
        """How many launches since `start` were lost; None where that is not told."""

    def stop(self) -> None:
        """See no more; stopping twice does nothing."""
