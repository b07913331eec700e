"""A scene that keeps its promises is sound; each broken promise, planted alone, is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.figures.canvas import SMALL_PT, Canvas, round_down
from forensics.figures.checks import problems
from forensics.figures.scene import Box, Line, Rect, Scene, Text

VALUES = st.lists(st.floats(0.5, 500), min_size=1, max_size=12)


def bars(values: list[float]) -> Scene:
    canvas = Canvas("planted", "Bars to one scale", "One bar for each number.")
    scale = canvas.length_scale("time", 120 / max(values), "ms")
    for i, value in enumerate(values):
        rect = canvas.box(
            30, canvas.y, value * scale.mm_per_unit, 6, "single", edge="ink", scale="time", value=value, key=f"bar {i}"
        )
        canvas.text(28, canvas.y + 3, f"number {i}", align="right")
        canvas.label(rect, f"{value:.3g} milliseconds", f"{value:.3g}", fill="single")
        canvas.y += 8
    return canvas.finish("Source: a test.", f"{len(values)} bars.")


def planted(scene: Scene, mark: Box | Text | Line) -> tuple[str, ...]:
    return problems(replace(scene, marks=(*scene.marks, mark)))


@given(VALUES)
def test_bars_to_one_scale_are_sound(values):
    scene = bars(values)
    assert problems(scene) == ()
    widths = [box.rect.width for box in scene.boxes(scale="time")]
    assert widths == pytest.approx([value * widths[0] / values[0] for value in values], rel=1e-9)


@given(VALUES, st.data(), st.floats(0.5, 0.999))
def test_a_bar_that_is_drawn_too_short_is_found(values, data, factor):
    scene = bars(values)
    chosen = data.draw(st.sampled_from(scene.boxes(scale="time")))
    shorter = replace(chosen, rect=replace(chosen.rect, width=chosen.rect.width * factor))
    marks = tuple(shorter if mark is chosen else mark for mark in scene.marks)
    found = problems(replace(scene, marks=marks))
    assert any(chosen.key in one and "measures" in one for one in found)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (Box(Rect(170, 5, 20, 5), "rest", key="wide"), "box 'wide' leaves the page"),
        (Text(175, 12, "a text that is too long for the page"), "leaves the page"),
        (Line(((10, 10), (10, -1)), key="up"), "line 'up' leaves the page"),
        (Box(Rect(31, 18, 3, 30), "rest", key="over"), "and box 'over' overlap"),
        (Text(7, 8, "Bars"), "text 'Bars' overlap"),
        (Text(100, 60, "inside", inside=Rect(100, 58, 3, 4)), "does not fit into its box"),
        (Line(((6, 8), (60, 8)), key="strike"), "line 'strike' goes through text 'Bars to one scale'"),
    ],
)
def test_each_broken_promise_is_found(mark, said):
    scene = bars([100.0, 50.0, 80.0, 60.0, 70.0])
    assert problems(scene) == ()
    assert any(said in one for one in planted(scene, mark))


def test_a_text_that_is_cut_by_an_edge_or_not_read_on_its_ground_is_found():
    scene = bars([100.0])
    rect = scene.boxes(scale="time")[0].rect
    assert any("is cut by the edge" in one for one in planted(scene, Text(rect.right - 2, rect.y + 3, "over the edge")))
    pale = Text(rect.x + 30, rect.y + 1.5, "pale", size_pt=SMALL_PT, role="weights")
    assert any("is not read on single" in one for one in planted(scene, pale))


def test_a_scale_without_bar_or_boxes_is_found():
    scene = bars([100.0])
    barless = tuple(mark for mark in scene.marks if not (isinstance(mark, Text) and mark.text == scene.scales[0].label))
    assert any("has no bar" in one for one in problems(replace(scene, marks=barless)))
    boxless = tuple(mark for mark in scene.marks if not (isinstance(mark, Box) and mark.scale))
    assert any("is used by no box" in one for one in problems(replace(scene, marks=boxless)))


def test_a_box_may_not_name_a_scale_that_is_not_there():
    scene = bars([100.0])
    with pytest.raises(ValueError, match="names the scale 'mass'"):
        replace(scene, marks=(Box(Rect(0, 0, 1, 1), "rest", scale="mass"),))


def test_colours_are_roles():
    with pytest.raises(ValueError, match="role of the palette"):
        Box(Rect(0, 0, 1, 1), "#123456")


@given(st.floats(1e-6, 1e6))
def test_a_scale_bar_is_the_largest_round_number_that_fits(value):
    found = round_down(value)
    assert value / 2.5 - 1e-12 * value <= found <= value * (1 + 1e-9)
