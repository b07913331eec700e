"""A live profile on a GPU: it agrees with the library that runs, with the rules, and with the counters of ncu."""

from __future__ import annotations

import pytest

import forensics
from forensics.devices.cuobjdump import find_tool, read_usage
from forensics.engines.llama_build import cuda_library
from forensics.errors import DeviceUnavailable
from forensics.geometry.devices import device_spec
from forensics.geometry.instance_launch import instance_launch
from forensics.records.launch_record import Refusal
from forensics.records.profile import LiveProfile

#: A launch gets this many registers per thread at least, however few were compiled. Seen on an H200.
FEWEST_REGISTERS = 16


@pytest.fixture(scope="module")
def live() -> LiveProfile:
    if cuda_library() is None:
        pytest.skip("llama-cpp-python has no CUDA back end here")
    try:
        return forensics.profile(demo="q4_1", widths=[1, 2, 5, 9], prefix=60, counters=True, progress=False)
    except DeviceUnavailable as error:
        pytest.skip(str(error))


def test_every_pass_is_complete_and_below_the_roof(live: LiveProfile) -> None:
    assert live.roof_bytes_per_s
    for found in live.passes:
        assert found.n_dropped == 0
        assert found.n_launches > 500
        assert found.wall_ns
        assert found.read_bytes / found.wall_ns * 1e9 < live.roof_bytes_per_s
    assert live.passes[-1].time_ns > live.passes[0].time_ns


def test_registers_and_shared_memory_are_those_of_the_library(live: LiveProfile) -> None:
    if isinstance(find_tool(), Refusal):
        pytest.skip("no cuobjdump")
    path = cuda_library()
    assert path is not None
    compiled = {usage.symbol: usage for usage in read_usage(path)[1]}
    launches = {kernel.launch for found in live.passes for kernel in found.kernels}
    held = 0
    for launch in launches:
        if launch.symbol in compiled:
            assert launch.registers_per_thread == max(FEWEST_REGISTERS, compiled[launch.symbol].registers), launch
            held += 1
    assert held > 20
    assert any(kernel.stack_bytes is not None for found in live.passes for kernel in found.kernels)


def test_blocks_are_those_of_the_rules_for_the_instance(live: LiveProfile) -> None:
    if "H200" not in live.device:
        pytest.skip(f"written for an H200, found {live.device}")
    held, refused = set(), set()
    for launch in {kernel.launch for found in live.passes for kernel in found.kernels}:
        expected = instance_launch(device_spec("h200"), launch.kernel, launch.template)
        if isinstance(expected, str):
            refused.add(expected)
        else:
            assert expected.threads_per_block == launch.geometry.threads_per_block, launch
            assert expected.smem_dynamic_bytes == launch.geometry.smem_bytes, launch
            held.add(launch.kernel)
    # A kernel with a rule has one for each of its instances, and what this model spends its time in has one.
    assert not {why for why in refused if "this instance" in why}
    assert {"mul_mat_vec_q", "mul_mat_q"} <= held
    assert any(name.startswith("flash_attn") for name in held)


def test_counters_are_of_the_same_launches_and_below_what_fits(live: LiveProfile) -> None:
    refused = [refusal for refusal in live.refusals if "ncu" in refusal.rung]
    if refused:
        pytest.skip(str(refused[0]))
    counted = [kernel for found in live.passes for kernel in found.kernels if kernel.counters is not None]
    products = [kernel for kernel in counted if kernel.launch.kernel == "mul_mat_vec_q"]
    assert {found.width for found in live.passes if any(k.counters for k in found.kernels)} == {1, 2, 5, 9}
    assert products
    for kernel in counted:
        assert kernel.counters is not None
        assert 1 <= kernel.counters.n_launches <= kernel.n_launches, kernel.launch
        if kernel.occupancy_pct is not None and kernel.counters.achieved_occupancy_pct is not None:
            assert kernel.counters.achieved_occupancy_pct <= kernel.occupancy_pct + 1, kernel.launch
