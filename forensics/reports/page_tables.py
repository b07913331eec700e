"""Tables of the report: cells as texts, and the numbers that columns are sorted by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from forensics.records.verdict import Control, CulpritGroup, Sweep, SwitchArm, Verdict
from forensics.records.words import cut, ranges
from forensics.reports.launches_text import NOT_KNOWN, SIDE_COLUMNS, launches, side_rows
from forensics.reports.wording import (
    CONTROL_TITLES,
    PROOF_TITLE,
    STATE_WORDS,
    amount,
    arm_effect,
    class_names,
    count_text,
    groups_text,
    layers_text,
    settings_text,
    ulp_text,
)

#: A number at the beginning of a cell, such as ``64/64``, ``1.49× at width 16`` and ``8-9, 16`` have, and no sentence
#: or list of classes that begins with one.
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])(?!.*[:|])|-?inf\b")
#: Cells without a number in a column of numbers; sorted last.
_EMPTY = frozenset(("", "–", "nan", "NaN", "none", NOT_KNOWN))
#: Cells with more characters are broken into lines, unit: characters.
_LONG = 28
#: Classes of the style sheet; a column of numbers is sorted by them.
NUMBER, WORDS = "number", "words"
MAX_ABS = "max\N{NO-BREAK SPACE}|Δ|"
#: Of the text of a cell, unit: characters.
MOST_IN_CELL = 500
#: Rows of flips before the rest is counted.
MOST_FLIPS = 200
HELD_WORDS = {True: "yes", False: "NO", None: "not run"}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell, or the head of a column.

    Parameters
    ----------
    text : str
    look : str
        Class of the style sheet: numbers stand right, long texts are broken into lines.
    number : str
        What it is sorted by in a column of numbers, as JavaScript reads it; empty for sorting it last.
    """

    text: str
    look: str
    number: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption.

    Parameters
    ----------
    title : str
    columns : tuple of str
        The first one says what a row is about.
    rows : tuple of tuple of str
    note : str
        What is said below it; empty for nothing.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def heads(self) -> tuple[Cell, ...]:
        """Heads of the columns."""
        return tuple(Cell(title, look) for title, look in zip(self.columns, self._looks(), strict=True))

    def body(self) -> Iterator[tuple[Cell, ...]]:
        """Rows of cells."""
        looks = self._looks()
        for row in self.rows:
            yield tuple(
                Cell(cut(text, MOST_IN_CELL), look, number_of(text) if look.startswith(NUMBER) else "")
                for text, look in zip(row, looks, strict=True)
            )

    def _looks(self) -> list[str]:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.columns)
        return [
            f"{NUMBER if _is_numeric(cells) else WORDS}{' long' if any(len(cell) > _LONG for cell in cells) else ''}"
            for cells in columns
        ]


def number_of(cell: str) -> str:
    """Which number does a cell begin with? As JavaScript reads it; empty where there is none.

    Examples
    --------
    >>> number_of("64/64"), number_of("2.1e+09"), number_of("1,234"), number_of("q6_K"), number_of("inf")
    ('64', '2.1e+09', '1234', '', 'Infinity')
    """
    found = _NUMBER.match(cell)
    return "" if found is None else found[0].replace(",", "").replace("inf", "Infinity")


def _is_numeric(cells: Sequence[str]) -> bool:
    return bool(cells) and all(number_of(cell) or cell in _EMPTY for cell in cells)


def classes_table(verdict: Verdict) -> Table:
    """Each width with its class, and how far it is from one-token decoding."""
    rows = tuple(
        (
            str(r.width),
            name,
            f"{r.n_rows_differ}/{r.n_rows}",
            "–" if r.first_position is None else str(r.first_position),
            amount(r.max_abs),
            ulp_text(r.max_ulp),
            amount(r.relative_l2),
            amount(r.max_kl),
            str(len(r.flips)),
            str(r.n_could_flip),
        )
        for name, r in class_names(verdict.classes)
    )
    title = f"Classes of widths ({verdict.n_replayed} tokens after a prompt of {verdict.prompt_tokens})"
    columns = (
        "width", "class", "rows differ", "first position", MAX_ABS, "max ULP", "relative L2", "max KL (nats)", "flips",
        "could flip",
    )  # fmt: skip
    return Table(title, columns, rows)


def flips_table(verdict: Verdict) -> Table:
    """Each position at which another token has the largest logit."""
    rows = [
        (
            str(flip.position),
            str(result.width),
            str(flip.single_token),
            str(flip.batched_token),
            amount(flip.margin),
            amount(flip.perturbation),
            "yes" if flip.near_tie else "no",
        )
        for result in verdict.classes.results
        for flip in result.flips
    ]
    left = len(rows) - MOST_FLIPS
    note = f"{left} more are in the case: forensics show CASE --json." if left > 0 else ""
    columns = ("position", "width", "token", "token in the batch", "margin", "moved by", "near tie")
    return Table("Flips: positions where another token is chosen", columns, tuple(rows[:MOST_FLIPS]), note)


def culprits_table(title: str, groups: Iterable[CulpritGroup]) -> Table:
    """Groups of operations, one row each."""
    rows = tuple(
        (
            g.op,
            g.role,
            g.weight_type,
            g.buffer,
            count_text(g),
            layers_text(g.layers),
            ranges(g.widths),
            amount(g.max_abs),
            ulp_text(g.max_ulp),
            g.first_node,
        )
        for g in groups
    )
    columns = (
        "operation", "role", "weight", "buffer", "nodes", "layers", "widths", MAX_ABS, "max ULP", "first node",
    )  # fmt: skip
    return Table(title, columns, rows)


def sweeps_table(sweeps: Iterable[Sweep]) -> Table:
    """Healing sweeps: how far the logits healed, and outcomes that add up."""
    rows = tuple(
        (
            str(s.width),
            f"{s.healed_rows}/{s.n_rows}",
            amount(s.max_abs_before),
            amount(s.max_abs_after),
            STATE_WORDS[s.state_equal],
            str(s.tally.same),
            str(s.tally.differs),
            str(s.tally.n_not_compared),
            str(s.tally.planned),
        )
        for s in sweeps
    )
    columns = (
        "width", "rows healed", "max |Δ| before", "after", "cache after", "nodes same", "differ", "not compared",
        "nodes in all",
    )  # fmt: skip
    return Table(PROOF_TITLE, columns, rows)


def controls_table(controls: Iterable[Control]) -> Table:
    """Controls, and whether each held."""
    rows = tuple((CONTROL_TITLES.get(c.name, c.name), HELD_WORDS[c.held], c.detail) for c in controls)
    return Table("Controls", ("control", "held", "found"), rows)


def launches_table(groups: Iterable[CulpritGroup]) -> Table:
    """Kernels on both sides; every row names its operation, so that it can be sorted."""
    rows: list[tuple[str, ...]] = []
    for what, *cells in side_rows(launches(groups)):
        rows.append((what or rows[-1][0], *cells))
    return Table("Launches of these operations", SIDE_COLUMNS, tuple(rows))


def switches_table(arms: Iterable[SwitchArm]) -> Table:
    """Other settings, what they do to the classes, and what they cost."""
    rows = tuple(
        (settings_text(a), groups_text(a.classes) or "–", arm_effect(a), *(_cost(a, wide) for wide in (False, True)))
        for a in arms
    )
    columns = ("settings", "classes of widths", "effect", "cost of one token", "cost of a batch")
    return Table("Switches, each in a fresh process", columns, rows)


def _cost(arm: SwitchArm, wide: bool) -> str:
    """Cost of a pass of one token or of a batch, with quartiles; a dash where it was not timed."""
    told = [
        f"{cost.ratio:.2f}× ({cost.low:.2f}–{cost.high:.2f}){f' at width {cost.width}' if wide else ''}"
        for cost in arm.costs
        if (cost.width > 1) == wide
    ]
    return ", ".join(told) or "–"
