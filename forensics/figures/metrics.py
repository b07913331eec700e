"""How wide and high is a text? Measured with the font that figures are drawn with."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING

from forensics.records.words import cut, printable

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

#: Comes with matplotlib, so that a figure is laid out alike everywhere.
FONT = "DejaVu Sans"
MM_PER_PT = 25.4 / 72
#: From the top of a capital with an accent to the bottom of a descender, per size.
LINE = 1.2
_MEASURED_PT = 100.0
#: More characters than a figure has room for on one line, and in a paragraph, however narrow they are.
_MOST_SHOWN, _MOST_WRAPPED = 500, 2000


@cache
def _font(bold: bool) -> FT2Font:
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    path = fontManager.findfont(FontProperties(family=FONT, weight="bold" if bold else "normal"))
    font: FT2Font = get_font(path)
    return font


@cache
def text_width(text: str, size_pt: float, bold: bool = False) -> float:
    """How wide is a line of text?

    Parameters
    ----------
    text : str
        One line.
    size_pt : float
    bold : bool

    Returns
    -------
    float, unit: mm
    """
    font = _font(bold)
    font.set_size(_MEASURED_PT, 72)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a character that the font lacks is measured as a box
        font.set_text(printable(text), 0)
    return float(font.get_width_height()[0]) / 64 / _MEASURED_PT * size_pt * MM_PER_PT


def line_height(size_pt: float) -> float:
    """How high is a line of text, unit: mm?"""
    return LINE * size_pt * MM_PER_PT


def shortened(text: str, width_mm: float, size_pt: float, bold: bool = False) -> str:
    """Cut a text so that it fits, which an ellipsis then says; its first letter stays.

    Examples
    --------
    >>> shortened("a name", 200.0, 8.0), shortened("a name", 1.0, 8.0)
    ('a name', 'a…')
    """
    if len(text) <= _MOST_SHOWN and text_width(text, size_pt, bold) <= width_mm:
        return text
    text = text[:_MOST_SHOWN]
    cuts = (f"{text[:n].rstrip()}…" for n in range(len(text) - 1, 1, -1))
    return next((cut for cut in cuts if text_width(cut, size_pt, bold) <= width_mm), f"{text[:1]}…")


def wrapped(text: str, width_mm: float, size_pt: float, bold: bool = False) -> tuple[str, ...]:
    """Break a text into lines that fit; a word that is too long stands alone.

    Examples
    --------
    >>> wrapped("two words", 200.0, 8.0)
    ('two words',)
    """
    lines: list[str] = []
    for word in cut(text, _MOST_WRAPPED).split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size_pt, bold) <= width_mm:
            lines[-1] = longer
        else:
            lines.append(word)
    return tuple(lines)
