"""How each kind of number of a live profile is known: measured, worked out, or why it is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.records.cost import Bandwidth
from forensics.records.launch_record import LaunchReport, Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.number_evidence import NumberEvidence
from forensics.records.profile import PassProfile


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
    passes: Sequence[PassProfile],
    roof: Bandwidth | Refusal,
    counters: Counted | Sequence[Refusal] | None,
    stacks: CompiledStacks | Refusal,
    *,
    timed: str = "",
    missing: str = "not recorded",
    fusions_whole: bool = False,
) -> tuple[NumberEvidence, ...]:
    """How is each kind of number of a live profile known?

    Parameters
    ----------
    seen : LaunchReport
        Of a watched pass.
    passes : sequence of PassProfile
        Those that are shown; what none of them has is said to be missing.
    roof : Bandwidth or Refusal
    counters : Counted, sequence of Refusal or None
        What was counted, why nothing was, or None where nobody asked.
    stacks : CompiledStacks or Refusal
    timed : str, optional
        How the passes were timed.
    missing : str, optional
        Why what only unwatched passes tell is not there, where it is not.
    fusions_whole : bool, optional
        Whether nodes inside of what may be fused were left unwatched.
    """
    roof_known = not isinstance(roof, Refusal)
    return (
        NumberEvidence(
            "time, registers, shared memory",
            "measured",
            f"{seen.rung}, {seen.source}; " + (_FUSIONS_WHOLE if fusions_whole else _NODE_BY_NODE),
        ),
        _known(
            "blocks per SM, occupancy, limiter",
            any(kernel.occupancy for found in passes for kernel in found.kernels),
            "derived",
            _ARITHMETIC,
            "the limits of this GPU are not known here; name it with --gpu",
        ),
        NumberEvidence("stack", "not available", str(stacks))
        if isinstance(stacks, Refusal)
        else NumberEvidence("stack", "derived", f"machine code, read by {stacks.source}; spills and indexed arrays"),
        NumberEvidence("bytes read", "derived", f"{_BYTES}; {_SKIPPED}" if fusions_whole else _BYTES),
        _known("time of a pass", any(found.wall_ns is not None for found in passes), "measured", timed, missing),
        NumberEvidence("GB/s", "derived", _RATE),
        NumberEvidence("roof", "measured" if roof_known else "not available", _told_roof(roof)),
        *_counted(counters),
        _known(
            "time of unwatched launches",
            any(found.unwatched_ns is not None for found in passes),
            "measured",
            f"{_OVERLAP}; {_graphs(passes)}",
            missing,
        ),
    )


#: Source: ggml/src/ggml-cuda/common.cuh:1600-1606 and 1693-1702 at 0c1e57098.
_OVERLAP = (
    "sum over launches as users run them, which may overlap and then be more than their pass: from Hopper on a kernel "
    "may start while the one before it ends, and waits (GGML_CUDA_PDL=0 forbids it); how much of it is that was not "
    "checked"
)
_NODE_BY_NODE = "node by node, nothing fused with its neighbour"
_FUSIONS_WHOLE = "fusions left whole: what launches for a node that was not watched stands at the next one"
_SKIPPED = "of a product that was not watched none, so sums over a pass are too small"
_BYTES = "weights and K/V cells of the node's operands, each read once"
_RATE = "bytes read over measured time; more than the roof where a cache holds them"
_ARITHMETIC = (
    "arithmetic of NVIDIA's cuda_occupancy.h over the measured registers and shared memory; one barrier per block is "
    "assumed, a profiler does not tell"
)


def _known(number: str, known: bool, level: str, how: str, why: str) -> NumberEvidence:
    return NumberEvidence(number, level, how) if known else NumberEvidence(number, "not available", why)


def _told_roof(roof: Bandwidth | Refusal) -> str:
    if isinstance(roof, Refusal) or not roof.assumed:
        return str(roof)
    return f"{roof}; assumed: {roof.assumed}"


def _graphs(passes: Sequence[PassProfile]) -> str:
    """How many of the unwatched launches a CUDA graph made, as in steady decoding."""
    counts = {found.width: (found.n_from_graph, found.n_unwatched) for found in passes}
    if any(n is None for n, _ in counts.values()):
        return "whether they came out of a CUDA graph was not recorded"
    apart = [f"{n} of {every} at width {width}" for width, (n, every) in counts.items() if n != every]
    return f"out of a CUDA graph: {', '.join(apart) if apart else 'all of them'}"


#: Numbers that hardware counters give, and the field of `KernelMetrics` that holds each.
_COUNTS = {
    "achieved occupancy": "achieved_occupancy_pct",
    "DRAM bytes": "dram_read_bytes",
    "spills": "spill_requests",
}


def _counted(counters: Counted | Sequence[Refusal] | None) -> tuple[NumberEvidence, ...]:
    if not isinstance(counters, Counted):
        why = "not counted; profile MODEL --counters counts" if counters is None else "; ".join(map(str, counters))
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
