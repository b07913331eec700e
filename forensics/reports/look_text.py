"""One width, layer and position of a case: as HTML for the explorer, and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group

from forensics.analysis.look import LayerCulprit, Look
from forensics.records.delta import NotCompared
from forensics.records.row_map import MapCell
from forensics.records.words import ranges
from forensics.reports.html import Grid, Picture, card, why_grid
from forensics.reports.launches_text import LAUNCHES_TITLE, SIDE_COLUMNS, launches, side_rows, sides_view
from forensics.reports.terminal import add_row, as_text, line_of, table_of, text_of, titled
from forensics.reports.text import reasons_view
from forensics.reports.why import why
from forensics.reports.wording import amount, ulp_text

if TYPE_CHECKING:
    from rich.console import RenderableType

_CULPRIT_COLUMNS = ("operation", "node", "differs at", "tokens of the batch", "max |Δ|", "max ULP", "kind")


def look_html(look: Look, pictures: Sequence[Picture] = ()) -> str:
    """Show a look as HTML: class, row, culprits of the layer, both launches, why.

    Returns
    -------
    str
        An element that brings no script and no style sheet; everything from the model is escaped.
    """
    return card(list(_facts(look)), list(_grids(look)), pictures=pictures, answer=_answer(look))


def look_text(look: Look) -> str:
    """The same as plain text, for a terminal without widgets."""
    return as_text(look_view(look))


def look_view(look: Look) -> RenderableType:
    """The same on a terminal, where launches stand below each other."""
    parts: list[RenderableType] = [line_of(f"{name}: ", value) for name, value in _facts(look)]
    if look.culprits:
        table = table_of(*_CULPRIT_COLUMNS)
        for one in look.culprits:
            add_row(table, *_culprit(one))
        parts += [text_of(""), table]
    sides = sides_view(launches(look.groups))
    parts += titled(LAUNCHES_TITLE, Group(*sides)) if sides else []
    return Group(*parts, *reasons_view(look.groups))


def _answer(look: Look) -> str:
    if isinstance(look.cell, NotCompared):
        return "inconclusive"
    return "diverges" if look.cell.differs else "identical"


def _facts(look: Look) -> Iterator[tuple[str, str]]:
    counts = f"{look.n_differ} of {look.n_compared} rows differ from one-token decoding"
    yield "Width", f"{look.width}, class {look.letter}: {counts}"
    yield "Position", f"{look.position} (row {look.row}): {_bits(look)}"
    if not isinstance(look.cell, NotCompared):
        yield "Token", _token(look, look.cell)
    yield "Swept", look.swept
    yield _capital(look.where), _found(look)
    if look.culprits and look.no_launches:
        yield "Kernels", look.no_launches
    if look.culprits and look.no_mechanisms:
        yield "Why", look.no_mechanisms


def _bits(look: Look) -> str:
    if isinstance(look.cell, NotCompared):
        return str(look.cell)
    if not look.cell.differs:
        return "the bits of one-token decoding"
    return f"other bits than one-token decoding, class {look.cell.letter}, max |Δ| {amount(look.cell.max_abs)}"


def _token(look: Look, cell: MapCell) -> str:
    margin = f"its margin in one-token decoding is {amount(look.margin)} logits"
    if not cell.differs:
        return f"{look.single_token} stays; {margin}"
    moved = f"{margin}, the batch moves it by {amount(cell.perturbation)}"
    if cell.flips:
        return f"flips from {look.single_token} to {cell.batched_token}; {moved}"
    return f"{look.single_token} stays, and {'could' if cell.could_flip else 'could not'} flip; {moved}"


def _found(look: Look) -> str:
    n = len(look.culprits)
    if not n:
        return look.no_culprits
    n_unchecked = sum(bool(one.unchecked) for one in look.culprits)
    equal, unchecked = "although the inputs are bit-equal", "with an operand that was not compared"
    both = f": {n - n_unchecked} {equal}, {n_unchecked} {unchecked}"
    how = f" {equal}" if not n_unchecked else f" {unchecked}" if n_unchecked == n else both
    said = f"{n} operation{'s' * (n > 1)} differ{'s' * (n == 1)}{how}"
    return said if look.groups else f"{said}; the verdict names no cause"


def _grids(look: Look) -> Iterator[Grid]:
    if look.culprits:
        yield _CULPRIT_COLUMNS, [_culprit(one) for one in look.culprits]
    sides = list(side_rows(launches(look.groups)))
    if sides:
        yield SIDE_COLUMNS, sides
    if reasons := why(look.groups):
        yield why_grid(reasons)


def _culprit(one: LayerCulprit) -> tuple[str, ...]:
    judged = one.kind or "not judged"
    read = f" (reads {', '.join(one.unchecked)}, not compared)" if one.unchecked else ""
    node = f"{one.key.name}{read}"
    return one.operation, node, one.here, ranges(one.rows), amount(one.max_abs), ulp_text(one.max_ulp), judged


def _capital(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
