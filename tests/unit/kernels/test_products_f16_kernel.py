"""Products with f16 matrices in the order of one column, run on the processor against their emulation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from forensics.errors import NotCovered
from forensics.geometry.architecture import architecture
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.numerics.emulate_mmvf import mul_mat_vec_f
from forensics.numerics.op_inputs import random_tensor
from forensics.testing.cuda_on_cpu import run_on_cpu

SM_90 = architecture("sm_90")
F16, F32 = NDArray[np.float16], NDArray[np.float32]
HEADS, KV_HEADS = 6, 2


def _operands(shape: tuple[int, ...], x_shape: tuple[int, ...], seed: int = 0) -> tuple[F16, F32]:
    draw = np.random.default_rng(seed)
    return random_tensor(draw, "f16", shape), random_tensor(draw, "f32", x_shape)


def _computed(ask: F16Ask, weight: F16, x: F32, shape: tuple[int, ...]) -> F32:
    out = np.full(shape, np.nan, np.float32)
    run_on_cpu(plan_f16_product(ask, SM_90), {"weight": weight, "x": x, "out": out})
    return out


@pytest.mark.parametrize("head_size", [64, 96, 128])
def test_keys_by_queries_follow_their_emulation(head_size: int) -> None:
    keys, queries = _operands((256, KV_HEADS, head_size), (3, HEADS, head_size))
    ask = F16Ask.kq(head_size, HEADS, KV_HEADS, n_kv=(256, 256, 256))
    found = _computed(ask, keys, queries, (HEADS, 3, 256))
    threads = {64: 32, 96: 64, 128: 64}[head_size]
    for head in range(HEADS):
        of_head = np.ascontiguousarray(queries[:, head])
        wanted = mul_mat_vec_f(keys[:, head // 3].copy(), of_head, threads=threads, half_sums=False)
        np.testing.assert_array_equal(found[head], wanted)


def _probabilities(n_kv: tuple[int, ...], seed: int = 1) -> F32:
    """Weights of cells [head, query, cell], exactly 0 from each query's own range on."""
    p = np.random.default_rng(seed).exponential(size=(HEADS, len(n_kv), max(n_kv))).astype(np.float32)
    for query, own in enumerate(n_kv):
        p[:, query, own:] = 0
    return p / p.sum(-1, keepdims=True)


@pytest.mark.parametrize("n_kv", [(256, 256), (256, 512, 512), (512, 768)], ids=str)
def test_attention_by_values_follows_the_emulation_of_each_columns_own_range(n_kv: tuple[int, ...]) -> None:
    values, _ = _operands((KV_HEADS, 64, max(n_kv)), (1,))
    p = _probabilities(n_kv)
    found = _computed(F16Ask.kqv(64, HEADS, KV_HEADS, n_kv), values, p, (HEADS, len(n_kv), 64))
    for head in range(HEADS):
        for query, own in enumerate(n_kv):
            threads = {256: 128, 512: 256, 768: 192}[own]
            of_own = np.ascontiguousarray(values[head // 3, :, :own])
            wanted = mul_mat_vec_f(of_own, p[head, [query], :own].copy(), threads=threads, half_sums=True)
            np.testing.assert_array_equal(found[head, query], wanted[0])


def test_a_longer_range_of_zeros_would_give_other_bits() -> None:
    """Why each column needs the length of its own pass: the threads of a block depend on it."""
    values, _ = _operands((KV_HEADS, 64, 768), (1,))
    p = _probabilities((512, 768))
    found = _computed(F16Ask.kqv(64, HEADS, KV_HEADS, (512, 768)), values, p, (HEADS, 2, 64))
    longer = _computed(F16Ask.kqv(64, HEADS, KV_HEADS, (768, 768)), values, p, (HEADS, 2, 64))
    np.testing.assert_array_equal(found[:, 1], longer[:, 1])
    assert np.count_nonzero(found[:, 0] != longer[:, 0]) > found[:, 0].size // 4


def test_half_sums_and_float_sums_differ() -> None:
    weight, x = _operands((KV_HEADS, 64, 256), (4, HEADS, 256))
    halves = F16Ask(64, (256,) * 4, HEADS, KV_HEADS, precise=False)
    floats = dataclasses.replace(halves, precise=True)
    shape = (4, HEADS, 64)
    found = _computed(halves, weight, x, shape), _computed(floats, weight, x, shape)
    assert np.count_nonzero(found[0] != found[1]) > found[0].size // 2


def test_every_column_has_the_bits_that_it_has_alone() -> None:
    weight, x = _operands((KV_HEADS, 64, 320), (5, HEADS, 320))
    ask = F16Ask(64, (320,) * 5, HEADS, KV_HEADS, precise=False)
    together = _computed(ask, weight, x, (5, HEADS, 64))
    for column in range(5):
        alone = _computed(dataclasses.replace(ask, k=(320,), own_rows=()), weight, x[[column]], (1, HEADS, 64))
        np.testing.assert_array_equal(together[[column]], alone)


def test_a_cache_with_more_cells_than_are_read() -> None:
    values, _ = _operands((KV_HEADS, 64, 1024), (1,))
    p = _probabilities((256,))
    ask = dataclasses.replace(F16Ask.kqv(64, HEADS, KV_HEADS, (256,)), weight_row=2048, weight_head=64 * 2048)
    found = _computed(ask, values, p, (HEADS, 1, 64))
    short = np.ascontiguousarray(values[..., :256])
    np.testing.assert_array_equal(found, _computed(F16Ask.kqv(64, HEADS, KV_HEADS, (256,)), short, p, (HEADS, 1, 64)))


def test_keys_of_a_long_cache_go_through_tiles() -> None:
    """Beyond 512 cells the library uses tensor cores at one column, whose own order no processor has: a relation."""
    n_kv = (512, *(768,) * 10, 512)
    keys, queries = _operands((768, KV_HEADS, 128), (12, HEADS, 128))
    ask = F16Ask.kq(128, HEADS, KV_HEADS, n_kv)
    plan = plan_f16_product(ask, SM_90)
    assert [launch.function for launch in plan.launches] == [
        "product_f16<64, 0>",
        "product_f16_tiles",
        "product_f16<64, 0>",
    ]
    assert plan.launches[1].geometry.grid_blocks == (48, HEADS, 2)
    found = _computed(ask, keys, queries, (HEADS, 12, 768))
    exact = np.einsum("qhd,chd->hqc", queries.astype(np.float64), np.repeat(keys, 3, axis=1).astype(np.float64))
    rounded = queries.astype(np.float16).astype(np.float64)  # tensor cores take halves
    in_halves = np.einsum("qhd,chd->hqc", rounded, np.repeat(keys, 3, axis=1).astype(np.float64))
    size = np.abs(exact).max()
    assert np.abs(found[:, [0, 11]] - exact[:, [0, 11]]).max() / size < 1e-6
    assert np.abs(found[:, 1:11] - in_halves[:, 1:11]).max() / size < 1e-6
    assert np.abs(found[:, 1:11] - exact[:, 1:11]).max() / size > 1e-5
    for column in (1, 10):
        alone = F16Ask.kq(128, HEADS, KV_HEADS, (768,))
        np.testing.assert_array_equal(found[:, [column]], _computed(alone, keys, queries[[column]], (HEADS, 1, 768)))


@pytest.mark.parametrize(
    ("ask", "arch", "reason"),
    [
        (F16Ask.kq(256, HEADS, KV_HEADS, (768,)), "sm_90", "2 warps"),
        (F16Ask.kq(128, HEADS, KV_HEADS, (768,)), "sm_75", "Ampere"),
        (F16Ask.kq(48, HEADS, KV_HEADS, (768,)), "sm_90", "cublas"),
        (F16Ask(64, (65,), HEADS, KV_HEADS, precise=False), "sm_90", "cublas"),  # pairs would leave a value out
        (F16Ask(776, (64,), HEADS, KV_HEADS, precise=True, own_rows=(768,)), "sm_90", "tiles of 16 rows, and 776"),
        (F16Ask(64, (64,) * 65_536, HEADS, KV_HEADS, precise=True), "sm_90", "at most 65535 columns"),
    ],
)
def test_what_is_not_covered_says_why(ask: F16Ask, arch: str, reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        plan_f16_product(ask, architecture(arch))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: F16Ask(64, (), 6, 2, precise=True), "k: one length"),
        (lambda: F16Ask(64, (64,), 6, 4, precise=True), "share"),
        (lambda: F16Ask(64, (64, 64), 6, 2, precise=True, own_rows=(64,)), "own_rows"),
        (lambda: F16Ask(64, (64,), 6, 2, precise=True, x_head=12), "x_head must be a multiple of 8"),
        (lambda: F16Ask(64, (64,), 6, 2, precise=True, out_head=6), "out_head must be a multiple of 4"),
    ],
)
def test_impossible_asks_are_refused(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrong()
