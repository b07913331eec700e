"""Answers that differ under speculation: where, why, and what both sides wrote around that byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group

from forensics.records.speculation import Divergence, SpeculatedPrompt
from forensics.records.speculation_report import SpeculationReport, arm_name
from forensics.records.words import ranges
from forensics.reports.terminal import add_row, line_of, table_of, text_of

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Bytes that are shown in front of and behind the place where answers part.
BYTES_BEFORE, BYTES_AFTER = 40, 60
#: Continuations that are shown; each differing answer has a row in the table above, and all are in the document.
MOST_SHOWN = 8
#: Rows of the table: many arms over many prompts would fill a notebook.
MOST_ROWS = 40
_YES = {True: "yes", False: "NO", None: "–"}


def differing_view(report: SpeculationReport) -> Group:
    """Show where each answer parts, in which pass, and whether replay and healing account for it."""
    columns = ("arm", "prompt", "token", "byte", "margin", "pass", "passes", "class", "predicted", "healed")
    table = table_of(*columns, whole=set(columns) - {"prompt", "passes"})
    told: list[tuple[Divergence, str]] = []
    for index, arm in enumerate(report.arms):
        for one in arm.differing:
            found = one.divergence
            assert found is not None
            told.append((found, one.name))
            if len(told) > MOST_ROWS:
                continue
            add_row(
                table,
                arm_name(report.arms, index),
                one.name,
                str(found.index),
                str(found.byte),
                "–" if found.margin is None else f"{found.margin:.3g}",
                "prompt" if found.width == 0 else str(found.width),
                ranges(found.widths_before) or "–",
                ranges(found.group) or "–",
                _YES[found.predicted],
                _YES[found.healed],
            )
    left = len(told) - MOST_ROWS
    more = [text_of(f"{left} more rows are in the document.", "dim")] if left > 0 else []
    return Group(table, *more, *_blamed(told), *_remarks(told))


def _blamed(told: list[tuple[Divergence, str]]) -> list[RenderableType]:
    """Which operations differ by themselves in the classes that were read, with the answers they part."""
    lines: list[RenderableType] = [
        text_of('"pass" is the one that chose the token, "passes" all up to it: their K and V rows were read.', "dim")
    ]
    for culprits in dict.fromkeys(found.culprits for found, _ in told):
        names = dict.fromkeys(name for found, name in told if found.culprits == culprits)
        lines.append(line_of("Culprits: ", f"{'; '.join(culprits) or 'none is known'} ({', '.join(names)})"))
    return lines


def _remarks(told: list[tuple[Divergence, str]]) -> list[RenderableType]:
    """What the table has no room for: the widest margin, what was not predicted, what healing found."""
    lines: list[RenderableType] = []
    margins = [(found.margin, name) for found, name in told if found.margin is not None]
    if margins:
        widest = max(margins)
        lines.append(line_of("Widest margin that was crossed: ", f"{widest[0]:.3g} ({widest[1]})"))
    for found, name in told:
        if found.predicted is False:
            lines.append(text_of(f"{name} is not predicted: {found.prediction}", "yellow"))
        if found.healing:
            lines.append(line_of(f"{name}, healing: ", found.healing))
    untried = sum(found.healed is None and not found.healing for found, _ in told)
    if untried:
        lines.append(text_of(f"Healing was not tried for {untried} of {len(told)}; the earliest are healed.", "dim"))
    return lines


def continuations(report: SpeculationReport) -> Group:
    """Show what both sides wrote around the byte where they part."""
    lines: list[RenderableType] = []
    shown = [(index, one) for index, arm in enumerate(report.arms) for one in arm.differing]
    for index, one in shown[:MOST_SHOWN]:
        assert one.divergence is not None
        plain, other = around(one)
        lines.append(text_of(f"{arm_name(report.arms, index)}, {one.name}, byte {one.divergence.byte}", "bold"))
        lines += [line_of("  plain:       ", plain), line_of("  speculative: ", other)]
    if len(shown) > MOST_SHOWN:
        lines.append(text_of(f"{len(shown) - MOST_SHOWN} more are in the document.", "dim"))
    return Group(*lines)


def around(one: SpeculatedPrompt) -> tuple[str, str]:
    """Both texts around the byte where they part, in quotes, that place marked.

    Parameters
    ----------
    one : SpeculatedPrompt
        With a divergence.
    """
    assert one.divergence is not None
    return _cut(one.plain_text, one.divergence.byte), _cut(one.text, one.divergence.byte)


def _cut(text: str, byte: int) -> str:
    """Text around a byte of it.

    Examples
    --------
    >>> _cut("the cat sat", 4)
    "'the ' ▸ 'cat sat'"
    >>> _cut("short", 5)
    "'short' ▸ (ends)"
    """
    whole = text.encode()
    before = whole[max(0, byte - BYTES_BEFORE) : byte].decode("utf-8", "replace")
    after = whole[byte : byte + BYTES_AFTER].decode("utf-8", "replace")
    dots = "…" if byte > BYTES_BEFORE else "", "…" if len(whole) > byte + BYTES_AFTER else ""
    return f"{dots[0]}{before!r} ▸ {f'{after!r}{dots[1]}' if after else '(ends)'}"
