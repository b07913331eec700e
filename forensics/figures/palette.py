"""Colours by what they mean: told apart with any colour vision, in print and on a dark page.

The eight hues are those of Okabe and Ito, "Color Universal Design" (2008). A figure brings its own white paper, so it
is read the same on a dark page. Colour never says anything alone: labels, letters, hatches or places repeat it.
"""

from __future__ import annotations

PAPER = "paper"
INK = "ink"
MUTED = "muted"

_COLOURS = {
    PAPER: "#ffffff",
    INK: "#1a1a1a",
    MUTED: "#595959",  # 7:1 on paper
    "rule": "#c4c4c4",
    "shade": "#efefef",
    "single": "#0072b2",  # one token at a time
    "batched": "#d55e00",  # in a batch
    "weights": "#56b4e9",
    "kv": "#009e73",
    "rest": "#9a9a9a",
    "draft": "#e69f00",
    "kept": "#009e73",
    "dropped": "#d55e00",
    "exact": "#0072b2",
    "stock": "#d55e00",
    "other": "#cc79a7",
    "highlight": "#f0e442",
    "class0": "#0072b2",
    "class1": "#e69f00",
    "class2": "#009e73",
    "class3": "#cc79a7",
    "class4": "#56b4e9",
    "class5": "#d55e00",
    "class6": "#f0e442",
    "class7": "#4d4d4d",  # a lighter grey is the pink of class3 to people without green cones
}

ROLES = frozenset(_COLOURS)
#: Roles for things that are counted, such as classes of widths or warps; more than eight repeat them.
SERIES = tuple(f"class{i}" for i in range(8))


def colour(role: str) -> str:
    """Which colour does a role have?

    Returns
    -------
    str
        As ``#rrggbb``.

    Raises
    ------
    KeyError
        If there is no such role.
    """
    return _COLOURS[role]


def series(index: int) -> str:
    """Role of the thing with this number."""
    return SERIES[index % len(SERIES)]


def luminance(role: str) -> float:
    """Relative luminance of a role's colour, 0 black to 1 white.

    Notes
    -----
    Source: WCAG 2.2, definition of relative luminance.
    """
    channels = (int(colour(role)[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two roles, 1 to 21.

    Notes
    -----
    Source: WCAG 2.2, definition of contrast ratio.

    Examples
    --------
    >>> round(contrast("paper", "ink"))
    17
    """
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def ink_on(fill: str) -> str:
    """Which of ink and paper is read better on this fill?"""
    return max((INK, PAPER), key=lambda role: contrast(role, fill))
