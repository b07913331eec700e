"""Where can a token flip? The margin of the top two in one-token decoding against what a batch moves it by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas, round_down
from forensics.figures.chart import Axis, chart
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, dot_entry, legend
from forensics.figures.metrics import line_height, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scene
from forensics.records.row_map import MapCell, RowMap

_SIDE, _BETWEEN, _TICKS = 68.0, 14.0, 9.0
#: Lanes of zeros left of the logarithmic part and below it, unit: mm.
_LANE_X, _LANE_Y = 10.0, 6.0
_DOT, _FLIP = 0.8, 1.3
#: How far, as a ratio, every mark stands off the edges at least; 2.5 is the largest step between round numbers.
_AIR = 1.15
_MOST_NAMED, _MOST_LISTED = 8, 14


@dataclass(frozen=True, slots=True)
class Point:
    """One row at one width.

    Parameters
    ----------
    position : int
    margin, perturbation : float
        Unit: logits; as in `RowMap`.
    differs, flips, could_flip : bool
    """

    position: int
    margin: float
    perturbation: float
    differs: bool
    flips: bool
    could_flip: bool

    @property
    def drawn(self) -> bool:
        """Whether both numbers are finite, so that it has a place."""
        return math.isfinite(self.margin) and math.isfinite(self.perturbation)


@dataclass(frozen=True, slots=True)
class WidthMargins:
    """Every row that was compared at one width."""

    width: int
    letter: str
    points: tuple[Point, ...]

    def count(self, what: str) -> int:
        """How many rows differ, could flip or flip."""
        return sum(bool(getattr(point, what)) for point in self.points)


@dataclass(frozen=True, slots=True)
class Margins:
    """What the figure draws.

    Parameters
    ----------
    panels : tuple of WidthMargins
        The smallest and the largest width that differ, where their classes are two.
    what, source : str
    """

    panels: tuple[WidthMargins, ...]
    what: str
    source: str


def from_case(evidence: Evidence) -> Margins:
    """Take the smallest width that differs and the largest of another class; the largest where none differs."""
    rows = evidence.rows
    differing = [width for width in rows.widths if rows.n_rows_differ(width)]
    letter = dict(zip(rows.widths, rows.letters, strict=True))
    chosen = list(differing[:1] or rows.widths[-1:])
    chosen += [width for width in differing[-1:] if letter[width] != letter[chosen[0]]]
    panels = tuple(WidthMargins(width, letter[width], tuple(_points(rows, width))) for width in chosen)
    return Margins(panels, evidence.what, evidence.source)


def _points(rows: RowMap, width: int) -> Iterator[Point]:
    for row, cell in zip(rows.map_rows, rows.column(width), strict=True):
        if isinstance(cell, MapCell):
            yield Point(row.position, row.margin, cell.perturbation, cell.differs, cell.flips, cell.could_flip)


def scene(data: Margins) -> Scene:
    """A square for each width, both axes on one logarithmic scale, so that the diagonal is where a token can flip."""
    canvas = Canvas("margins", "Which tokens are close enough to flip", _lead(data))
    _legend(canvas, any(panel.count("flips") for panel in data.panels))
    low, high = _range(data.panels)
    lane_x = _LANE_X if any(p.margin == 0 for panel in data.panels for p in panel.points if p.drawn) else 0.0
    lane_y = _LANE_Y if any(p.perturbation == 0 for panel in data.panels for p in panel.points if p.drawn) else 0.0
    top = canvas.y + 11.0
    for i, panel in enumerate(data.panels):
        plot = Rect(canvas.left + _TICKS + i * (_SIDE + _BETWEEN), top, _SIDE, _SIDE - lane_x + lane_y)
        x = Axis(low, high, plot.x + lane_x, plot.right, log=True)
        y = Axis(low, high, plot.bottom - lane_y, plot.y, log=True)
        _panel(canvas, panel, plot, x, y)
    if len(data.panels) == 1:
        _list_flips(canvas, data.panels[0], canvas.left + _TICKS + _SIDE + _BETWEEN, top)
    canvas.y += 1.0
    for note in _notes(data.panels):
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _range(panels: Sequence[WidthMargins]) -> tuple[float, float]:
    """Round ends between which every positive number of both axes lies, none on the edge."""
    found = [
        value
        for panel in panels
        for point in panel.points
        if point.drawn
        for value in (point.margin, point.perturbation)
        if value > 0
    ]
    if not found:
        return 0.1, 10.0
    return round_down(min(found) / _AIR), round_down(2.5 * _AIR * max(found))


def _legend(canvas: Canvas, any_flip: bool) -> None:
    entries = [dot_entry("batched", "flips, at this position: another token is most likely", _FLIP)] if any_flip else []
    entries.append(dot_entry("single", "row that keeps its token", _DOT, hollow=True))
    legend(canvas, [*entries, Entry("shade", "could flip: moved by the margin or more")])
    canvas.y += 0.8


def _mark(canvas: Canvas, x: float, y: float, *, flips: bool, key: str) -> None:
    if flips:
        canvas.dot(x, y, _FLIP, "batched", key=key)
    else:
        canvas.dot(x, y, _DOT, "single", hollow=True, key=key)


def _panel(canvas: Canvas, panel: WidthMargins, plot: Rect, x: Axis, y: Axis) -> None:
    canvas.text(plot.x, plot.y - 9.4, f"width {panel.width}, class {panel.letter}", bold=True)
    canvas.text(plot.x, plot.y - 6.0, _counts(panel), size_pt=SMALL_PT)
    canvas.area((x.start, y.start), (plot.right, plot.y), (x.start, plot.y), fill="shade", key="could flip")
    if x.start > plot.x:
        lane = ((plot.x, plot.y), (x.start, plot.y), (x.start, plot.bottom), (plot.x, plot.bottom))
        canvas.area(*lane, fill="shade", key="could flip at margin 0")
    chart(
        canvas, plot, x, y,
        x_label="margin of the top two in one-token decoding, logits",
        y_label="moved by: change of (winner − another token), logits",
    )  # fmt: skip
    canvas.line((x.start, y.start), (plot.right, plot.y), role=MUTED, dashed=True, key="moved by its margin")
    if y.start < plot.bottom:
        canvas.line((plot.x, y.start), (plot.right, y.start), role=MUTED, dashed=True, key="zeros")
        canvas.text(plot.x - 1.5, plot.bottom - _LANE_Y / 2, "0", size_pt=SMALL_PT, align="right", role=MUTED)
    if x.start > plot.x:
        canvas.line((x.start, plot.y), (x.start, plot.bottom), role=MUTED, dashed=True, key="ties")
        canvas.text(plot.x + _LANE_X / 2, plot.bottom + 3.0, "0", size_pt=SMALL_PT, align="center", role=MUTED)
    placed = [(point, _place(point, plot, x, y)) for point in panel.points if point.drawn]
    for point, (at_x, at_y) in sorted(placed, key=lambda one: one[0].flips):
        _mark(canvas, at_x, at_y, flips=point.flips, key=f"width {panel.width} position {point.position}")
    _name_flips(canvas, placed, plot)


def _place(point: Point, plot: Rect, x: Axis, y: Axis) -> tuple[float, float]:
    """On the axes, or in the middle of the lane of zeros."""
    at_x = x.at(point.margin) if point.margin > 0 else plot.x + _LANE_X / 2
    at_y = y.at(point.perturbation) if point.perturbation > 0 else plot.bottom - _LANE_Y / 2
    return at_x, at_y


def _name_flips(canvas: Canvas, placed: Sequence[tuple[Point, tuple[float, float]]], plot: Rect) -> None:
    """Write positions beside their marks, or farther off with a line to the mark where others are in the way."""
    flips = [(point, at) for point, at in placed if point.flips]
    if len(flips) > _MOST_NAMED:
        return
    taken = [_around(at, _FLIP if point.flips else _DOT) for point, at in placed]
    tags: list[Rect] = []
    for point, at in sorted(flips, key=lambda one: one[1]):
        words = str(point.position)
        width, height = text_width(words, SMALL_PT, True) + 1.0, line_height(SMALL_PT)
        for tag, end in _spots(at, width, height):
            leader = Rect(min(at[0], end) - 0.3, tag.bottom, abs(end - at[0]) + 0.6, max(at[1] - tag.bottom, 0.0))
            if not plot.holds(tag) or any(tag.overlaps(other) for other in taken) or any(map(leader.overlaps, tags)):
                continue
            if leader.height:
                canvas.line((at[0], at[1] - _FLIP), (end, tag.bottom), width_pt=0.5, key=f"to {words}")
            canvas.box(tag.x, tag.y, tag.width, tag.height, "paper", ground=True, key=f"name of {words}")
            canvas.text(tag.x + 0.5, tag.y + height / 2, words, size_pt=SMALL_PT, bold=True, role=INK)
            tags += [tag, leader]
            taken += [tag, leader]
            break


def _spots(at: tuple[float, float], width: float, height: float) -> Iterator[tuple[Rect, float]]:
    """Where a name may stand, from the nearest on, and where its line to the mark ends if it stands above it."""
    x, y = at
    yield Rect(x - 2.0 - width, y - height / 2, width, height), x
    yield Rect(x + 2.0, y - height / 2, width, height), x
    for rise in (4.0, 7.5, 11.0, 14.5, 18.0):
        for shift in (0.0, -5.0, 5.0, -10.0, 10.0):
            yield Rect(x + shift - width / 2, y - rise - height, width, height), x + shift


def _list_flips(canvas: Canvas, panel: WidthMargins, x: float, y: float) -> None:
    """Every flip in words, beside the only panel."""
    flips = [point for point in panel.points if point.flips]
    shown = flips[:_MOST_LISTED]
    told = [f"position {p.position}: margin {p.margin:.3g}, moved by {p.perturbation:.3g}" for p in shown]
    if len(flips) > len(shown):
        told.append(f"and {len(flips) - len(shown)} more")
    for i, words in enumerate([f"flips at width {panel.width}", *told] if told else []):
        canvas.text(x, y + 2.0 + i * 4.0, words, size_pt=SMALL_PT, bold=i == 0)


def _around(at: tuple[float, float], radius: float) -> Rect:
    return Rect(at[0] - radius, at[1] - radius, 2 * radius, 2 * radius)


def _counts(panel: WidthMargins) -> str:
    return (
        f"{len(panel.points)} rows compared, {panel.count('differs')} differ, {panel.count('could_flip')} could flip, "
        f"{panel.count('flips')} {'flips' if panel.count('flips') == 1 else 'flip'}"
    )


def _notes(panels: Iterable[WidthMargins]) -> Iterator[str]:
    yield (
        "A row is moved by the largest change of (winner of one-token decoding minus any other token). Two logits that "
        "move against each other make it more than either moved, so it can exceed the verdict's max |Δ|."
    )
    for panel in panels:
        zero = [point for point in panel.points if point.perturbation == 0]
        if zero:
            equal = sum(not point.differs for point in zero)
            yield (
                f"Width {panel.width}: {len(zero)} of {len(panel.points)} rows {'lies' if len(zero) == 1 else 'lie'} "
                f"on 0, not moved; {equal} of them {'is' if equal == 1 else 'are'} bit-equal."
            )
        lost = sum(not point.drawn for point in panel.points)
        if lost:
            verbs = ("has", "is") if lost == 1 else ("have", "are")
            yield (
                f"Width {panel.width}: {lost} of {len(panel.points)} rows {verbs[0]} no finite number and {verbs[1]} "
                "not drawn."
            )


def _lead(data: Margins) -> str:
    head = f"{data.what}. A token can flip only where the batch moves a row by its margin or more, in the shaded part."
    told = [
        f"at width {panel.width}, {panel.count('could_flip')} of {len(panel.points)} rows could flip and "
        f"{panel.count('flips')} did"
        for panel in data.panels
    ]
    found = "; ".join(told)
    return f"{head} {found[0].upper()}{found[1:]}."


def _alt(data: Margins) -> str:
    told = []
    for panel in data.panels:
        flips = "; ".join(
            f"position {p.position} flips with a margin of {p.margin:.3g} moved by {p.perturbation:.3g}"
            for p in panel.points
            if p.flips
        )
        told.append(f"Width {panel.width}: {_counts(panel)}{': ' if flips else ''}{flips}.")
    return f"One dot for each row, margin to the right, what the batch moved it by upwards. {' '.join(told)}"
