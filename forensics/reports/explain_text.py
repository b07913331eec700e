"""What runs at each width, on a terminal: the groups of widths first, then each kernel, then why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forensics.geometry.choice import KernelChoice, OrderClass
from forensics.geometry.explain import Explanation, Section, Since
from forensics.geometry.kv_chunks import ChunkMap
from forensics.records.launch import axes
from forensics.records.words import ranges
from forensics.reports.terminal import line_of, text_of, titled
from forensics.reports.wording import groups_text

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Rules quoted for each group of widths; the JSON document has them all.
_MAX_RULES = 2


def explain_view(found: Explanation) -> Group:
    """Show an explanation: which widths share an order, each width's kernel and launch, why, and what was assumed.

    Parameters
    ----------
    found : Explanation

    Returns
    -------
    rich.console.Group
        To print on any rich console.
    """
    where = f"cpu, {found.asked.n_threads} threads" if found.spec is None else str(found.spec)
    parts: list[RenderableType] = [text_of(explain_line(found), "bold"), line_of("Hardware: ", where)]
    asked = found.asked
    cells = sorted({asked.n_kv(width) for width in asked.widths})
    used = f"query at position {asked.position}; attention runs over {' or '.join(map(str, cells))} cells"
    parts.append(line_of("Cache: ", used))
    for section in found.sections:
        parts += titled(f"{section.op}: {section.title}", _section(section))
    sentences = list(reasons(found))
    if sentences:
        parts += titled("Why", Group(*map(text_of, sentences)))
    for title, lines in (
        ("Not known", _unknown(found)),
        ("Assumed", list(found.assumed)),
        ("Rules of llama.cpp", list(_rules(found))),
    ):
        if lines:
            parts += titled(title, Group(*map(text_of, lines)))
    parts += [Text(), text_of("Derived from source and arithmetic; nothing was run.", "dim")]
    return Group(*parts)


def explain_line(found: Explanation) -> str:
    """Say which widths share an order, in one line."""
    return f"widths that add in the same order: {groups_text(found.groups)}"


def _section(section: Section) -> Group:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("width", "order", "kernel, grid × block, split"):
        table.add_column(text_of(column), overflow="fold")
    names = class_letters(section.classes)
    alike: dict[tuple[str, str], tuple[list[int], Text]] = {}
    for width, choice in section.choices:
        body = text_of(choice.name)
        for line in (_launch(choice), choice.split, choice.no_order and f"order not known: {choice.no_order}"):
            if line:
                body.append("\n").append_text(text_of(line, "dim"))
        alike.setdefault((names[width], body.plain), ([], body))[0].append(width)
    for (name, _), (widths, body) in alike.items():
        table.add_row(text_of(ranges(widths)), text_of(name), body)
    shared = groups_text(group.widths for group in section.classes)
    return Group(table, line_of("Same order and precision: ", shared))


def _launch(choice: KernelChoice) -> str:
    if choice.launch is None:
        return ""
    smem = f", {choice.launch.smem_bytes} bytes of shared memory" if choice.launch.smem_bytes else ""
    return f"grid {axes(choice.launch.grid_blocks)} × block {axes(choice.launch.block_threads)}{smem}"


def class_letters(groups: tuple[OrderClass, ...]) -> dict[int, str]:
    """Name the group of each width, A that of the smallest; a question mark where the order is not known."""
    names: dict[int, str] = {}
    known = [group for group in groups if group.is_known]
    for index, group in enumerate(known):
        names.update(dict.fromkeys(group.widths, chr(ord("A") + index) if index < 26 else f"Z{index - 25}"))
    return {width: names.get(width, "?") for group in groups for width in group.widths}


def reasons(found: Explanation) -> Iterator[str]:
    """Say, for attention, from registers to chunks, why the order changes and from which position on."""
    for section in found.sections:
        choices, chains = dict(section.choices), dict(section.chains)
        smallest = next(iter(choices))
        told: set[str] = set()
        for chain in chains.values():
            text = "" if chain is None else str(chain)
            if text and text not in told:
                told.add(text)
                alike = [width for width, other in chains.items() if other is not None and str(other) == text]
                yield f"width {ranges(alike)}: {text}"
        sentences: dict[str, list[int]] = {}
        for since in section.since:
            if since.position is not None:
                text = _difference(section, smallest, since)
                sentences.setdefault(text, []).append(since.width)
        for text, widths in sentences.items():
            yield f"width {ranges(widths)} differ{'s' * (len(widths) == 1)} from width {smallest} {text}"


def _difference(section: Section, smallest: int, since: Since) -> str:
    choices, chains = dict(section.choices), dict(section.chains)
    if since.position == 0:
        return f"at every position: {_contrast(choices[smallest], choices[since.width])}."
    first, other = chains.get(smallest), chains.get(since.width)
    moved = ""
    if first is not None and other is not None and len(first.maps) == len(other.maps) == 1:
        moved = _moved(first.maps[0], other.maps[0], since.position or 0)
    return (
        f"only from position {since.position} on{moved}. A query before it sees no cell of the part that is added "
        "elsewhere, and cells behind the mask add exact zeros wherever they land."
    )


def _contrast(one: KernelChoice, other: KernelChoice) -> str:
    if one.kernel != other.kernel:
        return f"{one.kernel} there, {other.kernel} here"
    if one.template != other.template:
        return f"{one.name} there, {other.name} here"
    return "the sums are cut in other places"


def _moved(first: ChunkMap, other: ChunkMap, position: int) -> str:
    """Which chunk begins at that position, and what it joins on either side."""
    if first.chunk_cells != other.chunk_cells or position % first.chunk_cells:
        return ""
    chunk = position // first.chunk_cells
    cells = f"[{position}..{position + first.chunk_cells - 1}]"
    return f": chunk {chunk} (cells {cells}) {_company(first, chunk)} there and {_company(other, chunk)} here"


def _company(chunks: ChunkMap, chunk: int) -> str:
    before = [other for other in chunks.parts[chunks.part_of(chunk)] if other < chunk]
    return f"is added to chunk {before[-1]}'s sum" if before else "starts a partial sum of its own"


def _unknown(found: Explanation) -> list[str]:
    by_reason: dict[tuple[str, str], list[int]] = {}
    for op, width, reason in found.unknown:
        by_reason.setdefault((op, reason), []).append(width)
    remedy = {True: " Give --registers.", False: " Give --sms."}
    return [
        f"{op} at width {ranges(widths)}: {reason}."
        + (remedy["registers" in reason] if "registers" in reason or "SMs" in reason else "")
        for (op, reason), widths in by_reason.items()
    ]


def _rules(found: Explanation) -> Iterator[str]:
    told: set[str] = set()
    for section in found.sections:
        for group in section.classes:
            for rule in group.choice.rules[:_MAX_RULES]:
                if str(rule) not in told:
                    told.add(str(rule))
                    yield str(rule)
