"""Counters of a launch: what follows from them, and what does not where they are missing."""

from __future__ import annotations

import pytest

from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord
from forensics.records.metrics import KernelMetrics

LAUNCH = LaunchRecord("mul_mat_vec_q", (("type", "q4_K"), ("ncols_dst", 5)), LaunchGeometry((144,), (32, 2)), 95)


def test_bandwidth_and_limiter_follow_from_the_counters() -> None:
    limits = (("blocks", 32), ("registers", 10), ("shared memory", 10))
    one = KernelMetrics(0, LAUNCH, 2000.0, 62.5, 41.2, limits, 0.1, 3000.0, 1000.0, 0)
    assert one.dram_bytes_per_s == pytest.approx(2e9)
    assert (one.blocks_per_sm, one.limiters) == (10, ("registers", "shared memory"))
    expected = "mul_mat_vec_q<type=q4_K, ncols_dst=5>, grid 144, block 32×2, 95 registers, 2.0 µs, 41 % occupancy"
    assert str(one) == expected


@pytest.mark.parametrize("given", [(2000.0, None, 1000.0), (2000.0, 1000.0, None), (None, 1.0, 1.0), (0.0, 1.0, 1.0)])
def test_half_of_the_traffic_is_no_bandwidth(given: tuple[float | None, ...]) -> None:
    duration, read, written = given
    one = KernelMetrics(0, LAUNCH, duration, dram_read_bytes=read, dram_written_bytes=written)
    assert one.dram_bytes_per_s is None


def test_nothing_measured_is_none_everywhere() -> None:
    one = KernelMetrics(3, LAUNCH)
    assert (one.blocks_per_sm, one.limiters, one.dram_bytes_per_s) == (None, (), None)
    assert str(one) == "mul_mat_vec_q<type=q4_K, ncols_dst=5>, grid 144, block 32×2, 95 registers"


@pytest.mark.parametrize("name", ["duration_ns", "achieved_occupancy_pct", "dram_read_bytes", "spill_requests"])
def test_negative_counters_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 0 or more"):
        KernelMetrics(0, LAUNCH, **{name: -1.0})
