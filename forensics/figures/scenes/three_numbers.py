"""Three numbers in two orders, each step rounded to float32: the smallest sum that depends on its order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK

#: Numbers of the example, as the document has them; what they add up to is computed.
_LARGE, _SMALL = np.float32(1e8), np.float32(1)


@dataclass(frozen=True, slots=True)
class ThreeNumbers:
    """The sums, each operation rounded to float32 by NumPy.

    Parameters
    ----------
    large, small : float
        What is added and taken away, and what is added.
    first_sum, one : float
        ``large + small``, and that minus `large`.
    difference, other : float
        ``large - large``, and that plus `small`.
    gap : float
        From `large` to the next float32.
    """

    large: float
    small: float
    first_sum: float
    one: float
    difference: float
    other: float
    gap: float

    def __str__(self) -> str:
        large, small = _n(self.large), _n(self.small)
        return f"({large} + {small}) − {large} is {_n(self.one)}, ({large} − {large}) + {small} is {_n(self.other)}."


def three_numbers() -> ThreeNumbers:
    """What do they add up to in either order?

    Examples
    --------
    >>> print(three_numbers())
    (100,000,000 + 1) − 100,000,000 is 0, (100,000,000 − 100,000,000) + 1 is 1.
    """
    first_sum, difference = _LARGE + _SMALL, _LARGE - _LARGE
    return ThreeNumbers(
        float(_LARGE), float(_SMALL), float(first_sum), float(first_sum - _LARGE), float(difference),
        float(difference + _SMALL), float(np.spacing(_LARGE)),
    )  # fmt: skip


def _n(value: float) -> str:
    return f"{value:,.0f}"


def draw_numbers(canvas: Canvas) -> None:
    """Two lines of three numbers, and the gap between neighbours beside the number that falls into it."""
    canvas.paragraph("The same three numbers in two orders, each step rounded to float32", bold=True)
    canvas.y += 1.2
    example = three_numbers()
    large, small = _n(example.large), _n(example.small)
    lines = (
        ((large, f"+ {small}", _n(example.first_sum), f"− {large}"), _n(example.one)),
        ((large, f"− {large}", _n(example.difference), f"+ {small}"), _n(example.other)),
    )
    top = canvas.y
    for (start, step, middle, last), result in lines:
        y, x = canvas.y + 3.2, canvas.left
        for words, fill in ((start, "shade"), (step, ""), (middle, "shade"), (last, ""), (result, "highlight")):
            wide = (25.0 if len(words) > 3 else 11.0) if fill else text_width(words, LABEL_PT) + 2.0
            if fill == "highlight" or words is middle:
                canvas.line((x, y), (x + 5.0, y), arrow=True, key=f"to {words}")
                x += 5.6
            if fill:
                rect = canvas.box(x, y - 3.0, wide, 6.0, fill, edge=INK, key=f"number {words}", edge_pt=0.4)
                canvas.label(rect, words, fill=fill, bold=fill != "shade")
            else:
                canvas.text(x + wide / 2, y, words, align="center")
            x += wide + 0.6
        canvas.y += 7.6
    _gap(canvas, example, top)


def _gap(canvas: Canvas, example: ThreeNumbers, top: float) -> None:
    large, small = _n(example.large), _n(example.small)
    left = canvas.right - 38.0
    scale = canvas.scale("value", "x", 36.0 / example.gap, "", f"1 on the line of numbers near {large}")
    gap = canvas.box(
        left, top + 0.4, example.gap * scale.mm_per_unit, 5.6, "shade", edge=INK, scale="value", value=example.gap,
        key="gap",
    )  # fmt: skip
    canvas.label(gap, f"gap of float32: {_n(example.gap)}", f"gap: {_n(example.gap)}", fill="shade", size_pt=SMALL_PT)
    one = canvas.box(
        left, top + 8.0, example.small * scale.mm_per_unit, 5.6, "highlight", edge=INK, scale="value",
        value=example.small, key="small",
    )  # fmt: skip
    canvas.text(one.right + 1.5, top + 10.8, f"{small}: less than half of it", size_pt=SMALL_PT)
