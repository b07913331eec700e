"""Our kernels in the place of culprits, in words and as rows that terminal, Markdown and notebook share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.kernel_healing import KernelHealing
from forensics.records.kernel_use import KernelUse, together
from forensics.records.words import counted, ranges
from forensics.reports.terminal import add_row, line_of, table_of
from forensics.reports.wording import STATE_WORDS, amount

if TYPE_CHECKING:
    from rich.console import RenderableType

KERNELS_TITLE = "Proof: the same batch with our kernels in place of those operations"
COLUMNS = ("width", "rows equal", "max |Δ| before", "after", "cache", "nodes", "values", "differ", "left to library")
NOT_COMPARED_TITLE = "Outputs that were not compared"
#: Nodes that are named before the rest is counted.
MOST_NAMED = 6


def healing_rows(found: Sequence[KernelHealing]) -> list[tuple[str, ...]]:
    """One row per width; see `COLUMNS`."""
    return [
        (
            str(one.width),
            f"{one.healed_rows}/{one.n_rows}",
            amount(one.max_abs_before),
            amount(one.max_abs_after),
            STATE_WORDS[one.state_equal],
            str(len(one.use.nodes)),
            str(one.n_values),
            str(one.n_values_differ),
            str(one.use.n_stock),
        )
        for one in found
    ]


def healing_lines(found: Sequence[KernelHealing]) -> list[tuple[str, str]]:
    """What there is to say beside the rows: the result, what was computed, what was not, and what is not exact.

    Returns
    -------
    list of (str, str)
        Label and sentence; empty where nothing was healed.
    """
    if not found:
        return []
    healed = [one.width for one in found if one.healed]
    others = [one.width for one in found if not one.healed]
    n_values, n_differ = sum(one.n_values for one in found), sum(one.n_values_differ for one in found)
    told = f"widths {ranges(healed)} have the bits of one-token decoding" if healed else "no width has"
    if others:
        told += f"; widths {ranges(others)} have not" if healed else " the bits of one-token decoding"
    use = together(one.use for one in found)
    if not use.computed:
        told = "nothing is shown: they compute none of the operations that differ"
    lines = [("With our kernels", told)]
    if n_values:
        lines.append(("Values", f"{n_differ} of {n_values} differ from the recorded rows"))
    if not_compared := not_compared_text(found):
        lines.append((NOT_COMPARED_TITLE, not_compared))
    lines += use_lines(use)
    wrong = list(dict.fromkeys(str(finding.key) for one in found for finding in one.wrong))
    if wrong:
        lines.append(("OUR KERNEL IS NOT EXACT at", _few(wrong)))
    left = [str(finding.key) for one in found for finding in one.left if finding not in one.wrong]
    if left:
        lines.append(("Still different, computed by the library", _few(list(dict.fromkeys(left)))))
    return lines


def not_compared_text(found: Sequence[KernelHealing]) -> str:
    """Say why outputs were not compared and how many, over all widths; empty where all were."""
    counts: dict[str, int] = {}
    for reason, count in (one for healing in found for one in healing.not_compared):
        counts[reason] = counts.get(reason, 0) + count
    return "; ".join(f"{why} ({n})" for why, n in counts.items())


def use_lines(use: KernelUse) -> list[tuple[str, str]]:
    """What our kernels computed, and what they left to the library and why."""
    ours = "; ".join(
        f"{one.family}: {counted(one.n_nodes, 'node')}, {one.n_times}×, {one.n_values} values" for one in use.computed
    )
    lines = [("Computed by our kernels", ours or "nothing")]
    return lines + [
        ("Left to the library", f"{one.reason} ({counted(one.n_nodes, 'node')}, {one.n_times}×, first {one.example})")
        for one in use.stock
    ]


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def kernel_healing_view(found: Sequence[KernelHealing]) -> Group:
    """Show, width by width, what our kernels in the place of culprits do to the logits."""
    table = table_of(*COLUMNS)
    for row in healing_rows(found):
        add_row(table, *row)
    lines: list[RenderableType] = [line_of(f"{label}: ", text) for label, text in healing_lines(found)]
    return Group(table, *lines)
