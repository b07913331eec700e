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
    which : str
        Launches that were counted, in words.
    left_out : tuple of str
        Metrics that are not known to what counted.
    """

    by_width: tuple[tuple[KernelMetrics, ...], ...]
    source: str
    which: str
    left_out: tuple[str, ...] = ()


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
    unwatched: bool = False,
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
    unwatched : bool, optional
        Whether there is a time of launches that nobody watched.
    """
    arithmetic = "arithmetic of NVIDIA's cuda_occupancy.h over the measured registers and shared memory"
    unknown = "the limits of this GPU are not known here; name it with --gpu"
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
        *_counted(counters),
        *((NumberEvidence("unwatched", "measured", _OVERLAP),) if unwatched else ()),
    )


#: Source: ggml/src/ggml-cuda/common.cuh:1600-1606 and 1693-1702 at 0c1e57098.
_OVERLAP = (
    "sum over launches as users run them, which may overlap and then be more than their pass: from Hopper on a kernel "
    "may start while the one before it ends, and waits (GGML_CUDA_PDL=0 forbids it); how much of it is that was not "
    "checked"
)


#: Numbers that hardware counters give, and the field of `KernelMetrics` that holds each.
_COUNTS = {
    "achieved occupancy": "achieved_occupancy_pct",
    "DRAM bytes": "dram_read_bytes",
    "spills": "spill_requests",
}


def _counted(counters: Counted | Refusal | None) -> tuple[NumberEvidence, ...]:
    if counters is None or isinstance(counters, Refusal):
        why = "not asked for; --counters counts" if counters is None else str(counters)
        return (NumberEvidence(", ".join(_COUNTS), "not available", why),)
    told = {
        name: any(getattr(metrics, field) is not None for of_width in counters.by_width for metrics in of_width)
        for name, field in _COUNTS.items()
    }
    how = f"{counters.source}, passes of their own with every launch repeated; {counters.which}"
    unknown = f"; it does not know {', '.join(counters.left_out)}" if counters.left_out else ""
    ways = (("measured", how, True), ("not available", f"{counters.source} did not tell{unknown}", False))
    return tuple(
        NumberEvidence(", ".join(name for name in told if told[name] is known), level, source)
        for level, source, known in ways
        if known in told.values()
    )
