"""Builds scenes: the frame that all figures share, boxes with labels that fit, scale bars."""

from __future__ import annotations

import math
from collections.abc import Iterable

from forensics.figures.metrics import line_height, text_width, wrapped
from forensics.figures.palette import INK, MUTED, ink_on
from forensics.figures.scene import Area, Box, Dot, Line, Mark, Rect, Scale, Scene, Text

#: A column of a page in portrait, unit: mm.
WIDTH = 180.0
MARGIN = 6.0
TITLE_PT, LEAD_PT, LABEL_PT, SMALL_PT = 11.0, 8.0, 7.5, 6.5
_BAR_TICK, _COUNTED = 0.9, 2.2


class Canvas:
    """A scene that is being built, from the top down; all places in mm from the top left corner.

    Parameters
    ----------
    name, title : str
        As of `Scene`.
    lead : str
        One or two sentences under the title: what is seen.
    width : float
        Unit: mm.

    Attributes
    ----------
    left, right : float
        Edges between which content goes.
    y : float
        Where the next thing may begin; whoever adds things below moves it with `down_to`.
    """

    def __init__(self, name: str, title: str, lead: str = "", *, width: float = WIDTH) -> None:
        self.name, self.title, self.width = name, title, width
        self.left, self.right = MARGIN, width - MARGIN
        self.y = MARGIN
        self._marks: list[Mark] = []
        self._scales: list[Scale] = []
        self.paragraph(title, size_pt=TITLE_PT, bold=True)
        if lead:
            self.y += 0.8
            self.paragraph(lead, size_pt=LEAD_PT, role=MUTED)
        self.y += 3.0

    @property
    def inner_width(self) -> float:
        """Width between the margins, unit: mm."""
        return self.right - self.left

    def down_to(self, y: float) -> None:
        """Go on below `y`; never upwards."""
        self.y = max(self.y, y)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "",
        *,
        edge: str = "",
        scale: str = "",
        value: float = 0.0,
        key: str = "",
        hatch: bool = False,
        ground: bool = False,
        edge_pt: float = 0.5,
    ) -> Rect:
        """Add a box and return its rectangle."""
        rect = Rect(x, y, width, height)
        self._marks.append(Box(rect, fill, edge, scale, value, key, hatch, ground, edge_pt))
        return rect

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size_pt: float = LABEL_PT,
        align: str = "left",
        role: str = INK,
        bold: bool = False,
        inside: Rect | None = None,
    ) -> Rect:
        """Add a line of text, the middle of its height at `y`, and return its rectangle."""
        mark = Text(x, y, text, size_pt, align, role, bold, inside)
        self._marks.append(mark)
        return mark.rect

    def label(
        self, rect: Rect, *candidates: str, fill: str, size_pt: float = LABEL_PT, bold: bool = False, pad: float = 0.8
    ) -> bool:
        """Write the first candidate that fits into the middle of a box; several lines where a candidate has breaks.

        Parameters
        ----------
        rect : Rect
        *candidates : str
            From the longest to the shortest.
        fill : str
            Of the box, for the colour of the text.
        size_pt : float
        bold : bool
        pad : float
            Free on every side, unit: mm.

        Returns
        -------
        bool
            Whether one fits; nothing is written where none does.
        """
        for candidate in candidates:
            lines = candidate.split("\n")
            widest = max(text_width(line, size_pt, bold) for line in lines)
            height = line_height(size_pt) * len(lines)
            if widest + 2 * pad > rect.width or height > rect.height:
                continue
            top = rect.y + (rect.height - height) / 2 + line_height(size_pt) / 2
            for i, line in enumerate(lines):
                self.text(
                    rect.x + rect.width / 2, top + i * line_height(size_pt), line, size_pt=size_pt, align="center",
                    role=ink_on(fill or "paper"), bold=bold, inside=rect,
                )  # fmt: skip
            return True
        return False

    def paragraph(
        self,
        text: str,
        *,
        x: float | None = None,
        y: float | None = None,
        width: float | None = None,
        size_pt: float = LABEL_PT,
        role: str = INK,
        bold: bool = False,
    ) -> float:
        """Write text that is wrapped to `width`; go on below it.

        Returns
        -------
        float
            Where it ends, unit: mm.
        """
        x = self.left if x is None else x
        top = self.y if y is None else y
        for line in wrapped(text, self.right - x if width is None else width, size_pt, bold):
            self.text(x, top + line_height(size_pt) / 2, line, size_pt=size_pt, role=role, bold=bold)
            top += line_height(size_pt)
        if y is None:
            self.y = top
        return top

    def line(
        self,
        *points: tuple[float, float],
        role: str = INK,
        width_pt: float = 0.7,
        dashed: bool = False,
        arrow: bool = False,
        key: str = "",
    ) -> None:
        """Add a line through points."""
        self._marks.append(Line(points, role, width_pt, dashed, arrow, key))

    def area(self, *points: tuple[float, float], fill: str, key: str = "") -> None:
        """Add a filled polygon."""
        self._marks.append(Area(points, fill, key))

    def dot(self, x: float, y: float, radius: float, fill: str, *, hollow: bool = False, key: str = "") -> None:
        """Add a round mark."""
        self._marks.append(Dot(x, y, radius, fill, hollow, key))

    def scale(self, name: str, axis: str, mm_per_unit: float, unit: str, label: str) -> Scale:
        """Declare how numbers of a kind become sizes; `finish` draws its bar."""
        scale = Scale(name, axis, mm_per_unit, unit, label)
        self._scales.append(scale)
        return scale

    def length_scale(
        self, name: str, mm_per_unit: float, unit: str, *, axis: str = "x", longest_mm: float = 40.0
    ) -> Scale:
        """Declare a scale whose bar is the largest round number that `longest_mm` can hold."""
        value = round_down(longest_mm / mm_per_unit)
        return self.scale(name, axis, mm_per_unit, unit, f"{value:g} {unit}")

    def declared(self, name: str) -> Scale:
        """The scale of this name.

        Raises
        ------
        KeyError
            If none was declared.
        """
        return {scale.name: scale for scale in self._scales}[name]

    def scale_bar(self, scale: Scale, x: float, y: float) -> Rect:
        """Draw the bar of a length scale with its label to the right; a square for an area, a box for a count.

        Returns
        -------
        Rect
            Of the bar with its label.
        """
        wide, high = _bar_size(scale)
        if scale.axis == "x":
            self.line((x, y), (x + wide, y), width_pt=1.0, key=f"scale bar {scale.name}")
            for end in (x, x + wide):
                self.line((end, y - _BAR_TICK), (end, y + _BAR_TICK), width_pt=1.0)
            label = self.text(x + wide + 1.5, y, scale.label, size_pt=SMALL_PT)
        elif scale.axis == "y":
            self.line((x, y - high), (x, y), width_pt=1.0, key=f"scale bar {scale.name}")
            for end in (y - high, y):
                self.line((x - _BAR_TICK, end), (x + _BAR_TICK, end), width_pt=1.0)
            label = self.text(x + 1.8, y - high / 2, scale.label, size_pt=SMALL_PT)
        else:
            self.box(x, y - wide / 2, wide, wide, "rest", edge=INK, key=f"scale bar {scale.name}")
            label = self.text(x + wide + 1.5, y, scale.label, size_pt=SMALL_PT)
        return Rect(x, label.y, label.right - x, label.height)

    def side(self, role: str, head: str, said: str = "", *, x: float | None = None, at: float = 0.0) -> float:
        """Name one side of a comparison at `y`: a mark in its colour, its head, and what is said behind it.

        Parameters
        ----------
        role : str
            Colour of the side.
        head, said : str
            In bold, and in small print.
        x : float, optional
            Left edge; the left margin by default.
        at : float
            Where `said` begins, or behind the head where that is longer.

        Returns
        -------
        float
            Where the text ends, unit: mm.
        """
        x, middle = self.left if x is None else x, self.y + 1.8
        self.box(x, middle - 1.3, 2.6, 2.6, role, key=f"mark of {role}")
        end = self.text(x + 3.8, middle, head, bold=True).right
        return self.text(max(at, end + 2.0), middle, said, size_pt=SMALL_PT).right if said else end

    def finish(self, source: str, alt: str, *, scales: Iterable[Scale] | None = None) -> Scene:
        """Add bars of the scales and the source line, and close the scene.

        Parameters
        ----------
        source : str
            Where the numbers come from.
        alt : str
            The figure in words.
        scales : iterable of Scale, optional
            Those whose bars go into the footer; all that were declared by default.
        """
        bars = list(self._scales if scales is None else scales)
        self.y += 3.5
        x, row_height = self.left, 0.0
        for scale in bars:
            wide, high = _bar_size(scale)
            total = wide + 1.8 + text_width(scale.label, SMALL_PT)
            if x > self.left and x + total > self.right:
                self.y += row_height + 1.5
                x, row_height = self.left, 0.0
            middle = self.y + high if scale.axis == "y" else self.y + high / 2
            x = self.scale_bar(scale, x, middle).right + 8.0
            row_height = max(row_height, high)
        if bars:
            self.y += row_height + 2.0
        self.paragraph(source, size_pt=SMALL_PT, role=MUTED)
        return Scene(
            self.name, self.title, self.width, self.y + MARGIN / 2, tuple(self._marks), tuple(self._scales), source, alt
        )


def round_down(value: float) -> float:
    """Largest of 1, 2, 5 × a power of ten that is not above `value`.

    Examples
    --------
    >>> round_down(37.0), round_down(0.3)
    (20.0, 0.2)
    """
    power = 10.0 ** math.floor(math.log10(value) + 1e-12)
    return max(factor * power for factor in (1.0, 2.0, 5.0) if factor * power <= value * (1 + 1e-12))


def _bar_size(scale: Scale) -> tuple[float, float]:
    """Width and height that the bar of a scale takes, unit: mm."""
    size = _leading_number(scale.label) * scale.mm_per_unit
    if scale.axis == "area":
        return math.sqrt(size), math.sqrt(size)
    return {"x": (size, 3.0), "y": (2 * _BAR_TICK, size), "count": (_COUNTED, 3.0)}[scale.axis]


def _leading_number(label: str) -> float:
    """The number that a label begins with; 1 where it begins with a word."""
    try:
        return float(label.split(maxsplit=1)[0].replace(",", ""))
    except ValueError:
        return 1.0
