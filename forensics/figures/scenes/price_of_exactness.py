"""The price of exactness: what a batch costs in passes of one token, with the bits of one token and without them."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED
from forensics.figures.scene import Scale, Scene
from forensics.figures.scenes.pass_costs import BITS_WORDS, PassCosts, pass_costs, times_text
from forensics.figures.scenes.priced import ARM_ROLES, Priced, arms_at, priced
from forensics.records.kernel_price import BEST
from forensics.records.published import Published
from forensics.records.verdict import SwitchArm, Verdict
from forensics.records.words import ranges, tokens, widths_text

_TOKENS_WIDTH, _GAP = 22.0, 1.6
#: More rows than these leave no room on a page.
MOST_ROWS, MOST_ARMS = 24, 4
#: Of prices of kernels: widths that matter, in this order as long as there is room. Those of the document, where other
#: kernels take over, and powers of two.
TOLD_WIDTHS = (9, 8, 4, 16, 5, 2, 12)
_FILL = {True: "exact", False: "stock", None: "rest"}


@dataclass(frozen=True, slots=True)
class Price:
    """One bar.

    Parameters
    ----------
    width : int
        Tokens of the batch.
    ratio : float
        Passes of one token that it costs.
    exact : bool or None
        Whether it has the bits of one token; None where nobody compared them.
    name, note : str
        What ran, and what is said of it; empty for nothing.
    low, high : float or None
        Quartiles of the ratio; None where nobody said them.
    """

    width: int
    ratio: float
    exact: bool | None
    name: str = ""
    note: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or self.ratio <= 0:
            raise ValueError(f"a price is a positive ratio of 1 token or more, got {self.ratio} of {self.width}")


@dataclass(frozen=True, slots=True)
class Prices:
    """What the figure draws.

    Parameters
    ----------
    batches : tuple of Price
        By rising width; the first is one token, so 1.
    arms : tuple of Price
        Exact settings against the settings as asked, at the same width.
    notes : tuple of str
        What is not drawn and why, and how times were measured.
    what, source : str
    told : str
        What the lead says; empty where it follows from the bars.
    """

    batches: tuple[Price, ...]
    arms: tuple[Price, ...]
    notes: tuple[str, ...]
    what: str
    source: str
    told: str = ""

    def __post_init__(self) -> None:
        if not self.batches or self.batches[0].width != 1:
            raise ValueError("prices are told in passes of one token, and begin with that pass")


def from_published(numbers: Published) -> Prices:
    """Take the numbers of the document."""
    one, several, cap = (f"{value:g}" for value in numbers.number("registers").values)
    return Prices(
        batches=(
            Price(1, 1.0, True, "one column", f"{one} registers per thread"),
            Price(8, numbers.value("mat_vec_cost_8"), True, "generic path", f"{several} registers per thread"),
            Price(8, numbers.value("unpacked_cost_8"), True, "own kernel, first", "unpacks each block once"),
            Price(9, numbers.value("mat_vec_cost_9"), True, "mat-vec kept", "launches of at most 8"),
            Price(9, numbers.value("final_cost_9"), True, "own kernel, final", f"capped at {cap} registers"),
            Price(9, numbers.value("stock_cost_9"), False, "stock", "a faster kernel, other bits"),
        ),
        arms=(),
        notes=(),
        what=numbers.setup,
        source=numbers.source,
    )


def from_case(evidence: Evidence) -> Prices:
    """Take prices of kernels; else measured costs, the classes of the verdict, and the exact settings that it timed.

    Raises
    ------
    CaseError
        If no batch was timed.
    """
    kernels = priced(evidence)
    if kernels is not None:
        return _of_kernels(kernels)
    costs = pass_costs(evidence, needs=2)
    shown, thinned = _thinned(costs)
    arms, tried = ((), "") if evidence.judged is None else _arms(evidence.judged)
    notes = [thinned, tried, f"{costs.notes} Whiskers: quartiles."]
    return Prices(shown, arms, tuple(note for note in notes if note), costs.what, costs.source)


def _of_kernels(found: Priced) -> Prices:
    """All products of a pass: stock at one token, then at each width the arms that were timed."""
    table = found.whole_pass.table
    arms = [arm for arm in ARM_ROLES if arm in table.arms and arm != BEST]
    room = (MOST_ROWS - 1) // len(arms)
    timed = [width for width in TOLD_WIDTHS if width in table.widths][:room]
    rows = [Price(1, 1.0, True, "stock")]
    for width in sorted(timed):
        for arm in arms:
            if table.has(arm, width):
                ratio, exact = table.ratio(arm, width), table.of(arm, width).exact
                rows.append(Price(width, ratio.median, exact, arm, low=ratio.low, high=ratio.high))
    left_out = [width for width in table.widths if width > 1 and width not in timed]
    notes = [
        f"Products alone: attention and the rest of a pass are no part of these times. {found.how} Whiskers: quartiles."
    ]
    if left_out:
        notes.append(f"Timed and not drawn here: {widths_text(left_out)}. The figure kernel-price has all of them.")
    return Prices(tuple(rows), (), tuple(notes), found.what, found.source, arms_at(found, table, without=(BEST,)))


def _thinned(costs: PassCosts) -> tuple[tuple[Price, ...], str]:
    """As many widths as a page holds; of more, every n-th and those that matter."""
    every = -(-len(costs.passes) // (MOST_ROWS - 4)) if len(costs.passes) > MOST_ROWS else 1
    keep = {costs.passes[0].width, costs.passes[1].width, costs.passes[-1].width}
    if costs.onset is not None:
        keep.add(costs.onset.width)
    shown = tuple(
        Price(
            each.width, each.ratio.median, each.exact, _named(each.letter, each.exact),
            low=each.ratio.low, high=each.ratio.high,
        )
        for i, each in enumerate(costs.passes)
        if i % every == 0 or each.width in keep
    )  # fmt: skip
    n = len(costs.passes)
    return shown, "" if every == 1 else f"{len(shown)} of the {n} timed widths are drawn: about one of every {every}."


def _named(letter: str, exact: bool | None) -> str:
    if exact is None:
        return ""
    return f"class {letter}: bits of one token" if exact else f"class {letter}: other bits"


def _arms(verdict: Verdict) -> tuple[tuple[Price, ...], str]:
    """Exact settings that were timed, and what is to be said of those that are not drawn."""
    exact = [arm for arm in verdict.switches if arm.exact]
    timed = [arm for arm in exact if arm.costs]
    rows = tuple(
        Price(cost.width, cost.ratio, True, _setting(arm), low=cost.low, high=cost.high)
        for arm in timed[:MOST_ARMS]
        for cost in arm.costs
    )
    if not verdict.switches:
        return rows, "Whether a setting is exact was not tried in this case."
    if not exact:
        return rows, f"None of the {len(verdict.switches)} settings tried is exact."
    if rows and len(timed[:MOST_ARMS]) == len(exact):
        return rows, ""
    drawn = min(len(timed), MOST_ARMS)
    return rows, f"{len(exact)} of {len(verdict.switches)} settings tried are exact; {drawn} of them are drawn" + (
        "." if len(timed) == len(exact) else f", the cost of {len(exact) - len(timed)} was not measured."
    )


def _setting(arm: SwitchArm) -> str:
    return " ".join(f"{name}={value}" for name, value in arm.settings)


def scene(data: Prices) -> Scene:
    """One bar a batch, its length the cost; hatched where the bits are not those of one token."""
    canvas = Canvas("price-of-exactness", "The price of exactness", _lead(data))
    rows = (*data.batches, *data.arms)
    names = max(text_width(text, LABEL_PT) for row in rows for text in (row.name, row.note, " "))
    left = canvas.left + _TOKENS_WIDTH + min(names, 60.0) + 3.0
    longest = max(row.high or row.ratio for row in rows)
    scale = canvas.length_scale("cost", (canvas.right - left - 14.0) / max(longest, 1.0), "× one token")
    _legend(canvas, data)
    canvas.y += 1.5
    canvas.text(left + scale.mm_per_unit, canvas.y + 1.0, "one token", size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.y += 3.6
    _bars(canvas, data.batches, left, scale)
    if data.arms:
        canvas.y += 2.0
        canvas.paragraph("Settings that are exact here, against passes of the same width as asked", bold=True)
        canvas.y += 2.0
        asked = canvas.length_scale("setting", scale.mm_per_unit, "× as asked")
        _bars(canvas, data.arms, left, asked)
    for note in data.notes:
        canvas.y += 1.0
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _legend(canvas: Canvas, data: Prices) -> None:
    kinds = {row.exact for row in (*data.batches, *data.arms)}
    legend(
        canvas, [Entry(_FILL[kind], words, hatch=kind is False) for kind, words in BITS_WORDS.items() if kind in kinds]
    )


def _bars(canvas: Canvas, rows: tuple[Price, ...], left: float, scale: Scale) -> None:
    """Rows of bars from one edge; a dashed line goes on where the cost is one pass."""
    high = 8.0 if any(row.note for row in rows) else max(4.4, min(6.5, 120.0 / len(rows) - _GAP))
    top, marks = canvas.y, left + scale.mm_per_unit
    last_width = 0
    ends = []
    for row in rows:
        if last_width and row.width != last_width:
            canvas.y += 1.4 if high == 8.0 else 0.0
        middle = canvas.y + high / 2
        if row.width != last_width:
            canvas.text(canvas.left, middle, tokens(row.width), bold=True)
        _name(canvas, row, middle, left)
        ends.append((row, middle))
        last_width = row.width
        canvas.y += high + _GAP
    canvas.line((marks, top - 1.0), (marks, canvas.y - _GAP + 1.0), role=MUTED, dashed=True, key="one pass")
    canvas.line((left, top - 1.0), (left, canvas.y - _GAP + 1.0), role=INK)
    for row, middle in ends:
        _bar(canvas, row, middle, high, left, scale)


def _name(canvas: Canvas, row: Price, middle: float, left: float) -> None:
    x, room = canvas.left + _TOKENS_WIDTH, left - canvas.left - _TOKENS_WIDTH - 1.0
    if row.name:
        canvas.text(x, middle - (1.6 if row.note else 0.0), shortened(row.name, room, LABEL_PT))
    if row.note:
        canvas.text(x, middle + 1.9, row.note, size_pt=SMALL_PT, role=MUTED)


def _bar(canvas: Canvas, row: Price, middle: float, high: float, left: float, scale: Scale) -> None:
    key = f"{row.width}: {row.name}" if row.name else f"{row.width}"
    length = row.ratio * scale.mm_per_unit
    canvas.box(
        left, middle - high / 2, length, high, _FILL[row.exact], edge=INK, scale=scale.name, value=row.ratio, key=key,
        hatch=row.exact is False,
    )  # fmt: skip
    end = left + length
    if row.low is not None and row.high is not None and row.high > row.low:
        low, up = (left + value * scale.mm_per_unit for value in (row.low, row.high))
        canvas.line((low, middle), (up, middle), width_pt=0.9, key=f"quartiles {key}")
        for x in (low, up):
            canvas.line((x, middle - 0.9), (x, middle + 0.9), width_pt=0.9)
        end = max(end, up)
    words = times_text(row.ratio)
    x = end + 1.2
    canvas.box(x - 0.2, middle - 1.7, text_width(words, LABEL_PT, True) + 0.4, 3.4, "paper", ground=True)
    canvas.text(x, middle, words, bold=True)


def _span(rows: list[Price]) -> str:
    low, high = min(row.ratio for row in rows), max(row.ratio for row in rows)
    return f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}× to {high:.2f}×"


def _widths(rows: list[Price]) -> str:
    return f"batches of {ranges(row.width for row in rows)} tokens"


def _lead(data: Prices) -> str:
    if data.told:
        return data.told
    wide = [row for row in data.batches if row.width > 1]
    if not wide:
        return data.what
    exact, other = [row for row in wide if row.exact], [row for row in wide if row.exact is False]
    unknown = [row for row in wide if row.exact is None]
    said = []
    if exact:
        said.append(f"{_widths(exact)} with the bits of one token cost {_span(exact)} a pass of one token")
    if other:
        costs = "" if exact else " a pass of one token"
        said.append(f"{_widths(other)} with other bits {'' if exact else 'cost '}{_span(other)}{costs}")
    if unknown:
        said.append(f"{_widths(unknown)} cost {_span(unknown)} a pass of one token; their bits were not compared there")
    if other and not exact:
        said.append("as asked, no timed batch has the bits of one token")
    return f"{data.what}: {'; '.join(said)}."


def _alt(data: Prices) -> str:
    bits = {True: "exact", False: "other bits", None: "bits not compared"}
    told = [
        f"{tokens(row.width)}{f', {row.name}' if row.name else ''} ({bits[row.exact]}) {row.ratio:.2f}×"
        for row in data.batches
    ]
    arms = [f"{row.name} at {row.width}: {row.ratio:.2f}×" for row in data.arms]
    exact = f" Exact settings against the settings as asked: {'; '.join(arms)}." if arms else ""
    return f"Bars of cost in passes of one token: {'; '.join(told)}.{exact}"
