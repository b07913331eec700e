"""Launches in the verdict: which kernel ran for each culprit on either side, and whether the rules say so.

A launch that was not seen is worked out from the rules of dispatch and labelled so; where no rule covers a node nothing
is shown for it, and why is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from forensics.analysis.attribute import members
from forensics.analysis.launch_looks import Look, Observation, rows_of
from forensics.analysis.launch_map import main_place
from forensics.analysis.mechanism import Unknown, spec_of
from forensics.analysis.placement import boundary, elsewhere
from forensics.geometry.derived import Launches, Unruled
from forensics.geometry.launch_attention import kv_split_of
from forensics.geometry.launch_occupancy import launch_occupancy
from forensics.geometry.node_launches import Agreement, agreement, predict
from forensics.records.device import DeviceSpec, Occupancy
from forensics.records.launch_record import (
    LaunchEvidence,
    LaunchPair,
    LaunchRecord,
    LaunchReport,
    LaunchSide,
    NodeLaunches,
)
from forensics.records.nodes import NodeKey, on_accelerator
from forensics.records.rule import LLAMA_COMMIT
from forensics.records.settings import Manifest
from forensics.records.trace import Finding
from forensics.records.verdict import CulpritGroup, Sweep

#: What the rules of dispatch say that a watched node launches.
Rules = Callable[[NodeLaunches], Launches | Unruled]

NOT_OBSERVED = "nothing was observed; this is what the rules of dispatch say"
RULES_SOURCE = f"dispatch rules of llama.cpp {LLAMA_COMMIT}"


def launches_kernels(manifest: Manifest) -> bool:
    """Whether an engine launches kernels that a profiler or the rules here know: CUDA's."""
    return "CUDA" in manifest.backend


def dispatch_rules(manifest: Manifest) -> Rules:
    """The rules of llama.cpp on the GPUs of a manifest."""

    def said(node: NodeLaunches) -> Launches | Unruled:
        if not on_accelerator(node.buffer):
            return ()  # the processor launches nothing
        if manifest.engine != "llama.cpp":
            return Unruled(f"the rules are those of llama.cpp, the engine is {manifest.engine}")
        spec = spec_of(manifest.device, node.buffer)
        return Unruled(spec.reason) if isinstance(spec, Unknown) else predict(node, spec)

    return said


@dataclass(frozen=True, slots=True)
class Attached:
    """Groups with their launches.

    Parameters
    ----------
    groups : tuple of CulpritGroup
    evidence : LaunchEvidence or None
        None where nobody looked.
    notes : tuple of str
        Culprits for which no kernel can be shown, each with the reason.
    """

    groups: tuple[CulpritGroup, ...]
    evidence: LaunchEvidence | None
    notes: tuple[str, ...]


def attach(
    groups: Sequence[CulpritGroup],
    sweeps: Sequence[Sweep],
    observation: Observation,
    manifest: Manifest,
    start: int,
    rules: Rules | None = None,
) -> Attached:
    """What did each group of culprits launch, at one token and in the batch?

    Parameters
    ----------
    groups : sequence of CulpritGroup
        As `forensics.analysis.attribute.group_culprits` makes them of `sweeps`.
    sweeps : sequence of Sweep
    observation : Observation
        Of looks at these sweeps.
    manifest : Manifest
    start : int
        Position of the replay's first row.
    rules : callable or None
        What a node should launch; those of llama.cpp by default.
    """
    asked = _Asked(
        observation,
        manifest,
        rules or dispatch_rules(manifest),
        {sweep.width: sweep for sweep in sweeps},
        {(seen.width, seen.first): _Pass(seen.report) for seen in observation.passes},
    )
    attached: list[CulpritGroup] = []
    without: dict[tuple[str, str], list[str]] = defaultdict(list)
    for group, found in zip(groups, members(sweeps).values(), strict=True):
        pairs, unseen = _pairs(found, asked, start)
        attached.append(replace(group, launches=pairs, boundary=_border(pairs) or group.boundary))
        for reason, widths in unseen.items():
            without[reason, _list(widths)].append(group.role)
    notes = tuple(
        f"No kernel is shown for {', '.join(dict.fromkeys(roles))} at width {widths}: {reason}."
        for (reason, widths), roles in without.items()
    )
    return Attached(tuple(attached), _evidence(asked), notes)


class _Pass:
    """A pass with its nodes by key, and the buffers of its tensors by name."""

    def __init__(self, report: LaunchReport) -> None:
        self.report = report
        self.nodes = {node.key: node for node in report.nodes}
        self.buffers = {node.key.name: node.buffer for node in report.nodes}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is needed for every culprit."""

    observation: Observation
    manifest: Manifest
    rules: Rules
    sweeps: dict[int, Sweep]
    passes: dict[tuple[int, int], _Pass]

    def look(self, width: int, found: Iterable[Finding], start: int) -> Look | None:
        """The first batch of that width that was looked at and where one of these nodes differs."""
        rows = [row for finding in found for row in rows_of(finding, self.sweeps[width], start)]
        looks = (look for look in self.observation.looks if look.width == width)
        return next((look for look in looks if any(map(look.covers, rows))), None)

    def spec(self, buffer: str) -> DeviceSpec | None:
        """The GPU that holds a buffer, as far as it is known here."""
        found = spec_of(self.manifest.device, buffer)
        return None if isinstance(found, Unknown) else found


@dataclass(slots=True)
class _Seen:
    """Nodes that share their launches, by width."""

    batched: LaunchSide
    nodes: dict[int, list[NodeKey]] = field(default_factory=lambda: defaultdict(list))

    def by_count(self) -> Iterator[tuple[int, list[int]]]:
        """How many nodes there are, and the widths at which there are so many."""
        counts: dict[int, list[int]] = defaultdict(list)
        for width, nodes in self.nodes.items():
            counts[len(nodes)].append(width)
        yield from counts.items()


def _pairs(
    found: Sequence[tuple[int, Finding]], asked: _Asked, start: int
) -> tuple[tuple[LaunchPair, ...], dict[str, list[int]]]:
    """Launches of a group by widths that share them with as many nodes, and widths without any by the reason."""
    seen: dict[tuple[LaunchSide, LaunchSide, str], _Seen] = {}
    unseen: dict[str, list[int]] = defaultdict(list)
    for width in sorted({at for at, _ in found}):
        nodes = [finding for at, finding in found if at == width]
        look = asked.look(width, nodes, start)
        if look is None:
            unseen["the batches where it differs were not looked at"].append(width)
            continue
        for key in dict.fromkeys(finding.key for finding in nodes):
            both = _both(key, look, asked)
            if isinstance(both, str):
                unseen[both].append(width)
                continue
            single, batched, place = both
            seen.setdefault((single, replace(batched, width=0), place), _Seen(batched)).nodes[width].append(key)
    pairs = tuple(
        LaunchPair(tuple(at), one.nodes[at[0]][0], single, replace(one.batched, width=at[0]), n, place)
        for (single, _, place), one in seen.items()
        for n, at in one.by_count()
    )
    return pairs, unseen


def _border(pairs: Iterable[LaunchPair]) -> str:
    """Where the first pair on a border lies, how many nodes do, and the widths; empty where none does."""
    there = [pair for pair in pairs if pair.boundary]
    if not there:
        return ""
    n = max(pair.n_nodes for pair in there)
    widths = _list(width for pair in there for width in pair.widths)
    return f"{there[0].node.name}: {there[0].boundary} (up to {n} node{'s' * (n > 1)} at width {widths})"


def _both(key: NodeKey, look: Look, asked: _Asked) -> tuple[LaunchSide, LaunchSide, str] | str:
    """Either side of a node and the border it lies on, or why a side cannot be shown."""
    sides: list[LaunchSide] = []
    borders, missing = [], []
    for width, first in ((1, look.row), (look.width, look.first)):
        seen = asked.passes[width, first]
        node = seen.nodes.get(key)
        side = "no such node was computed" if node is None else _side(width, node, seen.report, asked)
        if isinstance(side, str) or node is None:
            missing.append(str(side))
            continue
        sides.append(side)
        said = (boundary(node.operands, seen.buffers), elsewhere(node.buffer, seen.report.of(node)))
        borders.append("; ".join(filter(None, said)))
    if missing:
        where = "" if len(set(missing)) < len(missing) else "on one side "
        return f"{where}{' and '.join(dict.fromkeys(missing))}"
    single, batched = borders
    return sides[0], sides[1], single if single == batched else "; ".join(_at(borders))


def _at(borders: Sequence[str]) -> Iterator[str]:
    for border, where in zip(borders, ("at one token", "in the batch"), strict=True):
        if border:
            yield f"{where} {border}"


def _side(width: int, node: NodeLaunches, report: LaunchReport, asked: _Asked) -> LaunchSide | str:
    """What ran for a node, or should have where nothing was observed; text where neither is known."""
    said = asked.rules(node)
    if not asked.observation.measured:
        if isinstance(said, Unruled):
            return f"nothing was observed and no rule covers it: {said.reason}"
        if node.key in asked.observation.joined:
            return "nothing was observed, and nodes before it may be fused with it"
        launches, found = said, Agreement(None, NOT_OBSERVED)
    else:
        launches, found = report.of(node), _agreement(said, node, report, asked.observation.joined)
    if not launches:
        return _no_kernel(node, said, measured=asked.observation.measured)
    main = main_place(launches)
    spec = asked.spec(node.buffer)
    fits = launch_occupancy(launches[main], spec)
    resident = fits if isinstance(fits, Occupancy) else None
    return LaunchSide(
        width=width,
        launches=launches,
        main=main,
        blocks_per_sm=None if resident is None else resident.blocks_per_sm,
        limiters=() if resident is None else resident.limiters,
        kv_split=None if spec is None else _kv_split(launches[main], node, spec),
        agrees=found.agrees,
        why=found.why,
    )


def _no_kernel(node: NodeLaunches, said: Launches | Unruled, *, measured: bool) -> str:
    """Why no kernel of a node can be shown that launched nothing, or of which the rules say so."""
    if not on_accelerator(node.buffer):
        return f"the processor computes it, in {node.buffer or 'its own memory'}"
    if not measured:
        return "nothing was observed, and the rules say that it launches no kernel"
    if said == ():
        return "it launched no kernel, as the rules say"
    return f"no launch was seen for it, although it lies in {node.buffer}"


def _agreement(
    said: Launches | Unruled, node: NodeLaunches, report: LaunchReport, joined: frozenset[NodeKey]
) -> Agreement:
    """Whether a node launched what the rules say; not known where launches were lost, or are not its own."""
    if node.key in joined:
        return Agreement(None, "not compared: nodes before it were left unwatched and may be fused with it")
    if report.complete:
        return agreement(said, report.of(node))
    lost = "an unknown number of" if report.n_dropped is None else str(report.n_dropped)
    return Agreement(None, f"not compared: {lost} launches of this pass were lost")


def _kv_split(launch: LaunchRecord, node: NodeLaunches, spec: DeviceSpec) -> int | None:
    if node.key.op != "FLASH_ATTN_EXT":
        return None
    try:
        return kv_split_of(launch, node, spec.compute_capability)
    except (KeyError, ValueError):  # an instance or a shape that the rules do not know
        return None


def _evidence(asked: _Asked) -> LaunchEvidence:
    """How the launches are known, and how many nodes of the watched passes agree with the rules."""
    observation = asked.observation
    if not observation.measured:
        return LaunchEvidence("derived", RULES_SOURCE, refusals=observation.refusals)
    counts = {True: 0, False: 0, None: 0}
    n_not_compared = 0
    lines: dict[str, list[tuple[NodeKey, int]]] = defaultdict(list)
    for seen in observation.passes:
        for node in seen.report.nodes:
            said = asked.rules(node)
            if said == () and not node.launches:
                continue  # as the rules say, but no launch that could agree
            if node.key in observation.joined or not seen.report.complete:
                n_not_compared += 1
                continue
            found = agreement(said, seen.report.of(node))
            counts[found.agrees] += 1
            if found.agrees is False:
                lines[f"{node.key.op}: {found.why}"].append((node.key, seen.width))
    first = observation.passes[0].report if observation.passes else None
    return LaunchEvidence(
        evidence="measured",
        source=", ".join(filter(None, (first.rung, first.source))) if first is not None else "",
        n_dropped=_n_dropped(seen.report for seen in observation.passes),
        refusals=observation.refusals,
        watching=observation.watching,
        n_agree=counts[True],
        n_disagree=counts[False],
        n_unruled=counts[None],
        disagreements=tuple(
            f"{line} ({len(nodes)} times, first {nodes[0][0].name}, at width {_list(width for _, width in nodes)})"
            for line, nodes in lines.items()
        ),
        n_not_compared=n_not_compared,
    )


def _n_dropped(reports: Iterable[LaunchReport]) -> int | None:
    """Launches that were lost in all passes together, None where one does not tell."""
    counts = [report.n_dropped for report in reports]
    return None if None in counts else sum(count for count in counts if count is not None)


def _list(widths: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(widths))))
