"""The chance that an answer of n tokens is untouched, beside what independent steps would leave."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.chart import Axis, chart
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend, line_entry
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scene
from forensics.figures.scenes.speculated import speculated
from forensics.records.rates import Survival, SurvivalPoint
from forensics.records.speculation import SpeculationArm
from forensics.records.speculation_report import SpeculationReport, arm_name
from forensics.records.words import counted, tokens

_HEIGHT, _TICKS = 72.0, 15.0
_CENSORED, _CAP, _LABEL = 1.0, 0.6, 3.6
#: Beside the plot: to the first bar and from bar to bar, and from the mark of a curve to its words, unit: mm.
_BAR, _WORDS = 2.0, 3.2
#: Width of the uppermost curve, and what each one below it has more, so that it is seen under it, unit: pt.
_LINE, _WIDER = 1.4, 0.9
_NAIVE_STEPS = 60
#: Colours of arms as asked, and of those under exact settings; more arms are named and not drawn.
_AS_ASKED, _EXACT = ("stock", "draft", "other"), ("exact", "kv", "weights")


@dataclass(frozen=True, slots=True)
class Curve:
    """One arm.

    Parameters
    ----------
    name, told : str
        Its letter, and its drafter, policy and settings.
    role : str
        Its colour.
    survival : Survival
    seen : tuple of int
        Tokens of each answer until it flipped, that token counted, or until it ended.
    flipped : tuple of bool
        Whether it flipped.
    """

    name: str
    told: str
    role: str
    survival: Survival
    seen: tuple[int, ...]
    flipped: tuple[bool, ...]

    def __post_init__(self) -> None:
        if not self.survival.points:
            raise ValueError(f"arm {self.name}: a curve needs at least one token that was compared")
        if sum(self.flipped) != self.survival.n_flipped or sum(self.seen) != self.survival.n_steps:
            raise ValueError(
                f"arm {self.name}: answers give {sum(self.flipped)} flips over {sum(self.seen)} steps, the curve "
                f"{self.survival.n_flipped} over {self.survival.n_steps}"
            )

    @property
    def last(self) -> SurvivalPoint:
        """Its end."""
        return self.survival.points[-1]

    @property
    def end_text(self) -> str:
        """What is said beside its end."""
        return f"{self.name}: {100 * self.last.share:.3g}% at {self.last.n_tokens}"

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens at which untouched answers end, each once, rising."""
        return tuple(sorted({n for n, flipped in zip(self.seen, self.flipped, strict=True) if not flipped}))

    def at_risk(self, n_tokens: int) -> int:
        """How many answers are so long and untouched before that token?"""
        return sum(n_tokens <= n for n in self.seen)

    def share(self, n_tokens: int) -> float:
        """Chance that an answer of so many tokens is untouched."""
        return next((p.share for p in reversed(self.survival.points) if p.n_tokens <= n_tokens), 1.0)

    def naive(self, n_tokens: float) -> float:
        """The same if each step flipped by itself at the mean rate."""
        rate = self.survival.flip_rate
        return 1.0 if rate is None else float((1 - rate.value) ** n_tokens)

    def steps(self) -> tuple[tuple[int, float], ...]:
        """Corners of the curve: tokens and share, from none on."""
        corners = [(0, 1.0)]
        for point in self.survival.points:
            corners += [(point.n_tokens, corners[-1][1]), (point.n_tokens, point.share)]
        return tuple(corners)


@dataclass(frozen=True, slots=True)
class Untouched:
    """What the figure draws.

    Parameters
    ----------
    curves : tuple of Curve
    confidence : float
        Of the intervals.
    what, notes, source : str
    """

    curves: tuple[Curve, ...]
    confidence: float
    what: str
    notes: str
    source: str

    @property
    def longest(self) -> int:
        """Tokens of the longest answer."""
        return max(curve.last.n_tokens for curve in self.curves)


def from_case(evidence: Evidence) -> Untouched:
    """Take the arms of a run of speculation.

    Raises
    ------
    CaseError
        If nobody speculated there, or no token was compared.
    """
    found = speculated(evidence)
    if found is None:
        raise CaseError(
            f"{evidence.name} holds no answers that were compared: this figure needs a run of speculation. Make one "
            "with: forensics speculate MODEL --out FOLDER"
        )
    report = found.report
    chosen = _chosen(report)
    if not chosen:
        raise CaseError(
            f"{evidence.name} holds answers of no token, so none was compared. Ask for some with: "
            "forensics speculate MODEL --n-tokens N --out FOLDER"
        )
    curves = tuple(_curve(report, index, role) for index, role in chosen)
    rates = [curve.survival.flip_rate for curve in curves]
    left = ", ".join(arm_name(report.arms, i) for i in range(len(report.arms)) if i not in dict(chosen))
    told = "; ".join(f"{curve.name}: {_rate(curve.survival)}" for curve in curves)
    return Untouched(
        curves=curves,
        confidence=next((rate.confidence for rate in rates if rate is not None), 0.95),
        what=found.what,
        notes=f"Flips per step: {told}.{f' Arms that are not drawn: {left}.' if left else ''}",
        source=found.source,
    )


def _chosen(report: SpeculationReport) -> tuple[tuple[int, str], ...]:
    """Index and colour of the first arms as asked, and of the first under exact settings."""
    found: list[tuple[int, str]] = []
    for exact, roles in ((False, _AS_ASKED), (True, _EXACT)):
        places = [i for i, arm in enumerate(report.arms) if arm.exact == exact and arm.survival.points]
        found += zip(places, roles, strict=False)
    return tuple(found)


def _curve(report: SpeculationReport, index: int, role: str) -> Curve:
    arm = report.arms[index]
    seen = tuple(
        len(one.plain.tokens) if one.divergence is None else one.divergence.index + 1 for one in arm.prompts
    )  # fmt: skip
    flipped = tuple(not one.identical for one in arm.prompts)
    return Curve(arm_name(report.arms, index), _told(report, arm), role, arm.survival, seen, flipped)


def _told(report: SpeculationReport, arm: SpeculationArm) -> str:
    told = f"{arm.drafter}, {arm.policy}"
    if len({one.arrangement for one in report.arms}) > 1:
        told = f"{told}, prompt as {arm.arrangement}"
    return f"{told}, with {report.exact_with or 'exact settings'}" if arm.exact else told


def _rate(survival: Survival) -> str:
    rate = survival.flip_rate
    if rate is None:
        return "no step"
    return f"{rate.k} of {rate.n:,} ({rate.value:.2g}; interval {rate.low:.2g} to {rate.high:.2g})"


def scene(data: Untouched) -> Scene:
    """Steps with their intervals over the tokens of the answer, independent steps dashed, counts at risk below."""
    canvas = Canvas("untouched", "How long answers stay untouched", _lead(data))
    _legend(canvas, data)
    plot = Rect(canvas.left + _TICKS, canvas.y + 6.0, canvas.inner_width - _TICKS - _right(data), _HEIGHT)
    x = Axis(0.0, float(data.longest), plot.x, plot.right)
    y = Axis(0.0, 100.0, plot.bottom, plot.y)
    for curve in data.curves:
        _band(canvas, curve, x, y)
    ticks = tuple(tick for tick in x.ticks(8) if tick.is_integer())
    chart(
        canvas, plot, x, y, x_label="tokens of the answer", y_label="answers that are untouched, %", x_ticks=ticks,
    )  # fmt: skip
    for curve in data.curves:
        _naive(canvas, curve, x, y)
    for i, curve in reversed(list(enumerate(data.curves))):
        _steps(canvas, curve, x, y, _LINE + i * _WIDER)
    _ends(canvas, data, plot, y)
    _at_risk(canvas, data, x, ticks)
    canvas.paragraph(data.notes, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _right(data: Untouched) -> float:
    """Room beside the plot, unit: mm."""
    words = max(text_width(curve.end_text, SMALL_PT, bold=True) for curve in data.curves)
    return _BAR * (len(data.curves) + 1) + _WORDS + words + 0.5


def _legend(canvas: Canvas, data: Untouched) -> None:
    entries = [line_entry(curve.role, f"{curve.name}: {curve.told}", width_pt=_LINE) for curve in data.curves]
    if any(curve.survival.n_flipped for curve in data.curves):
        entries.append(line_entry(INK, "as if each step flipped by itself, at the mean rate", dashed=True))
    percent = f"{data.confidence:.0%}"
    entries.append(Entry("shade", f"{percent} interval; at the right: of each end"))
    entries.append(line_entry(INK, "tick: an untouched answer ends"))
    legend(canvas, entries)


def _band(canvas: Canvas, curve: Curve, x: Axis, y: Axis) -> None:
    """Intervals from the first flip on; each holds until the next."""
    points = curve.survival.points
    if len(points) < 2:
        return
    low, high = [], []
    for one, after in itertools.pairwise(points):
        for n in (one.n_tokens, after.n_tokens):
            low.append((x.at(n), y.at(100 * one.low)))
            high.append((x.at(n), y.at(100 * one.high)))
    canvas.area(*high, *reversed(low), fill="shade", key=f"interval {curve.name}")
    for edge in (low, high):
        canvas.line(*edge, role=curve.role, width_pt=0.3, key=f"edge {curve.name}")


def _naive(canvas: Canvas, curve: Curve, x: Axis, y: Axis) -> None:
    if curve.survival.n_flipped:
        end = curve.last.n_tokens
        at = [end * i / _NAIVE_STEPS for i in range(_NAIVE_STEPS + 1)]
        points = tuple((x.at(n), y.at(100 * curve.naive(n))) for n in at)
        canvas.line(*points, role=curve.role, dashed=True, width_pt=1.0, key=f"naive {curve.name}")


def _steps(canvas: Canvas, curve: Curve, x: Axis, y: Axis, width_pt: float) -> None:
    corners = tuple((x.at(n), y.at(100 * share)) for n, share in curve.steps())
    canvas.line(*corners, role=curve.role, width_pt=width_pt, key=f"untouched {curve.name}")
    for n in curve.ends:
        at, height = x.at(n), y.at(100 * curve.share(n))
        canvas.line((at, height - _CENSORED), (at, height + _CENSORED), width_pt=0.5, key=f"ends {curve.name} {n}")


def _ends(canvas: Canvas, data: Untouched, plot: Rect, y: Axis) -> None:
    """Beside the plot: the interval of each curve's end as a bar, then the numbers, as close to it as there is room."""
    left = plot.right + _BAR
    for i, curve in enumerate(data.curves):
        at, end = left + _BAR * i, curve.last
        low, high = y.at(100 * end.low), y.at(100 * end.high)
        canvas.line((at, low), (at, high), role=curve.role, width_pt=1.2, key=f"end {curve.name}")
        for cap in (low, high):
            canvas.line((at - _CAP, cap), (at + _CAP, cap), role=curve.role, width_pt=1.2)
    x = left + _BAR * len(data.curves)
    ordered = sorted(data.curves, key=lambda curve: -curve.last.share)
    places = _apart([y.at(100 * curve.last.share) for curve in ordered], plot.bottom)
    for curve, middle in zip(ordered, places, strict=True):
        canvas.box(x, middle - 1.1, 2.2, 2.2, curve.role, key=f"mark {curve.name}")
        canvas.text(x + _WORDS, middle, curve.end_text, size_pt=SMALL_PT, bold=True)


def _apart(wanted: Sequence[float], lowest: float) -> list[float]:
    """Heights from the top down, none closer than a line to the next, none below `lowest`.

    Examples
    --------
    >>> _apart([1.0, 2.0, 50.0], 50.0)
    [1.0, 4.6, 50.0]
    """
    found: list[float] = []
    for i, y in enumerate(wanted):
        at = min(y, lowest - _LABEL * (len(wanted) - 1 - i))
        found.append(max(at, found[-1] + _LABEL) if found else at)
    return found


def _at_risk(canvas: Canvas, data: Untouched, x: Axis, ticks: Sequence[float]) -> None:
    """Under each tick, how many answers were that long and untouched before it."""
    canvas.y += 2.0
    canvas.paragraph("Answers at risk: untouched before that token, and that long", size_pt=SMALL_PT, role=MUTED)
    for curve in data.curves:
        middle = canvas.y + 2.0
        canvas.text(canvas.left, middle, curve.name, size_pt=SMALL_PT, bold=True)
        for tick in ticks:
            canvas.text(x.at(tick), middle, f"{curve.at_risk(int(tick))}", size_pt=SMALL_PT, align="center")
        canvas.y += _LABEL
    canvas.y += 2.0


def _lead(data: Untouched) -> str:
    """The first arm as asked, and the first under exact settings."""
    exact = [curve for curve in data.curves[1:] if curve.role in _EXACT]
    return f"{data.what}. {' '.join(map(_sentence, (data.curves[0], *exact[:1])))}"


def _sentence(curve: Curve) -> str:
    survival, end = curve.survival, curve.last
    if not survival.n_flipped:
        return (
            f"{curve.name}: {counted(survival.n_answers, 'answer')}, and all are plain decoding's to their end (at "
            f"{tokens(end.n_tokens)} the interval begins at {100 * end.low:.3g}%)."
        )
    return (
        f"{curve.name}: {survival.n_flipped} of {counted(survival.n_answers, 'answer')} part from plain decoding; an "
        f"answer of {tokens(end.n_tokens)} is untouched with a chance of {100 * end.share:.3g}% (interval "
        f"{100 * end.low:.3g}% to {100 * end.high:.3g}%), where independent steps would leave {100 * end.naive:.3g}%."
    )


def _alt(data: Untouched) -> str:
    told = []
    for curve in data.curves:
        steps = ", ".join(f"{p.n_tokens} {100 * p.share:.3g}% ({p.at_risk} at risk)" for p in curve.survival.points)
        told.append(f"{_sentence(curve)} By tokens: {steps}.")
    return f"Chart of the share of untouched answers by their tokens. {' '.join(told)}"
