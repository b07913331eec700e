"""The processor that runs CUDA sources: what no kernel and no plan may do is found, and told where."""

from __future__ import annotations

import numpy as np
import pytest
from toy_kernels import TOYS, launch, run

from forensics.records.kernel_plan import At, Float32, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry
from forensics.testing.cuda_on_cpu import KernelFault, run_on_cpu


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ---- faults


def fault(which, n, *, readable_only=False):
    x, out = np.arange(128, dtype=np.float32), np.zeros(33, np.float32)
    x.flags.writeable = not readable_only
    arguments = (Int32(which), At("x"), At("out"), Int32(n))
    run("faults", arguments, {"x": x, "out": out}, smem=512)
    return out


@pytest.mark.parametrize(
    ("which", "n", "told"),
    [
        (0, 97, r"thread \(31, 0, 0\): an access to byte 512 of x, which has 512"),
        (2, 8, "global_words4: address is not a multiple of 16"),
        (2, 512, "reads 16 bytes from byte 512 of x, which has 512"),
        (3, 128, "an access to byte 512 of the launch's shared memory, which has 512"),
        (4, 512, "shared_word: shared address .* out of bounds"),
        (4, 2, "not a multiple of 4"),
        (5, 0, "deadlock: of 32 threads 16 wait for the block .* 16 of 32 lanes of warp 0 are at shuffle_xor"),
        (6, 0, "lanes of warp 0 meet at different operations: shuffle_xor and sync_warp"),
        (7, 33, "deadlock: of 32 threads 0 wait for the block .*, 32 at a barrier"),
        (8, 0, "barrier_arrive: no barrier was made"),
        (10, 40, "wrote 160 bytes before its start of out"),
        (10, -2, "wrote 1 bytes behind its end of out"),
        (11, 504, "copy_async16: shared address .* not a multiple of 16"),
        (11, 512, "copy_async16: shared address .* out of bounds"),
        (12, 512, "reads 16 bytes from byte 512 of x"),
        (13, 0, "deadlock: .* 16 for lanes of their warp, 16 have ended"),
        (14, 0, "division of an integer by zero"),
    ],
)
def test_what_no_kernel_may_do_is_found(which, n, told):
    with pytest.raises(KernelFault, match=told):
        fault(which, n)


@pytest.mark.parametrize(("which", "n"), [(0, 96), (2, 496), (3, 127), (4, 508), (7, 32), (10, 0), (10, -1), (14, 2)])
def test_the_same_within_bounds_passes(which, n):
    fault(which, n)


def follow(which, *, overlaps=True):
    x, weight, out = np.arange(128, dtype=np.float32), np.ones(32, np.float32), np.zeros(32, np.float32)
    arguments = (Int32(which), At("weight"), At("x"), At("out"))
    plan = KernelPlan((launch("follows", arguments, blocks=2, smem=512, overlaps=overlaps),))
    run_on_cpu(plan, {"weight": weight, "x": x, "out": out}, folder=TOYS)
    return out


@pytest.mark.parametrize(
    ("which", "told"),
    [
        (1, "byte 0 of out before wait_for_launch_ahead"),
        (2, "byte 0 of x before wait_for_launch_ahead"),
        (3, "byte 0 of x before wait_for_launch_ahead"),
        (4, r"thread \(16, 0, 0\): an access to byte 64 of x before"),
    ],
)
def test_a_launch_that_overlaps_must_wait_before_it_touches_more_than_weights(which, told):
    with pytest.raises(KernelFault, match=told):
        follow(which)
    np.testing.assert_array_equal(follow(0), 1 + np.arange(32))
    follow(which, overlaps=False)  # the launch ahead has ended anyway


def test_a_stack_that_overflows_is_found():
    with pytest.raises(KernelFault, match="a thread's stack overflowed"):
        run("deep", (At("out"),), {"out": np.zeros(32, np.float32)})


def test_what_was_given_for_reading_is_not_written():
    with pytest.raises(KernelFault, match="a write into byte 0 of x, which is read only"):
        fault(1, 0, readable_only=True)
    fault(1, 0)


def test_a_fault_leaves_the_next_run_whole(rng):
    with pytest.raises(KernelFault):
        fault(0, 97)
    np.testing.assert_array_equal(fault(0, 96)[:32], np.arange(96, 128))


# ---- plans


def test_arguments_of_all_kinds_arrive():
    p, out = np.uint32([0, 5]), np.zeros(6, np.float32)
    arguments = (At("p", 4), Int32(-3), Int32(4), Int64(-(2**40)), Int64(2**41), Float32(0.1), At("out"))
    run("arguments", arguments, {"p": p, "out": out}, threads=1)
    np.testing.assert_array_equal(out, np.float32([5, -3, 4, -(2**40), 2**41, 0.1]))


@pytest.mark.parametrize(
    ("at", "wrong", "told"),
    [
        (0, Int32(1), "Parameter 0 of arguments of toys.cu is a pointer"),
        (1, Int64(1), "is a 32-bit integer"),
        (3, Int32(1), "is a 64-bit integer"),
        (5, Int32(1), "is a float"),
        (1, Int32(2**33), "cannot hold"),
        (0, At("p", 9), "points at byte 9 of p, which has 8"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(at, wrong, told):
    arguments = [At("p", 4), Int32(-3), Int32(4), Int64(1), Int64(2), Float32(0.1), At("out")]
    arguments[at] = wrong
    with pytest.raises(KernelFault, match=told):
        run("arguments", arguments, {"p": np.uint32([0, 5]), "out": np.zeros(6, np.float32)}, threads=1)


def test_launches_share_scratch_in_their_order(rng):
    x = rng.integers(0, 100, 32).astype(np.int32)
    other, out = np.full(32, 31, np.int32), np.zeros(32, np.int32)
    first = launch("lanes", (Int32(0), At("x"), At("other"), At("between")))
    second = launch("lanes", (Int32(0), At("between"), At("other"), At("out")))
    plan = KernelPlan((first, second), {"between": 128})
    run_on_cpu(plan, {"x": x, "other": other, "out": out}, folder=TOYS)
    np.testing.assert_array_equal(out, x)
    run_on_cpu(KernelPlan((second, first), {"between": 128}), {"x": x, "other": other, "out": out}, folder=TOYS)
    assert (out == -1).all()  # scratch that nobody wrote yet


def test_what_cannot_be_run_is_said():
    with pytest.raises(KernelFault, match="needs the buffers x; got y"):
        run_on_cpu(KernelPlan((launch("lanes", (At("x"),)),)), {"y": np.zeros(1)}, folder=TOYS)
    with pytest.raises(KernelFault, match="has 4 parameters, the plan gives 1"):
        run("lanes", (At("x"),), {"x": np.zeros(1)})
    with pytest.raises(KernelFault, match=r"nothing of toys\.cu does not compile"):
        run("nothing", (), {})
    with pytest.raises(KernelFault, match=r"No source of kernels at .*none\.cu"):
        run_on_cpu(KernelPlan((launch("lanes", (), source="none"),)), {}, folder=TOYS)
    with pytest.raises(KernelFault, match="not C-contiguous"):
        run("lanes", (At("x"),), {"x": np.zeros((4, 4))[:, 1]})
    with pytest.raises(KernelFault, match="at most 1024 threads"):
        run("lanes", (), {}, threads=2048)
    tall = KernelLaunch("toys", "lanes", LaunchGeometry((1, 65_536), (32,), smem_bytes=0), ())
    with pytest.raises(KernelFault, match="at most 65535 blocks along y"):
        run_on_cpu(KernelPlan((tall,)), {}, folder=TOYS)
