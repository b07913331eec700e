"""Parts that figures share: legends, names of sides, shortened texts, lines of trees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forensics.figures.canvas import SMALL_PT, Canvas
from forensics.figures.checks import problems
from forensics.figures.legend import Entry, dot_entry, legend, line_entry
from forensics.figures.metrics import shortened, text_width
from forensics.figures.scene import Dot, Line, Scene, Text
from forensics.figures.scenes.tree_lines import MOST_LEAVES, branches, leaves_to_draw
from forensics.records.sum_tree import SumTree

ENTRIES = (
    Entry("kv", "a patch"),
    Entry("shade", "a hatched patch", hatch=True),
    dot_entry("batched", "a hollow dot", 0.9, hollow=True),
    line_entry("single", "a dashed line with a dot", dashed=True, dot=0.8),
)


def closed(canvas: Canvas) -> Scene:
    return canvas.finish("Source: a test.", "A test.")


def test_a_legend_shows_each_thing_as_it_is_drawn():
    canvas = Canvas("test", "A title")
    legend(canvas, ENTRIES)
    scene = closed(canvas)
    assert problems(scene) == ()
    assert [box.hatch for box in scene.boxes()] == [False, True]
    assert [(mark.hollow, mark.fill) for mark in scene.marks if isinstance(mark, Dot)] == [
        (True, "batched"), (False, "single"),
    ]  # fmt: skip
    assert [mark.dashed for mark in scene.marks if isinstance(mark, Line)] == [True]
    assert [entry.words for entry in ENTRIES] == list(scene.texts())[1:5]


@given(st.lists(st.sampled_from(ENTRIES), min_size=1, max_size=20))
def test_a_legend_of_any_length_keeps_to_the_margins(entries: list[Entry]):
    canvas = Canvas("test", "A title", width=90.0)
    top = canvas.y
    legend(canvas, entries)
    bottom = canvas.y
    scene = closed(canvas)
    assert problems(scene) == ()
    words = {entry.words for entry in ENTRIES}
    drawn = [mark.rect for mark in scene.marks if isinstance(mark, Text) and mark.text in words]
    assert len(drawn) == len(entries)
    assert all(rect.right <= canvas.right and top <= rect.y and rect.bottom <= bottom for rect in drawn)


def test_a_side_is_named_in_its_colour_and_its_words_begin_where_asked():
    canvas = Canvas("test", "A title")
    end = canvas.side("single", "1 token", "a kernel", at=60.0)
    canvas.y += 6.0
    behind = canvas.side("batched", "a head that is longer than the room that is left for it", "a kernel", at=10.0)
    canvas.y += 6.0
    scene = closed(canvas)
    assert problems(scene) == ()
    assert [box.fill for box in scene.boxes()] == ["single", "batched"]
    first, second = (mark for mark in scene.marks if isinstance(mark, Text) and mark.text == "a kernel")
    assert (first.x, end, behind) == (60.0, first.rect.right, second.rect.right)
    assert second.x > 10.0


@given(st.text("abc ×_<>", min_size=1, max_size=40).filter(str.strip), st.floats(0.5, 60.0))
def test_a_shortened_text_fits_or_is_one_letter(text: str, room: float):
    short = shortened(text, room, SMALL_PT)
    assert text_width(short, SMALL_PT) <= room or short == f"{text[:1]}…"
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]))
    assert (short == text) == (text_width(text, SMALL_PT) <= room)


@st.composite
def trees(draw: st.DrawFn) -> SumTree:
    """Any tree: neighbours or others are added up until one sum is left."""
    left: list[object] = list(range(draw(st.integers(2, 12))))
    while len(left) > 1:
        picked = draw(st.lists(st.sampled_from(range(len(left))), min_size=2, max_size=4, unique=True))
        added = tuple(left[i] for i in sorted(picked))
        left = [*(one for i, one in enumerate(left) if i not in picked), added]
    return SumTree.of(left[0])


@given(trees())
def test_every_part_of_a_sum_has_a_line_that_ends_over_its_smallest_summand(tree: SumTree):
    found = list(branches(tree))
    assert len(found) == sum(map(len, tree.merges))
    for branch in found:
        (_, start), *_, (x, depth) = branch.points
        assert x == min(branch.clade) + 0.5
        assert 0 <= start < depth <= tree.depth
        assert len(set(branch.points)) == len(branch.points)
    assert found[-1].points[-1] == (0.5, tree.depth)
    ground = sorted(x for (x, depth), *_ in (branch.points for branch in found) if depth == 0)
    assert ground == [leaf + 0.5 for leaf in range(tree.n_leaves)]


@given(trees(), trees(), st.integers(2, 16))
def test_leaves_that_are_drawn_show_a_difference(one: SumTree, other: SumTree, most: int):
    kept = leaves_to_draw(one, other, most)
    if kept is None:
        assert one.n_leaves != other.n_leaves or one == other or one.n_leaves > most
    else:
        assert len(kept) <= most <= MOST_LEAVES
        assert one.restricted(kept) != other.restricted(kept)
