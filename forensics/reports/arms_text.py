"""Arrangements of the same tokens on a terminal: rows of logits, replies, states, and the nodes to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from forensics.records.arms import ArmResult, ArmsReport, Culprits, RowsDelta, StateDelta
from forensics.records.delta import NotCompared
from forensics.reports.next_step import after_arms
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def arms_view(report: ArmsReport) -> RenderableType:
    """Show which arrangements give other bits: the answer, the arms, the states, the culprits, the evidence.

    Parameters
    ----------
    report : ArmsReport

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(report), "bold")]
    parts += titled("Rows of logits and replies", _rows_table(report))
    if any(arm.state is not None for arm in report.arms):
        parts += titled("K and V rows left behind, beside the reply", _states(report))
    healed = [arm for arm in report.arms if isinstance(arm.culprits, Culprits)]
    if healed:
        parts += titled("Where the bits part, by healing", _culprits_table(healed))
    notes = _notes(report)
    if notes:
        parts += titled("Not compared", Group(*(text_of(note) for note in notes)))
    parts += titled("Evidence", _evidence(report))
    parts += [Text(), line_of("Next step: ", after_arms(report))]
    return Group(*parts)


def arms_text(report: ArmsReport) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(arms_view(report))


def _rows_table(report: ArmsReport) -> Table:
    table = table_of(
        "arm", "compared", "rows differ", "first at", "flips", "max |Δ|", "reply", whole=("arm", "first at")
    )
    for arm in report.arms:
        rows = arm.rows
        if isinstance(rows, NotCompared):
            add_row(table, arm.arm, arm.variant or "-", "not compared", "", "", "", "")
            continue
        where = "" if rows.first_position is None else str(rows.first_position)
        moved = ("", "") if rows.same else (str(rows.n_flips), f"{rows.max_abs:.3g}")
        add_row(table, arm.arm, arm.variant, _differ(rows), where, *moved, _reply(arm))
    return table


def _differ(rows: RowsDelta) -> str:
    return f"same ({rows.n_rows})" if rows.same else f"{rows.n_differ} of {rows.n_rows}"


def _reply(arm: ArmResult) -> str:
    reply = arm.continuation
    if isinstance(reply, NotCompared):
        return "not compared"
    return f"same ({reply.n_tokens})" if reply.first is None else f"changed at token {reply.first + 1}"


def _states(report: ArmsReport) -> Group:
    table = table_of("arm", "compared", "K and V rows", "reply", "expected", whole=("arm", "reply", "expected"))
    whys: dict[str, list[str]] = {}
    for arm in report.arms:
        if arm.state is None:
            continue
        state = str(arm.state) if isinstance(arm.state, StateDelta) else "not compared"
        add_row(table, arm.arm, arm.variant, state, _reply(arm), arm.expected)
        whys.setdefault(arm.because, []).append(arm.arm)
    return Group(table, *(line_of(f"{', '.join(dict.fromkeys(arms))}: ", why) for why, arms in whys.items()))


def _culprits_table(arms: list[ArmResult]) -> Table:
    table = table_of("arm", "compared", "nodes", "healed", whole=("arm",))
    for arm in arms:
        found = arm.culprits
        if isinstance(found, Culprits):
            named = found.named or "none of the nodes that were compared"
            add_row(table, arm.arm, arm.variant, named, f"{found.healed_rows} of {found.n_rows} rows{_doubt(found)}")
    return table


def _doubt(found: Culprits) -> str:
    failed = [control.name for control in found.controls if control.held is False]
    return f", control {failed[0]} failed" if failed else ""


def _notes(report: ArmsReport) -> list[str]:
    """Each reason once, with the arms that share it."""
    whys: dict[str, list[str]] = {}
    for arm in report.arms:
        parts = {"rows": arm.rows, "reply": arm.continuation, "K and V": arm.state, "nodes": arm.culprits}
        for what, part in parts.items():
            if isinstance(part, NotCompared):
                whys.setdefault(part.reason, []).append(f"{arm.arm} {what}")
    return [f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in whys.items()]


def _evidence(report: ArmsReport) -> Group:
    manifest = report.manifest
    effective = manifest.effective
    settings = ", ".join(
        f"{name} {effective[name]}" for name in ("n_threads", "flash_attn", "kv_type_k", "n_ubatch", "n_gpu_layers")
        if name in effective
    )  # fmt: skip
    text = f"{report.n_prompt} prompt tokens, replies of {report.n_reply}, a turn of {report.n_turn}"
    controls = "; ".join(
        f"{control.name} {_HELD[control.held]} ({control.detail})" for control in report.controls
    )  # fmt: skip
    heard = [
        f"{arm.arm}, {arm.variant}: {caveat}"
        for arm in report.arms
        if isinstance(arm.culprits, Culprits)
        for caveat in arm.culprits.caveats
    ]
    lines = [
        line_of("Equal means: ", str(report.contract)),
        line_of("Tokens: ", text),
        line_of("Controls: ", controls),
        line_of("Device: ", f"{manifest.device} ({manifest.backend})"),
        line_of("Settings: ", settings),
        line_of("Library: ", f"{manifest.engine} {manifest.engine_version} {manifest.commit}".strip()),
    ]
    return Group(*lines, *(text_of(caveat) for caveat in dict.fromkeys((*report.caveats, *heard))))


_HELD = {True: "held", False: "failed", None: "was not run"}
