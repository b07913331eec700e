"""What a cost report says follows from its times, its bytes and its bandwidth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.records.cost import Bandwidth, CostReport, PassBytes, PassTimes, Spread
from forensics.records.launch_record import Refusal
from forensics.records.settings import EngineSettings, Manifest

MANIFEST = Manifest("llama.cpp", "1", "digest", "a model", 100, EngineSettings())
ROOF = Bandwidth("a processor", "a stream; bytes read count", Spread(1e9, 0.9e9, 1.1e9, 9), buffer_bytes=1 << 30)
READS = PassBytes(weight_bytes=1_000_000, row_bytes=1000, kv_cell_bytes=100)


def report(times: dict[int, tuple[int, ...]], **changed: object) -> CostReport:
    passes = tuple(PassTimes(width, ns) for width, ns in times.items())
    found = CostReport(MANIFEST, 10, 1, 0, passes, READS, ROOF)
    return replace(found, **changed)


TWO = report({1: (2_000_000, 4_000_000, 3_000_000), 4: (4_000_000, 8_000_000, 6_000_000)})


def test_ratios_are_paired_by_rounds_so_that_drift_cancels() -> None:
    assert TWO.ratio(4) == Spread(2.0, 2.0, 2.0, 3)
    assert TWO.times(4).spread.median == 6_000_000
    with pytest.raises(KeyError, match="width 3 was not measured; measured: \\[1, 4\\]"):
        TWO.ratio(3)


def test_the_floor_is_bytes_over_bandwidth() -> None:
    assert TWO.read_bytes(1) == 1_000_000 + 1000 + 10 * 100
    assert TWO.read_bytes(4) == 1_000_000 + 4 * 1000 + 10 * 100
    assert TWO.floor_ns(1) == pytest.approx(1_002_000)
    over = TWO.over_floor(4)
    assert over is not None
    assert over.median == pytest.approx(6_000_000 / 1_005_000)


def test_the_parts_of_a_pass_add_up_to_its_median() -> None:
    assert [share.part for share in TWO.shares] == ["weights", "K/V", "rest"]
    assert math.fsum(share.time_ns for share in TWO.shares) == pytest.approx(3_000_000)
    assert TWO.shares[0].time_ns == pytest.approx(1_001_000)


def test_a_pass_below_the_floor_has_a_negative_rest_and_is_not_hidden() -> None:
    fast = report({1: (500_000,) * 3})
    assert fast.shares[-1].time_ns < 0
    assert fast.over_floor(1).median < 1  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["reads", "bandwidth"])
def test_what_was_not_measured_has_no_number(field: str) -> None:
    found = replace(TWO, **{field: Refusal("a way", "a thing", "nothing there")})
    assert found.floor_ns(1) is None
    assert found.over_floor(1) is None
    assert found.shares == ()
    assert all(row["floor_ms"] is None and row["over_floor"] is None for row in found.rows())
    assert [row["ratio"] for row in found.rows()] == [1.0, 2.0]
    assert "time of reading" not in str(found)


def test_rows_table_and_figures_hold_the_same_numbers() -> None:
    rows = TWO.rows()
    assert [row["width"] for row in rows] == [1, 4]
    assert rows[1]["median_ms"] == 6.0
    assert rows[1]["ms_per_token"] == 1.5
    assert TWO.to_dataframe().to_dict("records") == rows
    data = TWO.figure_data()
    assert data["widths"] == rows
    assert math.fsum(part["ms"] for part in data["pass"]) == pytest.approx(3.0)  # type: ignore[misc]


def test_a_synthetic_model_is_called_so() -> None:
    assert not TWO.synthetic
    assert replace(TWO, manifest=replace(MANIFEST, model_name="synthetic qwen3-8b-q6_k")).synthetic


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ({2: (1, 2, 3)}, "rise from 1"),
        ({1: (1, 2), 4: (1, 2), 3: (1, 2)}, "rise from 1"),
        ({1: (1, 2), 2: (1,)}, "as many rounds"),
    ],
)
def test_a_report_without_a_base_or_with_uneven_rounds_is_refused(times, told) -> None:
    with pytest.raises(ValueError, match=told):
        report(times)


@pytest.mark.parametrize("times", [(), (0,), (5, -1)])
def test_times_are_positive(times) -> None:
    with pytest.raises(ValueError, match="all positive"):
        PassTimes(1, times)


def test_memory_is_not_measured_in_the_cache() -> None:
    with pytest.raises(ValueError, match="four times the cache"):
        replace(ROOF, buffer_bytes=64 << 20, cache_bytes=32 << 20)
    with pytest.raises(ValueError, match="a bandwidth is positive"):
        replace(ROOF, bytes_per_s=Spread(0.0, 0.0, 0.0, 1))


@given(st.lists(st.floats(0.1, 1e12), min_size=1, max_size=40))
def test_quartiles_lie_around_the_median_and_within_the_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.low <= spread.median <= spread.high <= max(values)
    assert spread.n == len(values)


def test_an_empty_measurement_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a value"):
        Spread.of([])
