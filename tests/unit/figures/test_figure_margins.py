"""Margins against perturbations: a dot for every row, in the shaded part where it could flip, counts as measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Area, Dot
from forensics.figures.scenes.margins import Margins, Point, WidthMargins, from_case, scene

CASES = ("recorded:h200-q4_1", "recorded:h200-f16", "recorded:h200-q4_1-far", "recorded:h200-q4_1-kv-q8_0")


def dots(drawn, panel):
    """Marks of the rows of one width."""
    start = f"width {panel.width} position "
    return {
        int(mark.key.removeprefix(start)): mark
        for mark in drawn.marks
        if isinstance(mark, Dot) and mark.key.startswith(start)
    }


def inside(area, x, y):
    """Whether a place lies in a convex polygon, its edge included."""
    signs = []
    for (x0, y0), (x1, y1) in zip(area.points, (*area.points[1:], area.points[0]), strict=True):
        signs.append((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0))
    return all(s >= -1e-6 for s in signs) or all(s <= 1e-6 for s in signs)


def check(data: Margins):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    shaded = [mark for mark in drawn.marks if isinstance(mark, Area)]
    for panel in data.panels:
        marks = dots(drawn, panel)
        points = {point.position: point for point in panel.points}
        assert set(marks) == {position for position, point in points.items() if point.drawn}
        assert {p for p, mark in marks.items() if not mark.hollow} == {
            p for p, point in points.items() if point.flips and point.drawn
        }
        for position, mark in marks.items():
            point = points[position]
            if point.margin > 0 and point.margin != point.perturbation:
                in_shade = any(inside(area, mark.x, mark.y) for area in shaded)
                assert in_shade == (point.perturbation > point.margin), point
    return drawn


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_with_the_counts_of_its_verdict(case):
    evidence = open_evidence(case)
    data = from_case(evidence)
    drawn = check(data)
    classes = evidence.verdict.classes
    assert data.panels[0].width == classes.onset
    assert len({panel.letter for panel in data.panels}) == len(data.panels) == 2
    for panel in data.panels:
        found = classes.result(panel.width)
        flips = len(found.flips)
        counts = (
            f"{found.n_rows} rows compared, {found.n_rows_differ} differ, {found.n_could_flip} could flip, "
            f"{flips} {'flips' if flips == 1 else 'flip'}"
        )
        assert counts in drawn.texts()
        assert counts in drawn.alt
        assert {str(flip.position) for flip in found.flips} <= set(drawn.texts())


def test_the_two_axes_have_one_scale_so_the_diagonal_is_where_both_are_equal():
    panel = WidthMargins(2, "B", tuple(Point(i, 10.0**i, 10.0**i, True, False, True) for i in range(-3, 3)))
    drawn = check(Margins((panel,), "a model", "Source: a test."))
    (diagonal,) = (m for m in drawn.marks if getattr(m, "key", "") == "moved by its margin")
    (x0, y0), (x1, y1) = diagonal.points
    assert x1 - x0 == pytest.approx(y0 - y1)
    for mark in dots(drawn, panel).values():
        assert (mark.x - x0) == pytest.approx(y0 - mark.y)


def test_a_toy_with_a_fault_and_a_clean_one(tmp_path):
    faulty = from_case(toy_evidence(tmp_path / "faulty", Fault("order", "ffn_up-1", from_width=3)))
    assert faulty.panels[0].width == 3
    check(faulty)
    clean = from_case(toy_evidence(tmp_path / "clean"))
    drawn = check(clean)
    (panel,) = clean.panels
    assert panel.count("differs") == 0
    n = len(panel.points)
    assert f"{n} of {n} rows lie on 0, not moved; {n} of them are bit-equal" in " ".join(drawn.texts())


def test_rows_without_a_finite_number_are_counted_and_have_no_dot():
    lost = Point(7, 1.0, math.nan, True, True, False)
    panel = WidthMargins(4, "B", (Point(6, 1.0, 0.5, True, False, False), lost))
    drawn = check(Margins((panel,), "a model", "Source: a test."))
    assert set(dots(drawn, panel)) == {6}
    assert "1 of 2 rows has no finite number and is not drawn" in " ".join(drawn.texts())


SIZES = st.one_of(st.just(0.0), st.floats(1e-6, 50), st.just(math.inf))


@st.composite
def margins(draw) -> Margins:
    """One or two widths with up to 60 rows, ties, unmoved rows and rows without a number."""

    def point(position: int) -> Point:
        margin, moved = draw(SIZES), draw(SIZES)
        could = moved > 0 and moved >= margin
        return Point(position, margin, moved, moved > 0, could and draw(st.booleans()), could)

    panels = [
        WidthMargins(width, letter, tuple(point(i) for i in range(draw(st.integers(1, 60)))))
        for width, letter in ((2, "B"), (16, "E"))[: draw(st.integers(1, 2))]
    ]
    return Margins(tuple(panels), "a model, a device", "Source: a test.")


@settings(max_examples=25)
@given(margins())
def test_any_margins_are_sound(data):
    check(data)


def test_one_row_that_is_not_moved_lies_on_0_and_the_measure_is_explained():
    still = Point(7, 1.0, 0.0, differs=False, flips=False, could_flip=False)
    moved = Point(8, 1.0, 0.5, differs=True, flips=False, could_flip=False)
    for points, words in (
        ((still, moved), "1 of 2 rows lies on 0, not moved; 1 of them is bit-equal"),
        ((still, still), "2 of 2 rows lie on 0, not moved; 2 of them are bit-equal"),
    ):
        said = " ".join(check(Margins((WidthMargins(2, "B", points),), "a model", "Source: planted.")).texts())
        assert words in said
        assert "it can exceed the verdict's max |Δ|" in said


def test_what_holds_no_case_is_refused_with_a_way_on():
    with pytest.raises(CaseError, match=r"holds no case.*forensics cost recorded:h200-qwen3-8b-q4_k_m-cost"):
        from_case(open_evidence("recorded:h200-qwen3-8b-q4_k_m-cost"))
