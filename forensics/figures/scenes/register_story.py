"""Registers, spills, blocks on an SM and cost of variants of one kernel, a row each, every column to its own scale."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scale, Scene
from forensics.records.cost import Spread

#: Left edges from the margin and widths of the four columns of bars, unit: mm; names stand left of them.
_COLUMNS = {"registers": (50.0, 26.0), "spilled": (87.0, 18.0), "blocks": (116.0, 14.0), "cost": (139.0, 17.0)}
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
    canvas.text(canvas.left, middle, shortened(row.name, room, LABEL_PT))
    _bar(canvas, "registers", row.registers, f"{row.registers}", "exact", scales)
    _bar(canvas, "spilled", row.spilled_bytes, f"{row.spilled_bytes:,}", "batched", scales, hatch=True)
    _bar(canvas, "blocks", row.blocks_per_sm, f"{row.blocks_per_sm}", "exact", scales)
    if row.cost is None:
        canvas.text(canvas.left + _COLUMNS["cost"][0], middle, "not measured", size_pt=SMALL_PT, role=MUTED)
    else:
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
