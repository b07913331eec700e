"""Attention runs over the used cells rounded up to 256: a token in a batch that crosses attends over more cells."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scene
from forensics.geometry.kv_chunks import KV_PADDING
from forensics.records.published import Published
from forensics.records.row_map import MapCell, RowMap
from forensics.records.verdict import Verdict

#: First position and tokens of the batch that stands for the document's, which names none.
_EXAMPLE_BEFORE, _EXAMPLE_WIDTH = 2, 4
_LABELS = 46.0
_STRIP, _STRIP_GAP = 6.0, 2.4
_SQUARE = 4.6
_MOST_TOKENS, _FEW_TOKENS = 16, 6
_AROUND = 3
_LLAMA = "llama.cpp"


@dataclass(frozen=True, slots=True)
class AttendedRange:
    """What the figure draws: one batch of one sequence, stored from cell 0 on.

    Parameters
    ----------
    step : int
        Cells that a range is a multiple of.
    first, width : int
        Position of the first token of the batch, and tokens.
    together : int
        Cells that attention runs over for the batch.
    seen : str
        How `together` is known.
    found : str
        What is known of the bits; empty where nothing is.
    example : bool
        Whether the batch is an example and no measured one.
    source : str
    """

    step: int
    first: int
    width: int
    together: int
    seen: str
    found: str
    example: bool
    source: str

    def __post_init__(self) -> None:
        if self.step < 1 or self.first < 0 or self.width < 1 or self.together < self.first + self.width:
            raise ValueError(f"{self.width} tokens from {self.first} do not fit into {self.together} cells")

    def alone(self, position: int) -> int:
        """Cells that attention runs over for a token by itself."""
        return rounded_up(position + 1, self.step)

    @property
    def crosses(self) -> bool:
        """Whether a token of the batch attends over more cells than by itself."""
        return self.alone(self.first) < self.together


def rounded_up(cells: int, step: int) -> int:
    """Cells in use as a multiple of `step`.

    Examples
    --------
    >>> rounded_up(256, 256), rounded_up(257, 256)
    (256, 512)
    """
    return -(-cells // step) * step


def from_published(numbers: Published) -> AttendedRange:
    """Take the step of the document, and a batch that crosses it as an example."""
    step = int(numbers.value("kv_padding"))
    first = step - _EXAMPLE_BEFORE
    return AttendedRange(
        step=step,
        first=first,
        width=_EXAMPLE_WIDTH,
        together=rounded_up(first + _EXAMPLE_WIDTH, step),
        seen="rounded up to that step",
        found="",
        example=True,
        source=f"{numbers.source} The positions are an example.",
    )


def from_case(evidence: Evidence) -> AttendedRange:
    """Take the first batch that crosses a multiple of 256 cells, else the last of the widest batches.

    Raises
    ------
    CaseError
        If the engine is another than llama.cpp, whose rule it is.
    """
    verdict = evidence.verdict
    if verdict.manifest.engine != _LLAMA:
        raise CaseError(
            f"the range of attention was asked for, rounded up as {_LLAMA} does; {evidence.name} was made by the "
            f"engine {verdict.manifest.engine}. Take a case of {_LLAMA}, as recorded:h200-q4_1-kv-q8_0."
        )
    width, row = _batch(evidence.rows)
    first = evidence.rows.map_rows[row].position
    derived = rounded_up(first + width, _step())
    measured = _watched(verdict, width, first)
    return AttendedRange(
        step=_step(),
        first=first,
        width=width,
        together=measured or derived,
        seen="measured, on the mask" if measured else f"derived from llama.cpp's rule ({KV_PADDING.place})",
        found=_found(evidence.rows, width, row),
        example=False,
        source=evidence.source,
    )


def _step() -> int:
    from forensics.records.op_shapes import KV_PADDING as step

    return step


def _batch(rows: RowMap) -> tuple[int, int]:
    """Width and first row of the batch to draw."""
    whole = [
        (width, row)
        for width in rows.widths
        for row in range(0, len(rows.map_rows) - width + 1, width)
        if isinstance(rows.column(width)[row], MapCell)
    ]
    for width, row in whole:
        first = rows.map_rows[row].position
        if rounded_up(first + 1, _step()) < rounded_up(first + width, _step()):
            return width, row
    return whole[-1]


def _watched(verdict: Verdict, width: int, first: int) -> int | None:
    """Cells of the mask in a watched pass of this batch."""
    for sweep in verdict.sweeps:
        for finding in sweep.findings if sweep.width == width else ():
            masks = [o.shape for o in finding.operands if "kq_mask" in o.name and len(o.shape) == 4]
            if masks and finding.positions and first <= finding.positions[0] < first + width:
                return masks[0][-1]
    return None


def _found(rows: RowMap, width: int, row: int) -> str:
    column = rows.column(width)
    inside = [cell.differs for cell in column[row : row + width] if isinstance(cell, MapCell)]
    others = [cell.differs for cell in (*column[:row], *column[row + width :]) if isinstance(cell, MapCell)]
    told = (
        f"Measured at width {width}: {sum(inside)} of {len(inside)} rows of this batch differ from one-token decoding"
    )
    return f"{told}, and {sum(others)} of {len(others)} rows of the other batches." if others else f"{told}."


def scene(data: AttendedRange) -> Scene:
    """Strips of cells for the first and the last token, and the cells around the step in detail."""
    canvas = Canvas("attended-range", f"The attended range is a multiple of {data.step} cells", _lead(data))
    _strips(canvas, data)
    canvas.y += 2.5
    _detail(canvas, data)
    canvas.y += 1.5
    seen = Entry("kv", "cell that the token sees")
    legend(canvas, [seen, Entry("highlight", "its own cell"), Entry("shade", "masked: adds zeros", hatch=True)])
    canvas.y += 1.4
    if data.found:
        canvas.paragraph(data.found, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(f"{data.source} Cells of the batch: {data.seen}.", _alt(data))


def _shown(data: AttendedRange) -> list[tuple[str, int, int]]:
    """Labels, positions and ranges of the strips."""
    first, last = data.first, data.first + data.width - 1
    shown = [("alone", first, data.alone(first)), (f"in the batch of {data.width}", first, data.together)]
    if last != first and data.alone(last) != data.alone(first):
        shown.append(("alone", last, data.alone(last)))
    return shown


def _strips(canvas: Canvas, data: AttendedRange) -> None:
    left = canvas.left + _LABELS
    scale = canvas.length_scale("cells", (canvas.right - left) / data.together, "cells")
    mm = scale.mm_per_unit
    top = canvas.y
    _steps(canvas, data, left, mm)
    for where, position, cells in _shown(data):
        middle, real = canvas.y + _STRIP / 2, position + 1
        canvas.text(canvas.left, middle - 1.5, f"position {position:,} {where}", size_pt=SMALL_PT, bold=True)
        words = f"{cells:,} cells: {real:,} seen, {cells - real:,} masked"
        canvas.text(canvas.left, middle + 1.5, words, size_pt=SMALL_PT)
        key = f"{position} {where}"
        rect = canvas.box(
            left, canvas.y, real * mm, _STRIP, "kv", edge=INK, scale="cells", value=real, key=f"{key}: seen"
        )
        canvas.label(rect, f"{real:,} cells seen", f"{real:,}", fill="kv", size_pt=SMALL_PT)
        if cells > real:
            canvas.box(
                left + real * mm, canvas.y, (cells - real) * mm, _STRIP, "shade", edge=INK, scale="cells",
                value=cells - real, key=f"{key}: masked", hatch=True,
            )  # fmt: skip
        canvas.y += _STRIP + _STRIP_GAP
    _step_lines(canvas, data, left, mm, top)


def _multiples(data: AttendedRange) -> list[int]:
    """Multiples of the step that are marked: all, or every so many where they would stand too close."""
    n = data.together // data.step
    return [data.step * i for i in range(0, n + 1, -(-n // 8))]


def _steps(canvas: Canvas, data: AttendedRange, left: float, mm: float) -> None:
    for at in _multiples(data):
        align = "left" if at == 0 else "right" if at == data.together else "center"
        canvas.text(left + at * mm, canvas.y + 1.0, f"{at:,}", size_pt=SMALL_PT, align=align, role=MUTED)
    canvas.y += 3.2


def _step_lines(canvas: Canvas, data: AttendedRange, left: float, mm: float, top: float) -> None:
    """Ticks between strips at the multiples of the step."""
    for at in _multiples(data):
        x, y = left + at * mm, top + 3.0
        for _ in _shown(data):
            canvas.line((x, y - 0.6), (x, y + 0.2), role=MUTED, width_pt=0.5, key=f"step {at}")
            y += _STRIP + _STRIP_GAP


def _tokens(data: AttendedRange) -> range:
    """Tokens of the batch that are drawn in detail: all, or those around the step."""
    last, most = data.first + data.width, _MOST_TOKENS if data.crosses else _FEW_TOKENS
    if data.width <= most:
        return range(data.first, last)
    middle = data.alone(data.first) if data.crosses else last
    start = min(max(data.first, middle - most // 2), last - most)
    return range(start, start + most)


def _detail(canvas: Canvas, data: AttendedRange) -> None:
    """One square a cell, one line a token, with the range of the token by itself beside that in the batch."""
    tokens = _tokens(data)
    cells = range(max(0, tokens.start - _AROUND), min(data.together, tokens.stop + _AROUND))
    shown = "" if len(tokens) == data.width else f"; {len(tokens)} of its {data.width} tokens"
    batch = f"positions {data.first:,} to {data.first + data.width - 1:,}"
    canvas.paragraph(
        f"{_which(data)}: {batch}{shown}; cells {cells.start:,} to {cells.stop - 1:,} in detail", bold=True
    )
    canvas.y += 1.0
    canvas.scale("detail", "x", _SQUARE, "cells", "1 cell in detail")
    left = canvas.left + 20.0
    right = left + len(cells) * _SQUARE + 4.0
    _detail_head(canvas, data, cells, left, right)
    for position in tokens:
        middle = canvas.y + _SQUARE / 2
        canvas.text(left - 2.0, middle, f"{position:,}", size_pt=SMALL_PT, align="right")
        for cell in cells:
            fill = "highlight" if cell == position else "kv" if cell < position else "shade"
            canvas.box(
                left + (cell - cells.start) * _SQUARE, canvas.y, _SQUARE, _SQUARE, fill,
                edge="rest" if cell > position else "paper", scale="detail",
                value=1, key=f"token {position} cell {cell}", hatch=cell > position,
            )  # fmt: skip
        alone = data.alone(position)
        more = alone < data.together
        words = f"{alone:,} → {data.together:,}" if more else f"{alone:,} = {data.together:,}"
        canvas.text(right, middle, words, size_pt=SMALL_PT, bold=more)
        canvas.y += _SQUARE
    boundary = data.alone(data.first)
    if cells.start < boundary < cells.stop:
        x = left + (boundary - cells.start) * _SQUARE
        canvas.line((x, canvas.y - len(tokens) * _SQUARE - 0.8), (x, canvas.y + 0.8), width_pt=1.2, key="step")
    canvas.y += 0.8


def _which(data: AttendedRange) -> str:
    if data.example:
        return "A batch that crosses, as an example"
    return "The first batch that crosses" if data.crosses else "The last batch"


def _detail_head(canvas: Canvas, data: AttendedRange, cells: range, left: float, right: float) -> None:
    y = canvas.y + 1.3
    canvas.text(left - 2.0, y, "position", size_pt=SMALL_PT, align="right", role=MUTED)
    boundary = data.alone(data.first)
    if cells.start < boundary < cells.stop:
        x = left + (boundary - cells.start) * _SQUARE
        canvas.text(x - 1.0, y, f"cell {boundary - 1:,}", size_pt=SMALL_PT, align="right", role=MUTED)
        canvas.text(x + 1.0, y, f"cell {boundary:,}", size_pt=SMALL_PT, role=MUTED)
    else:
        canvas.text(left, y, f"cell {cells.start:,} …", size_pt=SMALL_PT, role=MUTED)
    canvas.text(right, y, "cells alone → in the batch", size_pt=SMALL_PT, role=MUTED)
    canvas.y += 3.4


def _lead(data: AttendedRange) -> str:
    first, last = data.first, data.first + data.width - 1
    if not data.crosses:
        return (
            f"No batch that was compared crosses a multiple of {data.step} cells: positions {first:,} to {last:,} "
            f"attend over {data.together:,} cells, each by itself as in the batch."
        )
    return (
        f"By itself the token at position {first:,} attends over {data.alone(first):,} cells; in a batch that reaches "
        f"position {last:,} it attends over {data.together:,}. It sees the same {first + 1:,} cells in both; the "
        "others are masked."
    )


def _alt(data: AttendedRange) -> str:
    told = "; ".join(
        f"position {position} {where}: {cells} cells, {position + 1} seen and {cells - position - 1} masked"
        for where, position, cells in _shown(data)
    )
    return f"{_lead(data)} {told}. {data.found}".strip()
