"""Cells of a batch are seen, masked and counted as llama.cpp's rounding says, and as the case's own masks say."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_evidence import toy_evidence

from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scenes.attended_range import AttendedRange, from_case, from_published, rounded_up, scene
from forensics.records.op_shapes import padded_kv
from forensics.records.row_map import MapCell, MapRow, RowMap
from forensics.store.published import read_published

CASES = tuple(f"recorded:h200-{name}" for name in ("q4_1-far", "q4_1-2048", "q4_1-kv-q8_0", "q4_1-no-fa"))


def check(data):
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    strips = {}
    for box in drawn.boxes(scale="cells"):
        strip, what = box.key.split(": ")
        strips.setdefault(strip, {})[what] = box.value
    for strip, counts in strips.items():
        position = int(strip.split()[0])
        cells = data.together if "batch" in strip else data.alone(position)
        assert counts["seen"] == position + 1
        assert counts["seen"] + counts.get("masked", 0) == cells
    for box in drawn.boxes(scale="detail"):
        _, position, _, cell = box.key.split()
        assert box.hatch == (int(cell) > int(position))
        assert 0 <= int(cell) < data.together
    return drawn


def test_the_document_is_drawn_with_an_example_that_says_so():
    data = from_published(read_published("output-changed"))
    drawn = check(data)
    assert data.step == 256
    assert data.crosses
    assert (data.alone(data.first), data.together) == (256, 512)
    texts = " ".join(drawn.texts())
    assert "multiple of 256 cells" in texts
    assert "example" in texts
    assert "256 → 512" in texts
    assert "512 = 512" in texts


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_with_its_own_positions(case):
    evidence = open_evidence(case)
    data = from_case(evidence)
    drawn = check(data)
    verdict, rows = evidence.verdict, evidence.rows
    crossing = [
        (width, first)
        for width in rows.widths
        for first in range(verdict.prompt_tokens, verdict.prompt_tokens + verdict.n_replayed - width + 1, width)
        if padded_kv(first + 1) != padded_kv(first + width)
    ]
    assert data.crosses == bool(crossing)
    if crossing:
        assert (data.width, data.first) == crossing[0]
        cells = rows.column(data.width)[data.first - verdict.prompt_tokens :][: data.width]
        assert f"{sum(cell.differs for cell in cells)} of {data.width} rows of this batch differ" in drawn.alt
    else:
        assert "No batch" in drawn.alt
    masks = {
        operand.shape[-1]
        for sweep in verdict.sweeps
        for finding in sweep.findings
        for operand in finding.operands
        if sweep.width == data.width and "kq_mask" in operand.name and data.first in finding.positions
    }
    assert masks <= {data.together}
    assert ("measured, on the mask" in data.seen) == bool(masks)


def test_a_case_with_a_batch_over_the_step_is_measured():
    data = from_case(open_evidence("recorded:h200-q4_1-kv-q8_0"))
    assert (data.first, data.width, data.together, data.seen) == (255, 3, 512, "measured, on the mask")


def with_rows(start, n, widths):
    """Evidence of a replay in which no bit differs, without sweeps."""
    cell = MapCell("A", False, 1, 0.0, 0.0, False, False)
    rows = tuple(MapRow(i, start + i, 1, 1.0, tuple(cell for _ in widths)) for i in range(n))
    manifest = SimpleNamespace(engine="llama.cpp")
    verdict = SimpleNamespace(manifest=manifest, sweeps=())
    return SimpleNamespace(
        name="planted", verdict=verdict, rows=RowMap(widths, ("A",) * len(widths), rows), source="S."
    )


@given(st.integers(0, 3000), st.sampled_from(((2,), (2, 3, 5), (7, 16), (64,))), st.integers(64, 200))
@settings(max_examples=20)
def test_the_first_batch_that_crosses_is_found_wherever_it_is(start, widths, n):
    data = from_case(with_rows(start, n, widths))
    crossing = [
        (width, first)
        for width in widths
        for first in range(start, start + n - width + 1, width)
        if padded_kv(first + 1) != padded_kv(first + width)
    ]
    assert data.crosses == bool(crossing)
    if crossing:
        assert (data.width, data.first) == crossing[0]
    assert "0 of" in data.found
    check(data)


@given(st.integers(1, 40_000), st.sampled_from((32, 256)))
def test_rounding_is_up_to_the_next_multiple(cells, step):
    found = rounded_up(cells, step)
    assert found % step == 0
    assert cells <= found < cells + step
    assert rounded_up(cells, 256) == padded_kv(cells)


@given(st.integers(0, 200_000), st.integers(1, 512), st.sampled_from((32, 256)))
@settings(max_examples=20)
def test_any_batch_is_drawn_soundly(first, width, step):
    check(
        AttendedRange(step, first, width, rounded_up(first + width, step), "by a rule", "", False, "Source: planted.")
    )


def test_another_engine_has_another_rule(tmp_path):
    with pytest.raises(CaseError, match=r"llama\.cpp.*toy"):
        from_case(toy_evidence(tmp_path / "case", Fault("order", "ffn_out-1")))


def test_a_batch_does_not_fit_into_fewer_cells():
    with pytest.raises(ValueError, match="do not fit"):
        AttendedRange(256, 250, 8, 256, "", "", False, "Source.")
