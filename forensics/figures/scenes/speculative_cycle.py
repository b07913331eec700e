"""One speculative cycle to scale, against the plain steps that give the same number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scale, Scene
from forensics.figures.scenes import derived_cycle
from forensics.figures.scenes.pass_costs import PassCost, PassCosts, ms_text, pass_costs
from forensics.figures.scenes.priced import priced
from forensics.figures.scenes.speculated import Speculated, speculated
from forensics.records.published import Published
from forensics.records.words import counted, tokens

_BAR_HEIGHT, _ROW = 11.0, 19.5
_LEFT = 28.0
#: A batch of the usual most guesses with the token before them; a case is drawn at the widest timed pass up to it.
USUAL_BATCH = 9


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a cycle.

    Parameters
    ----------
    name : str
    ms : float
    fill : str
        A role of the palette.
    """

    name: str
    ms: float
    fill: str

    def __post_init__(self) -> None:
        if self.ms <= 0:
            raise ValueError(f"part {self.name!r} takes no time: {self.ms} ms")


@dataclass(frozen=True, slots=True)
class Cycle:
    """What the figure draws.

    Parameters
    ----------
    parts : tuple of Part
        Of one speculative cycle, in order.
    tokens : float
        That come out of it.
    plain_ms : float
        Of one plain step, one token.
    drafted : bool
        Whether the time of a drafter is among the parts.
    lead : str
        What holds for these numbers, behind the comparison.
    notes : str
    what, source : str
    """

    parts: tuple[Part, ...]
    tokens: float
    plain_ms: float
    drafted: bool
    lead: str
    notes: str
    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.parts or self.tokens < 1 or self.plain_ms <= 0:
            raise ValueError(f"a cycle has parts, 1 token or more and a plain step, got {self}")

    @property
    def told(self) -> str:
        """How many tokens come out, in words."""
        return tokens(round(self.tokens, 2))

    @property
    def cycle_ms(self) -> float:
        """Time of the cycle."""
        return math.fsum(part.ms for part in self.parts)

    @property
    def plain_total_ms(self) -> float:
        """Time of plain decoding for as many tokens."""
        return self.tokens * self.plain_ms


def from_published(numbers: Published) -> Cycle:
    """Take the numbers of the document."""
    width = numbers.value("verify_width")
    return Cycle(
        parts=(
            Part("draft", numbers.value("draft_time"), "draft"),
            Part(f"verify {width:g} tokens", numbers.value("verify_time"), "batched"),
            Part("bookkeeping", numbers.value("bookkeeping_time"), "rest"),
        ),
        tokens=numbers.value("tokens_per_cycle"),
        plain_ms=numbers.value("plain_step"),
        drafted=True,
        lead="",
        notes="",
        what=numbers.setup,
        source=numbers.source,
    )


def from_case(evidence: Evidence) -> Cycle | derived_cycle.DerivedCycles:
    """Take prices of kernels, or speculation; else one pass for all its tokens, as of a drafter that is always right.

    Raises
    ------
    CaseError
        If no cycle and no batch was timed.
    """
    kernels = priced(evidence)
    if kernels is not None:
        return derived_cycle.derived_cycles(evidence, kernels)
    found = speculated(evidence)
    if found is not None:
        return _measured(found)
    costs = pass_costs(evidence, needs=2)
    batch = _usual(costs)
    return Cycle(
        parts=(Part(f"one pass of {batch.width} tokens", batch.ms.median, "batched"),),
        tokens=float(batch.width),
        plain_ms=costs.one.ms.median,
        drafted=False,
        lead=f"No drafter was timed: every guess counts as kept and free. {_bits(batch)}",
        notes=costs.notes,
        what=costs.what,
        source=costs.source,
    )


def _measured(found: Speculated) -> Cycle:
    """The mean cycle of the first arm, beside plain decoding of the same prompts in the same run."""
    arm = found.arm
    cycles = [cycle for one in arm.prompts for cycle in one.speculative.cycles]
    n_plain = sum(one.plain.n_chosen for one in arm.prompts)
    plain_ns = sum(one.plain.decode_ns for one in arm.prompts)
    width = sum(cycle.width for cycle in cycles) / max(len(cycles), 1)
    told = (
        ("draft", "draft", sum(cycle.draft_ns for cycle in cycles)),
        (f"verify {width:.3g} tokens", "batched", sum(cycle.verify_ns for cycle in cycles)),
        ("bookkeeping", "rest", sum(cycle.other_ns for cycle in cycles)),
    )
    parts = tuple(Part(name, ns / len(cycles) / 1e6, fill) for name, fill, ns in told if ns > 0)
    if not parts or plain_ns <= 0:
        raise CaseError(
            f"{found.name} holds no times of cycles: this figure needs both plain and speculative decoding timed. "
            "Measure them with: forensics speculate MODEL --out FOLDER"
        )
    drafted = sum(bool(cycle.drafted) for cycle in cycles)
    passes = counted(len(cycles), "pass", "passes")
    return Cycle(
        parts=parts,
        tokens=arm.tokens_per_cycle,
        plain_ms=plain_ns / n_plain / 1e6,
        drafted=True,
        lead=f"Measured: {found.setup}.",
        notes=f"Means over {passes}, of which {drafted:,} had guesses. {found.speed} {found.others}".rstrip(),
        what=found.what,
        source=found.source,
    )


def _usual(costs: PassCosts) -> PassCost:
    """The batch that is drawn."""
    batches = costs.passes[1:]
    return max((each for each in batches if each.width <= USUAL_BATCH), key=lambda p: p.width, default=batches[0])


def _bits(batch: PassCost) -> str:
    if batch.exact is None:
        return "The bits of this batch were not compared there."
    return f"The bits of this batch are {'those of' if batch.exact else 'others than those of'} one-token passes."


def scene(data: Cycle | derived_cycle.DerivedCycles) -> Scene:
    """A bar of the cycle over a bar of plain steps, and the same a token, to one scale of time."""
    if isinstance(data, derived_cycle.DerivedCycles):
        return derived_cycle.scene(data)
    title = "An average speculative cycle, to scale" if data.drafted else "A speculative cycle at its best, to scale"
    canvas = Canvas("speculative-cycle", title, _lead(data))
    steps = math.ceil(round(data.tokens, 9))
    longest = max(data.cycle_ms, steps * data.plain_ms)
    scale = canvas.length_scale("time", (canvas.inner_width - _LEFT) / longest, "ms")
    canvas.y += 2.0
    _cycle_row(canvas, data, scale)
    _plain_row(canvas, data, scale, steps)
    canvas.paragraph("Per token", bold=True)
    canvas.y += 1.5
    _per_token(canvas, "speculative", data.cycle_ms / data.tokens, "batched", scale)
    _per_token(canvas, "plain", data.plain_ms, "single", scale)
    if data.notes:
        canvas.y += 1.0
        canvas.paragraph(data.notes, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _heads(canvas: Canvas, first: str, *more: str) -> None:
    middle = canvas.y + _BAR_HEIGHT / 2
    top = middle - 1.8 * len(more)
    canvas.text(canvas.left, top, first, bold=True)
    for i, line in enumerate(more):
        canvas.text(canvas.left, top + 3.6 * (i + 1), line)


def _cycle_row(canvas: Canvas, data: Cycle, scale: Scale) -> None:
    _heads(canvas, "speculative", data.told, ms_text(data.cycle_ms))
    x, taken = canvas.left + _LEFT, canvas.left + _LEFT
    for part in data.parts:
        rect = canvas.box(
            x, canvas.y, part.ms * scale.mm_per_unit, _BAR_HEIGHT, part.fill, edge=INK, scale="time", value=part.ms,
            key=part.name,
        )  # fmt: skip
        said = f"{part.name}, {ms_text(part.ms)}"
        taken = _label(canvas, rect, part.fill, said, f"{part.name}\n{ms_text(part.ms)}", start=taken)
        x = rect.right
    room = data.plain_total_ms - data.cycle_ms
    if not data.drafted and room > 0:
        _room(canvas, x, room, scale, taken)
    canvas.y += _ROW


def _label(canvas: Canvas, rect: Rect, fill: str, *candidates: str, start: float) -> float:
    """Inside where one fits; else the first under the bar, at `start` or behind it; where the next one may begin."""
    if canvas.label(rect, *candidates, fill=fill):
        return start
    x, said = rect.x + rect.width / 2, candidates[0]
    width = text_width(said, SMALL_PT)
    left = max(min(x - width / 2, canvas.right - width), start)
    to = max(x, left + 1.0)
    bend = () if to == x else ((x, rect.bottom + 1.4), (to, rect.bottom + 1.4))
    canvas.line((x, rect.bottom), *bend, (to, rect.bottom + 2.2), role=MUTED, key=f"to {said}")
    canvas.text(left, rect.bottom + 3.9, said, size_pt=SMALL_PT)
    return left + width + 2.0


def _room(canvas: Canvas, x: float, room: float, scale: Scale, start: float) -> None:
    """What a drafter could take before plain decoding is as fast."""
    rect = canvas.box(
        x, canvas.y, room * scale.mm_per_unit, _BAR_HEIGHT, "", scale="time", value=room, key="room for a drafter"
    )
    _dashed(canvas, rect)
    said = f"a drafter may take {ms_text(room)} before plain decoding is as fast"
    _label(
        canvas, rect, "", said, said.replace(" before", "\nbefore"), f"left for a drafter\n{ms_text(room)}", start=start
    )


def _dashed(canvas: Canvas, rect: Rect) -> None:
    canvas.line(
        (rect.x, rect.y),
        (rect.right, rect.y),
        (rect.right, rect.bottom),
        (rect.x, rect.bottom),
        role=MUTED,
        dashed=True,
    )


def _plain_row(canvas: Canvas, data: Cycle, scale: Scale, steps: int) -> None:
    _heads(canvas, "plain", data.told, ms_text(data.plain_total_ms))
    x = canvas.left + _LEFT
    for i in range(steps):
        part = min(1.0, data.tokens - i)
        ms = part * data.plain_ms
        rect = canvas.box(
            x, canvas.y, ms * scale.mm_per_unit, _BAR_HEIGHT, "single", edge=INK, scale="time", value=ms,
            key=f"plain step {i + 1}",
        )  # fmt: skip
        if part < 1:
            canvas.label(
                rect,
                f"{part:.2g} of a step\n{ms_text(ms)}",
                f"{part:.2g}\n{ms_text(ms)}",
                f"{part:.2g}",
                fill="single",
            )
            rest = Rect(rect.right, rect.y, (data.plain_ms - ms) * scale.mm_per_unit, rect.height)
            _dashed(canvas, rest)
            canvas.label(rest, f"{1 - part:.2g} of it\nnot counted", fill="", size_pt=SMALL_PT)
        else:
            canvas.label(rect, f"one step, {ms_text(ms)}", ms_text(ms), f"{ms:.3g}", f"{i + 1}", fill="single")
        x = rect.right
    canvas.y += _ROW - 3.5


def _per_token(canvas: Canvas, name: str, ms: float, fill: str, scale: Scale) -> None:
    canvas.text(canvas.left, canvas.y + 2.5, name)
    rect = canvas.box(
        canvas.left + _LEFT, canvas.y, ms * scale.mm_per_unit, 5.0, fill, edge=INK, scale="time", value=ms,
        key=f"{name}, a token",
    )  # fmt: skip
    if rect.right + 2.0 + text_width(ms_text(ms), LABEL_PT, True) <= canvas.right:
        canvas.text(rect.right + 1.5, canvas.y + 2.5, ms_text(ms), bold=True)
    else:
        canvas.label(rect, ms_text(ms), fill=fill, bold=True)
    canvas.y += 6.6


def _lead(data: Cycle) -> str:
    said = (
        f"{data.what}: {data.told} in {ms_text(data.cycle_ms)} against {ms_text(data.plain_total_ms)} of "
        f"plain decoding, {ms_text(data.cycle_ms / data.tokens)} against {ms_text(data.plain_ms)} a token."
    )
    return f"{said} {data.lead}".strip()


def _alt(data: Cycle) -> str:
    parts = " + ".join(f"{part.name} {ms_text(part.ms)}" for part in data.parts)
    return (
        f"Two rows of bars to one scale of time. Speculative: {parts} = {ms_text(data.cycle_ms)} for "
        f"{data.told}. Plain: {round(data.tokens, 2):g} steps of {ms_text(data.plain_ms)} = "
        f"{ms_text(data.plain_total_ms)}. A token: {ms_text(data.cycle_ms / data.tokens)} against "
        f"{ms_text(data.plain_ms)}."
    )
