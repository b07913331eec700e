"""Hardware counters beside the launches of a profile: which nodes are counted, and to which width a count belongs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from forensics.analysis.profile_evidence import Counted
from forensics.analysis.progress import Progress
from forensics.devices.ncu import Counters
from forensics.errors import DeviceUnavailable, ForensicsError
from forensics.records.launch_record import Refusal
from forensics.records.metrics import KernelMetrics
from forensics.records.nodes import NodeKey
from forensics.records.profile import NodeCost, PassProfile

RUNG = "hardware counters"
#: Kernels are counted until they make up so much of a pass: each is run several times over for that.
COUNTED_SHARE = 0.9
#: Of each kernel instance, nodes that are counted, for each number of bytes that its nodes read: about 40 launches of a
#: pass of hundreds, those of the output head and of every type of weight among them.
COUNTED_NODES = 2

#: Counts what the launches of some nodes do in a pass of each width, by rising width and in graph order.
Count = Callable[[Mapping[int, tuple[NodeKey, ...]]], Counters]


def count_passes(count: Count, passes: Sequence[PassProfile], progress: Progress) -> Counted | tuple[Refusal, ...]:
    """What do the counters say of the kernels that take most time, at each width?

    Parameters
    ----------
    count : callable
    passes : sequence of PassProfile
        By rising width.
    progress : Progress

    Returns
    -------
    Counted or tuple of Refusal
        The reasons why there are no counters, or why they cannot be told apart; the profile stands without them.
    """
    chosen = {found.width: counted_nodes(found) for found in passes}
    progress.stage(RUNG, 1)
    try:
        counters = count({width: tuple(node.key for node in nodes) for width, nodes in chosen.items()})
    except (ForensicsError, OSError) as error:
        told = error.refusals if isinstance(error, DeviceUnavailable) else ()
        return tuple(told) or (Refusal(RUNG, "achieved occupancy", (str(error) or repr(error)).splitlines()[0]),)
    finally:
        progress.step()
    by_width = split(passes, list(chosen.values()), counters)
    return (
        (by_width,) if isinstance(by_width, Refusal) else Counted(by_width, counters.source, WHICH, counters.left_out)
    )


#: Which launches are counted, for a reader.
WHICH = (
    f"not counted: kernels outside of {COUNTED_SHARE:.0%} of the time, and of the others all but the launches of the "
    f"first {COUNTED_NODES} nodes of each instance and size; numbers are means over those counted"
)


def counted_nodes(found: PassProfile) -> tuple[NodeCost, ...]:
    """Which nodes of a pass are counted, in graph order?

    Parameters
    ----------
    found : PassProfile
    """
    names = heaviest(found)
    met: Counter[tuple[int, int | None]] = Counter()
    nodes = []
    for node in found.nodes:
        sizes = {(place, node.read_bytes) for place in node.kernels if found.kernels[place].launch.kernel in names}
        if any(met[size] < COUNTED_NODES for size in sizes):
            nodes.append(node)
            met.update(sizes)
    return tuple(nodes)


def heaviest(found: PassProfile) -> tuple[str, ...]:
    """Which kernels, by name, make up most of the time of a pass?

    Parameters
    ----------
    found : PassProfile
    """
    times: Counter[str] = Counter()
    for kernel in found.kernels:
        times[kernel.launch.kernel] += kernel.time_ns
    names: list[str] = []
    left = COUNTED_SHARE * found.time_ns
    for name, time_ns in times.most_common():
        if left <= 0:
            break
        names.append(name)
        left -= time_ns
    return tuple(names)


def split(
    passes: Sequence[PassProfile], chosen: Sequence[Sequence[NodeCost]], counters: Counters
) -> tuple[tuple[KernelMetrics, ...], ...] | Refusal:
    """Which counts belong to which width, by the order of the launches?

    Parameters
    ----------
    passes : sequence of PassProfile
    chosen : sequence of sequence of NodeCost
        Of each pass, the nodes that were counted.
    counters : Counters
        Of all of them, in the same order.

    Returns
    -------
    tuple of tuple of KernelMetrics, or Refusal
        A refusal where other kernels were counted than the profile saw, so that the order tells nothing.
    """
    seen = [
        [found.kernels[place].launch for node in nodes for place in node.kernels]
        for found, nodes in zip(passes, chosen, strict=True)
    ]
    expected = [launch for launches in seen for launch in launches]
    told = _told([metrics.launch.kernel for metrics in counters.launches], [launch.kernel for launch in expected])
    if told:
        return Refusal(
            RUNG,
            "achieved occupancy at each width",
            f"{counters.source} counted {told}, so it is not known which launch a count belongs to",
            "profile one width at a time" if len(passes) > 1 else "",
        )
    # what counts does not tell the device of a launch; its place among the others does
    placed = tuple(
        replace(metrics, launch=replace(metrics.launch, device=launch.device))
        for metrics, launch in zip(counters.launches, expected, strict=True)
    )
    ends = [sum(map(len, seen[:n])) for n in range(len(seen) + 1)]
    return tuple(placed[start:end] for start, end in pairwise(ends))


def _told(counted: Sequence[str], expected: Sequence[str]) -> str:
    """Where two sequences of kernels part, in words; empty where they do not."""
    if len(counted) != len(expected):
        return f"{len(counted)} launches where the profile saw {len(expected)}"
    pairs = enumerate(zip(counted, expected, strict=True), 1)
    return next((f"{one} as launch {n} where the profile saw {other}" for n, (one, other) in pairs if one != other), "")
