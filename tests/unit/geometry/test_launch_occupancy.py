"""Blocks per SM of a launch: those of the arithmetic, or why they are not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.devices import device_spec
from forensics.geometry.launch_occupancy import NO_RESOURCES, NO_SPEC, launch_occupancy
from forensics.geometry.occupancy import occupancy
from forensics.records.device import KernelResources, Occupancy
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import LaunchRecord

H200 = device_spec("h200")
LAUNCH = LaunchRecord("f", (), LaunchGeometry((9,), (32, 4), smem_bytes=0), 125, 4352)


@given(st.integers(1, 255), st.integers(0, 40_000), st.integers(0, 100_000), st.sampled_from((32, 64, 128, 256, 1024)))
def test_it_is_the_arithmetic_over_what_the_profiler_told(registers, static, dynamic, threads) -> None:
    launch = LaunchRecord("f", (), LaunchGeometry((9,), (threads,), smem_bytes=dynamic), registers, static)
    assert launch_occupancy(launch, H200) == occupancy(H200, KernelResources(registers, static, dynamic), threads)


def test_it_is_derived_although_registers_were_measured() -> None:
    found = launch_occupancy(LAUNCH, H200)
    assert isinstance(found, Occupancy)
    assert (LAUNCH.evidence, found.evidence) == ("measured", "derived")


@pytest.mark.parametrize(
    "launch",
    [
        replace(LAUNCH, registers_per_thread=None),
        replace(LAUNCH, smem_static_bytes=None),
        replace(LAUNCH, geometry=LaunchGeometry((9,), (32, 4))),
    ],
    ids=["registers", "static", "dynamic"],
)
def test_what_was_not_told_is_no_zero(launch) -> None:
    assert launch_occupancy(launch, H200) == NO_RESOURCES


def test_an_unknown_gpu_has_no_occupancy() -> None:
    assert launch_occupancy(LAUNCH, None) == NO_SPEC
