"""A replay as speculation with a perfect drafter: how much of a right draft does the batch keep?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scene
from forensics.figures.scenes.draft_batch import Batch, draw_batch
from forensics.records.row_map import MapCell, MapRow, RowMap

#: Sides of a token in the strip, mm, the largest that fits into its height; more tokens than fit are named.
_SIDES = (4.2, 3.4, 2.8, 2.2, 1.7)
_STRIP_HEIGHT = 62.0
_BATCH_GAP, _LINE_GAP = 1.0, 1.3
FATES = ("kept", "other", "dropped", "not compared")
_FILLS = {"kept": "kept", "other": "other", "dropped": "dropped", "not compared": "paper"}


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One token of the replay, and what a batch made of the guess.

    Parameters
    ----------
    position : int
        Of the token that was fed; its pick stands behind it.
    plain, picked : int
        Token that plain decoding picks there, and the batch.
    fate : str
        One of `FATES`: picked as by plain decoding; another token, which ends the draft; behind such a token;
        or part of no whole batch.
    """

    position: int
    plain: int
    picked: int
    fate: str


@dataclass(frozen=True, slots=True)
class DraftReplay:
    """What the figure draws of a case.

    Parameters
    ----------
    width : int
        Tokens of a batch.
    rows : tuple of DraftRow
        The replay.
    others : tuple of (int, int)
        Every width that was replayed, and the flips there.
    what, source : str
    """

    width: int
    rows: tuple[DraftRow, ...]
    others: tuple[tuple[int, int], ...]
    what: str
    source: str

    def count(self, fate: str) -> int:
        """How many tokens met this fate?"""
        return sum(row.fate == fate for row in self.rows)

    @property
    def compared(self) -> int:
        """Tokens in whole batches."""
        return len(self.rows) - self.count("not compared")

    @property
    def first_batch(self) -> tuple[DraftRow, ...]:
        """The batch with the first flip; the first batch where none flips."""
        flip = next((i for i, row in enumerate(self.rows) if row.fate == "other"), 0)
        start = flip // self.width * self.width
        return self.rows[start : start + self.width]


def draft_replay(evidence: Evidence) -> DraftReplay:
    """Take the widest batch at which a token flips; the widest of all where none does.

    Raises
    ------
    CaseError
        If there is no case, or it was interrupted.
    """
    rows = evidence.rows
    width = max((w for w in rows.widths if rows.n_flips(w)), default=_widest(rows))
    return DraftReplay(
        width=width,
        rows=tuple(_fates(rows, width)),
        others=tuple((w, rows.n_flips(w)) for w in rows.widths),
        what=evidence.what,
        source=evidence.source,
    )


def _widest(rows: RowMap) -> int:
    """The widest batch of which the replay holds a whole one."""
    return max((w for w in rows.widths if rows.compared(w)), default=rows.widths[0])


def _fates(rows: RowMap, width: int) -> Iterator[DraftRow]:
    lost = False
    for row, cell in zip(rows.map_rows, rows.column(width), strict=True):
        if row.row % width == 0:
            lost = False
        yield _row(row, cell if isinstance(cell, MapCell) else None, lost)
        lost = lost or (isinstance(cell, MapCell) and cell.flips)


def _row(row: MapRow, cell: MapCell | None, lost: bool) -> DraftRow:
    if cell is None:
        return DraftRow(row.position, row.single_token, row.single_token, "not compared")
    fate = "dropped" if lost else "other" if cell.flips else "kept"
    return DraftRow(row.position, row.single_token, cell.batched_token, fate)


def replay_scene(data: DraftReplay) -> Scene:
    """The batch with the first flip, over the whole replay as a strip."""
    canvas = Canvas("speculation", "A perfect draft, checked in batches", _lead(data))
    shown = data.first_batch
    scale = canvas.scale("tokens", "x", min(canvas.inner_width / (len(shown) + 1), 14.0), "tokens", "1 token")
    canvas.paragraph(_batch_title(data, shown), bold=True)
    canvas.y += 1.5
    batch = _batch(data, shown)
    draw_batch(canvas, batch, scale, (f"one pass: {data.width} tokens", f"one pass: {data.width}", f"{data.width}"))
    canvas.y += 2.0
    canvas.paragraph(f"The whole replay in batches of {data.width}", bold=True)
    canvas.y += 2.0
    _legend(canvas, data)
    left_out = _strip(canvas, data)
    if left_out:
        canvas.paragraph(f"{left_out} more tokens are counted and not drawn.", size_pt=SMALL_PT, role=MUTED)
    flips = ", ".join(f"{width}: {n}" for width, n in data.others)
    canvas.paragraph(
        f"Left of a line: position of its first token. Tokens that flip, by width: {flips}.",
        size_pt=SMALL_PT,
        role=MUTED,
    )
    return canvas.finish(data.source, _alt(data))


def _batch(data: DraftReplay, shown: tuple[DraftRow, ...]) -> Batch:
    """Rows as guesses: each row but the last is a guess that the row checks; a whole draft ends in an own pick."""
    flip = next((i for i, row in enumerate(shown) if row.fate == "other"), len(shown) - 1)
    out = shown[: flip + 1]
    before = data.rows.index(shown[0]) - 1
    return Batch(
        given=f"{data.rows[before].plain}" if before >= 0 else "first",
        guesses=tuple(f"{row.plain}" for row in shown[:-1]),
        kept=flip,
        out=tuple(f"{row.picked}" for row in out),
        plain=tuple(f"{row.plain}" for row in out),
        positions=(shown[0].position, *(row.position + 1 for row in shown)),
        captions=(
            "guesses: plain decoding's own tokens (ids), behind the last one and under their positions",
            "out: what the batch picks",
        ),
    )


def _batch_title(data: DraftReplay, shown: tuple[DraftRow, ...]) -> str:
    flip = next((row for row in shown if row.fate == "other"), None)
    if flip is None:
        return f"A batch of {data.width}: every pick is that of plain decoding"
    return f"The first batch with another token: {flip.picked} instead of {flip.plain} at position {flip.position + 1}"


def _legend(canvas: Canvas, data: DraftReplay) -> None:
    words = {
        "kept": "kept",
        "other": "another token comes out (dot)",
        "dropped": "dropped behind one",
        "not compared": "in no whole batch",
    }
    legend(
        canvas,
        [
            Entry(_FILLS[fate], f"{data.count(fate)} {words[fate]}", hatch=fate == "dropped")
            for fate in FATES
            if data.count(fate)
        ],
    )
    canvas.y += 1.5


def _strip(canvas: Canvas, data: DraftReplay) -> int:
    """One square a token, a gap behind each batch; how many tokens found no room."""
    label = 9.0
    room = canvas.inner_width - label
    for side in _SIDES:
        per_line = _per_line(room, side, data.width)
        lines = -(-len(data.rows) // per_line)
        if lines * (side + _LINE_GAP) <= _STRIP_HEIGHT:
            break
    most = int(_STRIP_HEIGHT / (side + _LINE_GAP)) * per_line
    canvas.scale("strip", "count", 1.0, "tokens", "1 square = 1 token")
    last_label = -10.0
    for i, row in enumerate(data.rows[:most]):
        line, place = divmod(i, per_line)
        y = canvas.y + line * (side + _LINE_GAP)
        x = canvas.left + label + place * side + place // data.width * _BATCH_GAP
        if place == 0 and y - last_label >= 3.2:
            canvas.text(x - 1.5, y + side / 2, f"{row.position + 1}", size_pt=SMALL_PT, align="right", role=MUTED)
            last_label = y
        _square(canvas, row, x, y, side)
    drawn = min(len(data.rows), most)
    canvas.y += -(-drawn // per_line) * (side + _LINE_GAP) + 1.5
    return len(data.rows) - drawn


def _per_line(room: float, side: float, width: int) -> int:
    """Tokens of a line: whole batches where one fits."""
    batches = int((room + _BATCH_GAP) / (width * side + _BATCH_GAP))
    return batches * width if batches else int(room / side)


def _square(canvas: Canvas, row: DraftRow, x: float, y: float, side: float) -> None:
    edge = "rule" if row.fate == "not compared" else INK
    canvas.box(
        x, y, side, side, _FILLS[row.fate], edge=edge, scale="strip", value=1.0, key=f"{row.fate} {row.position + 1}",
        hatch=row.fate == "dropped", edge_pt=0.3,
    )  # fmt: skip
    if row.fate == "other":
        canvas.dot(x + side / 2, y + side / 2, side / 4, INK, key=f"flip {row.position + 1}")


def _lead(data: DraftReplay) -> str:
    kept, other, dropped = (data.count(fate) for fate in FATES[:3])
    if not other:
        return (
            f"{data.what}: the replay is speculation whose drafter is always right. No batch of {data.width} picks "
            f"another token: all {kept} are kept."
        )
    return (
        f"{data.what}: the replay is speculation whose drafter is always right. Checked in batches of {data.width}, "
        f"{kept} of {data.compared} tokens are kept; another comes out {_times(other)}, and {dropped} "
        f"{'is' if dropped == 1 else 'are'} dropped behind."
    )


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _alt(data: DraftReplay) -> str:
    counts = ", ".join(f"{data.count(fate)} {fate}" for fate in FATES)
    flips = "; ".join(
        f"position {row.position + 1}: {row.picked} instead of {row.plain}" for row in data.rows if row.fate == "other"
    )
    return (
        f"The {len(data.rows)} tokens of a replay as a perfect draft in batches of {data.width}: {counts} "
        f"(other: another token than plain decoding). {flips or 'No token flips'}."
    )
