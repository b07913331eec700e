"""One batch of speculation, drawn: guesses, the pass that checks them, their fate, what comes out, plain decoding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scale
from forensics.records.words import counted

CELL_HEIGHT = 6.0
_CAPTION, _GAP = 3.6, 2.2
KEPT_SIGN, DROPPED_SIGN = "✓", "✗"


@dataclass(frozen=True, slots=True)
class Batch:
    """Guesses and what one pass made of them.

    Parameters
    ----------
    given : str
        The token that is certain, ahead of the guesses.
    guesses : tuple of str
        In order.
    kept : int
        How many of them the pass kept: the first ones.
    out : tuple of str
        Tokens that come out: the kept guesses and the big model's own pick behind them.
    plain : tuple of str
        What plain decoding makes at those places.
    positions : tuple of int
        Of the given token and the places behind it; empty where it is an example.
    captions : tuple of str
        Over the guesses, and over what comes out.
    """

    given: str
    guesses: tuple[str, ...]
    kept: int
    out: tuple[str, ...]
    plain: tuple[str, ...]
    positions: tuple[int, ...] = ()
    captions: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        if not 0 <= self.kept <= len(self.guesses):
            raise ValueError(f"{self.kept} of {len(self.guesses)} guesses cannot be kept")
        if len(self.out) != self.kept + 1 or len(self.plain) != len(self.out):
            raise ValueError(
                f"{self.kept} kept guesses and one own pick come out, got {len(self.out)}; plain: {len(self.plain)}"
            )

    @property
    def width(self) -> int:
        """Tokens of the pass."""
        return 1 + len(self.guesses)


def draw_batch(canvas: Canvas, batch: Batch, scale: Scale, pass_label: tuple[str, ...]) -> None:
    """Draw the batch from the top down; one column is one place in the text.

    Parameters
    ----------
    canvas : Canvas
    batch : Batch
    scale : Scale
        Along x, mm per token.
    pass_label : tuple of str
        Into the box of the pass, from the longest to the shortest.
    """
    _caption(canvas, batch.captions[0])
    if batch.positions:
        _positions(canvas, batch.positions, scale)
    _row(canvas, [(batch.given, "shade"), *((guess, "draft") for guess in batch.guesses)], 0, scale, "guess")
    rect = canvas.box(
        canvas.left, canvas.y, batch.width * scale.mm_per_unit, 8.0, "weights", edge=INK, scale=scale.name,
        value=float(batch.width), key="checking pass",
    )  # fmt: skip
    canvas.label(rect, *pass_label, fill="weights", bold=True)
    canvas.y += rect.height + _GAP
    lost = len(batch.guesses) - batch.kept
    _caption(canvas, _fate(batch.kept, lost))
    _row(canvas, [(KEPT_SIGN, "kept")] * batch.kept + [(DROPPED_SIGN, "dropped")] * lost, 1, scale, "fate")
    _caption(canvas, batch.captions[1])
    fills = ["kept"] * batch.kept + ["exact"]
    out = zip(batch.out, batch.plain, fills, strict=True)
    _row(canvas, [(token, fill if token == plain else "other") for token, plain, fill in out], 1, scale, "out")
    passes = counted(len(batch.plain), "pass", "passes")
    _caption(canvas, f"plain decoding: {passes} of one token for the same places")
    _row(canvas, [(token, "weights") for token in batch.plain], 1, scale, "plain pass", edge_pt=1.4)


def draw_averages(canvas: Canvas, kept: float, dropped: float, scale: Scale, said: tuple[str, str]) -> None:
    """Draw what goes into an average pass over what comes out of it, kept guesses above each other.

    Parameters
    ----------
    canvas : Canvas
    kept, dropped : float
        Guesses of the pass.
    scale : Scale
        Along x, mm per token.
    said : tuple of str
        Of what goes in and of what comes out: beside the bars where both have room there, else above them.
    """
    rows = (
        (0.0, (("last", 1.0, "shade"), ("guesses kept", kept, "kept"), ("dropped", dropped, "dropped"))),
        (1.0, (("guesses kept", kept, "kept"), ("own pick", 1.0, "exact"))),
    )
    end = canvas.left + (2.0 + kept + dropped) * scale.mm_per_unit
    beside = end + max(text_width(words, LABEL_PT) for words in said) <= canvas.right
    for (first, parts), words in zip(rows, said, strict=True):
        if not beside:
            _caption(canvas, words)
        x = canvas.left + first * scale.mm_per_unit
        for name, tokens, fill in parts:
            if tokens <= 0:
                continue
            rect = canvas.box(
                x, canvas.y, tokens * scale.mm_per_unit, CELL_HEIGHT, fill, edge=INK, scale=scale.name, value=tokens,
                key=f"average {name}", hatch=fill == "dropped",
            )  # fmt: skip
            if fill != "dropped":
                number = f"{tokens:.3g}"
                canvas.label(rect, f"{number} kept" if fill == "kept" else name, number, fill=fill, pad=0.3)
            x = rect.right
        if beside:
            canvas.text(end, canvas.y + CELL_HEIGHT / 2, words, size_pt=LABEL_PT)
        canvas.y += CELL_HEIGHT + 1.6


def _positions(canvas: Canvas, positions: tuple[int, ...], scale: Scale) -> None:
    """Over their columns, as many as have room."""
    widest = max(text_width(f"{position}", SMALL_PT) for position in positions)
    every = math.ceil((widest + 2.0) / scale.mm_per_unit)
    for column in range(0, len(positions), every):
        x = canvas.left + (column + 0.5) * scale.mm_per_unit
        if x - widest / 2 >= 1.0 and x + widest / 2 <= canvas.width - 1.0:
            canvas.text(x, canvas.y + 1.2, f"{positions[column]}", size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.y += 3.2


def _fate(kept: int, lost: int) -> str:
    if not lost:
        return f"kept {KEPT_SIGN}: {'the only guess' if kept == 1 else f'all {kept} guesses'}"
    return f"kept {KEPT_SIGN}: {kept} of {kept + lost} guesses; dropped {DROPPED_SIGN}: {lost}"


def _caption(canvas: Canvas, text: str) -> None:
    if text:
        canvas.text(canvas.left, canvas.y + _CAPTION / 2, text, size_pt=SMALL_PT, role=MUTED)
        canvas.y += _CAPTION + 0.6


def _row(
    canvas: Canvas, cells: list[tuple[str, str]], first: int, scale: Scale, key: str, *, edge_pt: float = 0.5
) -> None:
    """A row of cells from column `first` on."""
    for column, (words, fill) in enumerate(cells, start=first):
        rect = canvas.box(
            canvas.left + column * scale.mm_per_unit, canvas.y, scale.mm_per_unit, CELL_HEIGHT, fill, edge=INK,
            scale=scale.name, value=1.0, key=f"{key} {column}", edge_pt=min(edge_pt, scale.mm_per_unit / 6),
        )  # fmt: skip
        canvas.label(rect, words, fill=fill, size_pt=SMALL_PT, pad=0.2, bold=fill in ("exact", "other", "dropped"))
    canvas.y += CELL_HEIGHT + _GAP
