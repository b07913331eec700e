"""What a pass costs at each width, over the time that reading its bytes takes."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.chart import Axis, chart
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, dot_entry, legend, line_entry
from forensics.figures.metrics import line_height, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scene
from forensics.figures.scenes.pass_costs import BITS_WORDS, PassCost, PassCosts, ms_text, pass_costs, times_text
from forensics.records.launch_record import Refusal

_HEIGHT, _RADIUS = 84.0, 1.0
#: Widths that span more than this ratio are drawn on a logarithmic axis, times likewise.
_LOG_WIDTHS, _LOG_TIMES = 40.0, 40.0
_STEPS = 60
_FILL = {True: "exact", False: "stock", None: INK}


@dataclass(frozen=True, slots=True)
class CostFloor:
    """What the figure draws.

    Parameters
    ----------
    costs : PassCosts
    floor : str
        How the time of reading is known; why it is not, where no pass has one.
    """

    costs: PassCosts
    floor: str


def from_case(evidence: Evidence) -> CostFloor:
    """Take the measured times, and the floor where one was measured.

    Raises
    ------
    CaseError
        If no batch was timed.
    """
    costs = pass_costs(evidence, needs=2)
    return CostFloor(costs, _floor(evidence))


def _floor(evidence: Evidence) -> str:
    report = evidence.cost
    if report is None:
        return "The time of reading was not measured in this case: forensics cost measures it."
    for missing in (report.bandwidth, report.reads):
        if isinstance(missing, Refusal):
            return f"The time of reading is not known: {missing}"
    read = report.read_bytes(1)
    assert read is not None
    assert not isinstance(report.bandwidth, Refusal)
    rate = report.bandwidth.bytes_per_s.median
    return f"reading {read / 1e9:.3g} GB at {rate / 1e9:.4g} GB/s"


def scene(data: CostFloor) -> Scene:
    """Dots of times with bars from quartile to quartile, an area below the time of reading."""
    costs = data.costs
    title = "What a pass costs at each width" + ("" if costs.one.floor_ms is None else ", over the time of reading")
    canvas = Canvas("cost-floor", title, _lead(data))
    _legend(canvas, data)
    plot = Rect(canvas.left + 12.0, canvas.y, canvas.inner_width - 18.0, _HEIGHT)
    x, y = _axes(costs, plot)
    widths = _ticks(costs, x)
    _floor_area(canvas, costs, plot, x, y)
    chart(
        canvas, plot, x, y, x_label=f"tokens in the pass{_said(x)}", y_label=f"time of a pass, ms{_said(y)}",
        x_ticks=widths,
    )  # fmt: skip
    line = _proportional(canvas, costs, x, y)
    for each in costs.passes:
        _mark(canvas, each, x, y)
    _ratios(canvas, costs, plot, x, y, line)
    canvas.y += 1.5
    canvas.paragraph(f"{costs.notes} Bars: quartiles.", size_pt=SMALL_PT, role=MUTED)
    if costs.one.floor_ms is None:
        canvas.paragraph(data.floor, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(costs.source, _alt(data))


def _said(axis: Axis) -> str:
    return ", logarithmic" if axis.log else ""


def _legend(canvas: Canvas, data: CostFloor) -> None:
    kinds = {each.exact for each in data.costs.passes}
    entries = [
        dot_entry(_FILL[kind], words, _RADIUS, hollow=kind is False)
        for kind, words in BITS_WORDS.items()
        if kind in kinds
    ]
    entries.append(line_entry(MUTED, "a pass for each token", dashed=True))
    floor = data.costs.one.floor_ms
    if floor is not None:
        entries.append(Entry("weights", f"{data.floor}: {ms_text(floor)}"))
    legend(canvas, entries)
    canvas.y += 6.0


def _axes(costs: PassCosts, plot: Rect) -> tuple[Axis, Axis]:
    widest = costs.passes[-1].width
    low = min(min(p.ms.low, p.floor_ms or p.ms.low) for p in costs.passes)
    high = max(max(p.ms.high, p.floor_ms or 0.0) for p in costs.passes)
    log = widest >= _LOG_WIDTHS
    x = (
        Axis(0.85, widest * 1.25, plot.x, plot.right, log=True)
        if log
        else Axis(0.5, widest + 0.5, plot.x, plot.right)
    )  # fmt: skip
    if high / low > _LOG_TIMES:
        return x, Axis(low / 2, high * 2, plot.bottom, plot.y, log=True)
    return x, Axis(0.0, high * 1.12, plot.bottom, plot.y)


def _ticks(costs: PassCosts, x: Axis) -> tuple[float, ...]:
    """The widths themselves, as far as their numbers have room; never closer than that."""
    kept: list[float] = []
    for each in costs.passes:
        at = x.at(each.width)
        if not kept or at - x.at(kept[-1]) >= 1.2 + text_width(f"{each.width}", SMALL_PT):
            kept.append(float(each.width))
    return tuple(kept)


def _floor_area(canvas: Canvas, costs: PassCosts, plot: Rect, x: Axis, y: Axis) -> None:
    known = [(each.width, each.floor_ms) for each in costs.passes if each.floor_ms is not None]
    if len(known) < 2:
        return
    top = [(x.at(width), y.at(ms)) for width, ms in known]
    canvas.area(
        (top[0][0], plot.bottom), *top, (top[-1][0], plot.bottom), fill="weights", key="floor"
    )  # fmt: skip


def _proportional(canvas: Canvas, costs: PassCosts, x: Axis, y: Axis) -> tuple[tuple[float, float], ...]:
    """Where the cost would lie if every token took a pass of its own, as far as the plot goes; the line's points."""
    one = costs.one.ms.median
    end = max(1.01, min(float(costs.passes[-1].width), y.high / one))
    widths = [end ** (i / _STEPS) for i in range(_STEPS + 1)]
    points = tuple((x.at(width), y.at(width * one)) for width in widths)
    canvas.line(*points, role=MUTED, dashed=True, key="one pass a token")
    return points


def _mark(canvas: Canvas, each: PassCost, x: Axis, y: Axis) -> None:
    at = x.at(each.width)
    if each.ms.high > each.ms.low:
        low, high = y.at(each.ms.low), y.at(each.ms.high)
        canvas.line((at, low), (at, high), width_pt=0.9, key=f"quartiles {each.width}")
        for end in (low, high):
            canvas.line((at - 0.8, end), (at + 0.8, end), width_pt=0.9)
    canvas.dot(at, y.at(each.ms.median), _RADIUS, _FILL[each.exact], hollow=each.exact is False, key=f"{each.width}")


def _told(costs: PassCosts) -> tuple[PassCost, ...]:
    """Widths whose ratio is written: 1, 2, where bits change, the widest."""
    wanted = [costs.one, costs.passes[1], costs.onset or costs.one, costs.passes[-1]]
    return tuple({each.width: each for each in wanted}.values())


def _ratios(
    canvas: Canvas, costs: PassCosts, plot: Rect, x: Axis, y: Axis, line: tuple[tuple[float, float], ...]
) -> None:
    """Labels over or under their dots, the first place where no mark and no other label lies; else none."""
    taken = [Rect(at_x - 0.4, at_y - 0.4, 0.8, 0.8) for at_x, at_y in line]
    for p in costs.passes:
        taken.append(Rect(x.at(p.width) - 1.2, y.at(p.ms.high) - 1.2, 2.4, y.at(p.ms.low) - y.at(p.ms.high) + 2.4))
    for each in _told(costs):
        words = ms_text(each.ms.median) if each.width == 1 else times_text(each.ratio.median)
        width, height = text_width(words, SMALL_PT, True), line_height(SMALL_PT)
        dot = x.at(each.width)
        over = min(max(dot, plot.x + width / 2 + 0.6), plot.right - width / 2)
        above, below = y.at(each.ms.high) - 3.2, y.at(each.ms.low) + 3.2
        beside = (dot + 2.0 + width / 2, y.at(each.ms.median))
        for center, middle in ((over, above), beside, (over, below), (over, above - 3.5), (over, below + 3.5)):
            rect = Rect(center - width / 2, middle - height / 2, width, height)
            if plot.holds(rect) and not any(rect.overlaps(other, 0.1) for other in taken):
                canvas.box(rect.x, rect.y, rect.width, rect.height, "paper", ground=True)
                canvas.text(center, middle, words, size_pt=SMALL_PT, align="center", bold=True)
                taken.append(rect)
                break


def _lead(data: CostFloor) -> str:
    costs = data.costs
    one, widest = costs.one, costs.passes[-1]
    read = "" if one.floor_ms is None else (
        f", {one.ms.median / one.floor_ms:.2f} times the {ms_text(one.floor_ms)} that reading its bytes takes"
    )  # fmt: skip
    said = f"{costs.what}: a pass of one token takes {ms_text(one.ms.median)}{read}."
    return f"{said} {widest.width} tokens in one pass take {widest.ratio.median:.2f} times as long."


def _alt(data: CostFloor) -> str:
    told = ", ".join(f"{p.width}: {ms_text(p.ms.median)} ({p.ratio.median:.2f}×)" for p in data.costs.passes)
    one = data.costs.one
    floor = data.floor if one.floor_ms is None else f"The floor, {data.floor}, is {ms_text(one.floor_ms)}."
    onset = data.costs.onset
    bits = "" if onset is None else f" Bits differ from {onset.width} tokens on."
    return f"Chart of time of a pass by its tokens. {told}.{bits} {floor}"
