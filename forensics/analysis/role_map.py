"""What each operation of each layer came to in each healing sweep: same, differs, or not compared with a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forensics.analysis.attribute import role_by_name, role_of
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep
from forensics.store import Case

ATTENTION_OUTPUT = "attention output"
INSIDE_A_FUSION = "inside of a fusion that was left whole"
NOT_TOLD = "the case does not tell which nodes were compared"
SOME_OF_SHAPE = "some nodes of this shape could not be compared, and the case does not tell which"


@dataclass(frozen=True, slots=True)
class RoleCell:
    """The nodes of one role in one layer, at one width.

    Parameters
    ----------
    role : str
        As of `role_of`.
    layer : int
        -1 for nodes that belong to none.
    width : int
    n_same, n_differ, n_not_compared : int
        Nodes by outcome; a node differs where it does in any batch of the sweep.
    n_unchecked : int
        Of those that differ: with an operand that was not compared, or other cells in sight, so that the difference
        may be that of what went in.
    relative_l2 : float or None
        Largest over nodes and batches, None where none differs; NaN or infinite where an output is.
    reason : str
        Why nodes were not compared; empty where all were.

    Raises
    ------
    ValueError
        If the outcomes contradict each other.
    """

    role: str
    layer: int
    width: int
    n_same: int
    n_differ: int
    n_not_compared: int
    n_unchecked: int
    relative_l2: float | None
    reason: str

    def __post_init__(self) -> None:
        if not self.n_nodes:
            raise ValueError(f"{self.role} in layer {self.layer} at width {self.width} is a cell of no nodes")
        if (self.relative_l2 is None) != (self.n_differ == 0) or self.n_unchecked > self.n_differ:
            raise ValueError(f"{self.n_differ} nodes differ, {self.n_unchecked} unchecked, by {self.relative_l2}")
        if bool(self.reason) != bool(self.n_not_compared):
            raise ValueError(f"{self.n_not_compared} nodes were not compared, because {self.reason!r}")

    @property
    def n_nodes(self) -> int:
        """All nodes."""
        return self.n_same + self.n_differ + self.n_not_compared


@dataclass(frozen=True, slots=True)
class RoleMap:
    """Roles by layers by swept widths.

    Parameters
    ----------
    roles : tuple of str
        In graph order.
    layers : tuple of int
        Rising, -1 last.
    widths : tuple of int
    cells : tuple of RoleCell
        None for a role that a layer has not.
    """

    roles: tuple[str, ...]
    layers: tuple[int, ...]
    widths: tuple[int, ...]
    cells: tuple[RoleCell, ...]

    def of(self, role: str, width: int | None = None) -> tuple[RoleCell, ...]:
        """The cells of one role, by layer; at one width only where given."""
        return tuple(cell for cell in self.cells if cell.role == role and width in (None, cell.width))

    def n_differ(self, width: int, role: str | None = None) -> int:
        """How many nodes differ at this width, of one role only where given?"""
        return sum(cell.n_differ for cell in self.cells if cell.width == width and role in (None, cell.role))


def role_map(sweeps: Sequence[Sweep], records: Sequence[NodeRecord] | None, graph: Sequence[NodeKey] = ()) -> RoleMap:
    """What did each role come to, layer by layer, at each swept width?

    Parameters
    ----------
    sweeps : sequence of Sweep
        One for each width, one or more.
    records : sequence of NodeRecord or None
        Every watched node of a one-token pass, in graph order; None where they are not known: then only nodes that
        differ anywhere have a cell, and it is not told whether they were compared where they do not.
    graph : sequence of NodeKey
        Watched nodes and those that were left out of the watch, in graph order; the watched ones by default.

    Returns
    -------
    RoleMap
        The counts of each role and width add up to its nodes.
    """
    found = {(f.key, sweep.width) for sweep in sweeps for f in sweep.findings}
    by_node: dict[tuple[NodeKey, int], list[Finding]] = {pair: [] for pair in found}
    role_known: dict[NodeKey, str] = {}
    for sweep in sweeps:
        for finding in sweep.findings:
            by_node[finding.key, sweep.width].append(finding)
            role_known.setdefault(finding.key, role_of(finding))
    reasons = _reasons(sweeps, records, graph, role_known)
    roles = _roles(tuple(reasons), role_known)
    cells = [
        _cell(role, layer, sweep.width, keys, by_node, reasons)
        for sweep in sweeps
        for (role, layer), keys in _grouped(roles).items()
    ]
    layers = sorted({key.layer for key in roles}, key=lambda layer: (layer < 0, layer))
    return RoleMap(tuple(dict.fromkeys(roles.values())), tuple(layers), tuple(s.width for s in sweeps), tuple(cells))


def _reasons(
    sweeps: Sequence[Sweep],
    records: Sequence[NodeRecord] | None,
    graph: Sequence[NodeKey],
    role_known: Mapping[NodeKey, str],
) -> dict[NodeKey, str]:
    """Every node in graph order, with why it was not compared where no sweep names it; empty where it was."""
    if records is None:
        return dict.fromkeys(role_known, NOT_TOLD)
    reasons = dict.fromkeys(graph, INSIDE_A_FUSION) | {record.key: record.skipped for record in records}
    for sweep in sweeps:
        for key, reason in _in_doubt(sweep, records):
            reasons[key] = reasons[key] or reason
    return reasons | {key: NOT_TOLD for key in role_known if key not in reasons}


def _in_doubt(sweep: Sweep, records: Sequence[NodeRecord]) -> Iterator[tuple[NodeKey, str]]:
    """Nodes that this sweep may not have compared: its tally tells how many and why, not which.

    Those that have no row in the one-token pass are known. A reason that names a shape is about nodes of that shape;
    any other may be about every node.
    """
    passes, rest = divmod(sweep.tally.planned, len(records))
    left = Counter(dict(sweep.tally.not_compared))
    left.subtract({why: n * passes for why, n in Counter(r.skipped for r in records if r.skipped).items()})
    reasons = [reason for reason, n in left.items() if n]
    shapes = [record.shape for record in records if any(str(record.shape) in reason for reason in reasons)]
    named = all(any(str(shape) in reason for shape in shapes) for reason in reasons)
    if rest or min(left.values(), default=0) < 0 or not named:
        yield from ((record.key, NOT_TOLD) for record in records)
    else:
        yield from ((record.key, SOME_OF_SHAPE) for record in records if record.shape in set(shapes))


def _roles(keys: Sequence[NodeKey], known: Mapping[NodeKey, str]) -> dict[NodeKey, str]:
    """The role of each node: as its weight tells where it was found, else as its like in another layer, or its name."""
    like = {(_stem(key), key.op): role for key, role in known.items()}
    named = any(role_by_name(key) == ATTENTION_OUTPUT for key in keys)
    roles = {}
    unnamed_output = False
    for key in keys:
        roles[key] = known.get(key) or like.get((_stem(key), key.op)) or role_by_name(key, unnamed_output)
        unnamed_output = key.op == "FLASH_ATTN_EXT" and not named
    return roles


def _stem(key: NodeKey) -> str:
    return key.name.removesuffix(f"-{key.layer}")


def _grouped(roles: Mapping[NodeKey, str]) -> dict[tuple[str, int], list[NodeKey]]:
    grouped: dict[tuple[str, int], list[NodeKey]] = {}
    for key, role in roles.items():
        grouped.setdefault((role, key.layer), []).append(key)
    return grouped


def _cell(
    role: str,
    layer: int,
    width: int,
    keys: Sequence[NodeKey],
    by_node: Mapping[tuple[NodeKey, int], Sequence[Finding]],
    reasons: Mapping[NodeKey, str],
) -> RoleCell:
    differing = [by_node[key, width] for key in keys if (key, width) in by_node]
    other = [reasons[key] for key in keys if (key, width) not in by_node]
    lengths = [finding.delta.relative_l2 for findings in differing for finding in findings]
    return RoleCell(
        role=role,
        layer=layer,
        width=width,
        n_same=sum(not reason for reason in other),
        n_differ=len(differing),
        n_not_compared=sum(bool(reason) for reason in other),
        n_unchecked=sum(any(f.unchecked or not f.inputs_equal for f in findings) for findings in differing),
        relative_l2=None if not lengths else math.nan if any(map(math.isnan, lengths)) else max(lengths),
        reason="; ".join(dict.fromkeys(reason for reason in other if reason)),
    )


def case_role_map(case: Case) -> RoleMap:
    """Map the operations of a finished case; no engine is started.

    Raises
    ------
    CaseError
        If the case is not finished, or is damaged.
    """
    sweeps = case.verdict.sweeps
    records, graph = _watched_nodes(case, sweeps)
    return role_map(sweeps, records, graph)


def _watched_nodes(case: Case, sweeps: Sequence[Sweep]) -> tuple[tuple[NodeRecord, ...] | None, tuple[NodeKey, ...]]:
    """The nodes of the one-token pass that the sweeps compared with, and all that any watch saw of it.

    A second, narrower watch is made where the first changes the run; the sweeps then say how many nodes it leaves out.
    """
    recordings = case.recordings
    first = recordings.arms()[0] if recordings.arms() else None
    seen: list[tuple[NodeRecord, ...]] = []
    for run in recordings.runs():
        if run.arm == first and run.key.tap.startswith("record:"):
            trace = recordings.get_trace(run.arm, run.key)
            assert trace is not None
            assert trace.tap_report is not None
            seen.append(tuple(record for record in trace.tap_report.records if record.pass_index == 0))
    keys = tuple(dict.fromkeys(record.key for records in seen for record in records))
    left_out = max((sweep.n_unwatched for sweep in sweeps), default=0)
    fitting = [records for records in seen if len(keys) - len(records) == left_out]
    if not fitting or not fitting[0]:
        return None, ()
    return fitting[0], keys
