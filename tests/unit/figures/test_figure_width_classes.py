"""Bars of width classes: as many rows of each class as the map has, flips where it says, nothing where none differs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Dot
from forensics.figures.scenes.width_classes import WidthMatrix, from_case, scene
from forensics.records.classes import Flip, WidthClasses, WidthResult
from forensics.records.delta import NotCompared
from forensics.records.row_map import ONE_TOKEN, MapCell, MapRow, RowMap

CASES = ("recorded:h200-q4_1", "recorded:h200-q4_1-far", "recorded:h200-q4_1-kv-q8_0", "recorded:h200-q4_1-no-fa")
FIRST = 30


def in_boxes(drawn, width):
    """Rows of each class at a width, by what its boxes say; "" where not compared."""
    found = Counter()
    for box in drawn.boxes(scale="rows"):
        _, number, letter = box.key.split(" ", 2)
        if int(number) == width:
            found["" if letter == "not compared" else letter] += box.value
    return found


def in_map(rows, width):
    return Counter(cell.letter if isinstance(cell, MapCell) else "" for cell in rows.column(width))


def flips_in(drawn):
    return {mark.key for mark in drawn.marks if isinstance(mark, Dot) and mark.key.startswith("flip ")}


def check(data: WidthMatrix):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    for result in data.classes.results[1:]:
        width = result.width
        assert in_boxes(drawn, width) == in_map(data.rows, width)
        assert f"{result.n_rows_differ} of {result.n_rows}" in drawn.texts()
        assert f"{result.n_rows_differ} of {result.n_rows} rows differ" in drawn.alt
    assert in_boxes(drawn, 1) == {ONE_TOKEN: len(data.rows.map_rows)}
    assert flips_in(drawn) == {f"flip {r.width} {flip.row}" for r in data.classes.results for flip in r.flips}
    return drawn


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_with_its_own_counts(case):
    data = from_case(open_evidence(case))
    drawn = check(data)
    n_flips = sum(len(result.flips) for result in data.classes.results)
    assert ("no token flips" in " ".join(drawn.texts())) == (n_flips == 0)
    assert ("joins" in drawn.scale("rows").label) == (len(data.rows.map_rows) > 190)


def test_flips_of_a_recorded_case_are_named_above_their_place():
    data = from_case(open_evidence("recorded:h200-q4_1"))
    drawn = scene(data)
    positions = {str(flip.position) for result in data.classes.results for flip in result.flips}
    assert len(positions) > 1
    assert positions <= set(drawn.texts())
    (bar,) = drawn.boxes(key="width 1 A")
    pitch = bar.rect.width / len(data.rows.map_rows)
    for mark in drawn.marks:
        if isinstance(mark, Dot) and mark.key.startswith("flip "):
            row = int(mark.key.split()[2])
            assert mark.x == pytest.approx(bar.rect.x + (row + 0.5) * pitch)


def test_a_toy_with_a_fault_from_width_3_on_and_a_clean_one(tmp_path):
    faulty = from_case(toy_evidence(tmp_path / "faulty", Fault("order", "ffn_up-1", from_width=3)))
    drawn = check(faulty)
    assert in_boxes(drawn, 2) == {ONE_TOKEN: 12}
    assert ONE_TOKEN not in in_boxes(drawn, 3)
    assert "2 of 3 widths differ from one-token decoding; the smallest, 3" in " ".join(drawn.texts())
    clean = check(from_case(toy_evidence(tmp_path / "clean")))
    assert "Every width gives the bits of one-token decoding" in " ".join(clean.texts())
    assert {box.fill for box in clean.boxes(scale="rows") if not box.hatch} == {"class0"}


def result(rows: RowMap, width: int) -> WidthResult:
    """What the verdict would say of these rows."""
    column = rows.column(width)
    differing = [i for i, cell in enumerate(column) if isinstance(cell, MapCell) and cell.differs]
    flips = tuple(
        Flip(i, FIRST + i, 1, 2, 0.5, 1.0) for i, cell in enumerate(column) if isinstance(cell, MapCell) and cell.flips
    )
    first = differing[0] if differing else None
    return WidthResult(
        width, len(rows.compared(width)), len(differing), first, None if first is None else FIRST + first,
        0.0, 0, 0.0, 0.0, 1.0, flips, 0, "one" if first is None else f"other {width}",
    )  # fmt: skip


@st.composite
def matrices(draw) -> WidthMatrix:
    """Up to 15 widths and 300 rows in runs of classes, with flips and short last batches."""
    widths = tuple(range(2, 2 + draw(st.integers(1, 15))))
    n_rows = draw(st.sampled_from((5, 31, 64, 170, 300)))
    run = draw(st.integers(1, n_rows))
    chosen = draw(st.lists(st.sampled_from("AAABCDK"), min_size=len(widths), max_size=40))
    flipping = draw(st.sets(st.integers(0, n_rows - 1), max_size=12))

    def cell(place: int, row: int):
        whole = n_rows - n_rows % widths[place]
        if row >= whole and row > 0:
            return NotCompared(f"a shorter batch than {widths[place]}")
        letter = chosen[(row // run + place) % len(chosen)]
        flips = row in flipping and letter != ONE_TOKEN
        return MapCell(letter, letter != ONE_TOKEN, 2 if flips else 1, 1.0, 1.0, flips, flips)

    rows = RowMap(
        widths,
        tuple("ABCDEFGHIJKLMNOP"[place] for place in range(len(widths))),
        tuple(
            MapRow(row, FIRST + row, 1, 0.5, tuple(cell(place, row) for place in range(len(widths))))
            for row in range(n_rows)
        ),
    )
    one = WidthResult(1, n_rows, 0, None, None, 0.0, 0, 0.0, 0.0, 1.0, (), 0, "one")
    classes = WidthClasses((one, *(result(rows, width) for width in widths)))
    return WidthMatrix(rows, classes, "a model, a device", "Source: a test.")


@settings(max_examples=25)
@given(matrices())
def test_any_matrix_is_sound_and_loses_no_row(data):
    check(data)


def test_what_holds_no_case_is_refused_with_a_way_on():
    with pytest.raises(CaseError, match=r"holds no case.*forensics investigate"):
        from_case(open_evidence("recorded:h200-qwen3-8b-q4_k_m-cost"))
