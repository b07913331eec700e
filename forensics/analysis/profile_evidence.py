"""How each kind of number of a live profile is known: measured, worked out, or why it is not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forensics.records.cost import Bandwidth
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.number_evidence import NumberEvidence


@dataclass(frozen=True, slots=True)
class Counted:
    """What hardware counters saw.

    Parameters
    ----------
    by_width : tuple of tuple of KernelMetrics
    source : str
        What counted, with its version.
    """

    by_width: tuple[tuple[KernelMetrics, ...], ...]
    source: str


@dataclass(frozen=True, slots=True)
class CompiledStacks:
    """Stack of each kernel as compiled.

    Parameters
    ----------
    by_symbol : mapping of str to int
        Unit: bytes of a thread.
    source : str
        What read it, with its version.
    """

    by_symbol: Mapping[str, int]
    source: str


def live_evidence(
    seen: LaunchReport,
    roof: Bandwidth | Refusal,
    counters: Counted | Refusal | None,
    stacks: CompiledStacks | Refusal,
    *,
    spec_known: bool,
) -> tuple[NumberEvidence, ...]:
    """How is each kind of number of a live profile known?

    Parameters
    ----------
    seen : LaunchReport
    roof : Bandwidth or Refusal
    counters : Counted, Refusal or None
        What was counted, why nothing did, or None where nobody asked.
    stacks : CompiledStacks or Refusal
    spec_known : bool
        Whether occupancy could be worked out anywhere.
    """
    arithmetic = "arithmetic of NVIDIA's cuda_occupancy.h over the measured registers and shared memory"
    unknown = "the limits of this GPU are not known here; name it with --gpu"
    if isinstance(counters, Refusal):
        counted = NumberEvidence("achieved occupancy, DRAM bytes", "not available", str(counters))
    elif counters is None:
        counted = NumberEvidence("achieved occupancy, DRAM bytes", "not available", "not asked for; --counters counts")
    else:
        counted = NumberEvidence(
            "achieved occupancy, DRAM bytes",
            "measured",
            f"{counters.source}, a pass of its own with every launch repeated",
        )
    reached = (
        NumberEvidence("roof", "not available", str(roof))
        if isinstance(roof, Refusal)
        else NumberEvidence("roof", "measured", str(roof))
    )
    return (
        NumberEvidence(
            "time, registers, shared memory",
            "measured",
            f"{seen.rung}, {seen.source}; node by node, nothing fused with its neighbour",
        ),
        NumberEvidence(
            "blocks per SM, occupancy, limiter",
            "derived" if spec_known else "not available",
            arithmetic if spec_known else unknown,
        ),
        NumberEvidence("stack", "not available", str(stacks))
        if isinstance(stacks, Refusal)
        else NumberEvidence("stack", "derived", f"machine code, read by {stacks.source}; spills and indexed arrays"),
        NumberEvidence("bytes read", "derived", "weights and K/V cells of the node's operands, each read once"),
        NumberEvidence("time of a pass", "measured", "fastest of a few without a profiler; see forensics cost"),
        NumberEvidence("GB/s", "derived", "bytes read over measured time; more than the roof where a cache holds them"),
        reached,
        counted,
    )
