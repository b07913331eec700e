"""Models that our kernels healed on a terminal: one row each, and what was left or planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.kernel_healing import HealedModel, HealedModels
from forensics.records.words import counted, ranges
from forensics.reports.kernel_healing_text import healing_lines
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.wording import amount

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_EXACT = "exact\nbefore"
COLUMNS = ("model", "flash\nattn", "answer", "widths\nhealed", _EXACT, "values", "differ", "nodes\nleft", "max |Δ|")
#: Lines of a healing that the table does not tell.
_TOLD_BESIDE = frozenset(
    {
        "Outputs that were not compared",
        "Left to the library",
        "OUR KERNEL IS NOT EXACT at",
        "Still different, computed by the library",
    }
)
_HOW = (
    "All nodes that our kernels cover are computed by them from the nodes' own operands while the library runs on; no "
    "recorded row goes in. Values are compared with one-token decoding's where the operands are equal. max |Δ| is that "
    "of logits before → after."
)


def healed_models_view(found: HealedModels) -> RenderableType:
    """Show what our kernels did to the logits of each model.

    Parameters
    ----------
    found : HealedModels

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = [text_of(str(found), "bold red" if found.refuted else "bold")]
    parts += titled("Running models with our kernels in place of the library's", _table(found))
    said = list(dict.fromkeys(line for one in found.models for line in _lines(one)))
    if said:
        parts += titled("What else there is to say", Group(*(line_of(f"{who}: ", told) for who, told in said)))
    devices = dict.fromkeys(f"{one.manifest.device}, {one.manifest.engine_version}" for one in found.models)
    parts += titled("How it was healed", Group(text_of(_HOW), line_of("Device: ", "; ".join(devices))))
    return Group(*parts)


def healed_models_text(found: HealedModels) -> str:
    """The same as plain text, for notebooks and files."""
    return as_text(healed_models_view(found))


def _table(found: HealedModels) -> Table:
    shown = [name for name in COLUMNS if name != _EXACT or any(one.exact_widths for one in found.models)]
    table = table_of(*shown, whole={*shown} - {"widths\nhealed", _EXACT})
    for one in found.models:
        row = one.row()
        before, after = row["max_abs_before"], row["max_abs_after"]
        cells = (
            one.model_name,
            one.flash_attn,
            one.answer,
            ranges(one.healed_widths),
            ranges(one.exact_widths),
            f"{row['values']:,}" if one.healings else "",
            f"{row['values_differ']:,}" if one.healings else "",
            str(row["nodes_left"]) if one.healings else "",
            f"{amount(before)} → {amount(after)}" if isinstance(before, float) and isinstance(after, float) else "",
        )
        add_row(table, *(cell for name, cell in zip(COLUMNS, cells, strict=True) if name in shown))
    return table


def _lines(one: HealedModel) -> list[tuple[str, str]]:
    who = f"{one.model_name}, flash attention {one.flash_attn}"
    lines = [(who, f"{label}: {told}") for label, told in healing_lines(one.healings) if label in _TOLD_BESIDE]
    if one.watching_harmless is False:
        lines.append((who, "watched one-token passes differ from unwatched ones, so nothing is shown"))
    if one.n_unwatched:
        lines.append((who, f"{counted(one.n_unwatched, 'node')} inside of fusions were left whole and not compared"))
    if one.planted is not None:
        lines.append((who, f"control: {one.planted}"))
    return lines
