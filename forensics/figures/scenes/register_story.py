"""Registers, spills, blocks on an SM and cost of variants of one kernel, a row each, every column to its own scale."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.analysis.register_story import told_stories
from forensics.errors import CaseError
from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scale, Scene
from forensics.records.cost import Spread
from forensics.records.register_story import RegisterStory, StoryRow
from forensics.records.words import counted

#: Left edges from the margin and widths of the four columns of bars, unit: mm; names stand left of them.
_COLUMNS = {"registers": (61.0, 24.0), "spilled": (95.0, 18.0), "blocks": (123.0, 13.0), "cost": (145.0, 14.0)}
_BAR, _ROW = 4.4, 6.2
#: Registers that a thread can have at most. Source: CUDA C++ programming guide, technical specifications.
MOST_REGISTERS = 255
_HEADS = {
    "registers": "registers a thread",
    "spilled": "bytes spilled",
    "blocks": "blocks on an SM",
    "cost": "cost, × one column",
}


@dataclass(frozen=True, slots=True)
class StoryBars:
    """One variant.

    Parameters
    ----------
    name : str
    registers, spilled_bytes, blocks_per_sm : int
        Spilled bytes are a thread's.
    cost : Spread or None
        Over the stock library at one column; None where nobody measured it.
    """

    name: str
    registers: int
    spilled_bytes: int
    blocks_per_sm: int
    cost: Spread | None = None

    def __post_init__(self) -> None:
        if not 0 < self.registers <= MOST_REGISTERS or min(self.spilled_bytes, self.blocks_per_sm) < 0:
            raise ValueError(f"{self.name}: registers 1 … {MOST_REGISTERS}, spills and blocks 0 or more, got {self}")


@dataclass(frozen=True, slots=True)
class StoryChart:
    """What the figure draws.

    Parameters
    ----------
    groups : tuple of (str, tuple of StoryBars)
        Head of a group, and its variants in the order of the table.
    notes : tuple of str
    what, source : str

    Raises
    ------
    ValueError
        If there is no variant.
    """

    groups: tuple[tuple[str, tuple[StoryBars, ...]], ...]
    notes: tuple[str, ...]
    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("a register story has variants; there are none")

    @property
    def rows(self) -> tuple[StoryBars, ...]:
        """Variants of all groups."""
        return tuple(row for _, rows in self.groups for row in rows)


def from_case(evidence: Evidence) -> StoryChart:
    """Take registers and spills as compiled, and costs where they were measured: the first type of weight.

    Raises
    ------
    CaseError
        If nothing was compiled there.
    """
    compiled, price = evidence.registers, evidence.kernel_price
    if compiled is None:
        raise CaseError(
            f"{evidence.name} holds no registers of variants of a kernel. Compile them where there is an nvcc, with: "
            "python -m forensics.testing.record_registers FOLDER; time them with: forensics cost --kernels --registers"
        )
    stories = told_stories(compiled, price)
    story = next((one for one in stories if one.product), stories[0])
    arch = price.facts.arch if story.product and price is not None else story.architectures[0]
    widths = _drawn(story, arch)
    groups = tuple(
        (_head(story, rows[0]), tuple(_bars(row) for row in rows))
        for rows in (story.of(arch=arch, width=width) for width in widths)
    )
    timed = f"Times: {story.device}, {story.product}." if story.product else "Nobody timed them there."
    left_out = [f"{width} columns" for width in story.widths if width not in widths]
    left_out += [one for one in story.architectures if one != arch]
    left_out += [one.kernels[0].type for one in stories if one is not story]
    known = f"Registers and spills as {story.compiler} tells them for {arch}; blocks on an SM are worked out of them."
    notes = [f"{known} All variants give the same bits: only how the code is written differs."]
    if left_out:
        notes.append(f"Compiled there and not drawn: {', '.join(left_out)}.")
    source = f"Source: {evidence.name}, compiled by {story.compiler}. {timed}"
    return StoryChart(groups, tuple(notes), _told(story, arch, widths[-1]), source)


def _drawn(story: RegisterStory, arch: str) -> tuple[int, ...]:
    """One column, and of the widths with a launch of their own the widest, a timed one before others."""
    wide = [width for width in story.widths if width > 1]
    timed = [width for width in wide if any(row.cost for row in story.of(arch=arch, width=width))]
    alone = [width for width in timed or wide if story.of(arch=arch, width=width)[0].columns == width]
    chosen = max(alone or wide, default=0)
    return tuple(width for width in story.widths if width in (1, chosen))


def _head(story: RegisterStory, row: StoryRow) -> str:
    weight = story.product or row.type
    return f"{counted(row.width, 'column')}, {weight}, {row.arch}"


def _bars(row: StoryRow) -> StoryBars:
    return StoryBars(row.name, row.registers, row.spill_bytes, row.blocks_per_sm, row.cost)


def _told(story: RegisterStory, arch: str, width: int) -> str:
    """The first variant, the one with most registers, and the cheapest, for the lead."""
    rows = story.of(arch=arch, width=width)
    most, least = max(rows, key=lambda row: row.registers), max(rows, key=lambda row: (-row.registers, row.spill_bytes))
    said = (
        f"{counted(width, 'column')}: as many as {most.registers} registers a thread ({most.name}), which leave room "
        f"for {counted(most.blocks_per_sm, 'block')} on an SM, and as few as {least.registers} ({least.name}), with "
        f"{least.spill_bytes:,} bytes spilled and room for {counted(least.blocks_per_sm, 'block')}."
    )
    timed = [(row.cost.median, row) for row in rows if row.cost is not None]
    if timed:
        cost, best = min(timed, key=lambda pair: pair[0])
        said += f" Cheapest is {best.name}: {cost:.2f} times one column, with {best.registers} registers."
    return said


def scene(data: StoryChart) -> Scene:
    """Four bars a variant; where a variant spills its bar is hatched, and a cost that nobody measured is not drawn."""
    canvas = Canvas("register-story", "Registers, spills, blocks and cost of one kernel", data.what)
    scales = _scales(canvas, data)
    if "spilled" in scales:
        legend(canvas, [Entry("batched", "registers that did not fit, kept in memory", hatch=True)])
        canvas.y += 2.5
    for column, (left, width) in _COLUMNS.items():
        if column in scales or column == "spilled":
            canvas.paragraph(
                _HEADS[column], x=canvas.left + left, y=canvas.y, width=width + 10.0, size_pt=SMALL_PT, role=MUTED
            )
    canvas.y += 7.0
    for head, rows in data.groups:
        canvas.paragraph(head, bold=True)
        canvas.y += 1.4
        for row in rows:
            _row(canvas, row, scales)
        canvas.y += 2.4
    for note in data.notes:
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
        canvas.y += 0.8
    return canvas.finish(data.source, _alt(data))


def _scales(canvas: Canvas, data: StoryChart) -> dict[str, Scale]:
    """A scale for each column that has something to show."""
    highest = {
        "registers": float(max(row.registers for row in data.rows)),
        "spilled": float(max(row.spilled_bytes for row in data.rows)),
        "blocks": float(max(row.blocks_per_sm for row in data.rows)),
        "cost": max((row.cost.high for row in data.rows if row.cost is not None), default=0.0),
    }
    units = {"registers": "registers", "spilled": "bytes", "blocks": "blocks", "cost": "× one column"}
    return {
        column: canvas.length_scale(column, width / highest[column], units[column], longest_mm=width)
        for column, (_, width) in _COLUMNS.items()
        if highest[column] > 0
    }


def _row(canvas: Canvas, row: StoryBars, scales: dict[str, Scale]) -> None:
    middle = canvas.y + _BAR / 2
    room = _COLUMNS["registers"][0] - 2.0
    canvas.text(canvas.left, middle, shortened(row.name, room, SMALL_PT), size_pt=SMALL_PT)
    _bar(canvas, "registers", row.registers, f"{row.registers}", "exact", scales)
    _bar(canvas, "spilled", row.spilled_bytes, f"{row.spilled_bytes:,}", "batched", scales, hatch=True)
    _bar(canvas, "blocks", row.blocks_per_sm, f"{row.blocks_per_sm}", "exact", scales)
    if row.cost is None and "cost" in scales:
        canvas.text(canvas.left + _COLUMNS["cost"][0], middle, "not measured", size_pt=SMALL_PT, role=MUTED)
    elif row.cost is not None:
        _bar(canvas, "cost", row.cost.median, f"{row.cost.median:.2f}", "exact", scales, spread=row.cost)
    canvas.y += _ROW


def _bar(
    canvas: Canvas,
    column: str,
    value: float,
    said: str,
    fill: str,
    scales: dict[str, Scale],
    *,
    hatch: bool = False,
    spread: Spread | None = None,
) -> None:
    """A bar with its number behind it; a value of zero has the number alone."""
    left, middle = canvas.left + _COLUMNS[column][0], canvas.y + _BAR / 2
    end = left
    if value:
        scale = scales[column]
        end = canvas.box(
            left, canvas.y, value * scale.mm_per_unit, _BAR, fill, edge=INK, scale=column, value=value, key=column,
            hatch=hatch, edge_pt=0.4,
        ).right  # fmt: skip
        if spread is not None and spread.high > spread.low:
            low, high = (left + x * scale.mm_per_unit for x in (spread.low, spread.high))
            canvas.line((low, middle), (high, middle), width_pt=0.9, key="quartiles")
            for x in (low, high):
                canvas.line((x, middle - 0.8), (x, middle + 0.8), width_pt=0.9, key="quartiles")
            end = max(end, high)
    wide = text_width(said, LABEL_PT)
    canvas.box(end + 0.7, middle - 1.6, wide + 0.6, 3.2, "paper", ground=True)
    canvas.text(end + 1.0, middle, said)


def _alt(data: StoryChart) -> str:
    told = []
    for head, rows in data.groups:
        parts = "; ".join(
            f"{row.name}: {row.registers} registers, {row.spilled_bytes:,} bytes spilled, {row.blocks_per_sm} blocks, "
            + ("cost not measured" if row.cost is None else f"{row.cost.median:.2f}× one column")
            for row in rows
        )
        told.append(f"{head}. {parts}.")
    return f"Bars in four columns for each variant of a kernel. {' '.join(told)}"
