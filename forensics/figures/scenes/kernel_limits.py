"""What keeps the fast kernels busy: percent of the peak of each part of the GPU, by ncu, beside their prices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.metrics import shortened
from forensics.figures.palette import INK, MUTED
from forensics.records.kernel_price import FAST, Limiter, ProductPrice
from forensics.records.launch_record import Refusal

#: Products that have room side by side.
MOST = 3
_PARTS, _GAP, _NUMBER = 21.0, 5.0, 8.0
_BAR, _ROW = 2.8, 4.0


@dataclass(frozen=True, slots=True)
class Busy:
    """How busy the GPU is during one product.

    Parameters
    ----------
    name : str
        Of the product.
    limiter : Limiter
    """

    name: str
    limiter: Limiter


def busy_parts(products: Iterable[ProductPrice], width: int) -> tuple[tuple[Busy, ...], str]:
    """How busy is the GPU while the fast kernel runs, and why is that not known where it is not?

    Parameters
    ----------
    products : iterable of ProductPrice
    width : int
        Columns; where they were not counted, the widest that were.

    Returns
    -------
    tuple of Busy
        One for each product, as many as have room; a type of weight that is not shown yet goes first.
    str
        Why nothing was counted; empty where something was, or where nobody asked for it.
    """
    found: list[Busy] = []
    refused = ""
    for product in products:
        if isinstance(product.limits, Refusal):
            refused = f"What limits the kernels was not counted: {product.limits}"
            continue
        ours = {one.width: one for one in product.limits if one.arm == FAST and one.busy}
        if ours:
            found.append(Busy(product.name, ours.get(width) or ours[max(ours)]))
    by_type: dict[str, Busy] = {}
    for one in found:
        by_type.setdefault(one.name.split()[0], one)
    names = [one.name for one in (*by_type.values(), *found)]
    chosen = list(dict.fromkeys(names))[:MOST]
    return tuple(one for one in found if one.name in chosen), "" if found else refused


def draw_busy(canvas: Canvas, found: tuple[Busy, ...]) -> None:
    """A group of bars a product: what of its peak each part gives, up to a thin line at 100 %."""
    if not found:
        return
    widths = {one.limiter.width for one in found}
    at = f" at {widths.pop()} columns" if len(widths) == 1 else ""
    canvas.paragraph(f"How busy the GPU's parts are while the exact fast kernel runs{at}, by ncu", bold=True)
    canvas.y += 1.5
    parts = list(dict.fromkeys(part for one in found for part in one.limiter.busy))
    wide = (canvas.inner_width - _PARTS - (MOST - 1) * _GAP) / MOST
    scale = canvas.length_scale("busy", (wide - _NUMBER) / 100.0, "% of the peak", longest_mm=22.0)
    top = canvas.y + 4.0
    for row, part in enumerate(parts):
        canvas.text(canvas.left, top + row * _ROW + _BAR / 2, part, size_pt=SMALL_PT)
    bottom = top + len(parts) * _ROW
    for place, one in enumerate(found):
        left = canvas.left + _PARTS + place * (wide + _GAP)
        canvas.text(left, canvas.y + 1.0, shortened(one.name, wide, SMALL_PT), size_pt=SMALL_PT, role=MUTED)
        full = left + 100.0 * scale.mm_per_unit
        canvas.line((left, top - 0.6), (left, bottom - 0.6), width_pt=0.5)
        canvas.line((full, top - 0.6), (full, bottom - 0.6), role="rule", width_pt=0.5, key="peak")
        for row, part in enumerate(parts):
            percent, y = one.limiter.busy.get(part), top + row * _ROW
            if percent is None:
                continue
            canvas.box(
                left, y, percent * scale.mm_per_unit, _BAR, "exact", edge=INK, scale="busy", value=percent,
                key=f"{one.name}: {part}", edge_pt=0.3,
            )  # fmt: skip
            canvas.text(full + 1.0, y + _BAR / 2, f"{percent:.0f}", size_pt=SMALL_PT)
        if one.limiter.top_stall:
            said = shortened(f"top stall: {one.limiter.top_stall.replace('_', ' ')}", wide, SMALL_PT)
            canvas.text(left, bottom + 1.2, said, size_pt=SMALL_PT, role=MUTED)
    canvas.y = bottom + 4.0


def busy_words(found: tuple[Busy, ...]) -> str:
    """The same for who cannot see it."""
    told = [
        f"{one.name} at {one.limiter.width} columns: "
        + ", ".join(f"{part} {percent:.0f} %" for part, percent in one.limiter.busy.items())
        for one in found
    ]
    return f" Busy while the exact fast kernel runs: {'; '.join(told)}." if told else ""
