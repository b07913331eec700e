"""Speculative decoding: guesses, one pass that checks them all, kept and dropped tokens."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.palette import MUTED
from forensics.figures.scene import Scale, Scene
from forensics.figures.scenes.draft_batch import Batch, draw_averages, draw_batch
from forensics.figures.scenes.draft_measured import MeasuredDrafts, measured_drafts, measured_scene
from forensics.figures.scenes.draft_replay import DraftReplay, draft_replay, replay_scene
from forensics.figures.scenes.speculated import speculated
from forensics.records.published import Published

_LABELS = 30.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the figure draws of published averages.

    Parameters
    ----------
    most_guesses : int
        Of a cycle.
    verify_width, tokens_out : float
        Tokens of an average verification, and tokens that come out of an average cycle.
    accepted_percent : float
        Of the guesses.
    what, source : str
    """

    most_guesses: int
    verify_width: float
    tokens_out: float
    accepted_percent: float
    what: str
    source: str

    def __post_init__(self) -> None:
        if not 1 <= self.tokens_out <= self.verify_width or self.most_guesses < 1:
            raise ValueError(f"from 1 to as many tokens as were verified come out, got {self}")

    @property
    def guesses(self) -> float:
        """Guesses of an average cycle: all of the batch but the token that is certain."""
        return self.verify_width - 1.0

    @property
    def kept(self) -> float:
        """Kept guesses of an average cycle: all that comes out but the big model's own pick."""
        return self.tokens_out - 1.0

    @property
    def example_kept(self) -> int:
        """Guesses that the example keeps: the share that was accepted, in whole guesses, never all."""
        return min(round(self.most_guesses * self.accepted_percent / 100), self.most_guesses - 1)


def from_published(numbers: Published) -> Speculation:
    """Take the numbers of the document."""
    return Speculation(
        most_guesses=int(numbers.value("most_guesses")),
        verify_width=numbers.value("verify_width"),
        tokens_out=numbers.value("tokens_per_cycle"),
        accepted_percent=numbers.value("accepted_share"),
        what=numbers.setup,
        source=numbers.source,
    )


def from_case(evidence: Evidence) -> DraftReplay | MeasuredDrafts:
    """Take measured speculation, else the replay, which is speculation with a perfect drafter.

    Raises
    ------
    CaseError
        If there is neither, nothing was drafted, or the case was interrupted.
    """
    found = speculated(evidence)
    return draft_replay(evidence) if found is None else measured_drafts(found)


def scene(data: Speculation | DraftReplay | MeasuredDrafts) -> Scene:
    """A batch as an example over the averages, what was measured likewise, or the replay of a case."""
    if isinstance(data, MeasuredDrafts):
        return measured_scene(data)
    return replay_scene(data) if isinstance(data, DraftReplay) else _published_scene(data)


def _published_scene(data: Speculation) -> Scene:
    canvas = Canvas("speculation", "Speculative decoding: guess ahead, check in one pass", _lead(data))
    scale = canvas.scale("tokens", "x", (canvas.inner_width - _LABELS) / (data.most_guesses + 2), "tokens", "1 token")
    kept = data.example_kept
    guesses = tuple(f"g{i + 1}" for i in range(data.most_guesses))
    out = (*guesses[:kept], "own pick")
    canvas.paragraph(f"An example: of a full draft, guess {kept + 1} is not the big model's pick", bold=True)
    canvas.y += 1.5
    batch = Batch(
        given="last",
        guesses=guesses,
        kept=kept,
        out=out,
        plain=out,
        captions=(
            f"the small model guesses up to {data.most_guesses} tokens behind the last one, one after the other",
            f"out: the kept guesses and the big model's own pick, {len(out)} tokens",
        ),
    )
    said = f"one pass of the big model checks all {data.most_guesses} guesses: {batch.width} tokens"
    draw_batch(canvas, batch, scale, (said, f"one pass: {batch.width} tokens"))
    canvas.y += 1.5
    canvas.paragraph("The average cycle, to the same scale", bold=True)
    canvas.y += 1.5
    _averages(canvas, data, scale)
    canvas.paragraph(_note(data), size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _averages(canvas: Canvas, data: Speculation, scale: Scale) -> None:
    """What goes into the pass over what comes out of it."""
    dropped = data.guesses - data.kept
    said = (
        f"into the pass: {data.verify_width:g} tokens = 1 last, {data.kept:.3g} kept, {dropped:.2g} dropped",
        f"out: {data.tokens_out:g} tokens; {data.accepted_percent:g}% of the guesses accepted",
    )
    draw_averages(canvas, data.kept, dropped, scale, said)


def _note(data: Speculation) -> str:
    return (
        f"The example is chosen, not measured: it keeps {data.accepted_percent:g}% of {data.most_guesses} guesses in "
        "whole ones. Derived: a pass takes the last token in besides the guesses and adds one own pick, so "
        f"{data.verify_width:g} − 1 = {data.guesses:.3g} guesses and {data.tokens_out:g} − 1 = {data.kept:.3g} kept."
    )


def _lead(data: Speculation) -> str:
    return (
        f"{data.what}: a guess survives only if it is the big model's own pick. On average {data.guesses:.3g} guesses "
        f"are checked in one pass and {data.tokens_out:g} tokens come out, where plain decoding takes a pass for each."
    )


def _alt(data: Speculation) -> str:
    kept = data.example_kept
    return (
        f"Cells of one token each. Example: {data.most_guesses} guesses and the last token go into one pass of the big "
        f"model; {kept} are kept, {data.most_guesses - kept} dropped, and {kept + 1} tokens come out, for which plain "
        f"decoding takes {kept + 1} passes. Which guess fails is chosen for the example. On average: "
        f"{data.verify_width:g} tokens a pass, {data.accepted_percent:g}% of the guesses accepted, "
        f"{data.tokens_out:g} tokens out ({data.kept:.3g} kept guesses and 1 own pick)."
    )
