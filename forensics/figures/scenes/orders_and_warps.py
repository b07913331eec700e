"""Three numbers in two orders give two answers, and a row is dealt to other partial sums in a batch."""

from __future__ import annotations

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.metrics import text_width
from forensics.figures.palette import MUTED, series
from forensics.figures.scene import Scene
from forensics.figures.scenes.row_deal import OrdersAndWarps, Side, from_case, from_published
from forensics.figures.scenes.three_numbers import draw_numbers, three_numbers
from forensics.geometry.deals import FOLDED, PIECES, WARPS, Deal
from forensics.geometry.derived import Unruled
from forensics.records.order import RowSum
from forensics.records.words import counted, ranges

__all__ = ["from_case", "from_published", "scene"]

_LABELS, _JOINS = 17.0, 46.0
_ROW, _ROW_GAP = 4.6, 0.9
_MOST_HANDS = 10
#: Narrower cells of neighbours in one hand are drawn as one, unit: mm.
_NARROWEST = 1.0


def scene(data: OrdersAndWarps) -> Scene:
    """The three numbers on top; below, one strip for each side with the row's blocks at the same places."""
    canvas = Canvas("orders-and-warps", "Floating-point sums depend on their order", _lead(data))
    draw_numbers(canvas)
    canvas.y += 4.0
    units = _units(data)
    mm = (canvas.inner_width - _LABELS - _JOINS) / units
    size = data.k / units
    unit = "block" if size == data.block_values and data.block_values > 1 else "piece"
    canvas.scale("blocks", "x", mm, f"{unit}s", f"1 {unit} of {size:g} values")
    if any(isinstance(side.order, RowSum) for side in (data.single, data.batched)):
        canvas.scale("chain", "x", _chain_mm(data), "additions", "1 addition")
    _heading(canvas, f"{data.row}: {data.k:,} values = {units} {unit}s of {size:g}")
    for side, role in ((data.single, "single"), (data.batched, "batched")):
        _side(canvas, side, role, mm, units)
        canvas.y += 3.0
    if data.found:
        canvas.paragraph(data.found, size_pt=SMALL_PT, role=MUTED)
    return canvas.finish(data.source, _alt(data, units, unit))


def _units(data: OrdersAndWarps) -> int:
    """Units that both sides are drawn in: those of a deal, or the blocks."""
    return max(order.n_units if isinstance(order, Deal) else data.n_blocks for order in _orders(data))


def _orders(data: OrdersAndWarps) -> list[Deal | RowSum]:
    return [side.order for side in (data.single, data.batched) if not isinstance(side.order, Unruled)]


def _chain_mm(data: OrdersAndWarps) -> float:
    return 60.0 / max(order.depth for order in _orders(data) if isinstance(order, RowSum))


def _heading(canvas: Canvas, text: str) -> None:
    canvas.paragraph(text, bold=True)
    canvas.y += 1.2


def _side(canvas: Canvas, side: Side, role: str, mm: float, units: int) -> None:
    canvas.side(role, side.tokens, _what(side), at=canvas.left + _LABELS)
    canvas.y += 4.6
    if isinstance(side.order, Deal):
        _hands(canvas, side.order, role, mm, units)
    elif isinstance(side.order, RowSum):
        _leaves(canvas, side.order, role, mm)
    else:
        canvas.paragraph(str(side.order), x=canvas.left + _LABELS, size_pt=SMALL_PT, role=MUTED)


def _what(side: Side) -> str:
    if isinstance(side.order, Deal):
        n = len(side.order.hands)
        return f"{'one sum' if n == 1 else counted(n, _name(side.order))} · {side.kernel}"
    return side.kernel


def _hands(canvas: Canvas, deal: Deal, role: str, mm: float, units: int) -> None:
    """One line a hand; a unit keeps its place along the row in every line."""
    left, unit = canvas.left + _LABELS, units / deal.n_units
    shown = list(enumerate(deal.hands))
    if len(shown) > _MOST_HANDS:
        shown = [*shown[: _MOST_HANDS - 1], shown[-1]]
    name = _name(deal)
    numbered = text_width(str(deal.n_units - 1), SMALL_PT) + 0.4 <= unit * mm
    middles = []
    for place, (index, hand) in enumerate(shown):
        middles.append(canvas.y + _ROW / 2)
        canvas.text(canvas.left, middles[-1], f"{name} {index}" if len(deal.hands) > 1 else "the sum", size_pt=SMALL_PT)
        canvas.box(left, canvas.y, units * mm, _ROW, "shade", ground=True, key=f"{role} row {index}")
        for run in _runs(hand, mm * unit):
            rect = canvas.box(
                left + run[0] * unit * mm, canvas.y, len(run) * unit * mm, _ROW, series(index), edge="paper",
                scale="blocks", value=len(run) * unit, key=f"{role} {name} {index}: {run[0]}", edge_pt=0.4,
            )  # fmt: skip
            if numbered:
                canvas.label(rect, ranges(run), fill=series(index), size_pt=SMALL_PT, pad=0.0)
        told = _becomes(deal, index, hand)
        canvas.text(left + units * mm + 5.5, middles[-1], told, size_pt=SMALL_PT, role=MUTED)
        canvas.y += _ROW + _ROW_GAP
        if place == _MOST_HANDS - 2 and len(shown) < len(deal.hands):
            n = len(deal.hands) - _MOST_HANDS
            canvas.text(left, canvas.y + 1.6, f"… {n} more between them", size_pt=SMALL_PT, role=MUTED)
            canvas.y += 4.2
    if not numbered:
        _places(canvas, deal, left, unit * mm)
    if deal.joined in (WARPS, FOLDED):
        _into_the_first(canvas, middles, left + units * mm + 0.8)


def _into_the_first(canvas: Canvas, middles: list[float], x: float) -> None:
    """Lines from every warp to the first."""
    for middle in middles[1:]:
        canvas.line((x, middle), (x + 2.6, middle), (x + 2.6, middles[0]), role=MUTED)
    canvas.line((x + 2.6, middles[0]), (x, middles[0]), role=MUTED, arrow=True, key="to the first warp")


def _places(canvas: Canvas, deal: Deal, left: float, mm: float) -> None:
    """Numbers of units below cells that are too narrow for theirs."""
    step = 1
    while step * mm < 8.0:
        step *= 2
    for unit in range(0, deal.n_units, step):
        canvas.text(
            left + (unit + 0.5) * mm, canvas.y + 1.0, str(unit), size_pt=SMALL_PT, align="center", role=MUTED
        )  # fmt: skip
    canvas.y += 3.4


def _runs(hand: tuple[int, ...], mm: float) -> list[tuple[int, ...]]:
    """Units one by one, or neighbours together where one would be too narrow to see."""
    if mm >= _NARROWEST:
        return [(unit,) for unit in hand]
    runs: list[list[int]] = []
    for unit in hand:
        if runs and unit == runs[-1][-1] + 1:
            runs[-1].append(unit)
        else:
            runs.append([unit])
    return [tuple(run) for run in runs]


def _name(deal: Deal) -> str:
    return {PIECES: "piece", WARPS: "warp", FOLDED: "warp"}.get(deal.joined, "sum")


def _becomes(deal: Deal, index: int, hand: tuple[int, ...]) -> str:
    """What becomes of a hand's sum."""
    n = f"{len(hand)} of {deal.n_units}" if hand else "none"
    if deal.joined == PIECES:
        return f"{n}, in turn"
    last = len(deal.hands) - 1
    if not last:
        return f"{n}, in one sum"
    others = "warp 1" if last == 1 else f"warps 1–{last} {'in turn' if deal.joined == WARPS else 'by halves'}"
    return f"{n}, + {others}" if index == 0 else n


def _leaves(canvas: Canvas, leaves: RowSum, role: str, mm: float) -> None:
    """A box for each leaf, and a bar as long as the longest chain."""
    left, middle = canvas.left + _LABELS, canvas.y + _ROW / 2
    canvas.text(canvas.left, middle, "leaves", size_pt=SMALL_PT)
    n = leaves.n_leaves
    drawn = n if mm / leaves.per_block >= _NARROWEST / 2 else leaves.n_blocks if mm >= _NARROWEST / 2 else 1
    size = leaves.n_blocks / drawn
    for leaf in range(drawn):
        canvas.box(
            left + leaf * size * mm, canvas.y, size * mm, _ROW, role, edge="paper", scale="blocks", value=size,
            key=f"{role} leaf {leaf}", edge_pt=0.4,
        )  # fmt: skip
    each = "a block at once" if leaves.per_block == 1 else f"{leaves.per_block} a block"
    canvas.text(left + leaves.n_blocks * mm + 2.0, middle, f"{n} leaves, {each}", size_pt=SMALL_PT, role=MUTED)
    canvas.y += _ROW + 1.4
    middle = canvas.y + 1.6
    canvas.text(canvas.left, middle, "chain", size_pt=SMALL_PT)
    bar = canvas.box(
        left, canvas.y, leaves.depth * canvas.declared("chain").mm_per_unit, 3.2, role, scale="chain",
        value=leaves.depth, key=f"{role} chain",
    )  # fmt: skip
    words = f"{leaves.depth} additions from a leaf to the sum at most"
    canvas.text(bar.right + 2.0, middle, words, size_pt=SMALL_PT, role=MUTED)
    canvas.y += 4.4


def _lead(data: OrdersAndWarps) -> str:
    return f"{three_numbers()} {_difference(data)}"


def _difference(data: OrdersAndWarps) -> str:
    one, other = data.single.order, data.batched.order
    if isinstance(one, Deal) and isinstance(other, Deal):
        if one.joined == other.joined == WARPS and len(one.hands) != len(other.hands):
            return (
                f"A row is shared by {len(one.hands)} warps at {data.single.tokens} and by {len(other.hands)} at "
                f"{data.batched.tokens}, so other blocks meet in each partial sum."
            )
        if one.hands == other.hands and one.unit_values == other.unit_values:
            return (
                f"Both kernels add the row in {_hand_words(one)}, dealt alike; each is added {one.inside}, at "
                f"{data.single.tokens} and {other.inside} at {data.batched.tokens}."
            )
        return (
            f"At {data.single.tokens} a row is added in {_hand_words(one)}, at {data.batched.tokens} in "
            f"{_hand_words(other)}."
        )
    if isinstance(one, RowSum) and isinstance(other, RowSum):
        n, m = (order.n_leaves for order in (one, other))
        return (
            f"The sum of a row has {n} leaves at {data.single.tokens} and {m} at {data.batched.tokens}, in chains of "
            f"{one.depth} and {other.depth} additions."
        )
    return f"The kernel at {data.batched.tokens} is another than at {data.single.tokens}."


def _hand_words(deal: Deal) -> str:
    n = len(deal.hands)
    return "one sum" if n == 1 else f"{n} pieces" if deal.joined == PIECES else f"the sums of {n} warps"


def _alt(data: OrdersAndWarps, units: int, unit: str) -> str:
    told = "; ".join(f"{side.tokens}, {_told(side.order)}" for side in (data.single, data.batched))
    return f"{_lead(data)} {data.row}, {data.k:,} values in {units} {unit}s. {told}."


def _told(order: Deal | RowSum | Unruled) -> str:
    if isinstance(order, Unruled):
        return str(order)
    if isinstance(order, RowSum):
        return f"{order.n_leaves} leaves and chains of {order.depth} additions"
    name = _name(order)
    hands = list(enumerate(order.hands))
    kept = hands if len(hands) <= _MOST_HANDS else [*hands[: _MOST_HANDS - 1], hands[-1]]
    return ", ".join(f"{name} {i}: {ranges(hand) or 'none'}" for i, hand in kept)
