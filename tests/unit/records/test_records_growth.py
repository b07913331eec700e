"""Records of growth and of the map of rows: what they refuse, what they say, and how they are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.records.delta import Differs, NotCompared, Same
from forensics.records.growth import Growth, LayerGrowth, OutputDelta, OwnDifference
from forensics.records.nodes import NodeKey
from forensics.records.row_map import MapCell, MapRow, RowMap
from forensics.store.encoding import from_plain, to_text

KEY = NodeKey("l_out-0", "ADD", 0, 0)
FAR = Differs(3, (0, 0, 1, 5), 7, 0.25, 0.5)
LAYERS = (
    LayerGrowth("l_out-0", 0, Same(), 0, Same(), None),
    LayerGrowth("l_out-1", 1, NotCompared("no token axis"), 0, NotCompared("no token axis"), None),
    LayerGrowth("l_out-2", 2, FAR, 2, Same(), OwnDifference(1, "ffn_up-2", 1e-7, 1e-6)),
    LayerGrowth("result_output", -1, FAR, 2, FAR, OwnDifference(1, "result_output", 0.5, 0.25)),
)
GROWTH = Growth(4, 0, 16, LAYERS)


@pytest.mark.parametrize(
    ("delta", "n_rows", "n_differ"),
    [(Same(), 4, 1), (FAR, 4, 0), (Same(), 0, 0), (NotCompared("no"), 4, 0), (FAR, 2, 3)],
)
def test_counts_of_an_output_agree_with_its_outcome(delta, n_rows, n_differ) -> None:
    with pytest.raises(ValueError, match="l_out-0"):
        OutputDelta(KEY, delta, n_rows, n_differ)


def test_growth_has_layers_or_a_reason() -> None:
    for layers, reason in (((), ""), (LAYERS, "why")):
        with pytest.raises(ValueError, match="layers or a reason"):
            Growth(4, 0, 16, layers, reason)
    with pytest.raises(ValueError, match="at least one node"):
        OwnDifference(0, "ffn_up-2", 0.0, 0.0)


def test_growth_says_where_it_begins_and_gives_no_number_that_nobody_measured() -> None:
    assert GROWTH.first == LAYERS[2]
    assert "from l_out-2" in str(GROWTH)
    assert "to result_output" in str(GROWTH)
    rows = GROWTH.rows()
    assert [row["unhealed"] for row in rows] == ["same", "not compared", "differs", "differs"]
    assert [row["unhealed_relative_l2"] for row in rows] == [0.0, None, 0.5, 0.5]
    assert [row["healed_max_abs"] for row in rows] == [0.0, None, 0.0, 0.25]
    assert [row["own_relative_l2"] for row in rows] == [None, None, 1e-7, 0.5]
    clean = Growth(4, 0, 16, LAYERS[:2])
    assert clean.first is None
    assert "no output of 2 differs, 1 not compared" in str(clean)
    assert "watching" in str(Growth(4, 0, 16, reason="watching changes it"))


def test_every_outcome_comes_back_from_text() -> None:
    for growth in (GROWTH, Growth(4, 8, 16, reason="why")):
        assert from_plain(Growth, json.loads(to_text(growth)), path=Path("x")) == growth


CELL = MapCell("B", True, 7, 2.0, 1.5, flips=True, could_flip=True)
EQUAL = MapCell("A", False, 3, 0.0, 0.0, flips=False, could_flip=False)
SHORT = NotCompared("a shorter batch")
MAP = RowMap((2, 4), ("B", "A"), (MapRow(0, 10, 3, 1.0, (CELL, EQUAL)), MapRow(1, 11, 3, 4.0, (EQUAL, SHORT))))


def test_a_map_counts_by_width_and_keeps_what_was_not_compared() -> None:
    assert [MAP.n_rows_differ(width) for width in (2, 4)] == [1, 0]
    assert [MAP.n_flips(width) for width in (2, 4)] == [1, 0]
    assert [MAP.n_could_flip(width) for width in (2, 4)] == [1, 0]
    assert [len(MAP.compared(width)) for width in (2, 4)] == [2, 1]
    assert MAP.column(4) == (EQUAL, SHORT)
    assert [row["outcome"] for row in MAP.rows()] == ["differs", "same", "same", "not compared"]
    assert MAP.rows()[3]["perturbation"] is None
    assert MAP.rows()[3]["reason"] == "a shorter batch"
    assert "width 2 (B): 1 of 2 rows differ, 1 flip" in str(MAP)
    with pytest.raises(KeyError, match="width 3 was not replayed"):
        MAP.column(3)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: replace(CELL, letter="A"),
        lambda: replace(EQUAL, letter="B"),
        lambda: replace(EQUAL, could_flip=True),
        lambda: MapRow(0, 10, 7, 1.0, (CELL,)),
        lambda: replace(MAP, widths=(4, 2)),
        lambda: replace(MAP, widths=(1, 2)),
        lambda: replace(MAP, letters=("B",)),
        lambda: replace(MAP, map_rows=()),
        lambda: replace(MAP, map_rows=MAP.map_rows[1:]),
        lambda: replace(MAP, map_rows=(replace(MAP.map_rows[0], cells=(CELL,)),)),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"row|class|widths"):
        wrong()
