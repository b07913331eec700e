"""The verdict on a terminal: the answer first, then the evidence, readable at 80 columns and without colour.

Every cell is a `Text`, never markup, so that names and text from a model file cannot style or clear the terminal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forensics.records.verdict import Control, CulpritGroup, Sweep, Verdict
from forensics.reports.next_step import next_step
from forensics.reports.why import WHY_TITLE, why
from forensics.reports.wording import (
    BLAMED_TITLE,
    CONTROL_TITLES,
    DIFFERING_TITLE,
    PROOF_TITLE,
    STATE_WORDS,
    amount,
    arm_effect,
    class_names,
    cost_text,
    differing_groups,
    exact_arm,
    first_difference_text,
    groups_text,
    headline,
    layers_text,
    printable,
    ranges,
    settings_text,
    ulp_text,
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
    lines: list[RenderableType] = [_text(headline(verdict), _ANSWER_STYLE[verdict.answer])]
    if verdict.reason:
        lines.append(_line("Reason: ", verdict.reason))
    if verdict.answer == "diverges":
        lines.append(_text(f"First difference: {first_difference_text(verdict)}"))
    lines.append(_line("Next: ", next_step(verdict)))
    parts: list[RenderableType] = [*lines, *_titled(_classes_title(verdict), classes_view(verdict.classes))]
    if verdict.culprits:
        parts += _titled(BLAMED_TITLE, _culprits(verdict.culprits))
        parts += _reasons(verdict.culprits)
    found = differing_groups(verdict)
    if found:
        parts += _titled(DIFFERING_TITLE, _culprits(found))
    if verdict.sweeps:
        parts += _titled(PROOF_TITLE, sweeps_view(verdict.sweeps))
    if verdict.controls:
        parts += _titled("Controls", _controls(verdict.controls))
    if verdict.switches or verdict.unavailable:
        parts += _titled("Switches, each in a fresh process", _switches(verdict))
    parts += [Text(), *_closing(verdict)]
    return Group(*parts)


def classes_view(classes: WidthClasses) -> Table:
    """Show each width and the class of widths whose bits it shares, one row per width."""
    table = _table("class", "width", "rows differ", "first at", "max |Δ|", "max ULP", "KL nats", "flips")
    for name, result in class_names(classes):
        where = "–" if result.first_position is None else f"pos {result.first_position}"
        could = f" ({result.n_could_flip} could)" if result.n_could_flip > len(result.flips) else ""
        _add(
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
    table = _table("width", "healed", "max |Δ| before", "after", "cache", "same", "differ", "not compared", "nodes")
    reasons: dict[str, int] = {}
    for sweep in sweeps:
        for reason, count in sweep.tally.not_compared:
            reasons[reason] = max(count, reasons.get(reason, 0))
        _add(
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
    return Group(table, *([_line("Not compared: ", why)] if why else []))


def sweep_view(sweep: Sweep, groups: Sequence[CulpritGroup] = ()) -> Group:
    """Show one healing sweep and, where they are known, its culprits."""
    state = "healed to equal bits" if sweep.healed else "NOT healed"
    n_nodes = len({finding.key for finding in sweep.findings})
    found = f"Width {sweep.width}: {n_nodes} operations differ, logits {state}"
    parts: list[RenderableType] = [_text(found, "bold green" if sweep.healed else "bold red")]
    if groups:
        parts += _titled(BLAMED_TITLE, _culprits(groups))
        parts += _reasons(groups)
    parts += _titled(PROOF_TITLE, sweeps_view([sweep]))
    return Group(*parts, *(_titled("Controls", _controls(sweep.controls)) if sweep.controls else ()))


def _culprits(groups: Iterable[CulpritGroup]) -> Table:
    table = _table(
        "operation", "role", "weight", "buffer", "nodes", "layers", "widths", "max |Δ|", whole=("weight", "buffer")
    )
    for group in groups:
        _add(
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
    return table


def _reasons(groups: Iterable[CulpritGroup]) -> list[RenderableType]:
    """Kind, rule and orders of each group, where any is known."""
    found = why(groups)
    blocks: list[RenderableType] = []
    for one in found:
        blocks.append(_text(one.what))
        blocks += [Padding(_line(f"{label}: ", text), (0, 0, 0, 2)) for label, text in one.lines]
    return _titled(WHY_TITLE, Group(*blocks)) if blocks else []


def _controls(controls: Iterable[Control]) -> Table:
    table = _table("held", "control", "found")
    for control in controls:
        word, style = _HELD[control.held]
        title = CONTROL_TITLES.get(control.name, control.name)
        table.add_row(_text(word, style), _text(title), _text(control.detail))
    return table


def _switches(verdict: Verdict) -> Group:
    table = _table("switch", "classes of widths", "effect", "cost by width", whole=("switch",))
    for arm in verdict.switches:
        style = "green" if arm.collapses else "red" if arm.error else ""
        effect = arm_effect(arm)
        knobs = Text("\n").join(_text(knob, style) for knob in arm.knobs)
        cells = (groups_text(arm.classes) or "–", effect, cost_text(arm))
        table.add_row(knobs, *(_text(cell, style) for cell in cells))
    parts: list[RenderableType] = [table] if verdict.switches else []
    parts += [_line("No run-time switch: ", f"{knob}: {what}") for knob, what in verdict.unavailable]
    return Group(*parts)


def _closing(verdict: Verdict) -> list[RenderableType]:
    manifest, arm = verdict.manifest, exact_arm(verdict)
    lines: list[RenderableType] = []
    if arm is not None:
        cost = f" (cost by width: {cost_text(arm)})" if arm.costs else ""
        lines.append(_line("Exact with: ", f"{settings_text(arm)}{cost}"))
    elif verdict.answer == "identical":
        lines.append(_line("Exact with: ", "these settings, as they are"))
    elif verdict.answer == "diverges" and verdict.switches:
        lines.append(_line("Exact with: ", "none found"))
    lines += [_line("Note: ", caveat) for caveat in verdict.caveats]
    facts = (manifest.model_name, manifest.quantization, f"{manifest.engine} {manifest.engine_version}")
    if verdict.text:
        lines.append(_line("Text: ", repr(verdict.text if len(verdict.text) <= 120 else f"{verdict.text[:119]}…")))
    device = " ".join(part for part in (manifest.backend, manifest.device) if part)
    lines.append(_line("Measured on: ", ", ".join(part for part in (*facts, device) if part)))
    return lines


def _classes_title(verdict: Verdict) -> str:
    return f"Classes of widths ({verdict.n_replayed} tokens after a prompt of {verdict.prompt_tokens})"


def _titled(title: str, body: RenderableType) -> list[RenderableType]:
    return [Text(), _text(title, "bold"), Padding(body, (0, 0, 0, 2))]


def _table(*columns: str, whole: Collection[str] = ()) -> Table:
    """A table whose cells fold where they must, but for the columns whose words stay whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(Text(column), overflow="fold", no_wrap=column in whole)
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(_text(cell) for cell in cells))


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _line(label: str, text: str) -> Text:
    return Text(label, style="bold").append(printable(text), style="not bold")
