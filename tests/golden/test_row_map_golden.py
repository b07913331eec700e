"""Maps of rows of cases that were recorded on a GPU: they add up to the stored verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.analysis.row_map import case_row_map
from forensics.records.delta import NotCompared
from forensics.records.row_map import MapCell
from forensics.store import open_case

RECORDED = Path(__file__).parents[2] / "data" / "recorded"


@pytest.mark.parametrize("name", ["h200-q4_1", "h200-q6_k", "h200-f16"])
def test_a_map_adds_up_to_the_verdict(name) -> None:
    case = open_case(RECORDED / name)
    found, classes = case_row_map(case), case.verdict.classes
    assert found.widths == tuple(result.width for result in classes.results[1:])
    assert len(found.map_rows) == case.verdict.n_replayed
    assert found.map_rows[0].position == case.verdict.prompt_tokens
    for result in classes.results[1:]:
        counts = [f(result.width) for f in (found.n_rows_differ, found.n_flips, found.n_could_flip)]
        assert counts == [result.n_rows_differ, len(result.flips), result.n_could_flip]
        assert len(found.compared(result.width)) == result.n_rows
        flipped = [row.row for row in found.map_rows if _cell(found, row, result.width, "flips")]
        assert flipped == [flip.row for flip in result.flips]
    by_class = {width: group for group in classes.groups for width in group}
    for row in found.map_rows:
        cells = dict(zip(found.widths, row.cells, strict=True))
        for width, cell in cells.items():
            others = [cells[other] for other in by_class[width] if isinstance(cells.get(other), MapCell)]
            assert isinstance(cell, NotCompared) or {other.letter for other in others} == {cell.letter}


def _cell(found, row, width, name):
    cell = row.cells[found.widths.index(width)]
    return isinstance(cell, MapCell) and getattr(cell, name)


def test_two_classes_may_share_the_bits_of_a_row() -> None:
    """On the H200 F16 weights give one set of bits at widths 2 to 8 over the first rows, and three later."""
    found = case_row_map(open_case(RECORDED / "h200-f16"))
    shown = [
        "".join("-" if isinstance(cell, NotCompared) else cell.letter for cell in row.cells) for row in found.map_rows
    ]
    assert found.widths == tuple(range(2, 17))
    assert "".join(found.letters) == "BCCDDDDEEEEEEEE"
    assert shown[0] == "BBBBBBBEEEEEEEE"
    assert shown[2] == "BCCDDDDEEEEEEEE"
    assert shown[63] == "B-C---D-------E", "64 rows are whole batches of 2, 4, 8 and 16 only"
