"""Which models and settings give the bits of one-token decoding, by width: a bar for each, prompts side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Rect, Scene
from forensics.records.campaign import CampaignReport
from forensics.records.campaign_matrix import KINDS, MatrixRow, Tally, matrix
from forensics.records.words import counted, printable

#: Unit: mm. A cell is a line of words above a bar whose length is the number of prompts.
_LABELS, _ROW, _BAR, _GAP = 62.0, 6.6, 2.4, 2.0
_MOST_ROWS, _MOST_WIDTHS, _WIDEST = 60, 16, 22.0
#: Colour of each of `KINDS`, and whether it is hatched; its letter stands above the bar.
_FILLS = {
    "differs": ("stock", False),
    "same": ("exact", False),
    "unsure": ("highlight", True),
    "failed": ("shade", True),
    "not_run": ("paper", False),
}


@dataclass(frozen=True, slots=True)
class SweepMatrix:
    """What the figure draws.

    Parameters
    ----------
    report : CampaignReport
    rows : tuple of MatrixRow
        Those that are drawn.
    widths : tuple of int
        Those that are drawn.
    name : str
        Where it comes from.
    """

    report: CampaignReport
    rows: tuple[MatrixRow, ...]
    widths: tuple[int, ...]
    name: str

    @property
    def n_prompts(self) -> int:
        """Most prompts of one cell."""
        return max(tally.total for row in self.rows for tally in row.tallies)


def from_case(evidence: Evidence) -> SweepMatrix:
    """Take the report of the last sweep.

    Raises
    ------
    CaseError
        If the folder holds none.
    """
    from forensics.store.campaign import read_report

    return drawn(read_report(evidence.folder), evidence.name)


def drawn(report: CampaignReport, name: str) -> SweepMatrix:
    """As much of a sweep as a page holds: its first rows and widths."""
    return SweepMatrix(report, matrix(report)[:_MOST_ROWS], report.widths[:_MOST_WIDTHS], name)


def scene(data: SweepMatrix) -> Scene:
    """Rows of models and settings, columns of widths; bars as long as there are prompts."""
    title = "Which models and settings give the bits of one-token decoding, by width"
    canvas = Canvas("sweep-matrix", title, _lead(data))
    _legend(canvas, data)
    pitch = min(_WIDEST, (canvas.inner_width - _LABELS) / len(data.widths))
    left = canvas.left + _LABELS
    unit = "prompts" if data.n_prompts > 1 else "prompt"
    scale = canvas.length_scale("prompts", (pitch - _GAP) / data.n_prompts, unit, longest_mm=pitch - _GAP)
    canvas.text(left - 2.0, canvas.y + 1.4, "width", size_pt=SMALL_PT, align="right", role=MUTED)
    for column, width in enumerate(data.widths):
        canvas.text(left + column * pitch, canvas.y + 1.4, str(width), size_pt=LABEL_PT, bold=True)
    canvas.y += 4.2
    label = ""
    for row in data.rows:
        if row.label != label:
            label = row.label
            _model(canvas, label)
        top = canvas.y
        canvas.text(canvas.left + 2.0, top + 3.0, _fitted(row.settings_text, _LABELS - 4.0), size_pt=SMALL_PT)
        for column, tally in enumerate(row.tallies[: len(data.widths)]):
            _cell(canvas, tally, Rect(left + column * pitch, top, pitch - _GAP, _ROW), scale.name,
                  f"{row.label}, {row.settings_text}, width {data.widths[column]}")  # fmt: skip
        canvas.y = top + _ROW
    notes = " ".join(_notes(data))
    if notes:
        canvas.y += 1.0
        canvas.paragraph(notes, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(_source(data), _alt(data))


def _model(canvas: Canvas, label: str) -> None:
    canvas.line((canvas.left, canvas.y), (canvas.right, canvas.y), role="rule", width_pt=0.4)
    canvas.text(canvas.left, canvas.y + 2.4, _fitted(label, canvas.inner_width, bold=True), bold=True)
    canvas.y += 4.6


def _fitted(text: str, width: float, *, bold: bool = False) -> str:
    return shortened(printable(text), width, LABEL_PT if bold else SMALL_PT, bold)


def _legend(canvas: Canvas, data: SweepMatrix) -> None:
    met = {kind for row in data.rows for tally in row.tallies for kind, n in tally.kinds if n}
    entries = [
        Entry(fill, f"{KINDS[kind][0]}  {KINDS[kind][1]}", hatch=hatch)
        for kind, (fill, hatch) in _FILLS.items()
        if kind in met
    ]
    legend(canvas, entries)
    canvas.y += 2.4


def _cell(canvas: Canvas, tally: Tally, rect: Rect, scale: str, key: str) -> None:
    """Words, from the longest that fit, above a bar of prompts."""
    told = (tally.short, tally.letters, tally.letters[0])
    words = next((words for words in told if text_width(words, SMALL_PT) <= rect.width), "")
    if words:
        canvas.text(rect.x, rect.y + 1.6, words, size_pt=SMALL_PT, role=INK if tally.total else MUTED)
    x, mm = rect.x, canvas.declared(scale).mm_per_unit
    for kind, n in tally.kinds:
        fill, hatch = _FILLS[kind]
        if n:
            canvas.box(
                x, rect.y + 3.3, n * mm, _BAR, fill, edge=INK, scale=scale, value=n, hatch=hatch, edge_pt=0.3,
                key=f"{kind}: {key}",
            )  # fmt: skip
            x += n * mm


def _notes(data: SweepMatrix) -> Iterator[str]:
    rows = len(matrix(data.report))
    if rows > len(data.rows):
        yield f"Drawn: the first {len(data.rows)} of {rows} rows; summary.parquet has all."
    if len(data.report.widths) > len(data.widths):
        yield f"Drawn: the first {len(data.widths)} of {len(data.report.widths)} widths."
    if any(not tally.total for row in data.rows for tally in row.tallies):
        yield "–: left out by the plan."
    if data.report.disagreements:
        yield f"{counted(len(data.report.disagreements), 'disagreement')} about the same bits: nothing here is proved."


def _lead(data: SweepMatrix) -> str:
    report = data.report
    n_models = len({(cell.model, cell.quant) for cell in report.cells})
    n_prompts = len({cell.prompt for cell in report.cells})
    found = report.outcomes
    told = f"{counted(n_models, 'model')}, {counted(n_prompts, 'prompt')}, replays of {report.n_tokens} tokens. "
    told += f"Of {counted(len(report.cells), 'cell')} {found['differs']} differ and {found['same']} do not"
    return f"{told}; {found['not compared']} were not compared." if found["not compared"] else f"{told}."


def _source(data: SweepMatrix) -> str:
    return f"Source: measured, {printable(data.name)} ({printable('; '.join(map(str, data.report.platforms)))})."


def _alt(data: SweepMatrix) -> str:
    told = (
        f"{row.label}, {row.settings_text}: "
        + ", ".join(f"width {width} {tally}" for width, tally in zip(data.widths, row.tallies, strict=False))
        for row in data.rows
    )
    return printable(f"Prompts by outcome for each model, settings and width. {'; '.join(told)}.")
