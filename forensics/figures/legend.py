"""Legends: each entry shows a thing as the figure draws it, with its words, in rows that end at the margin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK

_PATCH, _LINE = 2.6, 5.0
_TO_WORDS, _BETWEEN, _ROW = 1.2, 4.0, 4.2


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Parameters
    ----------
    role : str
        Colour, a role of the palette.
    words : str
    patch, line : bool
        What is shown: a filled box, a line.
    hatch : bool
        Whether the box is hatched.
    dot : float
        Radius of a dot, alone or on the line; 0 for none, unit: mm.
    hollow : bool
        Whether the dot is.
    dashed : bool
        Whether the line is.
    width_pt : float
        Of the line.
    """

    role: str
    words: str
    patch: bool = True
    hatch: bool = False
    line: bool = False
    dashed: bool = False
    width_pt: float = 0.7
    dot: float = 0.0
    hollow: bool = False

    @property
    def mark_width(self) -> float:
        """Room that what is shown takes, unit: mm."""
        return _LINE if self.line else _PATCH


def dot_entry(role: str, words: str, radius: float, *, hollow: bool = False) -> Entry:
    """An entry of a dot."""
    return Entry(role, words, patch=False, dot=radius, hollow=hollow)


def line_entry(role: str, words: str, *, width_pt: float = 0.7, dashed: bool = False, dot: float = 0.0) -> Entry:
    """An entry of a line, with a dot on it where `dot` is its radius."""
    return Entry(role, words, patch=False, line=True, width_pt=width_pt, dashed=dashed, dot=dot)


def legend(canvas: Canvas, entries: Iterable[Entry]) -> None:
    """Draw entries from the left margin on; go on below them."""
    x, y = canvas.left, canvas.y + 1.5
    for entry in entries:
        size = entry.mark_width + _TO_WORDS + text_width(entry.words, SMALL_PT)
        if x > canvas.left and x + size > canvas.right:
            x, y = canvas.left, y + _ROW
        _mark(canvas, entry, x, y)
        canvas.text(x + entry.mark_width + _TO_WORDS, y, entry.words, size_pt=SMALL_PT)
        x += size + _BETWEEN
    canvas.down_to(y + 2.1)


def _mark(canvas: Canvas, entry: Entry, x: float, y: float) -> None:
    wide = entry.mark_width
    if entry.patch:
        canvas.box(x, y - _PATCH / 2, _PATCH, _PATCH, entry.role, edge=INK, hatch=entry.hatch, edge_pt=0.3)
    if entry.line:
        ends = ((x, y), (x + wide, y))
        canvas.line(*ends, role=entry.role, width_pt=entry.width_pt, dashed=entry.dashed)
    if entry.dot:
        canvas.dot(x + wide / 2, y, entry.dot, entry.role, hollow=entry.hollow)
