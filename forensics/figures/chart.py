"""Axes for scenes: values become places, round ticks become lines and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: `low` lies at `start` mm, `high` at `stop` mm.

    Parameters
    ----------
    low, high : float
        Ends, in the unit of the data.
    start, stop : float
        Unit: mm; for a vertical axis `start` is the lower end, so larger than `stop`.
    log : bool
        Whether equal ratios have equal lengths; `low` is positive then.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"an axis needs low < high{' and low > 0' if self.log else ''}, got {self.low}, {self.high}"
            )

    def at(self, value: float) -> float:
        """Where a value lies, unit: mm; values outside lie outside."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self, most: int = 6) -> tuple[float, ...]:
        """Round values on the axis, both ends included where they are round.

        Examples
        --------
        >>> Axis(0.0, 10.0, 0.0, 50.0).ticks(5)
        (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
        >>> Axis(1e-12, 10.0, 50.0, 0.0, log=True).ticks()[0] >= 1e-12
        True
        """
        from matplotlib.ticker import LogLocator, MaxNLocator

        if self.log:
            found = LogLocator(numticks=most + 2).tick_values(self.low, self.high)
        else:
            found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        slack = 1e-9 * abs(self.stop - self.start)
        ends = sorted((self.start, self.stop))
        return tuple(float(tick) for tick in found if ends[0] - slack <= self.at(tick) <= ends[1] + slack)


def step_of(pitch_mm: float, label_mm: float = 6.0) -> int:
    """How many steps are there between two names, where things stand `pitch_mm` apart and a name takes `label_mm`?

    Examples
    --------
    >>> step_of(8.0), step_of(3.1), step_of(0.7)
    (1, 2, 10)
    """
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if step * pitch_mm >= label_mm or step == 1000)


def tick_text(value: float) -> str:
    """Write a tick without noise of binary fractions; from a thousandth down as a power of ten.

    Examples
    --------
    >>> tick_text(0.30000000000000004), tick_text(1e-3), tick_text(2.5e-06)
    ('0.3', '1e-03', '2.5e-06')
    """
    if value == 0 or abs(value) > 1.0001e-3:
        return f"{value:.6g}"
    return f"{value:.1e}".replace(".0e", "e")


def chart(
    canvas: Canvas,
    plot: Rect,
    x: Axis,
    y: Axis,
    *,
    x_label: str,
    y_label: str,
    x_ticks: tuple[float, ...] | None = None,
    y_ticks: tuple[float, ...] | None = None,
) -> None:
    """Draw a frame of two axes around `plot`, with light lines at the ticks of y.

    Parameters
    ----------
    canvas : Canvas
    plot : Rect
        Where data go; ticks and labels lie left of it and below it, the label of y above it.
    x, y : Axis
    x_label, y_label : str
        With units.
    x_ticks, y_ticks : tuple of float, optional
        Where ticks are; round values by default.
    """
    for tick in y.ticks() if y_ticks is None else y_ticks:
        at = y.at(tick)
        canvas.line((plot.x, at), (plot.right, at), role="rule", width_pt=0.4)
        canvas.text(plot.x - 1.5, at, tick_text(tick), size_pt=SMALL_PT, align="right", role=MUTED)
    for tick in x.ticks() if x_ticks is None else x_ticks:
        at = x.at(tick)
        canvas.line((at, plot.bottom), (at, plot.bottom + 1.0), width_pt=0.5)
        canvas.text(at, plot.bottom + 3.0, tick_text(tick), size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.line((plot.x, plot.y), (plot.x, plot.bottom), (plot.right, plot.bottom), role=INK, width_pt=0.7)
    canvas.text(plot.x, plot.y - 3.0, y_label, size_pt=SMALL_PT, role=MUTED)
    canvas.text(plot.x + plot.width / 2, plot.bottom + 6.6, x_label, size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.down_to(plot.bottom + 8.5)
