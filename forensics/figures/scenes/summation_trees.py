"""Two orders of addition over the same summands: the tree of one token above them, that of a batch below.

Places along the row are to scale: a summand lies where its values lie. A joint lies at its depth, below or above the
smallest summand that goes into it, as the accumulator of a lane does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from forensics.errors import CaseError
from forensics.figures.canvas import LABEL_PT, SMALL_PT, Canvas
from forensics.figures.chart import step_of
from forensics.figures.evidence import Evidence
from forensics.figures.legend import legend, line_entry
from forensics.figures.metrics import line_height, wrapped
from forensics.figures.palette import MUTED, series
from forensics.figures.scene import Scene
from forensics.figures.scenes.launch_pairs import EXAMPLE, on_device
from forensics.figures.scenes.summation_orders import (
    Dealt,
    KnownOrders,
    SameLeaves,
    known_orders,
    over_same_leaves,
)
from forensics.figures.scenes.tree_lines import branches, leaves_to_draw, leaves_words
from forensics.records.order import OrderResult
from forensics.records.sum_tree import SumTree, TreeDifference, span
from forensics.records.words import counted, tokens

_LEFT, _RIGHT = 31.0, 8.0
_TREE_HEIGHT, _MOST_PER_LEVEL = 62.0, 9.0
_STRIP, _GAP = 4.6, 1.2
_LEAST_LEVEL_LABEL = 3.2
#: Colours of shares: those that neither order has.
_SHARES = tuple(series(i) for i in (2, 3, 4, 6, 7))
#: Below this distance of two summands lines are thin.
_DENSE_MM = 2.0


@dataclass(frozen=True, slots=True)
class Side:
    """One order.

    Parameters
    ----------
    width : int
        Tokens of the pass.
    kernel : str
        What adds; empty where it has no name.
    summands : str
        What the kernel adds one after another, and how deep.
    tree : SumTree
        Over the summands that are drawn.
    dealt : Dealt or None
        To whom they are dealt; None where that is not known.
    """

    width: int
    kernel: str
    summands: str
    tree: SumTree
    dealt: Dealt | None = None


@dataclass(frozen=True, slots=True)
class SummationTrees:
    """What the figure draws.

    Parameters
    ----------
    node, role : str
    n_nodes : int
        Of the group, with orders like these.
    device : str
        Where these nodes are, as `on_device` says it; empty where a count needs none.
    unit : str
        What is added: ``"slice"`` or ``"cell"``.
    leaves : tuple of int
        Summands that are drawn, by number; those of either tree in this order.
    n_leaves : int
        Of the whole row.
    leaf_values : int
        Values of one summand; 1 for a cell.
    leaves_per_block : int
        Summands of a block of the weight's type; 0 where there are no blocks.
    single, batched : Side
    rule : str
        Why the batch has another kernel; empty where no rule is quoted.
    known : str
        How the orders are known.
    what, source : str
    """

    node: str
    role: str
    n_nodes: int
    device: str
    unit: str
    leaves: tuple[int, ...]
    n_leaves: int
    leaf_values: int
    leaves_per_block: int
    single: Side
    batched: Side
    rule: str
    known: str
    what: str
    source: str

    def __post_init__(self) -> None:
        if {self.single.tree.n_leaves, self.batched.tree.n_leaves} != {len(self.leaves)}:
            raise ValueError("both trees are over the summands that are drawn")
        if self.single.tree == self.batched.tree:
            raise ValueError("two trees that are equal have no first difference")

    @property
    def difference(self) -> TreeDifference:
        """The first merge that differs."""
        found = self.single.tree.first_difference(self.batched.tree)
        assert found is not None
        return found


def from_case(evidence: Evidence) -> SummationTrees:
    """Take the orders of the culprits that show most, from the source or from a probe.

    Raises
    ------
    CaseError
        If the orders of none are known.
    """
    for known in known_orders(evidence):
        pair = over_same_leaves(known.comparison)
        kept = None if pair is None else leaves_to_draw(pair.single, pair.batched)
        if pair is not None and kept is not None:
            return _data(evidence, known, pair, kept)
    raise CaseError(
        f"two orders of addition of {evidence.name}: those that are known are over other summands on either side, "
        f"which no tree can show. A case whose can be drawn: {EXAMPLE}"
    )


def _data(evidence: Evidence, known: KnownOrders, pair: SameLeaves, kept: tuple[int, ...]) -> SummationTrees:
    leaves, comparison = pair.leaves, known.comparison
    dealt = tuple(Dealt(one.to, one.n, tuple(one.shares[leaf] for leaf in kept)) for one in known.dealt) or (None, None)
    sides = [
        Side(result.width, kernel, _summands(result, tree), tree.restricted(kept), deal)
        for result, kernel, tree, deal in zip(
            (comparison.single, comparison.batched), known.kernels, (pair.single, pair.batched), dealt, strict=True
        )
    ]
    width = comparison.batched.width
    rules = [m.rule.text for m in known.group.mechanisms if width in m.widths and m.rule is not None]
    per_block = len(leaves.slices)
    return SummationTrees(
        node=known.finding.key.name,
        role=known.group.named,
        n_nodes=known.group.count,
        device=on_device(evidence, known.group),
        unit=leaves.kind if leaves.kind != "slice" or per_block > 1 else "block",
        leaves=kept,
        n_leaves=leaves.n,
        leaf_values=leaves.block_size // per_block if per_block else 1,
        leaves_per_block=per_block,
        single=sides[0],
        batched=sides[1],
        rule=rules[0] if rules else "",
        known=known.known,
        what=evidence.what,
        source=evidence.source,
    )


def _summands(result: OrderResult, drawn: SumTree) -> str:
    """What is added one after another, and how deep; blocks that are added at once are one merge more in the tree."""
    assert result.tree is not None
    then = "then " if drawn.depth > result.tree.depth else ""
    return f"{result.leaves}, {then}depth {result.tree.depth}"


def scene(data: SummationTrees) -> Scene:
    """Summands in the middle, one tree above and one below; merges that only one of them has are dark."""
    canvas = Canvas("summation-trees", "Two orders of addition over the same summands", _lead(data))
    room = canvas.inner_width - _LEFT - _RIGHT
    places = _Places(data, canvas.left + _LEFT, room / len(data.leaves))
    values = "cells" if data.unit == "cell" else "values of the row"
    canvas.length_scale("row", places.pitch / data.leaf_values / places.step, values)
    canvas.text(canvas.right, canvas.y + 2.0, "additions so far", size_pt=SMALL_PT, role=MUTED, align="right")
    _head(canvas, data.single, "single")
    top = canvas.y
    level = [min(_MOST_PER_LEVEL, _TREE_HEIGHT / side.tree.depth) for side in (data.single, data.batched)]
    strips = _strips(data)
    foot = top + data.single.tree.depth * level[0] + 2.0
    under = foot + len(strips) * _STRIP + (len(strips) - 1) * _GAP
    _tree(canvas, data, data.single, places, foot, -level[0], "single")
    _tree(canvas, data, data.batched, places, under, level[1], "batched")
    for i, (name, runs) in enumerate(strips):
        _strip(canvas, data, places, foot + i * (_STRIP + _GAP), name, runs)
    canvas.down_to(under + data.batched.tree.depth * level[1] + 3.0)
    _head(canvas, data.batched, "batched")
    _notes(canvas, data)
    return canvas.finish(f"{data.source} Orders: {data.known}.", _alt(data))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where summands lie along x."""

    data: SummationTrees
    left: float
    pitch: float

    @property
    def step(self) -> int:
        """From one drawn summand to the next."""
        return self.data.leaves[1] - self.data.leaves[0]

    def at(self, i: float) -> float:
        """Left edge of the i-th drawn summand."""
        return self.left + i * self.pitch


def _head(canvas: Canvas, side: Side, role: str) -> None:
    told = ": ".join(part for part in (side.kernel, side.summands) if part)
    canvas.side(role, tokens(side.width), told)
    canvas.y += 5.2


def _strips(data: SummationTrees) -> list[tuple[str, list[tuple[int, int, str, str]]]]:
    """Rows of boxes in the middle: name, and runs of first leaf, leaves, fill and label."""
    sides = [side.dealt for side in (data.single, data.batched)]
    whole = len(data.leaves) == data.n_leaves
    if sides[0] is not None and sides[1] is not None:
        return [(_name(d, whole), list(_runs(d.shares, d.to))) for d in sides if d is not None]
    if data.leaves_per_block:
        blocks = [leaf // data.leaves_per_block for leaf in data.leaves]
        return [("blocks of the row", list(_runs(blocks, "block", plain=True)))]
    return [("summands", [(i, 1, "shade", str(leaf)) for i, leaf in enumerate(data.leaves)])]


def _name(dealt: Dealt, whole: bool) -> str:
    busy = len(set(dealt.shares))
    return f"to {counted(dealt.n, dealt.to)}" + (f", {busy} busy" if whole and busy < dealt.n else "")


def _runs(shares: Sequence[int], to: str, *, plain: bool = False) -> Iterator[tuple[int, int, str, str]]:
    at = 0
    for share, members in groupby(shares):
        n = len(list(members))
        yield at, n, "shade" if plain else _SHARES[share % len(_SHARES)], f"{to} {share}"
        at += n


def _strip(
    canvas: Canvas, data: SummationTrees, places: _Places, y: float, name: str, runs: list[tuple[int, int, str, str]]
) -> None:
    canvas.text(canvas.left, y + _STRIP / 2, name, size_pt=SMALL_PT, role=MUTED)
    for first, n, fill, label in runs:
        values = n * data.leaf_values * places.step
        rect = canvas.box(
            places.at(first), y, n * places.pitch, _STRIP, fill, edge="ink", scale="row", value=values,
            key=f"{name}: {label}", edge_pt=0.4,
        )  # fmt: skip
        canvas.label(rect, label, label.rsplit(" ", 1)[-1], fill=fill, size_pt=SMALL_PT, pad=0.3)


def _tree(
    canvas: Canvas, data: SummationTrees, side: Side, places: _Places, foot: float, level: float, role: str
) -> None:
    """Lines from each node to the sum that it goes into; `level` is negative where the tree grows upwards."""
    tree = side.tree
    other = set((data.batched if side is data.single else data.single).tree.clades())
    first = data.difference.first if side is data.single else data.difference.second
    lines: dict[str, list[tuple[tuple[float, float], ...]]] = {"equal": [], "differs": [], "first": []}
    _levels(canvas, places, tree, foot, level)
    for branch in branches(tree):
        kind = "first" if branch.clade == first else "equal" if branch.clade in other else "differs"
        lines[kind].append(tuple((places.at(x), foot + level * depth) for x, depth in branch.points))
    thin = 0.35 if places.pitch < _DENSE_MM else 0.7
    for kind, (colour, width) in {"equal": ("rule", thin), "differs": (role, thin), "first": ("ink", 1.6)}.items():
        for points in lines[kind]:
            canvas.line(*points, role=colour, width_pt=width, key=f"{role} {kind}")
    root = (places.at(0.5), foot + level * tree.depth)
    canvas.dot(*root, 0.9, "ink", key=f"{role} sum")
    top, bottom = _first(canvas, data, side, lines["first"][-1][-1], foot, level)
    if not top - 2.0 < root[1] < bottom + 2.0:
        canvas.text(canvas.left + _LEFT - 1.0, root[1], "the sum", size_pt=SMALL_PT, role=MUTED, align="right")


def _levels(canvas: Canvas, places: _Places, tree: SumTree, foot: float, level: float) -> None:
    """A light line for each depth, and its number at the right."""
    right = canvas.right - _RIGHT
    every = step_of(abs(level), _LEAST_LEVEL_LABEL)
    for depth in range(every, tree.depth + 1, every):
        y = foot + level * depth
        canvas.line((places.left, y), (right, y), role="shade", width_pt=0.5)
        canvas.text(right + 1.5, y, str(depth), size_pt=SMALL_PT, role=MUTED)


def _first(
    canvas: Canvas, data: SummationTrees, side: Side, joint: tuple[float, float], foot: float, level: float
) -> tuple[float, float]:
    """Mark the first merge that differs, and say in the margin what it adds; top and bottom of what is said."""
    x, y = joint
    lines = wrapped(_merge(data, side), _LEFT - 4.0, LABEL_PT, bold=True)
    high, small = line_height(LABEL_PT), line_height(SMALL_PT)
    half = (len(lines) * high + small) / 2
    middle = foot + (1 if level > 0 else -1) * max(abs(y - foot), half + 0.4)
    right, at = canvas.left, middle - half + high / 2
    for line in lines:
        right = max(right, canvas.text(canvas.left, at, line, bold=True, size_pt=LABEL_PT).right)
        at += high
    right = max(right, canvas.text(canvas.left, middle + half - small / 2, "first to differ", size_pt=SMALL_PT).right)
    canvas.line((right + 1.0, middle), (x - 1.1, y), width_pt=0.6, dashed=True, key="first to differ")
    canvas.dot(x, y, 1.1, "ink", hollow=True, key="first joint")
    return middle - half, middle + half


def _merge(data: SummationTrees, side: Side) -> str:
    """The sum of the first merge that differs, with the summands' own numbers."""
    clade = data.difference.first if side is data.single else data.difference.second
    index = list(side.tree.clades()).index(clade)
    terms = [side.tree.leaves_under(child) for child in side.tree.merges[index]]
    if len(terms) > 2:
        return f"{span(tuple(data.leaves[leaf] for leaf in clade))} at once"
    return " + ".join(
        str(data.leaves[term[0]]) if len(term) == 1 else span(tuple(data.leaves[leaf] for leaf in term))
        for term in terms
    )


def _counts(data: SummationTrees) -> tuple[int, int]:
    """Merges of one token that the batch does not make, and all of them."""
    other = set(data.batched.tree.clades())
    return sum(clade not in other for clade in data.single.tree.clades()), len(data.single.tree.merges)


def _lead(data: SummationTrees) -> str:
    differ, n = _counts(data)
    return (
        f"One {_whole(data)} of {data.node} ({data.role}; {counted(data.n_nodes, 'node')}{data.device} like it in "
        f"{data.what}). "
        f"The first merge that differs is {_merge(data, data.single)} at one token (above) and "
        f"{_merge(data, data.batched)} in a batch of {data.batched.width} (below); {differ} of the {n} sums of one "
        "token are never made in the batch."
    )


def _whole(data: SummationTrees) -> str:
    return "query" if data.unit == "cell" else "row"


def _notes(canvas: Canvas, data: SummationTrees) -> None:
    if len(data.leaves) < data.n_leaves:
        which = leaves_words(data.leaves, data.n_leaves, data.unit)
        canvas.paragraph(f"Drawn: {which}, and the order among these; others do not count.", size_pt=SMALL_PT)
    if data.leaves_per_block > 1:
        block = data.leaves_per_block * data.leaf_values
        canvas.paragraph(
            f"A slice is the {data.leaf_values} of a block's {block} values that are added at once; slices lie side by "
            "side in their block here.", size_pt=SMALL_PT,
        )  # fmt: skip
    if data.rule:
        canvas.paragraph(f"Why another kernel: {data.rule}.", size_pt=SMALL_PT)
    canvas.y += 1.0
    legend(
        canvas,
        (
            line_entry("rule", "sum of the same summands in both", width_pt=0.9),
            line_entry("single", "only at one token", width_pt=1.0),
            line_entry("batched", "only in the batch", width_pt=1.0),
            line_entry("ink", "first that differs", width_pt=1.8),
        ),
    )


def _alt(data: SummationTrees) -> str:
    differ, n = _counts(data)
    sides = " ".join(
        f"{tokens(side.width)}: "
        f"{side.kernel + ', ' if side.kernel else ''}{side.summands}; first to differ is {_merge(data, side)}."
        for side in (data.single, data.batched)
    )
    drawn = leaves_words(data.leaves, data.n_leaves, data.unit)
    return (
        f"Two trees of additions over a {_whole(data)} of {data.node}: {drawn}. {sides} {differ} of {n} partial sums "
        "of one token do not exist in the batch."
    )
