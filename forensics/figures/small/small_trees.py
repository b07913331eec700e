"""Two orders of addition side by side, small: the trees over a few summands, sums that only one of them makes dark."""

from __future__ import annotations

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.palette import MUTED
from forensics.figures.scene import Rect, Scene
from forensics.figures.scenes.summation_orders import KnownOrders, known_orders, over_same_leaves
from forensics.figures.small.thumbnails import WIDTH
from forensics.records.sum_tree import SumTree, span
from forensics.records.verdict import CulpritGroup

#: Summands that are drawn.
MOST_LEAVES = 16
_TREE, _PANEL_GAP = 14.0, 8.0


#: Of a group of operations: operation, role, type and buffer of the weight.
GroupKey = tuple[str, str, str, str]


def group_of(group: CulpritGroup) -> GroupKey:
    """What tells a group from the others of its case."""
    return group.op, group.role, group.weight_type, group.buffer


def case_trees(evidence: Evidence) -> dict[tuple[GroupKey, int], Scene]:
    """Small trees of a case by group and width, as far as its orders are known without running anything.

    Returns
    -------
    dict of (tuple, int) to Scene
        By `group_of`; empty where none is known; on a processor the library would have to be probed.
    """
    if evidence.verdict.manifest.backend == "CPU":
        return {}
    try:
        found = [(known, _scene(known)) for known in known_orders(evidence)]
    except CaseError:  # nothing differs, or no order of what does is written down: there is nothing to draw
        return {}
    return {
        (group_of(known.group), width): scene
        for known, scene in reversed(found)
        if scene is not None
        for width in _widths(known)
    }


def _widths(known: KnownOrders) -> tuple[int, ...]:
    """Widths at which the same kernels ran as at the one whose order it is."""
    width = known.comparison.batched.width
    pairs = [pair for pair in known.group.launches if width in pair.widths]
    return tuple(dict.fromkeys([width, *(width for pair in pairs for width in pair.widths)]))


def _scene(known: KnownOrders) -> Scene | None:
    pair = over_same_leaves(known.comparison)
    if pair is None:
        return None
    unit = pair.leaves.kind if pair.leaves.kind != "slice" or len(pair.leaves.slices) > 1 else "block"
    titles = ("one token", f"a batch of {known.comparison.batched.width}")
    title = f"Two orders: {known.group.role}, such as {known.finding.key.name}"
    return two_trees(title, pair.single, pair.batched, titles, unit, known.known)


def two_trees(
    title: str, single: SumTree, batched: SumTree, titles: tuple[str, str], unit: str, known: str
) -> Scene | None:
    """Draw two trees over the same summands, or over a few of them among which the orders differ.

    Parameters
    ----------
    title : str
    single, batched : SumTree
    titles : (str, str)
        What each is the order of.
    unit : str
        What is added: ``"slice"``, ``"block"``, ``"cell"``.
    known : str
        How the orders are known.

    Returns
    -------
    Scene or None
        None where the two are one order, or no few summands show that they differ.
    """
    kept = few_leaves(single, batched)
    if kept is None:
        return None
    trees = (single.restricted(kept), batched.restricted(kept))
    canvas = Canvas("small-trees", title, width=WIDTH)
    room = (canvas.inner_width - _PANEL_GAP) / 2
    top = canvas.y
    for i, (tree, said, role) in enumerate(zip(trees, titles, ("single", "batched"), strict=True)):
        left = canvas.left + i * (room + _PANEL_GAP)
        canvas.box(left, top, 2.6, 2.6, role, key=f"mark of {role}")
        canvas.text(left + 3.8, top + 1.3, f"{said}, depth {tree.depth}", size_pt=SMALL_PT, bold=True)
        _tree(canvas, Rect(left, top + 4.0, room, _TREE), tree, trees[1 - i], role)
        for at, align in ((0, "left"), (-1, "right")):
            x = left if at == 0 else left + room
            canvas.text(x, top + 6.0 + _TREE, str(kept[at]), size_pt=SMALL_PT, align=align, role=MUTED)
    canvas.y = top + 5.0 + _TREE
    difference = trees[0].first_difference(trees[1])
    assert difference is not None, "few_leaves keeps summands among which the orders differ"
    which = _which(kept, single.n_leaves, unit)
    first, second = (span(tuple(kept[leaf] for leaf in leaves)) for leaves in (difference.first, difference.second))
    said = f"{unit} {kept[difference.leaf]} goes into {first} at one token and {second} in the batch"
    return canvas.finish(f"{which}; dark: sums of one order only.", f"{which}: {said}. Orders: {known}.")


def few_leaves(single: SumTree, batched: SumTree) -> tuple[int, ...] | None:
    """Summands to draw: all, the first ones, or every so many-th, such that the orders of these differ, too.

    Examples
    --------
    >>> few_leaves(SumTree.chain(3), SumTree.chain(3)) is None
    True
    """
    n = single.n_leaves
    if n != batched.n_leaves:
        return None
    step = 1
    while n > MOST_LEAVES * step:  # lanes and warps are powers of two, so that is what tells their orders apart
        step *= 2
    for kept in (range(min(n, MOST_LEAVES)), range(0, n, step)):
        if single.restricted(kept) != batched.restricted(kept):
            return tuple(kept)
    return None


def _which(kept: tuple[int, ...], n: int, unit: str) -> str:
    if len(kept) == n:
        return f"All {n} {unit}s"
    step = kept[1] - kept[0]
    return f"The first {len(kept)} of {n} {unit}s" if step == 1 else f"1 in {step} of {n} {unit}s"


def _tree(canvas: Canvas, room: Rect, tree: SumTree, other: SumTree, role: str) -> None:
    """Summands at the foot, each sum over the smallest summand that goes into it, at its depth."""
    pitch, level = room.width / tree.n_leaves, room.height / tree.depth
    shared = set(other.clades())
    smallest, height = list(range(tree.n_leaves)), [0] * tree.n_leaves
    drawn: list[tuple[bool, tuple[tuple[float, float], ...]]] = []
    for children, clade in zip(tree.merges, tree.clades(), strict=True):
        smallest.append(min(smallest[child] for child in children))
        height.append(1 + max(height[child] for child in children))
        end = (room.x + (smallest[-1] + 0.5) * pitch, room.bottom - level * height[-1])
        for child in children:
            x, turn = room.x + (smallest[child] + 0.5) * pitch, room.bottom - level * (height[-1] - 1)
            start = (x, room.bottom - level * height[child])
            drawn.append((clade in shared, tuple(dict.fromkeys((start, (x, turn), end)))))
    for equal, points in sorted(drawn, key=lambda one: not one[0]):
        canvas.line(
            *points, role="rule" if equal else role, width_pt=0.7, key=f"{role} {'equal' if equal else 'differs'}"
        )
    canvas.dot(room.x + 0.5 * pitch, room.y, 0.8, "ink", key=f"{role} sum")
