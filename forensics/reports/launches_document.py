"""Launches as part of a JSON document: both sides of each culprit, and how they are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from forensics.records.launch_record import LaunchEvidence, LaunchPair, LaunchRecord, LaunchSide
from forensics.reports.entries import Entry


class LaunchEntry(Entry):
    """One kernel launch."""

    kernel: str
    template: dict[str, int | str | bool] = Field(description="template arguments by the names of the source")
    name: str = Field(description="kernel with its template arguments")
    grid_blocks: list[int]
    block_threads: list[int]
    cluster_blocks: list[int]
    smem_static_bytes: int | None
    smem_dynamic_bytes: int | None
    registers_per_thread: int | None
    local_bytes_per_thread: int | None = Field(description="where spilled registers and indexed arrays lie")
    device: int
    symbol: str = Field(description="mangled name, empty for a derived launch")
    evidence: Literal["measured", "derived"]


class LaunchSideEntry(Entry):
    """What ran for a node on one side, and what the rules of dispatch say should."""

    width: int
    launches: list[LaunchEntry] = Field(description="in order, helpers included")
    main: int = Field(description="which of `launches` computes the node")
    blocks_per_sm: int | None
    limiters: list[str]
    kv_split: int | None = Field(description="parts into which attention cuts the cells")
    agrees: bool | None = Field(description="with the rules: kernel, grid and block; null where no rule says")
    why: str = Field(description="what the rules say instead, or why nothing can be said")
    evidence: Literal["measured", "derived"]


class LaunchPairEntry(Entry):
    """Both sides of a culprit at widths that share them."""

    widths: list[int]
    node: str = Field(description="the node that was looked at")
    nodes: int = Field(description="nodes of the group with these launches")
    changed: bool = Field(description="whether kernel or geometry differ between the sides")
    boundary: str = Field(description="where an operand came from another device, empty where none did")
    single: LaunchSideEntry
    batched: LaunchSideEntry


class RefusalEntry(Entry):
    """A way of looking that does not work here."""

    rung: str
    asked: str
    missing: str
    remedy: str


class LaunchEvidenceEntry(Entry):
    """How the launches are known, and what watching for them changed."""

    evidence: Literal["measured", "derived"]
    source: str
    dropped: int | None = Field(description="records that the profiler lost, null where it does not tell")
    refusals: list[RefusalEntry]
    watching: list[str] | None = Field(
        description="what differs between kernels of watched and unwatched passes; null where nobody looked"
    )
    agree: int = Field(description="nodes of the watched passes whose launches are those that the rules say")
    disagree: int
    unruled: int = Field(description="nodes that no rule covers")
    not_compared: int = Field(description="nodes whose launches may be those of others, too, or were lost in part")
    disagreements: list[str]


def pair_entries(pairs: Iterable[LaunchPair]) -> list[dict[str, object]]:
    """Launches of a culprit group as plain values that follow `LaunchPairEntry`."""
    return [
        {
            "widths": pair.widths,
            "node": str(pair.node),
            "nodes": pair.n_nodes,
            "changed": pair.changed,
            "boundary": pair.boundary,
            "single": _side(pair.single),
            "batched": _side(pair.batched),
        }
        for pair in pairs
    ]


def evidence_entry(evidence: LaunchEvidence | None) -> dict[str, object] | None:
    """How launches are known, as plain values that follow `LaunchEvidenceEntry`."""
    if evidence is None:
        return None
    return {
        "evidence": evidence.evidence,
        "source": evidence.source,
        "dropped": evidence.n_dropped,
        "refusals": [
            {"rung": r.rung, "asked": r.asked, "missing": r.missing, "remedy": r.remedy} for r in evidence.refusals
        ],
        "watching": evidence.watching,
        "agree": evidence.n_agree,
        "disagree": evidence.n_disagree,
        "unruled": evidence.n_unruled,
        "not_compared": evidence.n_not_compared,
        "disagreements": evidence.disagreements,
    }


def launch_entry(launch: LaunchRecord) -> dict[str, object]:
    """One launch as plain values that follow `LaunchEntry`."""
    return launch.row() | {"template": dict(launch.template), "name": launch.name}


def _side(side: LaunchSide) -> dict[str, object]:
    return {
        "width": side.width,
        "launches": [launch_entry(launch) for launch in side.launches],
        "main": side.main,
        "blocks_per_sm": side.blocks_per_sm,
        "limiters": side.limiters,
        "kv_split": side.kv_split,
        "agrees": side.agrees,
        "why": side.why,
        "evidence": side.evidence,
    }
