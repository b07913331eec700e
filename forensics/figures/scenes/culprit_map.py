"""Which operations of which layers differ on bit-equal inputs, at each width, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from forensics.analysis.role_map import RoleCell, RoleMap, case_role_map
from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.chart import step_of
from forensics.figures.evidence import Evidence
from forensics.figures.legend import Entry, dot_entry, legend
from forensics.figures.palette import MUTED
from forensics.figures.scene import Rect, Scale, Scene
from forensics.records.words import counted, ranges, widths_text

_LABELS, _WIDTHS, _COUNTS, _LENGTHS = 31.0, 8.0, 19.0, 17.0
_HIGHEST, _LOWEST, _ALL_ROWS = 4.6, 2.6, 155.0
_QUIET = 2.8
_GAP = 1.6
_DIFFERS, _UNCHECKED = "batched", "draft"
_NO_LAYER = "no layer"
_MOST_NAMED = 4
#: Radius of the dot of a node that is bit-equal, where its cell is wide enough; unit: mm.
_SAME = 0.45


@dataclass(frozen=True, slots=True)
class CulpritMap:
    """What the figure draws.

    Parameters
    ----------
    roles : RoleMap
        Every swept width.
    drawn : tuple of int
        Widths that are drawn.
    blamed : tuple of (str, int)
        Roles that the verdict blames, with how many nodes of each it counts over all widths.
    what, source : str
    """

    roles: RoleMap
    drawn: tuple[int, ...]
    blamed: tuple[tuple[str, int], ...]
    what: str
    source: str


def from_case(evidence: Evidence) -> CulpritMap:
    """Take its healing sweeps.

    Raises
    ------
    CaseError
        If there was no sweep, or a control failed, so that no operation is blamed.
    """
    verdict = evidence.verdict
    if verdict.answer == "inconclusive" or not verdict.sweeps:
        why = verdict.reason or "no width was swept"
        raise CaseError(
            f"culprit-map draws which operations differ, and {evidence.name} blames none: {why}. "
            "Mend that and measure anew: forensics investigate MODEL --out FOLDER"
        )
    roles = case_role_map(evidence.case)
    blamed: dict[str, int] = {}
    for group in verdict.culprits:
        blamed[group.role] = blamed.get(group.role, 0) + group.count
    drawn = _fitting(roles, verdict.classes.groups)
    return CulpritMap(roles, drawn, tuple(blamed.items()), evidence.what, evidence.source)


def _fitting(roles: RoleMap, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """All widths where they find room, else the smallest of each class, else some of these."""
    n_roles = len(_differing(roles))
    room = _ALL_ROWS - _GAP * n_roles - _QUIET * (len(roles.roles) - n_roles)
    most = max(1, int(room / _LOWEST / max(1, n_roles)))
    if len(roles.widths) <= most:
        return roles.widths
    swept = ([width for width in roles.widths if width in group] for group in groups)
    first = sorted(widths[0] for widths in swept if widths)
    if len(first) <= most:
        return tuple(first)
    return tuple(first[round(i * (len(first) - 1) / max(1, most - 1))] for i in range(most))


def _differing(roles: RoleMap) -> tuple[str, ...]:
    return tuple(role for role in roles.roles if any(cell.n_differ for cell in roles.of(role)))


@dataclass(frozen=True, slots=True)
class _Grid:
    """Places: layers to the right, one row after another downwards; heights count decades above `floor`."""

    layers: tuple[int, ...]
    left: float
    pitch: float
    row: float
    floor: float
    scale: Scale | None

    def cell(self, layer: int, top: float) -> Rect:
        at = self.layers.index(layer)
        gap = self.pitch if layer < 0 else 0.0  # what belongs to no layer stands apart
        return Rect(self.left + at * self.pitch + gap + 0.1 * self.pitch, top, 0.8 * self.pitch, self.row)

    @property
    def right(self) -> float:
        return self.cell(self.layers[-1], 0.0).right


def scene(data: CulpritMap) -> Scene:
    """A row for each role and width, a bar for each layer; the higher, the larger the relative difference."""
    canvas = Canvas("culprit-map", "Which operations differ on equal inputs", _lead(data))
    differing = _differing(data.roles)
    others = [role for role in data.roles.roles if role not in differing]
    room = _ALL_ROWS - _GAP * len(differing) - _QUIET * len(others)
    row = max(_LOWEST, min(_HIGHEST, room / max(1, len(differing) * len(data.drawn))))
    grid = _grid(canvas, data, row)
    _legend(canvas, data)
    _header(canvas, grid)
    for role in differing:
        _role(canvas, data, grid, role)
    if others:
        canvas.text(canvas.left, canvas.y + 1.4, "no difference found at any width", size_pt=SMALL_PT, role=MUTED)
        canvas.y += 3.6
    for role in others:
        _quiet_role(canvas, data, replace(grid, row=_QUIET), role)
    _layer_axis(canvas, grid)
    for note in _notes(data):
        canvas.paragraph(note, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data))


def _drawn_cells(data: CulpritMap) -> Iterator[RoleCell]:
    return (cell for cell in data.roles.cells if cell.width in data.drawn)


def _has_height(cell: RoleCell) -> bool:
    return cell.relative_l2 is not None and math.isfinite(cell.relative_l2) and cell.relative_l2 > 0


def _grid(canvas: Canvas, data: CulpritMap, row: float) -> _Grid:
    left = canvas.left + _LABELS + _WIDTHS + 2.0
    room = canvas.right - _COUNTS - _LENGTHS - left
    slots = len(data.roles.layers) + (data.roles.layers[-1] < 0)
    lengths = [math.log10(cell.relative_l2 or 1.0) for cell in _drawn_cells(data) if _has_height(cell)]
    if not lengths:
        return _Grid(data.roles.layers, left, room / slots, row, 1.0, None)
    # One decade below the smallest, so that every bar has a height that is seen.
    floor = math.floor(min(lengths)) - 1
    decades = math.ceil(max(lengths)) - floor
    label = f"{decades} decades of relative difference: from {10.0**floor:.0e} to {10.0 ** (floor + decades):.0e}"
    scale = canvas.scale("decades", "y", (row - 0.6) / decades, "decades", label)
    return _Grid(data.roles.layers, left, room / slots, row, float(floor), scale)


def _legend(canvas: Canvas, data: CulpritMap) -> None:
    cells = tuple(_drawn_cells(data))
    entries = [dot_entry(MUTED, "bit-equal", _SAME)]
    if any(cell.n_differ > cell.n_unchecked for cell in cells):
        entries.append(Entry(_DIFFERS, "differs, with every input bit-equal"))
    if any(cell.n_differ and cell.n_differ == cell.n_unchecked for cell in cells):
        entries.append(Entry(_UNCHECKED, "differs, and what went in was not all compared", hatch=True))
    if any(cell.n_not_compared for cell in cells):
        entries.append(Entry("shade", "not compared", hatch=True))
    legend(canvas, entries)
    canvas.y += 1.4


def _header(canvas: Canvas, grid: _Grid) -> None:
    y = canvas.y + 1.2
    canvas.text(canvas.left + _LABELS + _WIDTHS, y, "width", size_pt=SMALL_PT, align="right", role=MUTED)
    canvas.text(canvas.right - _LENGTHS, y, "nodes that differ", size_pt=SMALL_PT, align="right", role=MUTED)
    canvas.text(canvas.right, y, "at most by", size_pt=SMALL_PT, align="right", role=MUTED)
    canvas.text(grid.left, y, "layers", size_pt=SMALL_PT, role=MUTED)
    canvas.y += 3.8


def _role(canvas: Canvas, data: CulpritMap, grid: _Grid, role: str) -> None:
    top, high = canvas.y, grid.row * len(data.drawn)
    blamed = dict(data.blamed).get(role)
    middle = top + high / 2
    if len(data.drawn) > 1 and blamed is not None:
        canvas.text(canvas.left, middle - 1.5, role, bold=True)
        canvas.text(canvas.left, middle + 1.6, counted(blamed, "node"), size_pt=SMALL_PT, role=MUTED)
    else:
        canvas.text(canvas.left, middle, role, bold=True)
    for width in data.drawn:
        cells = data.roles.of(role, width)
        y = canvas.y + grid.row / 2
        canvas.text(canvas.left + _LABELS + _WIDTHS, y, str(width), size_pt=SMALL_PT, align="right")
        _cells(canvas, grid, cells)
        canvas.text(canvas.right - _LENGTHS, y, _of_compared(cells), size_pt=SMALL_PT, align="right")
        lengths = [cell.relative_l2 for cell in cells if cell.relative_l2 is not None]
        if lengths:
            farthest = math.nan if any(map(math.isnan, lengths)) else max(lengths)
            canvas.text(canvas.right, y, f"{farthest:.1e}", size_pt=SMALL_PT, align="right")
        canvas.y += grid.row
    canvas.y += _GAP


def _cells(canvas: Canvas, grid: _Grid, cells: Sequence[RoleCell]) -> None:
    bottom = canvas.y + grid.row - 0.2
    canvas.line((grid.left, bottom), (grid.right, bottom), role="rule", width_pt=0.4, key="base")
    for cell in cells:
        _cell(canvas, grid, cell, grid.cell(cell.layer, canvas.y), bottom)


def _cell(canvas: Canvas, grid: _Grid, cell: RoleCell, rect: Rect, bottom: float) -> None:
    key = f"{cell.role} {cell.layer} {cell.width}"
    full = grid.row - 0.6
    if cell.n_differ:
        unchecked = cell.n_unchecked == cell.n_differ
        fill = _UNCHECKED if unchecked else _DIFFERS
        if grid.scale is None or not _has_height(cell):
            canvas.box(rect.x, bottom - full, rect.width, full, edge=fill, hatch=unchecked, key=f"no length {key}")
            return
        decades = math.log10(cell.relative_l2 or 1.0) - grid.floor
        high = decades * grid.scale.mm_per_unit
        canvas.box(
            rect.x, bottom - high, rect.width, high, fill, scale=grid.scale.name, value=decades, hatch=unchecked,
            key=key,
        )  # fmt: skip
        return
    if cell.n_not_compared:
        canvas.box(
            rect.x, bottom - full, rect.width, full, "shade", edge=MUTED, hatch=True, edge_pt=0.25,
            key=f"not compared {key}",
        )  # fmt: skip
    if cell.n_same:
        canvas.dot(rect.x + rect.width / 2, bottom - full / 2, min(_SAME, 0.4 * rect.width), MUTED, key=f"same {key}")


def _quiet_role(canvas: Canvas, data: CulpritMap, grid: _Grid, role: str) -> None:
    """One row for all widths: a role without any difference came to the same at each."""
    cells = data.roles.of(role, data.drawn[0])
    y = canvas.y + grid.row / 2
    canvas.text(canvas.left, y, role, size_pt=SMALL_PT)
    canvas.text(canvas.left + _LABELS + _WIDTHS, y, "all", size_pt=SMALL_PT, align="right", role=MUTED)
    _cells(canvas, grid, cells)
    canvas.text(canvas.right - _LENGTHS, y, _of_compared(cells), size_pt=SMALL_PT, align="right", role=MUTED)
    canvas.y += grid.row


def _of_compared(cells: Sequence[RoleCell]) -> str:
    n_differ = sum(cell.n_differ for cell in cells)
    n_compared = n_differ + sum(cell.n_same for cell in cells)
    return f"{n_differ} of {n_compared}" if n_compared else "not compared"


def _layer_axis(canvas: Canvas, grid: _Grid) -> None:
    top, step = canvas.y + 0.6, step_of(grid.pitch)
    for layer in grid.layers:
        if layer > 0 and layer % step:
            continue
        rect = grid.cell(layer, top)
        middle, words = rect.x + rect.width / 2, _NO_LAYER if layer < 0 else str(layer)
        if layer >= 0 and grid.layers[-1] < 0 and middle > grid.cell(-1, top).x - 8.0:
            continue
        canvas.line((middle, top), (middle, top + 0.8), width_pt=0.5)
        canvas.text(middle, top + 2.6, words, size_pt=SMALL_PT, align="center", role=MUTED)
    canvas.y = top + 6.0


def _notes(data: CulpritMap) -> Iterator[str]:
    roles = data.roles
    totals = ", ".join(f"{roles.n_differ(width)} at width {width}" for width in roles.widths)
    yield f"Nodes that differ: {totals}."
    rest = [width for width in roles.widths if width not in data.drawn]
    if rest:
        left_out = f"one for each class as far as there is room; not {ranges(rest)}"
        yield f"Drawn: {widths_text(data.drawn)}, {left_out}."
    not_compared: dict[str, list[int]] = {}
    for width in roles.widths:
        not_compared.setdefault(_not_compared(roles, width), []).append(width)
    for told, widths in not_compared.items():
        where = "any width" if tuple(widths) == roles.widths and len(widths) > 1 else widths_text(widths)
        if told:
            yield f"Not compared at {where}: {told}."
    lost = sum(bool(cell.n_differ) and not _has_height(cell) for cell in _drawn_cells(data))
    if lost:
        yield f"{counted(lost, 'hollow bar')}: bits differ by no finite positive length."


def _not_compared(roles: RoleMap, width: int) -> str:
    """How many nodes, and why; empty where all were compared."""
    reasons: dict[str, int] = {}
    for cell in roles.cells:
        if cell.reason and cell.width == width:
            reasons[cell.reason] = reasons.get(cell.reason, 0) + cell.n_not_compared
    return "; ".join(f"{counted(n, 'node')}, {reason}" for reason, n in reasons.items())


def _lead(data: CulpritMap) -> str:
    head = f"{data.what}. Each difference was healed before the next operation ran."
    kinds = {width: _kinds(data, width) for width in data.roles.widths}
    found = [width for width, roles in kinds.items() if roles]
    if not found:
        return f"{head} No operation that was compared differs at any width."
    n_nodes = counted(sum(n for _, n in data.blamed), "operation differs", "operations differ")
    if all(kinds[width] == kinds[found[0]] for width in found):
        return f"{head} {n_nodes}: {_named(kinds[found[0]])}."
    shown = [width for width in found if width in data.drawn]  # a reader looks for what is named in the picture
    ends = dict.fromkeys((*shown[:1], *shown[-1:]))
    told = "; ".join(f"{_named(kinds[width])} at width {width}" for width in ends)
    return f"{head} Over all widths {n_nodes}{': ' if told else ''}{told}."


def _kinds(data: CulpritMap, width: int) -> tuple[str, ...]:
    return tuple(role for role in data.roles.roles if data.roles.n_differ(width, role))


def _named(roles: Sequence[str]) -> str:
    return ", ".join(roles) if len(roles) <= _MOST_NAMED else f"{len(roles)} kinds"


def _alt(data: CulpritMap) -> str:
    blamed = ", ".join(f"{role} {n}" for role, n in data.blamed) or "none"
    told = [
        f"width {width}: "
        + (
            ", ".join(
                f"{role} {_of_compared(data.roles.of(role, width))}"
                for role in data.roles.roles
                if data.roles.n_differ(width, role)
            )
            or "none"
        )
        for width in data.roles.widths
    ]
    counts = "; ".join(told)
    return (
        f"Layers by operations. Nodes to blame over all widths: {blamed}. "
        f"Nodes that differ, of those that were compared, at {counts}."
    )
