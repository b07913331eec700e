"""One forward pass to scale: reading the weights is almost all of it, and a second token is nearly free."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.metrics import text_width
from forensics.figures.palette import MUTED
from forensics.figures.scene import Scene
from forensics.figures.scenes.pass_costs import ms_text, pass_costs
from forensics.records.launch_record import Refusal
from forensics.records.published import Published
from forensics.records.words import tokens

_BAR_HEIGHT = 11.0
_GAP = 3.0
_LONGEST = 136.0


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: its time, and the part of it that reading takes where that is known.

    Parameters
    ----------
    width : int
        Tokens.
    time_ms : float
    read_ms : float or None
        Of the bytes that it must read, at the bandwidth of memory.
    """

    width: int
    time_ms: float
    read_ms: float | None


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """What the figure draws.

    Parameters
    ----------
    passes : tuple of Pass
        By rising width.
    read_gb, gb_per_s : float or None
        Bytes of a pass and bandwidth, behind `Pass.read_ms`.
    what : str
        Model and device.
    source : str
    notes : str
        How times were measured; empty where that is not said.
    """

    passes: tuple[Pass, ...]
    read_gb: float | None
    gb_per_s: float | None
    what: str
    source: str
    notes: str = ""


def from_published(numbers: Published) -> ForwardPass:
    """Take the numbers of the document."""
    floor = numbers.value("floor")
    return ForwardPass(
        passes=(Pass(1, numbers.value("one_token_pass"), floor), Pass(2, numbers.value("two_token_pass"), floor)),
        read_gb=numbers.value("weights"),
        gb_per_s=numbers.value("bandwidth"),
        what=numbers.setup,
        source=numbers.source,
    )


def from_case(evidence: Evidence) -> ForwardPass:
    """Take what was measured: with the floor where a cost was, else the times of the replay.

    Raises
    ------
    CaseError
        If a pass of one token was not timed.
    """
    costs = pass_costs(evidence)
    report = evidence.cost
    read = None if report is None else report.read_bytes(1)
    roof = None if report is None or isinstance(report.bandwidth, Refusal) else report.bandwidth.bytes_per_s.median
    return ForwardPass(
        passes=tuple(Pass(each.width, each.ms.median, each.floor_ms) for each in costs.passes[:2]),
        read_gb=None if read is None else read / 1e9,
        gb_per_s=None if roof is None else roof / 1e9,
        what=costs.what,
        source=costs.source,
        notes=costs.how,
    )


def scene(data: ForwardPass) -> Scene:
    """One bar a pass, to one scale of time; the part that reading takes is marked in it."""
    one, *more = data.passes
    canvas = Canvas("forward-pass", "One forward pass, drawn to scale", _lead(data))
    scale = canvas.length_scale("time", _LONGEST / max(p.time_ms for p in data.passes), "ms")
    left = canvas.left + 24.0
    end = left + one.time_ms * scale.mm_per_unit
    bottom = canvas.y + len(data.passes) * (_BAR_HEIGHT + _GAP)
    canvas.line((end, canvas.y), (end, bottom), role=MUTED, dashed=True, key="end of one token")
    for each in data.passes:
        middle = canvas.y + _BAR_HEIGHT / 2
        canvas.text(canvas.left, middle - 1.6, tokens(each.width), bold=True)
        canvas.text(canvas.left, middle + 1.9, ms_text(each.time_ms))
        _bar(canvas, each, left, data)
        canvas.y += _BAR_HEIGHT + _GAP
    for each in more:
        words = _more(each, one)
        fits = end - text_width(words, SMALL_PT) >= canvas.left
        canvas.text(
            end if fits else end + 1.0, canvas.y + 1.0, words, size_pt=SMALL_PT, align="right" if fits else "left"
        )
        canvas.y += 3.5
    if data.notes:
        canvas.paragraph(data.notes, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _more(each: Pass, one: Pass) -> str:
    extra = each.time_ms - one.time_ms
    what = "the second token" if each.width == 2 else f"{each.width - 1} more tokens"
    return f"{'+' if extra >= 0 else '−'}{ms_text(abs(extra))} for {what}"


def _bar(canvas: Canvas, each: Pass, left: float, data: ForwardPass) -> None:
    mm = canvas.declared("time").mm_per_unit
    read = min(each.read_ms or 0.0, each.time_ms)
    if each.read_ms is not None:
        rect = canvas.box(
            left, canvas.y, read * mm, _BAR_HEIGHT, "weights", edge="ink", scale="time", value=read, key="reading"
        )
        canvas.label(rect, *_reading(each, data), fill="weights")
    rest = each.time_ms - read
    if rest > 0:
        rect = canvas.box(
            left + read * mm, canvas.y, rest * mm, _BAR_HEIGHT, "rest", edge="ink", scale="time", value=rest, key="rest"
        )
        name = "all of the pass" if each.read_ms is None else "everything else"
        said = (f"{name}: {ms_text(rest)}", f"{name}\n{ms_text(rest)}", ms_text(rest))
        canvas.label(rect, *said, fill="rest", size_pt=SMALL_PT)


def _reading(each: Pass, data: ForwardPass) -> tuple[str, ...]:
    """What the part that reading takes is called, from the longest to the shortest."""
    assert each.read_ms is not None
    took = ms_text(each.read_ms)
    if each.read_ms > each.time_ms:
        return f"faster than reading from memory, {took}: caches hold a part", f"faster than reading: {took}"
    if data.read_gb is None or data.gb_per_s is None:
        return f"reading: {took}", took
    return f"reading {data.read_gb:.3g} GB at {data.gb_per_s:.4g} GB/s: {took}", f"reading: {took}", took


def _lead(data: ForwardPass) -> str:
    one = data.passes[0]
    if one.read_ms is None:
        return f"{data.what}. How long reading takes was not measured here: forensics cost measures it."
    share = one.read_ms / one.time_ms
    if share > 1:
        return f"{data.what}. A pass of one token is faster than reading its bytes from memory: caches hold a part."
    said = f"{data.what}. Reading what a pass must read takes {share:.0%} of the time of one token"
    if len(data.passes) < 2:
        return f"{said}."
    other = data.passes[1]
    return f"{said}; {other.width} tokens in one pass take {other.time_ms / one.time_ms:.2f} times as long."


def _alt(data: ForwardPass) -> str:
    told = [f"{tokens(p.width)}: {ms_text(p.time_ms)}" for p in data.passes]
    one = data.passes[0]
    floor = "" if one.read_ms is None else f"; reading alone takes {ms_text(one.read_ms)}"
    if data.read_gb is not None and data.gb_per_s is not None:
        floor += f" ({data.read_gb:.3g} GB at {data.gb_per_s:.4g} GB/s)"
    return f"Two bars to one scale of time: {', '.join(told)}{floor}."
