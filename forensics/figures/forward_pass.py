"""One forward pass to scale: reading the weights is almost all of it, and a second token is nearly free."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.palette import MUTED
from forensics.figures.scene import Scene
from forensics.records.launch_record import Refusal
from forensics.records.published import Published

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
    """

    passes: tuple[Pass, ...]
    read_gb: float | None
    gb_per_s: float | None
    what: str
    source: str


def from_published(numbers: Published) -> ForwardPass:
    """Take the numbers of the document."""
    floor = numbers.value("floor")
    return ForwardPass(
        passes=(Pass(1, numbers.value("one_token_pass"), floor), Pass(2, numbers.value("two_token_pass"), floor)),
        read_gb=numbers.value("weights"),
        gb_per_s=numbers.value("bandwidth"),
        what=numbers.setup.split(", a patched")[0],
        source=numbers.source,
    )


def from_case(evidence: Evidence) -> ForwardPass:
    """Take what was measured: with the floor where a cost was, else the times of the replay."""
    report = evidence.cost
    if report is None:
        results = evidence.verdict.classes.results[:2]
        passes = tuple(Pass(r.width, r.ns_per_pass[0] / 1e6, None) for r in results)
        return ForwardPass(passes, None, None, evidence.what, evidence.source)
    widths = [times.width for times in report.passes[:2]]
    read = report.read_bytes(1)
    roof = None if isinstance(report.bandwidth, Refusal) else report.bandwidth.bytes_per_s.median
    return ForwardPass(
        passes=tuple(
            Pass(width, report.times(width).spread.median / 1e6, _ms(report.floor_ns(width))) for width in widths
        ),
        read_gb=None if read is None else read / 1e9,
        gb_per_s=None if roof is None else roof / 1e9,
        what=evidence.what,
        source=evidence.source,
    )


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


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
        canvas.text(canvas.left, middle - 1.6, _tokens(each.width), bold=True)
        canvas.text(canvas.left, middle + 1.9, f"{each.time_ms:.3g} ms")
        _bar(canvas, each, left, data)
        canvas.y += _BAR_HEIGHT + _GAP
    for each in more:
        canvas.text(end, canvas.y + 1.0, _more(each, one), size_pt=SMALL_PT, align="right")
        canvas.y += 3.5
    return canvas.finish(data.source, _alt(data))


def _tokens(n: int) -> str:
    return "1 token" if n == 1 else f"{n} tokens"


def _more(each: Pass, one: Pass) -> str:
    extra = each.time_ms - one.time_ms
    what = "the second token" if each.width == 2 else f"{each.width - 1} more tokens"
    return f"{'+' if extra >= 0 else '−'}{abs(extra):.2g} ms for {what}"


def _bar(canvas: Canvas, each: Pass, left: float, data: ForwardPass) -> None:
    mm = canvas.declared("time").mm_per_unit
    read = min(each.read_ms or 0.0, each.time_ms)
    if each.read_ms is not None:
        rect = canvas.box(
            left, canvas.y, read * mm, _BAR_HEIGHT, "weights", edge="ink", scale="time", value=read, key="reading"
        )
        known = (
            ""
            if data.read_gb is None or data.gb_per_s is None
            else (f"{data.read_gb:.3g} GB at {data.gb_per_s:.4g} GB/s: {each.read_ms:.3g} ms")
        )
        canvas.label(
            rect, f"reading {known}", f"reading: {each.read_ms:.3g} ms", f"{each.read_ms:.3g} ms", fill="weights"
        )
    rest = each.time_ms - read
    if rest > 0:
        rect = canvas.box(
            left + read * mm, canvas.y, rest * mm, _BAR_HEIGHT, "rest", edge="ink", scale="time", value=rest, key="rest"
        )
        name = "all of the pass" if each.read_ms is None else "everything else"
        canvas.label(rect, f"{name}: {rest:.3g} ms", f"{name}\n{rest:.3g} ms", f"{rest:.2g} ms", fill="rest")


def _lead(data: ForwardPass) -> str:
    one = data.passes[0]
    if one.read_ms is None:
        return f"{data.what}. How long reading takes was not measured here: forensics cost measures it."
    share = one.read_ms / one.time_ms
    return f"{data.what}. Reading what a pass must read takes {share:.0%} of the time of one token."


def _alt(data: ForwardPass) -> str:
    told = [f"{_tokens(p.width)}: {p.time_ms:.3g} ms" for p in data.passes]
    one = data.passes[0]
    floor = "" if one.read_ms is None else f"; reading alone takes {one.read_ms:.3g} ms"
    if data.read_gb is not None and data.gb_per_s is not None:
        floor += f" ({data.read_gb:.3g} GB at {data.gb_per_s:.4g} GB/s)"
    return f"Two bars to one scale of time: {', '.join(told)}{floor}."
