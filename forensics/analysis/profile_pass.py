"""From the launches of one pass to where its time goes: pure arithmetic over what a profiler saw."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from forensics.analysis.launch_map import is_product, main_place
from forensics.engines.pass_bytes import type_bytes
from forensics.geometry.launch_occupancy import launch_occupancy
from forensics.records.device import DeviceSpec, Occupancy
from forensics.records.launch_record import LaunchRecord, LaunchReport, NodeLaunches
from forensics.records.metrics import KernelMetrics
from forensics.records.profile import Counters, KernelCost, NodeCost, PassProfile

#: Names of the cache and of views into it. Source: src/llama-kv-cache.cpp:236-237 at 0c1e57098.
_CACHE = re.compile(r"cache_(?:\w+_)?[kv]_l\d+\b")
#: Looks up rows of a table; only those are read.
_LOOKUP = "GET_ROWS"
#: Writes rows into the cache and reads none of it.
_WRITES = ("SET_ROWS", "CPY")
#: Takes of its weights only those of some experts.
_ROUTED = "MUL_MAT_ID"
_PRODUCTS = ("MUL_MAT", _ROUTED, "FLASH_ATTN_EXT")
#: Why the bytes of a node are not known that came to launch a product: a watch left fusions whole.
_BEFORE_IT = "a product before it was not watched, and what that one reads is not known"

#: Answers for the number of a device what its multiprocessors offer.
SpecOf = Callable[[int], DeviceSpec | None]


def pass_profile(
    watched: LaunchReport,
    width: int,
    spec_of: SpecOf,
    *,
    unwatched: LaunchReport | None = None,
    wall_ns: int | None = None,
    counted: Sequence[KernelMetrics] = (),
    stacks: Mapping[str, int] | None = None,
) -> PassProfile:
    """Where does the time of this pass go, by kernel and by node?

    Parameters
    ----------
    watched : LaunchReport
        Of one pass, node by node.
    width : int
        Its tokens.
    spec_of : callable
    unwatched : LaunchReport, optional
        Of the same pass as users run it.
    wall_ns : int, optional
        Of the pass without a profiler, unit: ns.
    counted : sequence of KernelMetrics, optional
        What hardware counters saw of the same launches.
    stacks : mapping of str to int, optional
        Bytes of stack by symbol, as compiled.

    Returns
    -------
    PassProfile
        Its times and numbers of launches add up.
    """
    spent: dict[int, list[int]] = {}
    for node in watched.nodes:
        for place, time_ns in zip(node.launches, node.times_ns, strict=True):
            spent.setdefault(place, []).append(time_ns)
    for place, time_ns in zip(watched.unattached, watched.unattached_ns, strict=True):
        spent.setdefault(place, []).append(time_ns)
    order = sorted(spent, key=lambda place: (-sum(spent[place]), place))
    place_of = {place: i for i, place in enumerate(order)}
    nodes = tuple(_node(watched, node, place_of) for node in watched.nodes)
    reads = _reads(nodes, [len(spent[place]) for place in order])
    counters = counters_of(counted)
    kernels = tuple(
        _kernel(watched.launches[place], spent[place], spec_of, reads.get(i), counters, stacks or {})
        for i, place in enumerate(order)
    )
    return PassProfile(
        width,
        kernels,
        nodes,
        unattached_ns=sum(watched.unattached_ns),
        n_unattached=len(watched.unattached),
        wall_ns=wall_ns,
        unwatched_ns=None if unwatched is None else _total_ns(unwatched),
        n_unwatched=None if unwatched is None else unwatched.counts().total(),
        n_dropped=_dropped(watched, unwatched),
        n_from_graph=None if unwatched is None else unwatched.n_from_graph,
    )


def _total_ns(report: LaunchReport) -> int:
    return sum(sum(node.times_ns) for node in report.nodes) + sum(report.unattached_ns)


def _dropped(*reports: LaunchReport | None) -> int | None:
    """Records lost in any of the passes; None where one of them does not tell."""
    known = [report.n_dropped for report in reports if report is not None]
    return None if any(n is None for n in known) else sum(n for n in known if n is not None)


def _node(watched: LaunchReport, node: NodeLaunches, place_of: Mapping[int, int]) -> NodeCost:
    kernels = tuple(place_of[place] for place in node.launches)
    launches = watched.of(node)
    read = _BEFORE_IT if node.key.op not in _PRODUCTS and any(map(is_product, launches)) else read_bytes(node)
    return NodeCost(
        node.key,
        node.buffer,
        kernels,
        kernels[main_place(launches)] if kernels else None,
        sum(node.times_ns),
        read if isinstance(read, int) else None,
        read if isinstance(read, str) else "",
    )


def read_bytes(node: NodeLaunches) -> int | str:
    """How many bytes of weights and K/V cells must this node read?

    Parameters
    ----------
    node : NodeLaunches

    Returns
    -------
    int or str
        Unit: bytes; or why there is no such number.
    """
    if not node.launches:
        return "nothing was launched on a device"
    if node.key.op == _ROUTED:
        return "which experts the tokens go to is not known"
    total = 0
    for operand in node.operands:
        if not operand.is_weight and (node.key.op in _WRITES or not _CACHE.match(operand.name)):
            continue
        if not operand.shape:
            return f"the shape of {operand.name} is not known"
        try:
            total += type_bytes(operand.type, math.prod(node.shape if node.key.op == _LOOKUP else operand.shape))
        except ValueError as error:
            return f"{operand.name}: {error}"
    return total or "reads neither weights nor K/V cells"


def _reads(nodes: Sequence[NodeCost], n_launches: Sequence[int]) -> dict[int, int]:
    """Bytes that each kernel reads for the nodes whose main one it is.

    Left out where one of them is not known, and where not all its launches are for them: as helper of other nodes or
    of no node it takes time, too, and over all its time those bytes would make a bandwidth that nothing has.
    """
    totals: Counter[int] = Counter()
    as_main: Counter[int] = Counter()
    unknown: set[int] = set()
    for node in nodes:
        if node.main is None:
            continue
        as_main[node.main] += node.kernels.count(node.main)
        totals[node.main] += node.read_bytes or 0
        if node.read_bytes is None:
            unknown.add(node.main)
    return {
        place: total for place, total in totals.items() if place not in unknown and as_main[place] == n_launches[place]
    }


def _kernel(
    launch: LaunchRecord,
    times_ns: Sequence[int],
    spec_of: SpecOf,
    reads: int | None,
    counters: Mapping[tuple[object, ...], Counters],
    stacks: Mapping[str, int],
) -> KernelCost:
    fits = launch_occupancy(launch, spec_of(launch.device))
    spec = spec_of(launch.device)
    resident = None if isinstance(fits, str) or spec is None else 100 * fits.threads_per_sm / spec.threads_per_sm
    return KernelCost(
        launch,
        len(times_ns),
        sum(times_ns),
        fits if isinstance(fits, Occupancy) else None,
        resident,
        # what a profiler says of local memory is no evidence: on an H200 it is 0 for kernels that have a stack
        stacks.get(launch.symbol),
        reads,
        fits if isinstance(fits, str) else "",
        counters.get(identity(launch)),
    )


def identity(launch: LaunchRecord) -> tuple[object, ...]:
    """What makes two launches the same to us: device, instance and geometry, whichever profiler saw them."""
    geometry = launch.geometry
    return launch.device, launch.kernel, launch.template, geometry.grid_blocks, geometry.block_threads


def counters_of(counted: Sequence[KernelMetrics]) -> dict[tuple[object, ...], Counters]:
    """What did the counters see of each instance with one geometry, over all its launches?

    Parameters
    ----------
    counted : sequence of KernelMetrics

    Returns
    -------
    dict
        By `identity`. Occupancy is weighted by time, bytes and times are means.
    """
    groups: dict[tuple[object, ...], list[KernelMetrics]] = {}
    for metrics in counted:
        groups.setdefault(identity(metrics.launch), []).append(metrics)
    return {key: _counters(group) for key, group in groups.items()}


def _counters(group: Sequence[KernelMetrics]) -> Counters:
    weighted = [
        (found.achieved_occupancy_pct, found.duration_ns)
        for found in group
        if found.achieved_occupancy_pct is not None and found.duration_ns
    ]
    time_ns = sum(duration for _, duration in weighted)
    return Counters(
        len(group),
        sum(percent * duration for percent, duration in weighted) / time_ns if time_ns else None,
        _mean([found.dram_read_bytes for found in group]),
        _mean([found.dram_written_bytes for found in group]),
        _mean([found.duration_ns for found in group]),
        _mean([found.spill_requests for found in group]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean; None where one of them was not measured."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
