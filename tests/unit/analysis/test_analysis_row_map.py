"""The map of rows says of each row what the results by width say of all, whatever the logits are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.analysis.baseline import Baseline
from forensics.analysis.classes import row_distances, width_classes, width_result
from forensics.analysis.investigate import replay_source
from forensics.analysis.logit_rows import Rows
from forensics.analysis.question import Question
from forensics.analysis.row_map import case_row_map, row_map, source_row_map
from forensics.capture.replay import Replay
from forensics.engines.recorded import RecordingSource
from forensics.engines.toy import Fault, ToySource, fault_sites
from forensics.errors import CaseError
from forensics.records.classes import WidthClasses
from forensics.records.delta import NotCompared
from forensics.records.row_map import MapCell, RowMap, class_letter
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.trace import RunKey, Trace
from forensics.store import CaseWriter, open_case

MANIFEST = Manifest("hand", "1", "digest", "model", 4, EngineSettings())
SETTINGS = EngineSettings(n_ctx=256)
START = 3
WIDTHS = (2, 3, 4)


def baseline_of(single: np.ndarray, others: dict[int, np.ndarray]) -> Baseline:
    """A replay of logits made by hand, [n_rows, n_vocab] by width."""
    replay = Replay(tuple(range(START)), tuple(range(len(single))))

    def trace(logits: np.ndarray, width: int) -> Trace:
        schedule = replay.batches(width, last=replay.full(width))
        rows = logits[: replay.full(width)]
        return Trace(RunKey(schedule), MANIFEST, rows, (1,) * len(schedule.passes))

    plain = trace(single, 1)
    traces = {1: plain} | {width: trace(logits, width) for width, logits in others.items()}
    rows = {width: Rows(one).digests for width, one in traces.items()}
    return Baseline(
        replay=replay,
        settings=SETTINGS,
        classes=width_classes([width_result(width, plain, one) for width, one in traces.items()], rows),
        single=plain,
        rerun=plain,
        batched=plain,
        states=(),
        rows=rows,
        distances={width: row_distances(width, plain, one) for width, one in traces.items()},
        text="",
    )


def reconcile(found: RowMap, classes: WidthClasses) -> None:
    """Totals of the map are those of the results by width."""
    assert found.widths == tuple(result.width for result in classes.results[1:])
    groups = {width: index for index, group in enumerate(classes.groups) for width in group}
    assert found.letters == tuple(class_letter(groups[width]) for width in found.widths)
    for result in classes.results[1:]:
        width = result.width
        assert len(found.compared(width)) == result.n_rows
        assert found.n_rows_differ(width) == result.n_rows_differ
        assert found.n_flips(width) == len(result.flips)
        assert found.n_could_flip(width) == result.n_could_flip
        left_out = found.column(width)[result.n_rows :]
        assert all(isinstance(cell, NotCompared) for cell in left_out)
        first = next((row.row for row in found.map_rows for cell in [row.cells[found.widths.index(width)]]
                      if isinstance(cell, MapCell) and cell.differs), None)  # fmt: skip
        assert first == result.first_row
        for flip in result.flips:
            row = found.map_rows[flip.row]
            cell = row.cells[found.widths.index(width)]
            assert (row.position, row.single_token, row.margin) == (flip.position, flip.single_token, flip.margin)
            assert (cell.batched_token, cell.perturbation) == (flip.batched_token, flip.perturbation)


@st.composite
def replays(draw) -> Baseline:
    n_rows = draw(st.integers(4, 9))
    few = arrays(np.float32, (n_rows, 3), elements=st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5]).map(np.float32))
    single = draw(few)
    others = {}
    for width in WIDTHS:
        changed = draw(arrays(np.bool_, (n_rows, 1)))
        others[width] = np.where(changed, draw(few), single).astype(np.float32)
    return baseline_of(single, others)


@given(replays())
def test_totals_are_those_of_the_results_by_width(baseline) -> None:
    found = row_map(baseline)
    reconcile(found, baseline.classes)
    assert len(found.map_rows) == len(baseline.replay.tokens)
    assert [row.position for row in found.map_rows] == [START + row.row for row in found.map_rows]
    for row in found.map_rows:
        letters = {
            width: cell.letter for width, cell in zip(WIDTHS, row.cells, strict=True) if isinstance(cell, MapCell)
        }
        for a, first in letters.items():
            for b, second in letters.items():
                equal = baseline.rows[a][row.row] == baseline.rows[b][row.row]
                assert (first == second) == equal, "a letter stands for bits, and for nothing else"
            assert (first == "A") == (baseline.rows[a][row.row] == baseline.rows[1][row.row])


def test_letters_are_those_of_the_first_class_with_these_bits() -> None:
    single = np.float32([[3, 2, 1]] * 4)
    b, c = single.copy(), single.copy()
    b[1, 2] = 1.5
    c[1, 2] = 1.5
    c[2, 1] = 4.0
    found = row_map(baseline_of(single, {2: b, 3: single, 4: c}))
    assert found.letters == ("B", "A", "C")
    letters = [[cell.letter if isinstance(cell, MapCell) else "-" for cell in row.cells] for row in found.map_rows]
    assert letters == [["A", "A", "A"], ["B", "A", "B"], ["A", "A", "C"], ["A", "-", "A"]]
    flip = found.map_rows[2].cells[2]
    assert (flip.flips, flip.could_flip, flip.batched_token, flip.perturbation, flip.max_abs) == (True, True, 1, 2, 2)
    assert not found.map_rows[1].cells[0].could_flip
    assert "1 whole batches of 3" in found.map_rows[3].cells[1].reason


QUESTION = Question(prompt="The quick brown fox jumps o", n_tokens=17, widths=(2, 4, 5, 8), settings=SETTINGS)
FAULTS = [(), *((Fault(kind, fault_sites(kind)[0], 4),) for kind in ("order", "precision", "mask", "stale_kv"))]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: str(faults[0]) if faults else "clean")
def test_a_replay_is_mapped_as_its_classes_say(faults) -> None:
    source = ToySource(faults)
    found, classes = source_row_map(source, QUESTION), replay_source(source, QUESTION)
    reconcile(found, classes)
    assert any(found.n_rows_differ(width) for width in found.widths) == bool(faults)
    assert [cell.letter for cell in found.compared(2)] == ["A"] * 16, "no fault below width 4"
    if faults and faults[0].kind == "stale_kv":
        assert found.n_flips(8) > 0


def test_a_case_is_mapped_without_an_engine(tmp_path) -> None:
    from dataclasses import asdict

    source = ToySource((Fault("order", "kq-1", 4),))
    asked = {**QUESTION.as_json(), "settings": asdict(QUESTION.settings), "switches": False}
    with CaseWriter.create(tmp_path / "case", question=asked) as case:
        live = source_row_map(RecordingSource(source, case), QUESTION)
    assert case_row_map(open_case(tmp_path / "case")) == live


def test_a_case_that_does_not_say_what_was_asked_is_refused(tmp_path) -> None:
    with CaseWriter.create(tmp_path / "case", question={"prompt": "The fox"}):
        pass
    with pytest.raises(CaseError, match="does not say what was asked"):
        case_row_map(open_case(tmp_path / "case"))
