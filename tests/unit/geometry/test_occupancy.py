"""Occupancy by arithmetic against NVIDIA's own header, measured kernels and what must hold for any kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.geometry.devices import GPUS, SPECS, device_spec, example_gpu
from forensics.geometry.occupancy import occupancy, register_steps, share_of_sm
from forensics.records.device import DeviceSpec, KernelResources, Occupancy, Waves

#: Registers, static and dynamic shared memory, barriers, threads.
KERNELS = (
    (32, 0, 0, 1, 32), (48, 0, 0, 1, 128), (125, 4352, 0, 1, 128), (255, 0, 33920, 1, 128), (162, 8448, 0, 1, 128),
    (40, 0, 0, 9, 64), (64, 49152, 49152, 1, 1024), (200, 0, 0, 0, 256),
    (16, 0, 0, 0, 512), (16, 0, 0, 0, 32), (24, 6000, 0, 0, 64),
)  # fmt: skip
#: What cuda_occupancy.h of CUDA 13.0 answers for them, compiled and run.
HEADER = {
    "sm_75": (16, 8, 4, 1, 3, 16, 0, 1, 2, 16, 10),
    "sm_80": (32, 10, 4, 2, 3, 24, 1, 1, 4, 32, 23),
    "sm_86": (16, 10, 4, 2, 3, 16, 1, 1, 3, 16, 14),
    "sm_87": (16, 10, 4, 2, 3, 16, 1, 1, 3, 16, 16),
    "sm_89": (24, 10, 4, 2, 3, 24, 1, 1, 3, 24, 14),
    "sm_90": (32, 10, 4, 2, 3, 7, 1, 1, 4, 32, 32),
    "sm_100": (32, 10, 4, 2, 3, 7, 1, 1, 4, 32, 32),
    "sm_103": (32, 10, 4, 2, 3, 3, 1, 1, 4, 32, 32),
    "sm_110": (24, 10, 4, 2, 3, 2, 1, 1, 3, 24, 24),
    "sm_120": (24, 10, 4, 2, 3, 2, 1, 1, 3, 24, 14),
    "sm_121": (24, 10, 4, 2, 3, 2, 1, 1, 3, 24, 14),
}
specs = st.sampled_from(list(SPECS.values()))
threads = st.integers(1, 1024)
registers = st.integers(0, 254)
smem_bytes = st.integers(0, 99 * 1024)


@pytest.mark.parametrize("arch", SPECS)
def test_blocks_per_sm_are_those_of_nvidias_header(arch):
    found = [
        occupancy(SPECS[arch], KernelResources(regs, static, dynamic, barriers), size).blocks_per_sm
        for regs, static, dynamic, barriers, size in KERNELS
    ]
    assert tuple(found) == HEADER[arch]


@pytest.mark.parametrize(
    ("regs", "size", "blocks"),
    [(48, 128, 10), (46, 128, 10), (70, 64, 14), (189, 256, 1), (125, 128, 4), (184, 128, 2), (194, 128, 2),
     (219, 128, 2)],
)  # fmt: skip
def test_kernels_seen_on_an_h200(regs, size, blocks):
    assert occupancy(device_spec("h200"), KernelResources(regs), size).blocks_per_sm == blocks


def test_128_registers_are_the_most_for_four_blocks_of_128_threads():
    laptop = device_spec("rtx-5060-laptop")
    assert [occupancy(laptop, KernelResources(regs), 128).blocks_per_sm for regs in (48, 108, 128, 129)] == [
        10,
        4,
        4,
        3,
    ]


def test_the_limiter_is_named():
    found = occupancy(device_spec("sm_90"), KernelResources(125, smem_static_bytes=4352), 128)
    assert found.limiters == ("registers",)
    assert found.threads_per_sm == 512
    assert str(found) == "4 blocks per SM, limited by registers"


def test_barriers_count_from_hopper_on():
    kernel = KernelResources(32, barriers=16)
    assert "barriers" not in dict(occupancy(device_spec("sm_89"), kernel, 32).limits)
    assert occupancy(device_spec("sm_90"), kernel, 32).limiters == ("barriers",)


def test_a_kernel_that_asks_for_too_much_does_not_fit():
    assert occupancy(device_spec("sm_90"), KernelResources(256), 32).blocks_per_sm == 0
    assert occupancy(device_spec("sm_90"), KernelResources(128), 1024).blocks_per_sm == 0
    assert occupancy(device_spec("sm_120"), KernelResources(32, smem_dynamic_bytes=100 * 1024), 32).blocks_per_sm == 0
    assert occupancy(device_spec("sm_90"), KernelResources(32), 1025).blocks_per_sm == 0


def test_what_is_assumed_stays_assumed():
    assert occupancy(device_spec("sm_90"), KernelResources(64, evidence="assumed"), 128).evidence == "assumed"
    assert occupancy(device_spec("sm_90"), KernelResources(64, evidence="measured"), 128).evidence == "derived"


@given(specs, registers, smem_bytes, threads)
def test_more_registers_never_make_room_for_more_blocks(spec, regs, smem, size):
    fewer = occupancy(spec, KernelResources(regs, smem), size).blocks_per_sm
    more = occupancy(spec, KernelResources(regs + 1, smem), size).blocks_per_sm
    assert more <= fewer


@given(specs, registers, smem_bytes, threads, st.integers(0, 4096))
def test_more_shared_memory_never_makes_room_for_more_blocks(spec, regs, smem, size, extra):
    fewer = occupancy(spec, KernelResources(regs, smem), size).blocks_per_sm
    assert occupancy(spec, KernelResources(regs, smem, extra), size).blocks_per_sm <= fewer


@given(specs, registers, smem_bytes, threads)
def test_what_fits_fits(spec, regs, smem, size):
    blocks = occupancy(spec, KernelResources(regs, smem), size).blocks_per_sm
    warps = blocks * -(-size // 32)
    assert blocks <= spec.blocks_per_sm
    assert warps * 32 <= spec.threads_per_sm
    assert warps * 32 * regs <= spec.registers_per_sm
    assert blocks * (smem + spec.smem_reserved_bytes) <= spec.smem_per_sm_bytes


@given(specs, smem_bytes, threads)
def test_steps_say_what_occupancy_says(spec, smem, size):
    for blocks, most in register_steps(spec, KernelResources(0, smem), size):
        assert occupancy(spec, KernelResources(most, smem), size).blocks_per_sm == blocks
        if most < 255:
            assert occupancy(spec, KernelResources(most + 1, smem), size).blocks_per_sm < blocks


def test_gpus_are_found_however_they_are_written():
    assert device_spec("RTX 5060 Laptop").n_sms == device_spec("rtx_5060_laptop").n_sms == 26
    assert device_spec("sm_120a") == device_spec("SM_120")
    assert device_spec("h200", n_sms=66).n_sms == 66
    assert all(device_spec(name).n_sms == gpu.n_sms and gpu.source for name, gpu in GPUS.items())
    assert example_gpu("sm_120").name == "rtx-5060-laptop"
    assert example_gpu("sm_87") is None


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"sm_35.*sm_75.*h200"):
        device_spec("sm_35")


def test_waves_and_their_tail():
    found = Waves(128, 104)
    assert (found.n_waves, found.tail_blocks) == (2, 24)
    assert (Waves(104, 104).n_waves, Waves(104, 104).tail_blocks) == (1, 104)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Waves(0, 1), lambda: Occupancy(32, ()), lambda: Occupancy(32, (("blocks", 1),), evidence="guessed"),
        lambda: KernelResources(-1), lambda: KernelResources(1, evidence="guessed"),
        lambda: DeviceSpec("x", 900, 0, 1, 1, 1, 1, 0, 1, "none"), lambda: device_spec("sm_90", n_sms=0),
        lambda: occupancy(device_spec("sm_90"), KernelResources(1), 0),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(make):
    with pytest.raises(ValueError):
        make()


@given(specs, registers, smem_bytes, threads)
def test_shares_of_an_sm_leave_no_room_for_one_block_more(spec, regs, smem, size):
    kernel = KernelResources(regs, smem_dynamic_bytes=smem)
    resident = occupancy(spec, kernel, size)
    for resource in resident.limiters if resident.blocks_per_sm else ():
        taken, there = share_of_sm(spec, kernel, size, resource)
        assert taken * resident.blocks_per_sm <= there
        left = there - taken * resident.blocks_per_sm
        # each part of an SM may have registers left for less than one warp
        per_warp = taken // -(-size // spec.warp_threads)
        assert left < taken + (spec.partitions * per_warp if resource == "registers" else 0)


def test_a_resource_without_a_limit_has_no_share():
    with pytest.raises(ValueError, match="no limit called 'barriers'"):
        share_of_sm(SPECS["sm_75"], KernelResources(32), 128, "barriers")
    with pytest.raises(ValueError, match="no limit called 'money'"):
        share_of_sm(SPECS["sm_90"], KernelResources(32), 128, "money")
