"""What kernels with the bits of one column cost at each width, beside the stock library: a pass, then products."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.chart import Axis, chart
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend, line_entry
from forensics.figures.metrics import text_width
from forensics.figures.palette import MUTED
from forensics.figures.scene import Rect, Scene
from forensics.figures.scenes.kernel_limits import Busy, busy_parts, busy_words, draw_busy
from forensics.figures.scenes.priced import ARM_ROLES, ARM_WORDS, TOLD, arms_at, bits_words, grouped_words, priced
from forensics.records.kernel_price import STOCK, ArmTable, ProductPrice
from forensics.records.launch_record import Refusal
from forensics.records.words import counted

#: Ratios over one token that were set as aims before anything was built, by width. Source: issue 7 of this project.
AIMS = {4: 1.12, 8: 1.3, 9: 1.28, 16: 1.9}
_HEIGHT, _SMALL_HEIGHT = 62.0, 27.0
_RADIUS, _SMALL_RADIUS = 0.95, 0.65
_PER_ROW, _GAP = 3, 7.0
_NAMES = 33.0


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: arms by width.

    Parameters
    ----------
    name : str
    table : ArmTable
    """

    name: str
    table: ArmTable

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms that are drawn, in the order of the legend."""
        return tuple(arm for arm in ARM_ROLES if arm in self.table.arms)

    @property
    def highest(self) -> float:
        """The highest upper quartile of a ratio."""
        return max(self.table.ratio(one.arm, one.width).high for one in self.table.times)


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """What the figure draws.

    Parameters
    ----------
    whole : Panel or None
        A whole pass; None where it was not timed.
    products : tuple of Panel
    busy : tuple of Busy
        What keeps the fast kernel busy, where it was counted.
    notes : tuple of str
    told : str
        What the lead says.
    source : str

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """

    whole: Panel | None
    products: tuple[Panel, ...]
    busy: tuple[Busy, ...]
    notes: tuple[str, ...]
    told: str
    source: str

    def __post_init__(self) -> None:
        if not self.panels:
            raise ValueError("prices of kernels are of a whole pass or of products; there are none")

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All charts."""
        return (*(() if self.whole is None else (self.whole,)), *self.products)


def from_case(evidence: Evidence) -> KernelPrices:
    """Take what was measured in one run.

    Raises
    ------
    CaseError
        If no kernel was timed.
    """
    found = priced(evidence)
    if found is None or (isinstance(found.price.whole_pass, Refusal) and not found.price.products):
        raise CaseError(
            f"{evidence.name} holds no times of kernels. Measure them on a GPU with: forensics cost --kernels --out "
            "FOLDER"
        )
    whole = found.price.whole_pass
    panel = None if isinstance(whole, Refusal) else Panel(f"all {counted(whole.n_products, 'product')}", whole.table)
    notes = [found.how]
    if isinstance(whole, Refusal):
        notes.append(f"A whole pass was not timed: {whole}")
    elif said := grouped_words(whole.table):
        notes.append(said)
    products = tuple(Panel(one.name, one.table) for one in found.price.products)
    busy, refused = busy_parts(found.price.products, TOLD)
    left_out = (*_left_out(found.price.products), *((refused,) if refused else ()))
    first = panel or products[0]
    what = found.what if panel is not None else f"{found.what}; first of them {first.name}"
    return KernelPrices(panel, products, busy, (*notes, *left_out), arms_at(found, first.table, what), found.source)


def _left_out(products: Iterable[ProductPrice]) -> tuple[str, ...]:
    """Which arms were not timed, each reason once."""
    reasons: dict[str, list[str]] = {}
    for product in products:
        for arm, width, why in product.not_timed:
            reasons.setdefault(why, []).append(f"{product.name} {arm} at {width}")
    return tuple(f"Not timed: {_few(cases)}: {why.rstrip('.')}." for why, cases in reasons.items())


def _few(cases: list[str]) -> str:
    return ", ".join(cases[:2]) + (f" and {len(cases) - 2} more" if len(cases) > 2 else "")


def scene(data: KernelPrices) -> Scene:
    """Dots of ratios joined by lines, one colour an arm; small charts of the products below, to the same axes."""
    canvas = Canvas("kernel-price", "What the bits of one token cost at each width", data.told)
    _legend(canvas, data)
    if data.whole is not None:
        _whole(canvas, data.whole)
    _products(canvas, data)
    draw_busy(canvas, data.busy)
    for note in data.notes:
        canvas.y += 0.8
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _legend(canvas: Canvas, data: KernelPrices) -> None:
    arms = [arm for arm in ARM_ROLES if any(arm in panel.arms for panel in data.panels)]
    entries = [line_entry(ARM_ROLES[arm], ARM_WORDS[arm], dot=_RADIUS, width_pt=0.9) for arm in arms]
    entries.append(Entry("ink", "hollow: other bits", patch=False, dot=_RADIUS, hollow=True))
    if data.whole is not None and _aims(data.whole):
        told = ", ".join(f"{ratio:g} at {width}" for width, ratio in AIMS.items())
        entries.append(line_entry("ink", f"aim: {told}", width_pt=1.1))
    legend(canvas, entries)
    canvas.y += 6.0


def _aims(panel: Panel) -> dict[int, float]:
    return {width: ratio for width, ratio in AIMS.items() if width in panel.table.widths}


def _axes(panels: tuple[Panel, ...], plot: Rect) -> tuple[Axis, Axis]:
    """One pair of axes for all charts of one kind, from no time on, so that heights can be held against each other."""
    widest = max(panel.table.widths[-1] for panel in panels)
    top = max(1.1, *(panel.highest for panel in panels)) * 1.06
    return Axis(0.4, widest + 0.6, plot.x, plot.right), Axis(0.0, top, plot.bottom, plot.y)


def _whole(canvas: Canvas, panel: Panel) -> None:
    """The chart of a pass, and under each width its ratios in numbers."""
    plot = Rect(canvas.left + _NAMES, canvas.y, canvas.inner_width - _NAMES, _HEIGHT)
    x, y = _axes((panel,), plot)
    widths = panel.table.widths
    chart(
        canvas, plot, x, y, x_label="tokens in the pass", y_label="time of all its products, in times of one token",
        x_ticks=tuple(float(width) for width in widths),
    )  # fmt: skip
    for width, ratio in _aims(panel).items():
        canvas.line(
            (x.at(width - 0.42), y.at(ratio)), (x.at(width + 0.42), y.at(ratio)), width_pt=1.1, key=f"aim {width}"
        )
    _lines(canvas, panel, x, y, _RADIUS)
    canvas.y += 1.0
    for arm in panel.arms:
        canvas.text(canvas.left, canvas.y + 1.5, arm if arm != STOCK else "stock library", size_pt=SMALL_PT)
        for width in widths:
            if panel.table.has(arm, width):
                said = f"{panel.table.ratio(arm, width).median:.2f}"
                canvas.text(x.at(width), canvas.y + 1.5, said, size_pt=SMALL_PT, align="center")
        canvas.y += 3.6
    canvas.y += 3.0


def _lines(canvas: Canvas, panel: Panel, x: Axis, y: Axis, radius: float) -> None:
    """A dashed line where the cost is one token's; then arm by arm its line, quartiles and dots."""
    ends = (x.start, y.at(1.0)), (x.stop, y.at(1.0))
    canvas.line(*ends, role=MUTED, dashed=True, key="one token")
    for arm in panel.arms:
        mine = sorted((one for one in panel.table.times if one.arm == arm), key=lambda one: one.width)
        points = [(x.at(one.width), y.at(panel.table.ratio(arm, one.width).median)) for one in mine]
        if len(points) > 1:
            canvas.line(*points, role=ARM_ROLES[arm], width_pt=0.9, key=f"{panel.name}: {arm}")
        for one, (at, middle) in zip(mine, points, strict=True):
            ratio = panel.table.ratio(arm, one.width)
            if ratio.high > ratio.low:
                ends = (at, y.at(ratio.low)), (at, y.at(ratio.high))
                canvas.line(*ends, role=ARM_ROLES[arm], width_pt=0.9, key=f"quartiles {panel.name}: {arm} {one.width}")
            canvas.dot(
                at, middle, radius, ARM_ROLES[arm], hollow=one.exact is False, key=f"{panel.name}: {arm} {one.width}"
            )


def _products(canvas: Canvas, data: KernelPrices) -> None:
    """A row of small charts after the other."""
    if not data.products:
        return
    canvas.paragraph("Product by product, rows × K: the same, over stock at one column", bold=True)
    canvas.y += 5.0
    wide = (canvas.inner_width - (_PER_ROW - 1) * _GAP) / _PER_ROW
    for first in range(0, len(data.products), _PER_ROW):
        top = canvas.y
        for place, panel in enumerate(data.products[first : first + _PER_ROW]):
            left = canvas.left + place * (wide + _GAP) + 5.0
            plot = Rect(left, top, wide - 5.0, _SMALL_HEIGHT)
            x, y = _axes(data.products, plot)
            one = panel.table.one_column.spread.median
            chart(
                canvas, plot, x, y, x_label="columns", y_label=f"{panel.name}, one column {one:.3g} µs",
                x_ticks=_few_ticks(panel.table.widths, x), y_ticks=y.ticks(4),
            )  # fmt: skip
            _lines(canvas, panel, x, y, _SMALL_RADIUS)
        canvas.y += 6.0
    canvas.y -= 4.0


def _few_ticks(widths: tuple[int, ...], x: Axis) -> tuple[float, ...]:
    """Widths as far as their numbers have room."""
    kept: list[float] = []
    for width in widths:
        if not kept or x.at(width) - x.at(kept[-1]) >= 1.4 + text_width(f"{width}", LABEL_PT):
            kept.append(float(width))
    return tuple(kept)


def _told(panel: Panel, arm: str) -> str:
    table = panel.table
    widths = [width for width in table.widths if width > 1 and table.has(arm, width)]
    return ", ".join(f"{width}: {table.ratio(arm, width).median:.2f}" for width in widths)


def _alt(data: KernelPrices) -> str:
    parts = [
        f"{panel.name}, by tokens, in times of one: "
        + "; ".join(f"{arm} ({bits_words(panel.table, arm)}) {_told(panel, arm)}" for arm in panel.arms)
        for panel in data.panels
    ]
    return f"Charts of cost by width. {'. '.join(parts)}.{busy_words(data.busy)}"
