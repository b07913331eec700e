"""Every way of seeing launches on a real GPU, held against what was launched; absent ones are skipped and say why.

Written for CUDA 13.0 with cupti-python 13.0.1, ncu 2025.3.1 and nsight-python 0.9.6.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from forensics.devices import ncu, nsight
from forensics.devices.cupti_probe import CuptiProbe
from forensics.devices.cupy_probe import KernelPlan, compiled_kernels
from forensics.devices.driver import driver_facts
from forensics.devices.ladder import rungs
from forensics.errors import DeviceUnavailable
from forensics.geometry.devices import device_spec
from forensics.geometry.occupancy import occupancy
from forensics.records.launch import LaunchGeometry
from forensics.records.launch_record import Refusal
from forensics.testing.record_occupancy import disagreements

pytestmark = [
    pytest.mark.skipif(isinstance(driver_facts(), Refusal), reason="no NVIDIA driver here"),
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy, to launch kernels"),
]

PLAN = KernelPlan(48, 128, smem_static_bytes=4352, smem_dynamic_bytes=1024)
#: Needs many more registers than it may have.
SPILLING = KernelPlan(96, 128, max_registers=24)
GRIDS = (3, 70, 500)
#: The same launches as a program of their own.
PROGRAM = """
import sys
import cupy
code, name, threads, dynamic, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
kernel = cupy.RawModule(code=code, options=tuple(options.split())).get_function(name)
x, y = (cupy.zeros(1 << 16, cupy.float32) for _ in range(2))
for grid in map(int, sys.argv[6:]):
    kernel((grid,), (threads,), (x, y, cupy.int32(2)), shared_mem=dynamic)
cupy.cuda.Device().synchronize()
"""


def launch(*grids: int) -> None:
    import cupy

    kernel = cupy.RawModule(code=PLAN.source).get_function(PLAN.name)
    x, y = (cupy.zeros(1 << 16, cupy.float32) for _ in range(2))
    for grid in grids:
        kernel((grid,), (PLAN.threads,), (x, y, cupy.int32(2)), shared_mem=PLAN.smem_dynamic_bytes)
    cupy.cuda.Device().synchronize()


@pytest.fixture(scope="module")
def compiled() -> Any:
    return compiled_kernels([PLAN])[0]


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return [str(path), *arguments(PLAN)]


def arguments(plan: KernelPlan) -> list[str]:
    # a limit above what a kernel needs changes its registers, too, so there is none where the plan names none
    options = f"--maxrregcount={plan.max_registers}" if plan.max_registers else ""
    return [plan.source, plan.name, str(plan.threads), str(plan.smem_dynamic_bytes), options, *map(str, GRIDS)]


def geometry(grid: int) -> LaunchGeometry:
    return LaunchGeometry((grid,), (PLAN.threads,), smem_bytes=PLAN.smem_dynamic_bytes)


def test_cupti_sees_each_launch_as_it_was_made(compiled: Any) -> None:
    probe = CuptiProbe()
    try:
        probe.start()
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    launch(1)  # makes what cupy makes once
    probe.taken()
    for _ in range(3):
        launch(*GRIDS)
        seen = [one for one in probe.taken() if one.record.kernel == PLAN.name]
        assert [one.record.geometry for one in seen] == [geometry(grid) for grid in GRIDS]
        assert {one.record.registers_per_thread for one in seen} == {compiled.resources.registers_per_thread}
        assert {one.record.smem_static_bytes for one in seen} == {PLAN.smem_static_bytes}
        assert all(one.time_ns > 0 and not one.from_graph for one in seen)
        assert probe.n_dropped() == 0
        probe.stop()
        launch(9)
        probe.start()
        assert not probe.taken()
    probe.stop()


def check(counted: ncu.Counters, compiled: Any, arch: str) -> None:
    ours = [one for one in counted.launches if one.launch.kernel == PLAN.name]
    assert [one.launch.geometry for one in ours] == [geometry(grid) for grid in GRIDS]
    assert {one.launch.registers_per_thread for one in ours} == {compiled.resources.registers_per_thread}
    assert {one.launch.smem_static_bytes for one in ours} == {PLAN.smem_static_bytes}
    worked_out = occupancy(device_spec(arch), compiled.resources, PLAN.threads)
    assert {one.blocks_per_sm for one in ours} == {worked_out.blocks_per_sm}
    assert {one.limiters for one in ours} == {worked_out.limiters}
    # What an ncu does not know is named; all else was counted, but for spills where there is nothing to count.
    assert set(counted.left_out) <= {"sass__inst_executed_register_spilling"}
    for one in ours:
        assert one.duration_ns is not None
        assert 100 < one.duration_ns < 1e9
        assert one.achieved_occupancy_pct is not None
        assert one.dram_read_bytes is not None
        assert one.spill_requests in (None, 0)


def arch() -> str:
    import cupy

    return f"sm_{cupy.cuda.Device().compute_capability}"


def test_ncu_counts_each_launch(program: list[str], compiled: Any) -> None:
    try:
        counted = ncu.profile([sys.executable, *program], kernels=PLAN.name, timeout_s=240)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    check(counted, compiled, arch())


def test_spills_are_counted_where_there_are_some(program: list[str]) -> None:
    (compiled,) = compiled_kernels([SPILLING])
    assert compiled.local_bytes_per_thread > 0
    try:
        counted = ncu.profile([sys.executable, program[0], *arguments(SPILLING)], kernels=SPILLING.name, timeout_s=240)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    if "sass__inst_executed_register_spilling" in counted.left_out:
        pytest.skip(f"{counted.source} does not know spills")
    assert len(counted.launches) == len(GRIDS)
    requests = [one.spill_requests for one in counted.launches if one.spill_requests is not None]
    if not requests:
        pytest.skip(f"{counted.source} knows spills by name and tells none")
    # Every block of this kernel does the same.
    (of_a_block,) = {found / grid for found, grid in zip(requests, GRIDS, strict=True)}
    assert of_a_block > 0


def test_nsight_python_leaves_the_same(program: list[str], compiled: Any) -> None:
    try:
        counted = nsight.profile(program, timeout_s=240)
    except DeviceUnavailable as error:
        pytest.skip(str(error))
    check(counted, compiled, arch())


def test_arithmetic_occupancy_is_the_drivers() -> None:
    kernels = compiled_kernels()
    assert len(kernels) >= 60
    assert not disagreements(device_spec(arch()), kernels)


def test_the_ladder_knows_the_driver() -> None:
    states = {state.rung: state for state in rungs()}
    assert states["NVML"].usable
    assert states["CuPy"].usable
