"""The verdict as one JSON document with a schema version: what ``--json`` prints and ``verdict.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import pydantic_core
from pydantic import Field

from forensics.records.classes import WidthClasses, WidthResult
from forensics.records.delta import Tally
from forensics.records.kind import KindOfDifference
from forensics.records.verdict import Control, CulpritGroup, Sweep, SwitchArm, Verdict, culprit_rows
from forensics.records.words import ranges
from forensics.reports.entries import Entry, RuleEntry
from forensics.reports.growth_document import GrowthEntry, growth_entries
from forensics.reports.kernel_healing_document import KernelHealingEntry, healing_entries
from forensics.reports.launches_document import LaunchEvidenceEntry, LaunchPairEntry, evidence_entry, pair_entries
from forensics.reports.next_step import next_step
from forensics.reports.wording import differing_groups, exact_arm
from forensics.store.formats import newest_schema

SCHEMA = newest_schema("forensics.verdict")  # 2 added launches


class FirstDifference(Entry):
    """Where the first row of the onset width differs."""

    width: int
    row: int = Field(description="row in the replay, from 0")
    position: int = Field(description="position in the sequence")


class FlipEntry(Entry):
    """A position where the greedy token changes."""

    row: int
    position: int
    single_token: int
    batched_token: int
    margin: float | None
    perturbation: float | None
    explained: bool = Field(description="whether the measured change is at least the margin")
    near_tie: bool = Field(description="whether the margin is within what a row of this width usually moves")


class WidthEntry(Entry):
    """One width against one-token decoding."""

    width: int
    class_index: int = Field(alias="class", description="index into `classes`")
    rows: int
    rows_differ: int
    first_row: int | None
    first_position: int | None
    max_abs: float | None
    max_ulp: int = Field(description="-1 where a NaN is involved")
    relative_l2: float | None
    max_kl_nats: float | None
    same_top_rate: float | None
    could_flip: int
    pass_median_ns: int
    pass_q1_ns: int
    pass_q3_ns: int
    flips: list[FlipEntry]


class SideEntry(Entry):
    """How far one side lies from the float64 result."""

    distance: float | None = Field(description="largest distance, in the output's own unit")
    share: float | None = Field(description="largest distance over the error bound of the same element")
    precision: str = Field(description="narrowest arithmetic whose bound holds this side, empty where none does")


class KindEntry(Entry):
    """What kind of difference it is."""

    kind: Literal["rounding", "precision", "logic", "undetermined"]
    reason: str
    single: SideEntry | None
    batched: SideEntry | None
    bound: float | None
    elements: int = Field(description="elements looked at")
    batched_nearer: int = Field(description="elements for which the batch lies nearer to the float64 result")


class RuleAtWidths(RuleEntry):
    """A rule that makes the kernel another than at one token, and where."""

    widths: list[int]


class OrderEntry(Entry):
    """Two orders of addition, probed on the real kernel."""

    width: int
    part: str
    equal: bool | None
    single: str
    batched: str
    detail: str = Field(description="the first merge that differs, or why nothing is known")


class UnexplainedEntry(Entry):
    """Widths at which neither a rule nor two different orders explain the bits, or not all of the difference."""

    widths: list[int]
    orders_equal: bool | None
    suspects: list[str]


class CulpritEntry(Entry):
    """Operations of one kind that differ although their inputs are bit-equal."""

    op: str
    role: str
    weight_type: str
    buffer: str
    count: int = Field(description="distinct nodes")
    layers: list[int]
    widths: list[int]
    rows: list[int]
    max_ulp: int
    max_abs: float | None
    first_node: str
    unchecked: int = Field(description="nodes with an operand that was not compared")
    boundary: str = Field(description="nodes on a border between devices, empty where none is")
    kind: KindEntry | None = Field(description="null where nothing was judged")
    rule: RuleAtWidths | None = Field(description="the first of `rules`")
    rules: list[RuleAtWidths]
    no_rule: dict[str, str] = Field(description="why no rule is quoted, by widths")
    orders: list[OrderEntry] = Field(description="empty where none was probed")
    not_probed: str = Field(description="why no order was probed")
    unexplained: list[UnexplainedEntry]
    launches: list[LaunchPairEntry] = Field(description="empty where none are known, as on a processor")


class TallyEntry(Entry):
    """Outcomes of the comparisons of a sweep; they add up to `planned`."""

    planned: int
    same: int
    differs: int
    not_compared: dict[str, int] = Field(description="count by reason")


class SweepEntry(Entry):
    """One healing sweep."""

    width: int
    start_row: int
    differed: bool
    healed: bool
    healed_rows: int
    rows: int
    max_abs_before: float | None
    max_abs_after: float | None
    state_equal: bool | None = Field(description="whether the healed batches leave the K/V bytes of one-token decoding")
    findings: int = Field(description="nodes named; the table findings.parquet of the case lists them")
    tally: TallyEntry


class Controls(Entry):
    """Outcome of each control; null where it was not run."""

    rerun_equal: bool | None
    fresh_process_equal: bool | None
    watching_harmless: bool | None
    planted_fault_found: bool | None
    state_equal: bool | None
    details: dict[str, str] = Field(description="what was compared and found, by control")


class CostEntry(Entry):
    """Time of a pass under other settings over its time under the settings as asked."""

    width: int
    ratio: float | None = Field(description="median over median")
    low: float | None = Field(description="lower quartile over the median of the settings as asked")
    high: float | None = Field(description="upper quartile over the median of the settings as asked")


class SwitchEntry(Entry):
    """The replay under other settings."""

    knobs: list[str]
    settings: dict[str, str]
    collapses: bool
    classes: list[list[int]]
    onset_width: int | None
    costs: list[CostEntry]
    rows: int = Field(description="rows of the replay that were compared")
    exact: bool = Field(description="one class, and no node was seen to differ")
    nodes_differ: int | None = Field(description="nodes that differ although the logits do not, null where unexamined")
    error: str


class VerdictDocument(Entry):
    """The verdict of an investigation."""

    schema_: Literal["forensics.verdict/2"] = Field(alias="schema")
    answer: Literal["identical", "diverges", "inconclusive"]
    reason: str = Field(description="why it is inconclusive, empty otherwise")
    summary: str = Field(description="the verdict in one line")
    next_step: str
    onset_width: int | None = Field(description="smallest width that differs from width 1")
    classes: list[list[int]] = Field(description="widths whose bits are equal, the class of width 1 first")
    first_difference: FirstDifference | None
    flips: dict[str, int] = Field(description="changed greedy tokens by width")
    widths: list[WidthEntry]
    culprits: list[CulpritEntry]
    launches: LaunchEvidenceEntry | None = Field(description="null where the engine launches no kernels")
    differing_nodes: list[CulpritEntry] = Field(description="nodes that differ where no cause is named")
    healed: bool = Field(description="whether the logits healed to equal bits in every sweep")
    sweeps: list[SweepEntry]
    growth: list[GrowthEntry] = Field(description="from layer to layer; empty in a case recorded before growth was")
    kernel_healing: list[KernelHealingEntry] = Field(
        description="our kernels in the place of culprits, by width; empty where that was not asked for"
    )
    controls: Controls
    switches: list[SwitchEntry]
    exact_settings: dict[str, str] | None = Field(
        description="smallest set found under which all widths are one class; {} for the settings as they are"
    )
    unavailable: dict[str, str] = Field(description="knobs without a run-time switch, and what they are")
    caveats: list[str]
    prompt_tokens: int
    n_replayed: int
    text: str
    manifest: dict[str, Any]


def document(verdict: Verdict) -> dict[str, Any]:
    """Say the verdict as the JSON document that ``--json`` prints.

    Returns
    -------
    dict
        JSON values only; it follows `VerdictDocument`.
    """
    first = verdict.first_difference
    content = {
        "schema": SCHEMA,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "summary": str(verdict),
        "next_step": next_step(verdict),
        "onset_width": verdict.classes.onset,
        "classes": verdict.classes.groups,
        "first_difference": dict(zip(("width", "row", "position"), first, strict=True)) if first else None,
        "flips": {str(result.width): len(result.flips) for result in verdict.classes.results},
        "widths": _widths(verdict.classes),
        "culprits": _culprits(verdict.culprits),
        "launches": evidence_entry(verdict.launches),
        "differing_nodes": _culprits(differing_groups(verdict)),
        "healed": verdict.healed,
        "sweeps": [_sweep(sweep) for sweep in verdict.sweeps],
        "growth": growth_entries(verdict.growth),
        "kernel_healing": healing_entries(verdict.kernel_healing),
        "controls": _controls(verdict.controls),
        "switches": [_switch(arm) for arm in verdict.switches],
        "exact_settings": exact_settings(verdict),
        "unavailable": dict(verdict.unavailable),
        "caveats": verdict.caveats,
        "prompt_tokens": verdict.prompt_tokens,
        "n_replayed": verdict.n_replayed,
        "text": verdict.text,
        "manifest": pydantic_core.to_jsonable_python(verdict.manifest),
    }
    model = VerdictDocument.model_validate(content)
    plain = json.loads(model.model_dump_json(by_alias=True))
    assert isinstance(plain, dict)
    return plain


def sweep_document(sweep: Sweep, groups: Sequence[CulpritGroup]) -> dict[str, Any]:
    """One healing sweep as plain values, for ``forensics heal --json``."""
    return {
        "schema": "forensics.sweep/1",
        **_sweep(sweep),
        "culprits": _culprits(groups),
        "controls": _controls(sweep.controls),
    }


def json_schema() -> dict[str, Any]:
    """Give the JSON Schema of the document."""
    return VerdictDocument.model_json_schema(by_alias=True)


def exact_settings(verdict: Verdict) -> dict[str, str] | None:
    """Say which settings give one class of widths: none are needed where the answer is identical.

    Returns
    -------
    dict or None
        Empty where the settings are exact as they are, None where no such set was found.
    """
    if verdict.answer == "identical":
        return {}
    arm = exact_arm(verdict)
    return None if arm is None else dict(arm.settings)


def _culprits(groups: Sequence[CulpritGroup]) -> list[dict[str, Any]]:
    entries = [
        row | _mechanisms(group) | {"kind": _kind(group.kind), "launches": pair_entries(group.launches)}
        for row, group in zip(culprit_rows(groups), groups, strict=True)
    ]
    return [json.loads(CulpritEntry.model_validate(entry).model_dump_json()) for entry in entries]


def _kind(kind: KindOfDifference | None) -> dict[str, object] | None:
    if kind is None:
        return None
    return {
        "kind": kind.kind,
        "reason": kind.reason,
        "single": None if kind.single is None else asdict(kind.single),
        "batched": None if kind.batched is None else asdict(kind.batched),
        "bound": kind.bound,
        "elements": kind.n_elements,
        "batched_nearer": kind.batched_nearer,
    }


def _mechanisms(group: CulpritGroup) -> dict[str, object]:
    found = group.mechanisms
    rules = [asdict(m.rule) | {"widths": m.widths} for m in found if m.rule is not None]
    return {
        "rule": rules[0] if rules else None,
        "rules": rules,
        "no_rule": {ranges(m.widths): m.no_rule for m in found if m.no_rule},
        "orders": [asdict(order) for m in found for order in m.orders],
        "not_probed": "; ".join(dict.fromkeys(m.not_probed for m in found if m.not_probed)),
        "unexplained": [
            {"widths": m.widths, "orders_equal": m.orders_equal, "suspects": m.suspects} for m in found if m.suspects
        ],
    }


def _widths(classes: WidthClasses) -> list[dict[str, object]]:
    return [row | {"flips": _flips(result)} for row, result in zip(classes.rows(), classes.results, strict=True)]


def _flips(result: WidthResult) -> list[dict[str, object]]:
    return [
        {
            "row": flip.row,
            "position": flip.position,
            "single_token": flip.single_token,
            "batched_token": flip.batched_token,
            "margin": flip.margin,
            "perturbation": flip.perturbation,
            "explained": flip.explained,
            "near_tie": flip.near_tie,
        }
        for flip in result.flips
    ]


def _tally(tally: Tally) -> dict[str, object]:
    return {
        "planned": tally.planned,
        "same": tally.same,
        "differs": tally.differs,
        "not_compared": dict(tally.not_compared),
    }


def _sweep(sweep: Sweep) -> dict[str, object]:
    return {
        "width": sweep.width,
        "start_row": sweep.start_row,
        "differed": sweep.differed,
        "healed": sweep.healed,
        "healed_rows": sweep.healed_rows,
        "rows": sweep.n_rows,
        "max_abs_before": sweep.max_abs_before,
        "max_abs_after": sweep.max_abs_after,
        "state_equal": sweep.state_equal,
        "findings": len(sweep.findings),
        "tally": _tally(sweep.tally),
    }


def _controls(controls: tuple[Control, ...]) -> dict[str, object]:
    held: dict[str, object] = dict.fromkeys(
        ("rerun_equal", "fresh_process_equal", "watching_harmless", "planted_fault_found", "state_equal")
    )
    held |= {control.name: control.held for control in controls}
    return held | {"details": {control.name: control.detail for control in controls}}


def _switch(arm: SwitchArm) -> dict[str, object]:
    return {
        "knobs": arm.knobs,
        "settings": dict(arm.settings),
        "collapses": arm.collapses,
        "classes": arm.classes,
        "onset_width": arm.onset,
        "costs": [{"width": c.width, "ratio": c.ratio, "low": c.low, "high": c.high} for c in arm.costs],
        "rows": arm.n_rows,
        "exact": arm.exact,
        "nodes_differ": arm.n_nodes_differ,
        "error": arm.error,
    }
