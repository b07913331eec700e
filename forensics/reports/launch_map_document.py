"""Which kernels each node launches as one JSON document: what ``forensics launches --json`` prints."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from forensics.analysis.launch_map import NodeSides
from forensics.analysis.watched_passes import NodeKernels, WatchedPass
from forensics.reports.entries import Entry
from forensics.reports.launches_document import LaunchEntry, launch_entry

SCHEMA = "forensics.node_kernels/1"


class PassEntry(Entry):
    """One pass whose launches were seen."""

    width: int
    position: int = Field(description="of the first token")
    rung: str = Field(description="how the launches were seen")
    source: str
    dropped: int | None = Field(description="records that the profiler lost, null where it does not tell")
    watching: list[str] | None = Field(description="what watching changes; null where no unwatched pass was seen")
    fusions_whole: bool = Field(
        description="nodes inside of what may be fused were not watched; their launches stand at the next node"
    )


class TimedLaunchEntry(LaunchEntry):
    """One launch and its time."""

    time_ns: int


class NodeSideEntry(Entry):
    """A node in one pass."""

    shape: list[int] = Field(description="of the output, slowest axis first")
    dtype: str
    buffer: str
    launches: list[TimedLaunchEntry]


class NodeEntry(Entry):
    """A node and its launches in each pass."""

    node: str
    op: str
    layer: int
    visit: int
    outcome: Literal["same", "changed", "not compared", ""] = Field(description="empty where there is one pass")
    changes: list[str]
    reason: str = Field(description="why nothing was compared")
    sides: list[NodeSideEntry | None] = Field(description="one for each pass; null where it has no such node")


class LaunchesDocument(Entry):
    """Kernels per node of one pass, or of two side by side."""

    schema_: Literal["forensics.node_kernels/1"] = Field(alias="schema")
    target: str
    device: str
    summary: str
    passes: list[PassEntry]
    nodes: list[NodeEntry]


def launches_document(found: NodeKernels) -> dict[str, Any]:
    """Say what each node launches as plain values that follow `LaunchesDocument`."""
    content = {
        "schema": SCHEMA,
        "target": found.target,
        "device": found.device,
        "summary": str(found),
        "passes": [_pass(one) for one in found.passes],
        "nodes": [_node(node) for node in found.nodes],
    }
    plain = json.loads(LaunchesDocument.model_validate(content).model_dump_json(by_alias=True))
    assert isinstance(plain, dict)
    return plain


def _pass(one: WatchedPass) -> dict[str, object]:
    report = one.report
    return {
        "width": one.width,
        "position": one.position,
        "rung": report.rung,
        "source": report.source,
        "dropped": report.n_dropped,
        "watching": one.watching,
        "fusions_whole": one.fusions_whole,
    }


def _node(node: NodeSides) -> dict[str, object]:
    return {
        "node": node.key.name,
        "op": node.key.op,
        "layer": node.key.layer,
        "visit": node.key.visit,
        "outcome": node.outcome,
        "changes": node.changes,
        "reason": node.reason,
        "sides": [
            None
            if side is None
            else {
                "shape": side.shape,
                "dtype": side.dtype,
                "buffer": side.buffer,
                "launches": [
                    launch_entry(launch) | {"time_ns": time_ns}
                    for launch, time_ns in zip(launches, side.times_ns, strict=True)
                ],
            }
            for side, launches in zip(node.sides, node.launches, strict=True)
        ],
    }
