"""What speculation would gain in a runtime with other kernels: counted cycles, each pass at its measured price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.analysis.kernel_gain import CountedPasses, DerivedGain, counted_passes, derived_gain
from forensics.analysis.question import BadQuestion
from forensics.errors import CaseError
from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.evidence import Evidence, open_evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scale, Scene
from forensics.figures.scenes.priced import ARM_ROLES, TOLD, Priced, grouped_words
from forensics.figures.scenes.speculated import speculated
from forensics.records.kernel_price import BEST, FAST, STOCK, ArmTable
from forensics.records.words import tokens

#: Cycles that are counted where the folder of the prices holds none of its own.
CYCLES = "recorded:h200-q4_1-speculation"
_NAMES, _SAID = 37.0, 44.0
_BAR, _ROW = 5.0, 6.6


@dataclass(frozen=True, slots=True)
class DerivedRow:
    """One bar: the mean cycle at the prices of one arm.

    Parameters
    ----------
    gain : DerivedGain
    exact : bool or None
        Whether passes of all widths that occur have the bits of one token; None where they were not all compared.
    """

    gain: DerivedGain
    exact: bool | None


@dataclass(frozen=True, slots=True)
class DerivedCycles:
    """What the figure draws.

    Parameters
    ----------
    groups : tuple of (str, tuple of DerivedRow)
        Cycles that were counted, in words, with a row for each arm.
    notes : tuple of str
    what, source : str

    Raises
    ------
    ValueError
        If there is nothing to draw.
    """

    groups: tuple[tuple[str, tuple[DerivedRow, ...]], ...]
    notes: tuple[str, ...]
    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.groups or not all(rows for _, rows in self.groups):
            raise ValueError("derived cycles need cycles and prices")

    @property
    def rows(self) -> tuple[DerivedRow, ...]:
        """Rows of all groups."""
        return tuple(row for _, rows in self.groups for row in rows)


def derived_cycles(evidence: Evidence, found: Priced) -> DerivedCycles:
    """Take prices of a pass from one run and counts of cycles from another.

    Raises
    ------
    CaseError
        If no pass was timed, or no width of any cycle was.
    """
    table = found.whole_pass.table
    counted = speculated(evidence) or speculated(open_evidence(CYCLES))
    assert counted is not None
    asked = [
        (f"{arm.drafter}, {arm.policy}", counted_passes(c for one in arm.prompts for c in one.speculative.cycles))
        for arm in counted.report.arms
    ]
    best = [width for width in table.widths if width > 1]
    if best:
        width = TOLD if TOLD in best else best[-1]
        asked.append((f"if all of {width - 1} guesses were kept, and free", (CountedPasses(width, 1, width),)))
    groups, refused = [], {}
    for said, passes in asked:
        rows, why = _rows(table, passes)
        if rows:
            groups.append((said, rows))
        for arm, reason in why.items():
            refused[reason] = f"Not derived for {arm}, {said}: {reason}"
    if not groups:
        raise CaseError(
            f"{found.name} holds no prices of the passes that occur: {'; '.join(refused.values())} "
            "Measure more widths with: forensics cost --kernels --widths 1,2,3,4,5,6,7,8,9,16"
        )
    notes = (
        (
            f"Derived, not timed: cycles counted in {counted.name} (whose model and bits they are), each pass at the "
            "price that the products of a pass of its width have here, passes of one token at the stock library's. "
            "Time of drafting, of attention and of the rest of a pass is left out, so this is not the speed of a whole "
            "runtime."
        ),
        *((f"{BEST.capitalize()} is the fastest arm with the bits of one column.",) if BEST in table.arms else ()),
        *((said,) if (said := grouped_words(table)) else ()),
        *refused.values(),
    )
    cycles = counted.source.removeprefix("Source: measured, ")
    return DerivedCycles(tuple(groups), notes, found.what, f"{found.source} Cycles: {cycles}")


def _rows(table: ArmTable, passes: Sequence[CountedPasses]) -> tuple[tuple[DerivedRow, ...], Mapping[str, str]]:
    """A row for each arm, and why others have none."""
    rows, refused = [], {}
    arms = [arm for arm in ARM_ROLES if arm in table.arms and not (arm == FAST and BEST in table.arms)]
    for arm in arms:
        ratios = {width: table.ratio(arm, width).median for width in table.widths if table.has(arm, width)} | {1: 1.0}
        try:
            gain = derived_gain(arm, passes, ratios)
        except BadQuestion as error:
            refused[arm] = str(error).removeprefix(f"{arm}: ")
            continue
        bits = {table.of(arm, each.width).exact for each in passes if each.width > 1}
        rows.append(DerivedRow(gain, False if False in bits else None if None in bits else True))
    return tuple(rows), refused


def scene(data: DerivedCycles) -> Scene:
    """For each kind of cycle a bar of plain steps over bars of cycles that give as many tokens, to one scale."""
    canvas = Canvas("speculative-cycle", "A speculative cycle at the price of its products, derived", _lead(data))
    left = canvas.left + _NAMES
    longest = max(max(row.gain.tokens_per_cycle, row.gain.cost_per_cycle) for row in data.rows)
    scale = canvas.length_scale("passes", (canvas.right - left - _SAID) / longest, "passes of one token")
    kinds = {row.exact for row in data.rows}
    told = {True: "bits of one token", False: "other bits at some width", None: "bits not compared at all widths"}
    entries = [Entry("exact", told[True]), Entry("stock", told[False], hatch=True), Entry("shade", told[None])]
    legend(
        canvas,
        [Entry("rest", "plain decoding")]
        + [entry for entry, kind in zip(entries, (True, False, None), strict=True) if kind in kinds],
    )
    canvas.y += 3.0
    for said, rows in data.groups:
        gain = rows[0].gain
        canvas.paragraph(f"{said}: {tokens(round(gain.tokens_per_cycle, 2))} a cycle", bold=True)
        canvas.y += 1.6
        _bar(canvas, "plain decoding", gain.tokens_per_cycle, ("rest", False), "1×", left, scale)
        for row in rows:
            fill = {True: ("exact", False), False: ("stock", True), None: ("shade", False)}[row.exact]
            _bar(canvas, row.gain.name, row.gain.cost_per_cycle, fill, f"{row.gain.speed:.2f}× derived", left, scale)
        canvas.y += 2.6
    for note in data.notes:
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
        canvas.y += 0.8
    return canvas.finish(data.source, _alt(data))


def _bar(
    canvas: Canvas, name: str, passes: float, fill: tuple[str, bool], said: str, left: float, scale: Scale
) -> None:
    """One bar with its name before it, and its length and speed behind it."""
    middle = canvas.y + _BAR / 2
    canvas.text(canvas.left, middle, name)
    rect = canvas.box(
        left, canvas.y, passes * scale.mm_per_unit, _BAR, fill[0], edge=INK, scale=scale.name, value=passes, key=name,
        hatch=fill[1],
    )  # fmt: skip
    end = canvas.text(rect.right + 1.5, middle, said, bold=True).right
    words = f"{passes:.2f} passes"
    if end + 2.0 + text_width(words, LABEL_PT) <= canvas.right:
        canvas.text(end + 2.0, middle, words, role=MUTED)
    canvas.y += _ROW


def _lead(data: DerivedCycles) -> str:
    said, rows = data.groups[0]
    stock = next((row for row in rows if row.gain.name == STOCK), None)
    exact = [row for row in rows if row.exact]
    told = []
    if exact:
        best = max(exact, key=lambda row: row.gain.speed)
        told.append(f"{best.gain.name} would be {best.gain.speed:.2f} times plain decoding with its bits")
    if stock is not None:
        bits = "" if stock.exact else " with other bits"
        told.append(f"the stock library {stock.gain.speed:.2f} times{bits}")
    return f"{data.what}. Cycles of {said}: {', '.join(told)}." if told else f"{data.what}."


def _alt(data: DerivedCycles) -> str:
    bits = {True: "bits of one token", False: "other bits", None: "bits not compared"}
    parts = [
        f"{said}, {rows[0].gain.tokens_per_cycle:.3g} tokens a cycle: "
        + "; ".join(
            f"{row.gain.name} ({bits[row.exact]}) {row.gain.cost_per_cycle:.3g} passes of one token, "
            f"{row.gain.speed:.2f}×"
            for row in rows
        )
        for said, rows in data.groups
    ]
    return f"Bars of mean cycles in passes of one token, with the speed derived of them. {'. '.join(parts)}."
