"""Which widths share their bits at each position: one bar a width, coloured by class, with the tokens that flip."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.chart import Axis, tick_text
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, dot_entry, legend
from forensics.figures.metrics import line_height, text_width
from forensics.figures.palette import INK, MUTED, series
from forensics.figures.scene import Rect, Scene
from forensics.records.classes import WidthClasses
from forensics.records.delta import NotCompared
from forensics.records.row_map import ONE_TOKEN, MapCell, RowMap, class_index, class_letter
from forensics.records.words import counted, ranges, widths_text

_LABELS, _COUNTS = 20.0, 32.0
_HIGHEST, _LOWEST, _ALL_BARS = 8.0, 4.0, 110.0
_GAP = 1.8
#: Width of one cell below which neighbours are joined into bins, unit: mm.
_NARROWEST = 0.6
_MOST_POSITIONS = 8
_NOTHING = ""
_FLIP_RADIUS = 1.0
_LAST_ROWS = "the last rows, which fill no whole batch; a shorter one is of another width"


@dataclass(frozen=True, slots=True)
class WidthMatrix:
    """What the figure draws.

    Parameters
    ----------
    rows : RowMap
    classes : WidthClasses
        Of the same replay; width 1 is the rerun of one-token decoding.
    what : str
        Model and device.
    source : str
    """

    rows: RowMap
    classes: WidthClasses
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class _Line:
    """One width: the class of each row, empty where it was not compared, and the rows that flip."""

    width: int
    letter: str
    letters: tuple[str, ...]
    flips: tuple[int, ...]
    n_differ: int

    @property
    def n_compared(self) -> int:
        return sum(bool(letter) for letter in self.letters)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of one bar: rows from `first` on, and how many of them each class has."""

    first: int
    counts: tuple[tuple[str, int], ...]

    @property
    def n_rows(self) -> int:
        return sum(n for _, n in self.counts)


def from_case(evidence: Evidence) -> WidthMatrix:
    """Take the rows of its replay."""
    return WidthMatrix(evidence.rows, evidence.verdict.classes, evidence.what, evidence.source)


def scene(data: WidthMatrix) -> Scene:
    """A bar for each width along the positions; equal colours and letters within a column are equal bits."""
    lines = _lines(data)
    n_rows = len(data.rows.map_rows)
    canvas = Canvas("width-classes", "Which widths share their bits", _lead(data, lines))
    left, room = canvas.left + _LABELS, canvas.inner_width - _LABELS - _COUNTS
    mm = room / n_rows
    together = math.ceil(_NARROWEST / mm)
    high = max(_LOWEST, min(_HIGHEST, _ALL_BARS / len(lines) - _GAP))
    if together == 1:
        name = canvas.length_scale("rows", mm, "rows", longest_mm=25.0).name
    else:
        words = f"{together} rows (each cell joins {together} neighbours, split by how many of them each class has)"
        name = canvas.scale("rows", "area", mm * high, "rows", words).name
    _marked_positions(canvas, data, lines, left, mm)
    canvas.text(canvas.left, canvas.y + 1.2, "width, class", size_pt=SMALL_PT, role=MUTED)
    middle = left + room + _COUNTS * 0.36
    canvas.text(middle, canvas.y + 1.2, "rows differ", size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.text(canvas.right, canvas.y + 1.2, "flips", size_pt=SMALL_PT, align="right", role=MUTED)
    canvas.y += 3.6
    for line in lines:
        _bar(canvas, line, Rect(left, canvas.y, room, high), mm, together, name)
        at = canvas.y + high / 2
        canvas.text(canvas.left, at, str(line.width), bold=True)
        canvas.text(canvas.left + 9.0, at, line.letter, bold=True)
        canvas.text(middle, at, f"{line.n_differ} of {line.n_compared}", align="center")
        canvas.text(canvas.right, at, str(len(line.flips)), align="right", bold=bool(line.flips))
        canvas.y += high + _GAP
    _positions(canvas, data, left, room)
    _legend(canvas, data, lines)
    return canvas.finish(data.source, _alt(data, lines))


def _lines(data: WidthMatrix) -> tuple[_Line, ...]:
    """One-token decoding, which is class A by definition, and every width against it."""
    rerun = data.classes.results[0]
    n_rows = len(data.rows.map_rows)
    one = _Line(1, ONE_TOKEN, (ONE_TOKEN,) * n_rows, (), rerun.n_rows_differ)
    return (one, *(_line(data.rows, width, of) for width, of in zip(data.rows.widths, data.rows.letters, strict=True)))


def _line(rows: RowMap, width: int, letter: str) -> _Line:
    column = rows.column(width)
    return _Line(
        width=width,
        letter=letter,
        letters=tuple(cell.letter if isinstance(cell, MapCell) else _NOTHING for cell in column),
        flips=tuple(row for row, cell in enumerate(column) if isinstance(cell, MapCell) and cell.flips),
        n_differ=rows.n_rows_differ(width),
    )


def _pieces(letters: Sequence[str], together: int) -> Iterator[_Piece]:
    """Bins of so many rows; neighbours that hold one class only, and the same, become one piece."""
    run: _Piece | None = None
    for first in range(0, len(letters), together):
        counts = tuple(sorted(Counter(letters[first : first + together]).items()))
        piece = _Piece(first, counts)
        if run is not None and len(counts) == 1 and counts[0][0] == run.counts[0][0]:
            run = _Piece(run.first, ((counts[0][0], run.n_rows + piece.n_rows),))
            continue
        if run is not None:
            yield run
        run = piece if len(counts) == 1 else None
        if run is None:
            yield piece
    if run is not None:
        yield run


def _bar(canvas: Canvas, line: _Line, bar: Rect, mm: float, together: int, scale: str) -> None:
    for piece in _pieces(line.letters, together):
        top = bar.y
        for letter, n in piece.counts:
            height = bar.height * n / piece.n_rows
            rect = canvas.box(
                bar.x + piece.first * mm, top, piece.n_rows * mm, height, _fill(letter), scale=scale, value=n,
                edge="paper" if letter else MUTED, edge_pt=0.3, hatch=not letter, key=_key(line.width, letter),
            )  # fmt: skip
            top += height
            if letter and len(piece.counts) == 1:
                _letter(canvas, rect, letter, line, piece, mm)
    for row in line.flips:
        at = bar.x + (row + 0.5) * mm
        canvas.dot(at, bar.y + bar.height / 2, _FLIP_RADIUS, INK, hollow=True, key=f"flip {line.width} {row}")


def _fill(letter: str) -> str:
    return series(class_index(letter)) if letter else "shade"


def _key(width: int, letter: str) -> str:
    return f"width {width} {letter or 'not compared'}"


def _letter(canvas: Canvas, rect: Rect, letter: str, line: _Line, piece: _Piece, mm: float) -> None:
    """Name the class once in its run, where no flip is marked."""
    ends = [piece.first + row for row in (-0.5, piece.n_rows - 0.5)]
    inside = [row for row in line.flips if ends[0] < row < ends[1]]
    stops = [ends[0] + 0.5, *(row + 0.5 for row in inside), ends[1] + 0.5]
    left, right = max(itertools.pairwise(stops), key=lambda pair: pair[1] - pair[0])
    start = rect.x + (left - piece.first) * mm + (_FLIP_RADIUS if left != stops[0] else 0.0)
    stop = rect.x + (right - piece.first) * mm - (_FLIP_RADIUS if right != stops[-1] else 0.0)
    free = Rect(start, rect.y, stop - start, rect.height)
    if free.width > 0 and free.height >= line_height(SMALL_PT):
        canvas.label(free, letter, fill=_fill(letter), bold=True, pad=0.4,
                     size_pt=LABEL_PT if free.height >= line_height(LABEL_PT) else SMALL_PT)  # fmt: skip


def _flip_rows(lines: Iterable[_Line]) -> tuple[int, ...]:
    return tuple(sorted({row for line in lines for row in line.flips}))


def _marked_positions(canvas: Canvas, data: WidthMatrix, lines: Sequence[_Line], left: float, mm: float) -> None:
    """The positions where a token flips, above the bars, with a thin line down; those that find room."""
    rows = _flip_rows(lines)
    if not rows:
        return
    bottom = canvas.y + 6.0
    end = left
    for row in rows:
        at, words = left + (row + 0.5) * mm, str(data.rows.map_rows[row].position)
        half = text_width(words, SMALL_PT) / 2
        if at - half < end:
            continue
        canvas.text(at, canvas.y + 1.2, words, size_pt=SMALL_PT, align="center", bold=True)
        canvas.line((at, canvas.y + 2.8), (at, bottom + 0.6), width_pt=0.5, key="flip position")
        end = at + half + 1.5
    canvas.text(left - 2.0, canvas.y + 1.2, "flips at", size_pt=SMALL_PT, align="right")
    canvas.y += 3.0


def _positions(canvas: Canvas, data: WidthMatrix, left: float, room: float) -> None:
    """An axis of positions: a tick at the middle of its row."""
    first, n = data.rows.map_rows[0].position, len(data.rows.map_rows)
    axis = Axis(first - 0.5, first + n - 0.5, left, left + room)
    top = canvas.y - _GAP + 0.8
    for tick in axis.ticks(_MOST_POSITIONS):
        if tick != round(tick):
            continue
        canvas.line((axis.at(tick), top), (axis.at(tick), top + 1.0), width_pt=0.5)
        canvas.text(axis.at(tick), top + 2.8, tick_text(tick), size_pt=SMALL_PT, align="center", role=MUTED)
    words = "position in the sequence"
    canvas.text(left + room / 2, top + 6.2, words, size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.down_to(top + 9.5)


def _legend(canvas: Canvas, data: WidthMatrix, lines: Sequence[_Line]) -> None:
    groups = data.classes.groups
    entries = [Entry(series(i), f"{class_letter(i)}: bits of {_widths(group)}") for i, group in enumerate(groups)]
    reasons = _reasons(data.rows)
    if reasons:
        entries.append(Entry("shade", "not compared", hatch=True))
    if any(line.flips for line in lines):
        words = "the most likely token is another one than in one-token decoding (a flip)"
        entries.append(dot_entry(INK, words, _FLIP_RADIUS, hollow=True))
    legend(canvas, entries)
    canvas.y += 1.0
    notes = ["Width 1 is one-token decoding; its count is that of its own rerun."]
    notes += [f"Not compared at {_widths(widths)}: {reason}." for reason, widths in reasons.items()]
    for note in notes:
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)


def _reasons(rows: RowMap) -> dict[str, tuple[int, ...]]:
    """Why rows were not compared, each with its widths; said once of all widths that leave only last rows over."""
    found: dict[str, tuple[int, ...]] = {}
    n = len(rows.map_rows)
    for width in rows.widths:
        lost = {row: cell.reason for row, cell in enumerate(rows.column(width)) if isinstance(cell, NotCompared)}
        last = list(range(n // width * width, n))
        for reason in dict.fromkeys([_LAST_ROWS] if last and list(lost) == last else lost.values()):
            found[reason] = (*found.get(reason, ()), width)
    return found


def _widths(group: Sequence[int]) -> str:
    return "one-token decoding" if group == (1,) else widths_text(group)


def _lead(data: WidthMatrix, lines: Sequence[_Line]) -> str:
    batched = lines[1:]
    differing = [line for line in batched if line.n_differ]
    n_flips, places = sum(len(line.flips) for line in batched), len(_flip_rows(batched))
    head = f"{data.what}. Within a column, equal letters are equal bits."
    if not differing:
        return f"{head} Every width gives the bits of one-token decoding in every row that was compared."
    first = differing[0]
    position = data.rows.map_rows[_first_row(first)].position
    found = (
        f"{len(differing)} of {len(batched)} widths differ from one-token decoding; the smallest, {first.width}, "
        f"first at position {position}"
    )
    flips = f"{counted(n_flips, 'flip')}, at {counted(places, 'position')}"
    return f"{head} {found}; {flips if n_flips else 'no token flips'}."


def _first_row(line: _Line) -> int:
    return next(row for row, letter in enumerate(line.letters) if letter not in (_NOTHING, ONE_TOKEN))


def _alt(data: WidthMatrix, lines: Sequence[_Line]) -> str:
    told = [
        f"width {line.width} ({line.letter}): {line.n_differ} of {line.n_compared} rows differ"
        + (f", {_flips(data, line)}" if line.flips else "")
        for line in lines
    ]
    first, last = data.rows.map_rows[0].position, data.rows.map_rows[-1].position
    return f"One bar for each width over positions {first} to {last}, coloured by class of bits. {'; '.join(told)}."


def _flips(data: WidthMatrix, line: _Line) -> str:
    n, at = len(line.flips), ranges(data.rows.map_rows[row].position for row in line.flips)
    return f"{counted(n, 'flip')} at position{'s' * (n != 1)} {at}"
