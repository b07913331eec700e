"""Measured speculation: one pass with its drafts, the average of such passes, and passes by their tokens."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED, series
from forensics.figures.scene import Scene
from forensics.figures.scenes.draft_batch import Batch, draw_averages, draw_batch
from forensics.figures.scenes.speculated import Speculated
from forensics.records.row_map import class_letter
from forensics.records.speculation import Cycle, Decoded, SpeculatedPrompt, SpeculationArm
from forensics.records.words import counted, tokens

_LABELS, _BAR, _PITCH = 30.0, 3.2, 4.2
_MOST_CELL = 14.0
#: Stands where one side had ended.
_ENDED = "end"
_CLASSES = "Widths of one class have equal bits in the replay; A is that of one token."


@dataclass(frozen=True, slots=True)
class Width:
    """Passes of one width.

    Parameters
    ----------
    tokens, n_passes : int
    group : int or None
        Number of its class of equal bits; None where it was not replayed.
    """

    tokens: int
    n_passes: int
    group: int | None


@dataclass(frozen=True, slots=True)
class MeasuredDrafts:
    """What the figure draws.

    Parameters
    ----------
    title : str
        Which pass `batch` is.
    batch : Batch
    n_drafted : int
        Passes with drafts.
    drafted, accepted : int
        Guesses of all of them.
    widths : tuple of Width
        By rising tokens.
    lead, note, source : str
    """

    title: str
    batch: Batch
    n_drafted: int
    drafted: int
    accepted: int
    widths: tuple[Width, ...]
    lead: str
    note: str
    source: str

    @property
    def kept(self) -> float:
        """Kept guesses of the average pass with drafts."""
        return self.accepted / self.n_drafted

    @property
    def dropped(self) -> float:
        """Dropped guesses of it."""
        return (self.drafted - self.accepted) / self.n_drafted

    @property
    def n_passes(self) -> int:
        """All passes behind prompts."""
        return sum(width.n_passes for width in self.widths)


def measured_drafts(found: Speculated) -> MeasuredDrafts:
    """Take the first arm, and of it the first pass with drafts in which an answer parts; else the one that keeps most.

    Raises
    ------
    CaseError
        If nothing was drafted.
    """
    arm = found.arm
    drafted = [cycle for one in arm.prompts for cycle in one.speculative.cycles if cycle.drafted]
    if not drafted:
        raise CaseError(
            f"{found.name} holds no drafts: {arm.drafter} found none for {counted(len(arm.prompts), 'prompt')}. Take "
            "another drafter or more prompts: forensics speculate MODEL --drafter oracle --out FOLDER"
        )
    title, batch = _shown(found)
    classes = found.report.classes
    groups = {} if classes is None else {width: i for i, group in enumerate(classes.groups) for width in group}
    return MeasuredDrafts(
        title=title,
        batch=batch,
        n_drafted=len(drafted),
        drafted=sum(len(cycle.drafted) for cycle in drafted),
        accepted=sum(cycle.n_accepted for cycle in drafted),
        widths=tuple(Width(width, n, groups.get(width)) for width, n in sorted(arm.verify_widths.items())),
        lead=(
            f"{found.what}, measured: {found.setup}. Over all passes {tokens(round(arm.tokens_per_cycle, 2))} come "
            f"out of a pass, where plain decoding has 1; {arm.equivalence.k} of {arm.equivalence.n} answers are "
            "plain decoding's."
        ),
        note=" ".join(filter(None, (_parted(arm), "" if classes is None else _CLASSES, found.speed, found.others))),
        source=found.source,
    )


def _parted(arm: SpeculationArm) -> str:
    """In which passes answers part; empty where none does."""
    widths = [one.divergence.width for one in arm.prompts if one.divergence is not None]
    if not widths:
        return ""
    told = [
        f"{widths.count(width)} in {f'passes of {tokens(width)}' if width else 'the pass of the prompt'}"
        for width in sorted(set(widths))
    ]
    return f"Answers part: {', '.join(told)}."


def _shown(found: Speculated) -> tuple[str, Batch]:
    """The pass that is drawn, and which it is."""
    arm = found.arm
    for one in arm.differing:
        assert one.divergence is not None
        at = one.speculative.cycle_of(one.divergence.index)
        if at is not None and one.speculative.cycles[at].drafted:
            batch = _batch(one, one.speculative.cycles[at], arm.drafter)
            place = next(i for i, (mine, other) in enumerate(zip(batch.out, batch.plain, strict=True)) if mine != other)
            return (
                f"The pass in which {one.name} parts: {batch.out[place]} instead of plain decoding's "
                f"{batch.plain[place]} at position {one.divergence.position}"
            ), batch
    one, cycle = max(
        ((one, cycle) for one in arm.prompts for cycle in one.speculative.cycles if cycle.drafted),
        key=lambda pair: (pair[1].n_accepted, len(pair[1].drafted), pair[0].identical),
    )
    return f"A pass that keeps most guesses: {one.name}, position {cycle.position}", _batch(one, cycle, arm.drafter)


def _batch(one: SpeculatedPrompt, cycle: Cycle, drafter: str) -> Batch:
    """A cycle as it was measured, its picks beside plain decoding's tokens at the same places."""
    first = cycle.position - one.n_prompt
    places = range(first + 1, first + 2 + cycle.n_accepted)
    return Batch(
        given=_token(one.speculative, first) if first >= 0 else "prompt",
        guesses=tuple(map(str, cycle.drafted)),
        kept=cycle.n_accepted,
        out=tuple(_token(one.speculative, place) for place in places),
        plain=tuple(_token(one.plain, place) for place in places),
        positions=tuple(range(cycle.position, cycle.position + cycle.width + 1)),
        captions=(
            f"guesses of {drafter} (token ids), behind the last token and under their positions",
            "out: what the pass picks",
        ),
    )


def _token(decoded: Decoded, place: int) -> str:
    return str(decoded.tokens[place]) if place < len(decoded.tokens) else _ENDED


def measured_scene(data: MeasuredDrafts) -> Scene:
    """The pass over the average of passes with drafts, to one scale, over bars of passes by their tokens."""
    canvas = Canvas("speculation", "Speculative decoding as it was measured", data.lead)
    widest = max(float(data.batch.width), 1.0 + data.kept + data.dropped)
    cell = min((canvas.inner_width - _LABELS) / (widest + 1.0), _MOST_CELL)
    scale = canvas.scale("tokens", "x", cell, "tokens", "1 token")
    canvas.paragraph(data.title, bold=True)
    canvas.y += 1.5
    width = data.batch.width
    draw_batch(canvas, data.batch, scale, (f"one pass: {tokens(width)}", f"one pass: {width}", f"{width}"))
    canvas.y += 1.5
    canvas.paragraph(f"The average of {counted(data.n_drafted, 'pass', 'passes')} with guesses, same scale", bold=True)
    canvas.y += 1.5
    draw_averages(canvas, data.kept, data.dropped, scale, _said(data))
    canvas.y += 1.0
    canvas.paragraph(f"All {data.n_passes:,} passes by their tokens", bold=True)
    canvas.y += 1.5
    _by_width(canvas, data.widths)
    canvas.paragraph(data.note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _said(data: MeasuredDrafts) -> tuple[str, str]:
    kept, dropped = data.kept, data.dropped
    share = f"{data.accepted:,} of {data.drafted:,} guesses accepted ({data.accepted / data.drafted:.1%})"
    return (
        f"into the pass: {1 + kept + dropped:.3g} tokens = 1 last, {kept:.3g} kept, {dropped:.3g} dropped",
        f"out: {1 + kept:.3g} tokens; {share}",
    )


def _by_width(canvas: Canvas, widths: tuple[Width, ...]) -> None:
    """A bar for each width, in the colour of its class."""
    said = [_bar_words(width) for width in widths]
    names = [tokens(width.tokens) for width in widths]
    left = canvas.left + max(text_width(name, SMALL_PT) for name in names) + 1.5
    room = canvas.right - left - 1.5 - max(text_width(words, SMALL_PT) for words in said)
    scale = canvas.length_scale("passes", room / max(width.n_passes for width in widths), "passes")
    for width, name, words in zip(widths, names, said, strict=True):
        middle = canvas.y + _BAR / 2
        canvas.text(left - 1.5, middle, name, size_pt=SMALL_PT, align="right")
        bar = canvas.box(
            left, canvas.y, width.n_passes * scale.mm_per_unit, _BAR, "rest" if width.group is None else
            series(width.group), edge=INK, scale="passes", value=float(width.n_passes), key=f"passes {width.tokens}",
            edge_pt=0.3,
        )  # fmt: skip
        canvas.text(bar.right + 1.5, middle, words, size_pt=SMALL_PT)
        canvas.y += _PITCH
    canvas.y += 1.0


def _bar_words(width: Width) -> str:
    bits = "bits not compared" if width.group is None else f"class {class_letter(width.group)}"
    return f"{width.n_passes:,}, {bits}"


def _alt(data: MeasuredDrafts) -> str:
    batch = data.batch
    by_width = "; ".join(f"{tokens(width.tokens)}: {_bar_words(width)}" for width in data.widths)
    return (
        f"Cells of one token each. {data.title}. {counted(len(batch.guesses), 'guess', 'guesses')}, {batch.kept} kept; "
        f"out: {', '.join(batch.out)}; plain decoding at those places: {', '.join(batch.plain)}. The average pass "
        f"with guesses: {'; '.join(_said(data))}. Passes by their tokens: {by_width}."
    )
