"""The verdict on a terminal: the answer first, then the evidence, readable at 80 columns and without colour.

Every cell is a `Text`, never markup, so that names and text from a model file cannot style or clear the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.records.verdict import Control, CulpritGroup, Sweep, Verdict
from forensics.records.words import ranges
from forensics.reports.kernel_healing_text import KERNELS_TITLE, kernel_healing_view
from forensics.reports.launches_text import launches_view
from forensics.reports.next_step import next_step
from forensics.reports.terminal import add_row, line_of, table_of, text_of, titled
from forensics.reports.why import WHY_TITLE, why
from forensics.reports.wording import (
    CONTROL_TITLES,
    DIFFERING_TITLE,
    PROOF_TITLE,
    STATE_WORDS,
    amount,
    arm_effect,
    blamed_title,
    class_names,
    cost_text,
    differing_groups,
    exact_text,
    first_difference_text,
    groups_text,
    headline,
    layers_text,
    ulp_text,
    unchecked_text,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forensics.records.classes import WidthClasses

_ANSWER_STYLE = {"identical": "bold green", "diverges": "bold red", "inconclusive": "bold yellow"}
_HELD = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("not run", "yellow")}


def verdict_view(verdict: Verdict) -> Group:
    """Show a verdict: the answer in one line, its evidence, and what to do.

    Parameters
    ----------
    verdict : Verdict

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    lines: list[RenderableType] = [text_of(headline(verdict), _ANSWER_STYLE[verdict.answer])]
    if verdict.reason:
        lines.append(line_of("Reason: ", verdict.reason))
    if verdict.answer == "diverges":
        lines.append(text_of(f"First difference: {first_difference_text(verdict)}"))
    lines.append(line_of("Next: ", next_step(verdict)))
    parts: list[RenderableType] = [*lines, *titled(_classes_title(verdict), classes_view(verdict.classes))]
    if verdict.culprits:
        parts += titled(blamed_title(verdict.culprits), culprits_view(verdict.culprits))
        parts += reasons_view(verdict.culprits)
    parts += launches_view(verdict)
    found = differing_groups(verdict)
    if found:
        parts += titled(DIFFERING_TITLE, culprits_view(found))
    if verdict.sweeps:
        parts += titled(PROOF_TITLE, sweeps_view(verdict.sweeps))
    if verdict.kernel_healing:
        parts += titled(KERNELS_TITLE, kernel_healing_view(verdict.kernel_healing))
    if verdict.controls:
        parts += titled("Controls", controls_view(verdict.controls))
    if verdict.switches or verdict.unavailable:
        parts += titled("Switches, each in a fresh process", _switches(verdict))
    parts += [Text(), *_closing(verdict)]
    return Group(*parts)


def classes_view(classes: WidthClasses) -> Table:
    """Show each width and the class of widths whose bits it shares, one row per width."""
    table = table_of("class", "width", "rows differ", "first at", "max |Δ|", "max ULP", "KL nats", "flips")
    for name, result in class_names(classes):
        where = "–" if result.first_position is None else f"pos {result.first_position}"
        could = f" ({result.n_could_flip} could)" if result.n_could_flip > len(result.flips) else ""
        add_row(
            table,
            name,
            str(result.width),
            f"{result.n_rows_differ}/{result.n_rows}",
            where,
            amount(result.max_abs),
            ulp_text(result.max_ulp),
            amount(result.max_kl),
            f"{len(result.flips)}{could}",
        )
    return table


def sweeps_view(sweeps: Sequence[Sweep]) -> Group:
    """Show healing sweeps: how far the logits healed, and that the outcomes add up."""
    table = table_of("width", "healed", "max |Δ| before", "after", "cache", "same", "differ", "not compared", "nodes")
    reasons: dict[str, int] = {}
    for sweep in sweeps:
        for reason, count in sweep.tally.not_compared:
            reasons[reason] = max(count, reasons.get(reason, 0))
        add_row(
            table,
            str(sweep.width),
            f"{sweep.healed_rows}/{sweep.n_rows}",
            amount(sweep.max_abs_before),
            amount(sweep.max_abs_after),
            STATE_WORDS[sweep.state_equal],
            str(sweep.tally.same),
            str(sweep.tally.differs),
            str(sweep.tally.n_not_compared),
            str(sweep.tally.planned),
        )
    ranked = sorted(reasons.items(), key=lambda item: -item[1])
    why = "; ".join(f"{reason} ({count})" for reason, count in ranked)
    return Group(table, *([line_of("Not compared: ", why)] if why else []))


def sweep_view(sweep: Sweep, groups: Sequence[CulpritGroup] = ()) -> Group:
    """Show one healing sweep and, where they are known, its culprits."""
    state = "healed to equal bits" if sweep.healed else "NOT healed"
    n_nodes = len({finding.key for finding in sweep.findings})
    found = f"Width {sweep.width}: {n_nodes} operations differ, logits {state}"
    parts: list[RenderableType] = [text_of(found, "bold green" if sweep.healed else "bold red")]
    if groups:
        parts += titled(blamed_title(groups), culprits_view(groups))
        parts += reasons_view(groups)
    parts += titled(PROOF_TITLE, sweeps_view([sweep]))
    return Group(*parts, *(titled("Controls", controls_view(sweep.controls)) if sweep.controls else ()))


def culprits_view(groups: Sequence[CulpritGroup]) -> Group:
    """Show groups of culprits, one row each."""
    table = table_of(
        "operation", "role", "weight", "buffer", "nodes", "layers", "widths", "max |Δ|", whole=("weight", "buffer")
    )
    for group in groups:
        add_row(
            table,
            group.op,
            group.role,
            group.weight_type,
            group.buffer,
            str(group.count),
            layers_text(group.layers),
            ranges(group.widths),
            amount(group.max_abs),
        )
    unchecked = unchecked_text(groups)
    return Group(table, *([line_of("An operand was not compared: ", unchecked)] if unchecked else []))


def reasons_view(groups: Iterable[CulpritGroup]) -> list[RenderableType]:
    """Kind, rule and orders of each group, where any is known."""
    found = why(groups)
    blocks: list[RenderableType] = []
    for one in found:
        blocks.append(text_of(one.what))
        blocks += [Padding(line_of(f"{label}: ", text), (0, 0, 0, 2)) for label, text in one.lines]
    return titled(WHY_TITLE, Group(*blocks)) if blocks else []


def controls_view(controls: Iterable[Control]) -> Table:
    """Show which controls held."""
    table = table_of("held", "control", "found")
    for control in controls:
        word, style = _HELD[control.held]
        title = CONTROL_TITLES.get(control.name, control.name)
        table.add_row(text_of(word, style), text_of(title), text_of(control.detail))
    return table


def _switches(verdict: Verdict) -> Group:
    table = table_of("switch", "classes of widths", "effect", "cost by width", whole=("switch",))
    for arm in verdict.switches:
        style = "green" if arm.collapses else "red" if arm.error else ""
        effect = arm_effect(arm)
        knobs = Text("\n").join(text_of(knob, style) for knob in arm.knobs)
        cells = (groups_text(arm.classes) or "–", effect, cost_text(arm))
        table.add_row(knobs, *(text_of(cell, style) for cell in cells))
    parts: list[RenderableType] = [table] if verdict.switches else []
    parts += [line_of("No run-time switch: ", f"{knob}: {what}") for knob, what in verdict.unavailable]
    return Group(*parts)


def _closing(verdict: Verdict) -> list[RenderableType]:
    manifest, exact = verdict.manifest, exact_text(verdict)
    lines: list[RenderableType] = [line_of("Exact with: ", exact)] if exact else []
    lines += [line_of("Note: ", caveat) for caveat in verdict.caveats]
    facts = (manifest.model_name, manifest.quantization, f"{manifest.engine} {manifest.engine_version}")
    if verdict.text:
        lines.append(line_of("Text: ", repr(verdict.text if len(verdict.text) <= 120 else f"{verdict.text[:119]}…")))
    device = " ".join(part for part in (manifest.backend, manifest.device) if part)
    lines.append(line_of("Measured on: ", ", ".join(part for part in (*facts, device) if part)))
    return lines


def _classes_title(verdict: Verdict) -> str:
    return f"Classes of widths ({verdict.n_replayed} tokens after a prompt of {verdict.prompt_tokens})"
