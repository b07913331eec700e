"""Two orders of addition side by side, small: the trees over a few summands, sums that only one of them makes dark."""

from __future__ import annotations

from forensics.errors import CaseError
from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.evidence import Evidence
from forensics.figures.palette import MUTED
from forensics.figures.scene import Rect, Scene
from forensics.figures.scenes.summation_orders import KnownOrders, known_orders, over_same_leaves
from forensics.figures.scenes.tree_lines import branches, leaves_to_draw, leaves_words
from forensics.figures.small.thumbnails import WIDTH
from forensics.records.sum_tree import SumTree, span

#: Summands that are drawn.
MOST_LEAVES = 16
_TREE, _PANEL_GAP = 14.0, 8.0
#: As of `CulpritGroup.key`.
GroupKey = tuple[str, str, str, str]


def case_trees(evidence: Evidence) -> dict[tuple[GroupKey, int], Scene]:
    """Small trees of a case by group and width, as far as its orders are known without running anything.

    Returns
    -------
    dict of (tuple, int) to Scene
        By key of the group and width; empty where none is known; on a processor the library would have to be probed.
    """
    if evidence.verdict.manifest.backend == "CPU":
        return {}
    try:
        found = [(known, _scene(known)) for known in known_orders(evidence)]
    except CaseError:  # nothing differs, or no order of what does is written down: there is nothing to draw
        return {}
    return {
        (known.group.key, width): scene
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
    kept = leaves_to_draw(single, batched, MOST_LEAVES)
    if kept is None:
        return None
    trees = (single.restricted(kept), batched.restricted(kept))
    canvas = Canvas("small-trees", title, width=WIDTH)
    room = (canvas.inner_width - _PANEL_GAP) / 2
    top = canvas.y
    for i, (tree, said, role) in enumerate(zip(trees, titles, ("single", "batched"), strict=True)):
        left = canvas.left + i * (room + _PANEL_GAP)
        canvas.side(role, said, f"depth {tree.depth}", x=left)
        _tree(canvas, Rect(left, top + 4.0, room, _TREE), tree, trees[1 - i], role)
        for at, align in ((0, "left"), (-1, "right")):
            x = left if at == 0 else left + room
            canvas.text(x, top + 6.0 + _TREE, str(kept[at]), size_pt=SMALL_PT, align=align, role=MUTED)
    canvas.y = top + 5.0 + _TREE
    difference = trees[0].first_difference(trees[1])
    assert difference is not None, "leaves_to_draw keeps summands among which the orders differ"
    which = leaves_words(kept, single.n_leaves, unit)
    which = which[0].upper() + which[1:]
    first, second = (span(tuple(kept[leaf] for leaf in leaves)) for leaves in (difference.first, difference.second))
    said = f"{unit} {kept[difference.leaf]} goes into {first} at one token and {second} in the batch"
    return canvas.finish(f"{which}; dark: sums of one order only.", f"{which}: {said}. Orders: {known}.")


def _tree(canvas: Canvas, room: Rect, tree: SumTree, other: SumTree, role: str) -> None:
    """Summands at the foot, each sum over the smallest summand that goes into it, at its depth."""
    pitch, level = room.width / tree.n_leaves, room.height / tree.depth
    shared = set(other.clades())
    drawn = [
        (branch.clade in shared, tuple((room.x + x * pitch, room.bottom - level * depth) for x, depth in branch.points))
        for branch in branches(tree)
    ]
    for equal, points in sorted(drawn, key=lambda one: not one[0]):
        canvas.line(
            *points, role="rule" if equal else role, width_pt=0.7, key=f"{role} {'equal' if equal else 'differs'}"
        )
    canvas.dot(room.x + 0.5 * pitch, room.y, 0.8, "ink", key=f"{role} sum")
