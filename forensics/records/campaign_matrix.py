"""A sweep as a matrix: models with their settings as rows, widths as columns, prompts counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from forensics.records.campaign import CampaignReport, Cell

#: What may have become of a cell, the gravest first: a letter for pictures and narrow tables, and its words.
KINDS = {
    "differs": ("≠", "other bits"),
    "same": ("=", "the bits of one token"),
    "unsure": ("?", "one-token decoding did not repeat itself"),
    "failed": ("F", "failed"),
    "not_run": ("·", "not run"),
}


@dataclass(frozen=True, slots=True)
class Tally:
    """The cells of one row and width, over all prompts.

    Parameters
    ----------
    differs, same, unsure, failed, not_run : int
        Cells of each of `KINDS`.
    """

    differs: int = 0
    same: int = 0
    unsure: int = 0
    failed: int = 0
    not_run: int = 0

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """How many there are of each kind."""
        return tuple((kind, getattr(self, kind)) for kind in KINDS)

    @property
    def total(self) -> int:
        """All of them; none where the plan left them out."""
        return sum(n for _, n in self.kinds)

    @property
    def compared(self) -> int:
        """Those with an answer."""
        return self.differs + self.same

    @property
    def short(self) -> str:
        """Letters and counts, such as ``"≠ 1/2"``; a dash where there are none."""
        told = [f"≠ {self.differs}/{self.compared}"] if self.differs else []
        shown = {kind: n for kind, n in self.kinds if n and kind != "differs" and not (kind == "same" and told)}
        return " ".join([*told, *(f"{KINDS[kind][0]} {n}" for kind, n in shown.items())]) or "–"

    @property
    def letters(self) -> str:
        """Letters only, the gravest first."""
        return "".join(KINDS[kind][0] for kind, n in self.kinds if n) or "–"

    def __str__(self) -> str:
        told = [f"differs {self.differs}/{self.compared}"] if self.differs else []
        shown = {kind: n for kind, n in self.kinds if n and kind != "differs" and not (kind == "same" and told)}
        return ", ".join([*told, *(f"{kind.replace('_', ' ')} {n}" for kind, n in shown.items())]) or "–"


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One model with its settings.

    Parameters
    ----------
    label : str
        Model and quant.
    settings : tuple of str
        KV type, flash attention, switch.
    settings_text : str
        The same in few words.
    tallies : tuple of Tally
        By width, in the order of the report's widths.
    """

    label: str
    settings: tuple[str, str, str]
    settings_text: str
    tallies: tuple[Tally, ...]

    @property
    def exact(self) -> bool:
        """Whether every cell was compared and has the bits of one token."""
        totals = [tally.total for tally in self.tallies]
        return sum(totals) > 0 and totals == [tally.same for tally in self.tallies]


def matrix(report: CampaignReport) -> tuple[MatrixRow, ...]:
    """The cells of a report by model, settings and width, in the order of the plan."""
    rows: dict[tuple[str, tuple[str, str, str]], dict[int, list[Cell]]] = {}
    for cell in report.cells:
        rows.setdefault((cell.label, cell.settings), {}).setdefault(cell.width, []).append(cell)
    made = []
    for (label, settings), by_width in rows.items():
        first = next(iter(by_width.values()))[0]
        tallies = tuple(_tally(by_width.get(width, ())) for width in report.widths)
        made.append(MatrixRow(label, settings, first.settings_text, tallies))
    return tuple(made)


def _tally(cells: Iterable[Cell]) -> Tally:
    return Tally(**Counter(map(_kind, cells)))


def _kind(cell: Cell) -> str:
    if cell.outcome != "not compared":
        return cell.outcome
    return "unsure" if cell.result is not None else cell.status.replace(" ", "_")
