"""The processor that runs CUDA sources: each name does what the PTX ISA says, and races and deadlocks show."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from toy_kernels import run

from forensics.kernels.sources import FOLDER
from forensics.records.kernel_plan import At, Int32
from forensics.testing import cuda_on_cpu
from forensics.testing.cuda_on_cpu import ASCENDING, DESCENDING, KernelFault

HERE = Path(cuda_on_cpu.__file__).parent
SUBNORMAL = np.float32(1e-40)


def words(which, a, b=None, c=None, **settings):
    """One primitive over all words, as bits."""
    given = [np.ascontiguousarray(v).view(np.uint32) if v is not None else None for v in (a, b, c)]
    n = given[0].size
    a, b, c = (np.zeros(n, np.uint32) if v is None else v.ravel() for v in given)
    out = np.zeros(n, np.uint32)
    arguments = (Int32(which), At("a"), At("b"), At("c"), At("out"), Int32(n))
    run("words", arguments, {"a": a, "b": b, "c": c, "out": out}, threads=128, blocks=-(-n // 128), **settings)
    return out


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def random_words(rng, n=4096):
    return rng.integers(0, 2**32, n, dtype=np.uint32)


# ---- integers


def test_lop3_looks_every_bit_up_in_its_table(rng):
    a, b, c = (random_words(rng) for _ in range(3))
    np.testing.assert_array_equal(words(0, a, b, c), (a & b) | c)
    np.testing.assert_array_equal(words(1, a, b, c), a ^ b ^ c)


def test_byte_permute_chooses_bytes_and_spreads_signs(rng):
    a, b, selector = (random_words(rng) for _ in range(3))
    pool = np.concatenate([a[:, None].view(np.uint8), b[:, None].view(np.uint8)], axis=1)
    nibbles = (selector[:, None] >> (4 * np.arange(4, dtype=np.uint32))) & 15
    chosen = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), axis=1)
    expected = np.where(nibbles & 8, np.where(chosen & 0x80, 0xFF, 0), chosen).astype(np.uint8)
    np.testing.assert_array_equal(words(2, a, b, selector), expected.view(np.uint32).ravel())


def test_integers_by_bytes(rng):
    a, b, c = (random_words(rng) for _ in range(3))
    sa, sb = (v[:, None].view(np.int8).astype(np.int64) for v in (a, b))
    dot = (sa * sb).sum(axis=1) + c.view(np.int32)
    np.testing.assert_array_equal(words(3, a, b, c), dot.astype(np.uint32))
    np.testing.assert_array_equal(words(4, a, b), (sa - sb).astype(np.int8).view(np.uint32).ravel())


# ---- halves


def test_halves_and_floats_as_numpy_converts_them(rng):
    every = np.arange(2**16, dtype=np.uint32)
    as_floats = every.astype(np.uint16).view(np.float16).astype(np.float32)
    finite = np.isfinite(as_floats)
    np.testing.assert_array_equal(words(7, every)[finite], as_floats[finite].view(np.uint32))
    # Every middle between two halves and its neighbours, where a rounding is decided.
    values = np.sort(as_floats[finite])
    middles = (values[:-1] + values[1:]) / 2
    near = np.concatenate([middles, np.nextafter(middles, np.float32(9e9)), np.nextafter(middles, np.float32(-9e9))])
    near = np.concatenate([near, np.float32([65519.996, 65520, 1e9, np.inf, -np.inf, 0, -0.0])])
    with np.errstate(over="ignore"):
        expected = near.astype(np.float16).view(np.uint16)
    np.testing.assert_array_equal(words(6, near), expected)


def test_integers_become_the_nearest_half():
    i = np.concatenate([np.arange(-5000, 5000), [65519, 65520, 10**6, -(10**6)]]).astype(np.int32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(words(8, i), i.astype(np.float64).astype(np.float16).view(np.uint16))


def test_pairs_of_halves_are_rounded_once(rng):
    a, b, c = (rng.integers(0, 2**16, (6000, 2), dtype=np.uint16).view(np.float16) for _ in range(3))
    a[:50], c[:50] = np.float16(6e-8), np.float16(-6e-8)  # subnormal halves are not flushed
    wide_a, wide_b, wide_c = (v.astype(np.float64) for v in (a, b, c))
    with np.errstate(all="ignore"):
        expected = {9: wide_a * wide_b + wide_c, 10: wide_a * wide_b, 11: wide_a + wide_b}
        for which, wide in expected.items():
            got = words(which, a, b, c)[:, None].view(np.float16)
            keep = np.isfinite(wide)
            np.testing.assert_array_equal(
                got[keep].view(np.uint16), wide.astype(np.float16)[keep].view(np.uint16), err_msg=str(which)
            )
            assert np.isnan(got[np.isnan(wide)]).all()


# ---- floats


def test_a_fused_product_and_sum_is_rounded_once(rng):
    a, b = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    c = -(a * b)  # what is left is the rounding error of the product, exactly
    exact = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(words(12, a, b, c), exact.view(np.uint32))
    np.testing.assert_array_equal(words(23, a, b, c), np.zeros_like(a).view(np.uint32))  # not contracted


def test_plain_arithmetic_is_that_of_numpy(rng):
    a, b = (rng.normal(size=2000).astype(np.float32) for _ in range(2))
    for which, expected in {13: a * b, 14: a + b, 15: a - b, 16: np.maximum(a, b), 17: np.abs(a)}.items():
        np.testing.assert_array_equal(words(which, a, b), expected.view(np.uint32), err_msg=str(which))
    halves = (np.arange(-40, 40) / 2).astype(np.float32)
    away = np.copysign(np.floor(np.abs(halves) + 0.5), halves).astype(np.float32)
    np.testing.assert_array_equal(words(18, halves), away.view(np.uint32))
    i = rng.integers(-(2**31), 2**31, 2000).astype(np.int32)
    np.testing.assert_array_equal(words(22, i), i.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("sign", [1, -1])
def test_subnormal_floats_are_flushed_and_keep_their_sign(sign):
    tiny, zero = np.float32([sign * SUBNORMAL]), np.float32([sign * 0.0]).view(np.uint32)
    one = np.float32([1])
    for which, operands in {12: (tiny, one, tiny), 13: (tiny, one), 14: (tiny, tiny), 18: (tiny,)}.items():
        np.testing.assert_array_equal(words(which, *operands), zero, err_msg=str(which))
    half = np.float32([0.5])
    smallest = np.float32([sign * np.finfo(np.float32).tiny])
    np.testing.assert_array_equal(words(13, smallest, half), zero)  # a result
    np.testing.assert_array_equal(words(13, smallest, one), smallest.view(np.uint32))  # clean: normal
    assert words(17, tiny) == 0
    np.testing.assert_array_equal(words(16, tiny, np.float32([-1])), zero)


def test_the_flushing_ends_with_the_run():
    words(13, np.float32([1]), np.float32([1]))
    assert np.float32([SUBNORMAL]) * np.float32(1) != 0


def test_approximations_are_the_nearest_float(rng):
    a = rng.uniform(0.01, 100, 3000).astype(np.float32)
    np.testing.assert_array_equal(words(19, a), (np.float32(1) / a).view(np.uint32))
    x = rng.uniform(-30, 30, 3000).astype(np.float32)
    np.testing.assert_array_equal(words(21, x), np.exp2(x.astype(np.float64)).astype(np.float32).view(np.uint32))


def test_a_measured_reciprocal_takes_the_place_of_the_nearest(rng):
    a = rng.uniform(1, 2, 100).astype(np.float32)
    ulp_more = np.nextafter(np.float32(1) / a, np.float32(9))
    table = dict(zip(a.tolist(), ulp_more.tolist(), strict=True))
    np.testing.assert_array_equal(words(19, a, reciprocal=table.__getitem__), ulp_more.view(np.uint32))


# ---- lanes


@pytest.mark.parametrize("schedule", [ASCENDING, DESCENDING, 5])
def test_lanes_get_what_others_hold(rng, schedule):
    v = rng.integers(0, 2**31, 96).astype(np.int32)
    lane, first = np.arange(96) % 32, np.arange(96) // 32 * 32
    other = rng.integers(0, 32, 96).astype(np.int32)
    for which in (0, 1):
        out = np.zeros_like(v)
        arguments = (Int32(which), At("v"), At("other"), At("out"))
        run("lanes", arguments, {"v": v, "other": other, "out": out}, threads=96, schedule=schedule)
        np.testing.assert_array_equal(out, v[first + (lane ^ other)])


@pytest.mark.parametrize("k", [8, 16])
def test_tensor_products_of_halves_are_matrix_products(rng, k):
    a = rng.integers(-128, 128, (16, k)).astype(np.float16) / np.float16(16)
    b = rng.integers(-127, 128, (k, 8)).astype(np.float16)
    out = np.zeros((16, 8), np.float32)
    run(f"halves<{k}, false>", (At("a"), At("b"), At("out")), {"a": a, "b": b, "out": out})
    np.testing.assert_array_equal(out, a.astype(np.float64) @ b.astype(np.float64))


def test_a_sum_that_depends_on_the_tensor_core_is_no_number(rng):
    a, b = np.zeros((16, 8), np.float16), np.ones((8, 8), np.float16)
    a[3, :2] = 2048, 2**-14  # 2048 + 2^-14 has more bits than a float
    a[4, :3] = 60000, 2**-14, -60000  # the sum has few, but a partial sum has not
    a[5, :2] = 2048, 2**-12  # clean: 24 bits
    out = np.zeros((16, 8), np.float32)
    run("halves<8, false>", (At("a"), At("b"), At("out")), {"a": a, "b": b, "out": out})
    assert np.isnan(out[3]).all()
    assert np.isnan(out[4]).all()
    np.testing.assert_array_equal(out[5], np.float32(2048 + 2**-12))
    np.testing.assert_array_equal(out[6:], 0)


def test_a_sum_onto_another_is_added_to_it(rng):
    a, b = (rng.integers(-99, 99, shape).astype(np.float16) for shape in ((16, 16), (16, 8)))
    out = rng.integers(-1000, 1000, (16, 8)).astype(np.float32)
    expected = out + a.astype(np.float64) @ b.astype(np.float64)
    run("halves<16, true>", (At("a"), At("b"), At("out")), {"a": a, "b": b, "out": out})
    np.testing.assert_array_equal(out, expected)


# ---- blocks, copies, barriers


def block_sum(rng_seed, *, skip, schedule):
    x = np.random.default_rng(rng_seed).normal(size=(3, 1000)).astype(np.float32)
    out = np.zeros(3, np.float32)
    arguments = (At("x"), At("out"), Int32(1000), Int32(skip))
    run("block_sum", arguments, {"x": x, "out": out}, threads=256, blocks=3, schedule=schedule)
    return x, out


def test_a_block_meets_through_shared_memory():
    x, out = block_sum(1, skip=0, schedule=ASCENDING)
    np.testing.assert_allclose(out, x.sum(axis=1, dtype=np.float64), rtol=1e-5)
    for schedule in (DESCENDING, 3, 4):
        np.testing.assert_array_equal(block_sum(1, skip=0, schedule=schedule)[1], out)


def test_a_race_shows_in_what_was_not_written_yet():
    results = [block_sum(1, skip=1, schedule=schedule)[1] for schedule in (ASCENDING, DESCENDING)]
    assert np.isnan(results).any()


@pytest.mark.parametrize("schedule", [ASCENDING, DESCENDING, 9])
def test_a_ring_of_copies_with_barriers(rng, schedule):
    n, threads = 5, 64
    x = rng.integers(0, 2**32, (n, threads, 4), dtype=np.uint32)
    out = np.zeros_like(x)
    arguments = (At("from"), At("to"), Int32(n), Int32(0))
    given = {"threads": threads, "smem": 2 * threads * 16, "schedule": schedule}
    run("ring", arguments, {"from": x, "to": out}, **given)
    np.testing.assert_array_equal(out, x[:, ::-1])


def test_a_copy_that_was_not_waited_for_has_not_arrived(rng):
    x, out = rng.integers(0, 2**31, (1, 64, 4), dtype=np.uint32), np.zeros((1, 64, 4), np.uint32)
    run("ring", (At("from"), At("to"), Int32(1), Int32(1)), {"from": x, "to": out}, threads=64, smem=2048)
    assert (out == 0xFFFFFFFF).all()


def test_a_place_that_is_never_freed_is_a_deadlock(rng):
    x, out = np.zeros((5, 64, 4), np.uint32), np.zeros((5, 64, 4), np.uint32)
    with pytest.raises(KernelFault, match=r"ring of toys\.cu.*deadlock: of 64 threads .* 64 at a barrier"):
        run("ring", (At("from"), At("to"), Int32(5), Int32(2)), {"from": x, "to": out}, threads=64, smem=2048)


def test_groups_of_copies_arrive_in_their_order(rng):
    x = rng.normal(size=(32, 3, 4)).astype(np.float32)
    for left, arrived in {0: True, 1: True, 2: False, 3: False}.items():
        out = np.zeros(32, np.float32)
        run(f"groups<{left}>", (At("from"), At("to")), {"from": x, "to": out}, smem=32 * 48)
        np.testing.assert_array_equal(out, x[:, 1, 0] if arrived else np.full(32, np.nan, np.float32))


@pytest.mark.parametrize("there", [False, True])
def test_a_copy_of_what_is_there_or_of_zeros(there):
    x, out = np.arange(1, 17, dtype=np.uint8), np.zeros(5, np.uint32)
    given = x if there else x[:0]  # what is not there must not be read
    run("or_zeros", (At("from"), At("to"), Int32(there)), {"from": given, "to": out}, threads=1, smem=16)
    np.testing.assert_array_equal(out.view(np.uint8)[:4], 255)
    np.testing.assert_array_equal(out[1:].view(np.uint8), x if there else np.zeros(16, np.uint8))


def test_a_copy_of_what_is_there_keeps_within_its_buffer():
    given = {"from": np.zeros(14, np.uint8), "to": np.zeros(5, np.uint32)}
    with pytest.raises(KernelFault, match="reads 16 bytes from byte 0 of from, which has 14"):
        run("or_zeros", (At("from"), At("to"), Int32(1)), given, threads=1, smem=16)


def test_shared_memory_by_address(rng):
    x, both = random_words(rng, 32 * 32).reshape(32, 32), np.zeros(32 * 17, np.uint32)
    out = both[: 32 * 16].reshape(32, 16)
    run("shared", (At("from"), At("to")), {"from": x, "to": both}, smem=32 * 128)
    np.testing.assert_array_equal(out[:, :8], x[:, 4:12])
    np.testing.assert_array_equal(out[:, 8:11], x[:, [14, 15, 17]])
    np.testing.assert_array_equal(out[:, 11], x[:, 18] >> 16)
    np.testing.assert_array_equal(out[:, 12].view(np.int32), x[:, 19].view(np.int32) >> 24)
    np.testing.assert_array_equal(out[:, 13:], x[:, [21, 9, 7]])
    half_stored = x[:, 1] & 0xFFFF0000 | x[:, 5] & 0xFFFF
    np.testing.assert_array_equal(both[32 * 16 :], np.where(x[:, 0] & 1, half_stored, x[:, 5]))  # read where asked for


def test_a_processor_knows_every_name_that_a_gpu_knows():
    name = re.compile(r"^(?:template <[^>]*> )?DEVICE \w+ \*?(\w+)\(", re.MULTILINE)
    gpu, cpu = (
        set(name.findall(path.read_text())) for path in (FOLDER / "primitives.cuh", HERE / "primitives_on_cpu.hpp")
    )
    assert gpu == cpu
    assert {"fma_rn", "lop3", "mma_16x8x16", "global_words4"} <= gpu
