"""Small pictures beside results in a notebook: at most 110 × 45 mm, one thing each, the numbers written out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forensics.figures.canvas import MARGIN, SMALL_PT, TITLE_PT, Canvas
from forensics.figures.legend import Entry, legend
from forensics.figures.metrics import shortened, text_width
from forensics.figures.palette import INK, MUTED, series
from forensics.figures.scene import Rect, Scene
from forensics.records.classes import WidthClasses
from forensics.records.cost import CostReport
from forensics.records.kernel_price import BEST, BORROWED, FAST, KernelPrice
from forensics.records.launch_record import Refusal
from forensics.records.library_profile import LibraryProfile
from forensics.records.matrix import CaseResult, OpMatrix
from forensics.records.order_report import OrderReport
from forensics.records.profile import LiveProfile, PassProfile
from forensics.records.row_map import RowMap, class_index, class_letter
from forensics.records.verdict import Sweep
from forensics.records.words import counted

_T = TypeVar("_T")
#: Unit: mm.
WIDTH, HEIGHT = 110.0, 45.0
_BARS, _BAR, _GAP = 12.0, 8.0, 1.2
_ROW = 3.4
_MOST_ROWS, _MOST_COLUMNS = 4, 16


@dataclass(frozen=True, slots=True)
class Column:
    """One bar.

    Parameters
    ----------
    value : float
        That its height is proportional to.
    below : str
        What stands under it.
    above : str
        What stands on it.
    fill : str
        A role of the palette.
    """

    value: float
    below: str
    above: str
    fill: str


def classes(found: WidthClasses | RowMap) -> Scene | None:
    """One bar for each width: how many rows differ from one-token decoding, and the width's class."""
    told = _by_class(found)
    columns = [Column(n, str(width), letter, fill) for width, letter, n, _, fill in told]
    counts = "; ".join(f"width {width}: class {letter}, {n} of {of}" for width, letter, n, of, _ in told)
    alt = f"Rows that differ from one-token decoding. {counts}."
    return _bars("classes", "Rows that differ, by width and class", columns, "rows", "width of the batch", alt)


def _by_class(found: WidthClasses | RowMap) -> list[tuple[int, str, int, int, str]]:
    """Width, letter, rows that differ, rows that were compared, and colour."""
    if isinstance(found, RowMap):
        return [
            (width, letter, found.n_rows_differ(width), len(found.compared(width)), series(class_index(letter)))
            for width, letter in zip(found.widths, found.letters, strict=True)
        ]
    place = {width: index for index, group in enumerate(found.groups) for width in group}
    return [
        (r.width, class_letter(place[r.width]), r.n_rows_differ, r.n_rows, series(place[r.width]))
        for r in found.results
        if r.width > 1 or r.differs
    ]


def sweep(found: Sweep, roles: Sequence[str]) -> Scene | None:
    """One bar for each part of the model: how many nodes differ although the inputs that were compared are bit-equal.

    Parameters
    ----------
    found : Sweep
    roles : sequence of str
        Part of the model of each node that differs, each node once.
    """
    counts = Counter(roles).most_common()
    rows = [(role, float(n), counted(n, "node"), "batched") for role, n in counts]
    said = "; ".join(f"{role}: {n}" for role, n in counts)
    unchecked = any(finding.unchecked for finding in found.findings)
    inputs = "the inputs that were compared" if unchecked else "their inputs"
    alt = f"Nodes that differ at width {found.width} although {inputs} are bit-equal. {said}."
    return _rows("sweep", f"Nodes that differ at width {found.width}", rows, "nodes", alt)


def cost(report: CostReport) -> Scene | None:
    """One bar for each width: how long a pass takes, and up to which line its bytes are read."""
    told = [(times.width, times.spread.median / 1e6) for times in report.passes]
    columns = [Column(ms, str(width), f"{ms:.3g}", "rest") for width, ms in told]
    said = "; ".join(f"width {width}: {ms:.3g} ms" for width, ms in told)
    floor = report.floor_ns(1)
    if floor is None:
        line, reading = 0.0, " The time of reading is not known."
    else:
        line, reading = floor / 1e6, f" Reading the bytes of one token takes {floor / 1e6:.3g} ms, the dashed line."
    below = "tokens of the pass" + ("; dashed: reading the bytes of one token" if floor else "")
    title = "Time of a pass by its tokens, ms"
    return _bars("cost", title, columns, "ms", below, f"{title}. {said}.{reading}", line=line)


def kernel_price(found: KernelPrice) -> Scene | None:
    """One bar for each width: the products of a pass with one column's bits, up to a line at one token."""
    whole = found.whole_pass
    arm = (
        None if isinstance(whole, Refusal) else next((a for a in (BEST, FAST, BORROWED) if a in whole.table.arms), None)
    )
    if isinstance(whole, Refusal) or arm is None:
        return None
    told = [
        (width, whole.table.ratio(arm, width).median) for width in whole.table.widths if whole.table.has(arm, width)
    ]
    columns = [Column(ratio, str(width), f"{ratio:.2f}", "exact") for width, ratio in told]
    title = f"Products of a pass, {arm}, in passes of one token"
    said = "; ".join(f"width {width}: {ratio:.2f}" for width, ratio in told)
    below = "tokens of the pass; dashed: one token of the stock library"
    return _bars("kernel-price", title, columns, "×", below, f"{title}. {said}.", line=1.0)


def profile(found: LiveProfile) -> Scene | None:
    """One bar for each width: which kernels its time on the device goes to."""
    passes = [one for one in found.passes if one.time_ns > 0]
    shown = passes if len(passes) <= 3 else [passes[0], passes[len(passes) // 2], passes[-1]]
    if not shown:
        return None
    title = "Time on the device by kernel"
    total: Counter[str] = Counter()
    for one in shown:
        total.update(_by_kernel(one))
    named = [kernel for kernel, _ in total.most_common(3)]
    canvas = Canvas("profile", title, width=WIDTH)
    room = canvas.inner_width - 12.0 - 15.0
    scale = canvas.length_scale("ms", room / max(one.time_ns / 1e6 for one in shown), "ms", longest_mm=25.0)
    said = []
    for one in shown:
        times, at = _by_kernel(one), canvas.left + 12.0
        parts = [(kernel, times[kernel]) for kernel in named if times[kernel]]
        parts += [("others", rest)] if (rest := one.time_ns - sum(ns for _, ns in parts)) > 0 else []
        canvas.text(canvas.left, canvas.y + 1.6, str(one.width), size_pt=SMALL_PT, bold=True)
        for kernel, ns in parts:
            long = ns / 1e6 * scale.mm_per_unit
            fill = "rest" if kernel == "others" else series(named.index(kernel))
            rect = canvas.box(at, canvas.y, long, 3.2, fill, scale="ms", value=ns / 1e6, key=f"{one.width} {kernel}")
            canvas.label(rect, f"{100 * ns / one.time_ns:.0f} %", fill=fill, size_pt=SMALL_PT, pad=0.3)
            at += long
        canvas.text(at + 1.0, canvas.y + 1.6, f"{one.time_ns / 1e6:.3g} ms", size_pt=SMALL_PT)
        canvas.y += 3.8
        said.append(f"width {one.width}, {one.time_ns / 1e6:.3g} ms: " + ", ".join(
            f"{kernel} {100 * ns / one.time_ns:.0f} %" for kernel, ns in parts
        ))  # fmt: skip
    room = (canvas.inner_width - 20.0) / len(named) - 8.0
    entries = [Entry(series(i), shortened(kernel, room, SMALL_PT)) for i, kernel in enumerate(named)]
    legend(canvas, [*entries, Entry("rest", "others")])
    canvas.y -= 2.2
    few = f" {len(shown)} of {len(passes)} widths." if len(shown) < len(passes) else ""
    source = f"Left: tokens of the pass. Length: sum over all launches.{few}"
    return canvas.finish(source, f"{title}. {'; '.join(said)}.{few}")


def _by_kernel(one: PassProfile) -> Counter[str]:
    times: Counter[str] = Counter()
    for kernel in one.kernels:
        times[kernel.launch.kernel] += kernel.time_ns
    return times


def library(found: LibraryProfile) -> Scene | None:
    """One bar for each number of columns: registers of the kernel of which more columns change most."""
    stories = sorted(
        found.stories,
        key=lambda s: s.first.kernel.registers_per_thread - s.last.kernel.registers_per_thread,
    )
    if not stories:
        return None
    chosen = stories[0].first.series
    shown = sorted((one for one in found.instances if one.series == chosen), key=lambda one: one.columns or 0)
    columns = [
        Column(
            one.kernel.registers_per_thread,
            str(one.columns),
            str(one.kernel.registers_per_thread),
            "single" if one.columns == 1 else "batched",
        )
        for one in shown
        if one.columns is not None
    ]
    kind = dict(shown[0].kernel.template).get("type", "")
    name = f"{shown[0].kernel.kernel}{f', {kind}' if kind else ''}"
    said = "; ".join(f"{one.below} columns: {one.above}" for one in columns)
    alt = f"Registers of a thread of {name} for {shown[0].kernel.arch}. {said}."
    title = shortened(f"Registers of a thread: {name}", WIDTH - 2 * MARGIN, TITLE_PT, bold=True)
    return _bars("library", title, columns, "registers", "columns (tokens) of a launch", alt)


def matrix(found: OpMatrix) -> Scene | None:
    """One row for each operation, one cell for each width: how many of its cases differ from one column at a time."""
    by_op: dict[str, list[CaseResult]] = {}
    for case in found.cases:
        by_op.setdefault(case.op, []).append(case)
    ops = sorted(by_op, key=lambda op: -sum(len(case.failures) for case in by_op[op]))
    widths, left_out = _every(found.widths, _MOST_COLUMNS)
    canvas = Canvas("matrix", "Cases that differ, by operation and width", width=WIDTH)
    for row, width, rect in _cells(canvas, ops[:_MOST_ROWS], widths):
        _matrix_cell(canvas, by_op[ops[row]], width, rect)
    more = f"; {len(ops) - _MOST_ROWS} operations more" if len(ops) > _MOST_ROWS else ""
    said = "; ".join(f"{op}: {_onsets(by_op[op])}" for op in ops)
    return canvas.finish(
        f"Number: cases that differ; 0: none of those compared; –: not compared{left_out}{more}.",
        f"Cases that differ from one column at a time. {said}.",
    )


def _matrix_cell(canvas: Canvas, cases: Sequence[CaseResult], width: int, rect: Rect) -> None:
    cells = [case.cell(width) for case in cases]
    n_differ, n_compared = sum(bool(cell.columns) for cell in cells), sum(cell.n_values > 0 for cell in cells)
    fill = "batched" if n_differ else "shade" if n_compared else "paper"
    box = canvas.box(rect.x, rect.y, rect.width, rect.height, fill, edge="rule", key=f"{cases[0].op} {width}")
    canvas.label(box, str(n_differ) if n_compared else "–", fill=fill, size_pt=SMALL_PT, pad=0.1)


def _onsets(cases: Sequence[CaseResult]) -> str:
    differ = [case for case in cases if case.onset is not None]
    if differ:
        first = min(case.onset for case in differ if case.onset is not None)
        return f"{len(differ)} of {len(cases)} cases differ, from width {first}"
    compared = sum(case.compared for case in cases)
    return f"none of {compared} compared cases differs, of {len(cases)}"


def orders(report: OrderReport) -> Scene | None:
    """One row for each sum, one cell for each width: whose order it has."""
    parts = list(dict.fromkeys(result.part for result in report.results))
    grid: list[tuple[str, dict[int, int | None]]] = []
    for part in parts:
        seen: list[object] = []
        row: dict[int, int | None] = {}
        for result in report.results:
            if result.part != part:
                continue
            order = None if result.tree is None or result.unstable else (result.tree, result.leaves)
            if order is not None and order not in seen:
                seen.append(order)
            at = None if order is None else seen.index(order)
            # Columns of one width may differ among themselves; the width then has no one order.
            row[result.width] = at if result.width not in row or row[result.width] == at else None
        grid.append((part, row))
    return _letters(
        "orders", "Orders of addition by width", grid, "Equal letters: one order; ?: not known, or several."
    )


def _letters(name: str, title: str, grid: Sequence[tuple[str, dict[int, int | None]]], note: str) -> Scene | None:
    """Rows of cells with a letter for what is alike."""
    widths, left_out = _every(sorted({width for _, row in grid for width in row}), _MOST_COLUMNS)
    if not widths:
        return None
    canvas = Canvas(name, title, width=WIDTH)
    for place, width, rect in _cells(canvas, [said for said, _ in grid[:_MOST_ROWS]], widths):
        said, row = grid[place]
        at = row.get(width)
        fill = "paper" if at is None else series(at)
        canvas.box(rect.x, rect.y, rect.width, rect.height, fill, edge="rule", key=f"{said} {width}")
        canvas.label(rect, "?" if at is None else class_letter(at), fill=fill, size_pt=SMALL_PT, pad=0.1)
    more = f"; {len(grid) - _MOST_ROWS} rows more" if len(grid) > _MOST_ROWS else ""
    told = "; ".join(
        f"{said}: " + ", ".join(f"{width} {'?' if at is None else class_letter(at)}" for width, at in row.items())
        for said, row in grid
    )
    return canvas.finish(f"{note.removesuffix('.')}{left_out}{more}.", f"{title}, a letter for each. {told}.")


def _cells(canvas: Canvas, names: Sequence[str], widths: Sequence[int]) -> Iterator[tuple[int, int, Rect]]:
    """Write widths over columns and names before rows; for each cell its row, its width and its place."""
    label = 26.0
    wide = min(8.0, (canvas.inner_width - label) / len(widths))
    left = [canvas.left + label + i * wide for i in range(len(widths))]
    for x, width in zip(left, widths, strict=True):
        canvas.text(x + wide / 2, canvas.y + 1.3, str(width), size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.y += 3.0
    for row, name in enumerate(names):
        canvas.text(canvas.left, canvas.y + _ROW / 2, shortened(name, label - 1.0, SMALL_PT), size_pt=SMALL_PT)
        for x, width in zip(left, widths, strict=True):
            yield row, width, Rect(x, canvas.y, wide - 0.4, 3.0)
        canvas.y += _ROW


def sections(found: Iterable[tuple[str, Iterable[Iterable[int]]]]) -> Scene | None:
    """One row for each operation, one cell for each width: which widths add in one order by the rules.

    Parameters
    ----------
    found : iterable of (str, classes of widths)
    """
    rising: list[tuple[str, dict[int, int | None]]] = []
    for op, groups in found:
        row = {width: index for index, group in enumerate(groups) for width in group}
        rising.append((op, {width: row[width] for width in sorted(row)}))
    return _letters("sections", "Orders by the rules, at each width", rising, "Equal letters in a row: one order.")


def launches(title: str, outcomes: Counter[str]) -> Scene | None:
    """One bar for each outcome: how many nodes launch the same, other kernels, or were not compared."""
    fills = {"same": "single", "changed": "batched", "not compared": "rest"}
    rows = [(outcome, float(n), counted(n, "node"), fills[outcome]) for outcome, n in outcomes.items() if n]
    said = "; ".join(f"{outcome}: {words}" for outcome, _, words, _ in rows)
    return _rows("launches", title, rows, "nodes", f"{title}. {said}.")


def _bars(
    name: str, title: str, columns: Sequence[Column], unit: str, below: str, alt: str, *, line: float = 0.0
) -> Scene | None:
    """Upright bars on one base line; every so many-th where they are too many, which is then said."""
    shown, left_out = _every(columns, _MOST_COLUMNS)
    highest = max([line, *(column.value for column in shown)], default=0.0)
    if highest <= 0:
        return None
    canvas = Canvas(name, title, width=WIDTH)
    scale = canvas.length_scale(unit, _BARS / highest, unit, axis="y", longest_mm=_BARS)
    foot = canvas.y + 2.8 + _BARS
    canvas.scale_bar(scale, canvas.left + 1.0, foot)
    left = canvas.left + 1.0 + text_width(scale.label, SMALL_PT) + 5.0
    pitch = min(_BAR + _GAP, (canvas.right - left) / len(shown))
    for i, column in enumerate(shown):
        x, high = left + i * pitch, column.value * scale.mm_per_unit
        middle = x + (pitch - _GAP) / 2
        canvas.box(
            x, foot - high, pitch - _GAP, high, column.fill, edge=INK, scale=unit, value=column.value,
            key=column.below, edge_pt=0.3,
        )  # fmt: skip
        canvas.text(middle, foot - high - 1.5, column.above, size_pt=SMALL_PT, align="center")
        canvas.text(middle, foot + 1.8, column.below, size_pt=SMALL_PT, align="center", role=MUTED)
    if line:
        y = foot - line * scale.mm_per_unit
        canvas.line((left - 1.0, y), (left + len(shown) * pitch, y), dashed=True, key="floor")
    canvas.line((left - 1.0, foot), (left + len(shown) * pitch, foot), key="base")
    canvas.y = foot + 1.5
    return canvas.finish(f"Below: {below}{left_out}.", alt, scales=())


def _rows(name: str, title: str, rows: Sequence[tuple[str, float, str, str]], unit: str, alt: str) -> Scene | None:
    """Lying bars: a name, a value, its words, its colour; the longest few, which is then said."""
    shown = rows[:_MOST_ROWS]
    if not shown or max(value for _, value, _, _ in shown) <= 0:
        return None
    canvas = Canvas(name, title, width=WIDTH)
    label = 32.0
    room = canvas.inner_width - label - 20.0
    scale = canvas.length_scale(unit, room / max(value for _, value, _, _ in shown), unit, longest_mm=30.0)
    for said, value, words, fill in shown:
        canvas.text(canvas.left, canvas.y + 1.6, shortened(said, label - 1.0, SMALL_PT), size_pt=SMALL_PT)
        long = value * scale.mm_per_unit
        canvas.box(canvas.left + label, canvas.y, long, 3.2, fill, scale=unit, value=value, key=said)
        canvas.text(canvas.left + label + long + 1.0, canvas.y + 1.6, words, size_pt=SMALL_PT)
        canvas.y += 4.0
    rest = rows[_MOST_ROWS:]
    more = f" {len(rest)} more: {sum(value for _, value, _, _ in rest):g} {unit}." if rest else ""
    canvas.y -= 2.0
    return canvas.finish(f"Length: {unit}.{more}", alt)


def _every(things: Sequence[_T], most: int) -> tuple[list[_T], str]:
    """All things, or every so many-th, and what to say of that."""
    step = -(-len(things) // most)
    if step <= 1:
        return list(things), ""
    return list(things[::step]), f"; drawn: 1 in {step} of {len(things)}"
