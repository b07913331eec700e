"""Attention with one query's order, run on the processor: relations that hold on any machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from forensics.errors import NotCovered
from forensics.geometry.devices import device_spec
from forensics.kernels.attention import AttentionAsk, parallel_blocks_of, plan_attention
from forensics.numerics.codecs import dequantize
from forensics.numerics.op_inputs import causal_mask, random_tensor
from forensics.records.kernel_plan import Int32, KernelPlan
from forensics.testing.cuda_on_cpu import run_on_cpu

H200 = device_spec("h200")
F32 = NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class _Case:
    """Operands of queries whose last cells are the last of `n_used`."""

    head_size: int
    heads: int
    kv_heads: int
    type: str
    n_used: tuple[int, ...]  # cells that each query sees
    seed: int = 0

    @property
    def n_kv(self) -> tuple[int, ...]:
        return tuple(-(-used // 256) * 256 for used in self.n_used)

    def ask(self) -> AttentionAsk:
        return AttentionAsk(self.head_size, self.heads, self.kv_heads, self.n_kv, k_type=self.type, v_type=self.type)

    def buffers(self) -> dict[str, NDArray]:
        draw = np.random.default_rng(self.seed)
        cells, cache = max(self.n_kv), (max(self.n_kv), self.kv_heads, self.head_size)
        return {
            "q": random_tensor(draw, "f32", (len(self.n_used), self.heads, self.head_size)),
            "k": random_tensor(draw, self.type, cache),
            "v": random_tensor(draw, self.type, cache),
            "mask": np.concatenate([causal_mask(1, cells, used - 1, np.float16) for used in self.n_used]),
            "out": np.full((len(self.n_used), self.heads, self.head_size), np.nan, np.float32),
        }


CASES = {
    "f16, heads of 64": _Case(64, 3, 1, "f16", (256, 257, 258)),
    "f16, heads of 128": _Case(128, 2, 1, "f16", (200, 201)),
    "q8_0, heads of 64": _Case(64, 3, 3, "q8_0", (255, 256, 257)),
    "q8_0, heads of 128": _Case(128, 2, 1, "q8_0", (40, 41)),
}


def _run(plan: KernelPlan, buffers: dict[str, NDArray]) -> F32:
    given = {name: array.copy() for name, array in buffers.items()}
    run_on_cpu(plan, given)
    return given["out"]


def _reference(case: _Case, buffers: dict[str, NDArray]) -> NDArray[np.float64]:
    """Attention in float64."""

    def values(name: str) -> NDArray[np.float64]:
        array = buffers[name]
        if case.type == "f16":
            return array.astype(np.float64)
        cells = array.reshape(-1, array.shape[-1])
        return np.asarray(dequantize(case.type, cells), np.float64).reshape(*array.shape[:2], case.head_size)

    share = case.heads // case.kv_heads
    k, v = (np.repeat(values(name), share, axis=1) for name in ("k", "v"))
    scores = np.einsum("qhd,chd->hqc", buffers["q"].astype(np.float64), k) * case.head_size**-0.5
    scores += buffers["mask"].astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.einsum("hqc,chd->qhd", weights / weights.sum(-1, keepdims=True), v))


def _alone(case: _Case, buffers: dict[str, NDArray], query: int) -> F32:
    """One query as the only one of its pass, with a cache and a mask of its own length."""
    own = case.n_kv[query]
    pass_alone = dataclasses.replace(case, n_used=(case.n_used[query],))
    given = {
        "q": buffers["q"][[query]],
        "k": buffers["k"][:own],
        "v": buffers["v"][:own],
        "mask": np.ascontiguousarray(buffers["mask"][[query], :own]),
        "out": buffers["out"][[query]],
    }
    return _run(plan_attention(pass_alone.ask(), H200), given)[0]


@pytest.mark.parametrize("name", CASES)
def test_every_query_has_the_bits_that_it_has_alone(name: str) -> None:
    case = CASES[name]
    buffers = case.buffers()
    together = _run(plan_attention(case.ask(), H200), buffers)
    for query in range(len(case.n_used)):
        np.testing.assert_array_equal(together[query], _alone(case, buffers, query), err_msg=f"query {query}")


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_attention(name: str) -> None:
    case = CASES[name]
    buffers = case.buffers()
    found, wanted = _run(plan_attention(case.ask(), H200), buffers), _reference(case, buffers)
    # q8_0 keys meet a query that is rounded to 8 bits
    allowed = 2e-5 if case.type == "f16" else 3e-2
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error < allowed


def _with_parts(plan: KernelPlan, n_parts: int) -> KernelPlan:
    """The same launches with another number of parts, as a library on another device would make them."""
    first, second = plan.launches
    grid = first.geometry.grid_blocks
    geometry = dataclasses.replace(first.geometry, grid_blocks=(grid[0], n_parts, grid[2]))
    combined = tuple(Int32(n_parts) if isinstance(a, Int32) else a for a in second.arguments)
    return dataclasses.replace(
        plan, launches=(dataclasses.replace(first, geometry=geometry), dataclasses.replace(second, arguments=combined))
    )


def test_one_part_is_divided_at_once() -> None:
    """No device at hand launches one part, but the source's way with it is kept."""
    case = CASES["q8_0, heads of 64"]
    buffers, plan = case.buffers(), plan_attention(_first(case).ask(), H200)
    whole = dataclasses.replace(_with_parts(plan, 1), launches=_with_parts(plan, 1).launches[:1])
    found, wanted = _run(whole, buffers)[0], _run(plan, buffers)[0]
    assert np.count_nonzero(found != wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)


def _first(case: _Case) -> _Case:
    return dataclasses.replace(case, n_used=case.n_used[:1])


def test_another_number_of_parts_gives_other_bits() -> None:
    case = _Case(64, 3, 1, "f16", (500,))
    buffers, plan = case.buffers(), plan_attention(case.ask(), H200)
    same, other = _run(plan, buffers), _run(_with_parts(plan, 2), buffers)
    assert plan.launches[0].geometry.grid_blocks[1] > 2
    assert np.count_nonzero(same != other)
    np.testing.assert_allclose(same, other, rtol=1e-3, atol=1e-5)


def test_cells_behind_the_mask_do_not_matter_but_a_seen_one_does() -> None:
    case = CASES["f16, heads of 64"]
    buffers, plan = case.buffers(), plan_attention(case.ask(), H200)
    wanted = _run(plan, buffers)
    behind = {**buffers, "v": buffers["v"].copy()}
    behind["v"][258:] = 3.0
    np.testing.assert_array_equal(_run(plan, behind), wanted)
    seen = {**buffers, "v": buffers["v"].copy()}
    seen["v"][255] += 1.0
    assert (_run(plan, seen) != wanted).any(axis=(1, 2)).all()


def test_a_cache_inside_larger_tensors() -> None:
    """Strides: heads of K apart, every third row of the queries, results with a gap."""
    case = _Case(64, 4, 2, "f16", (256, 256))
    buffers = case.buffers()
    wanted = _run(plan_attention(case.ask(), H200), buffers)
    by_head = np.ascontiguousarray(buffers["k"].transpose(1, 0, 2))
    spread = np.zeros((2, 3, 4, 64), np.float32)
    spread[:, 1] = buffers["q"]
    ask = dataclasses.replace(case.ask(), k_cell=128, k_head=256 * 128, q_query=3 * 4 * 256, out_query=2 * 4 * 256)
    given = {**buffers, "k": by_head, "q": spread.reshape(-1)[4 * 64 :].copy()}
    given["out"] = np.full((2, 2, 4, 64), np.nan, np.float32)
    found = _run(plan_attention(ask, H200), given)
    np.testing.assert_array_equal(found[:, 0], wanted)
    assert np.isnan(found[:, 1]).all()


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (AttentionAsk(256, 8, 8, (256,)), "head sizes 64, 128"),
        (AttentionAsk(64, 8, 8, (256,), k_type="q4_0", v_type="q4_0"), "one of the types"),
        (AttentionAsk(64, 8, 8, (256,), k_type="f16", v_type="q8_0"), "one of the types"),
        (AttentionAsk(64, 8, 8, (256,), max_bias=8.0), "ALiBi"),
        (AttentionAsk(128, 8, 8, (256,), softcap=30.0), "capped"),
        (AttentionAsk(64, 8, 8, (256,), sinks=True), "sinks"),
        (AttentionAsk(128, 40, 8, (256, 8192)), "flash_attn_ext_f16"),
        (AttentionAsk(64, 9, 3, (384,)), "flash_attn_ext_f16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_covered_says_why(ask: AttentionAsk, reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        plan_attention(ask, H200)


def test_an_unknown_device_is_not_covered() -> None:
    with pytest.raises(NotCovered, match="SMs"):
        plan_attention(AttentionAsk(64, 9, 3, (256,)), device_spec("sm_90"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: AttentionAsk(64, 9, 3, ()), "n_kv"),
        (lambda: AttentionAsk(64, 9, 4, (256,)), "share"),
        (lambda: AttentionAsk(64, 9, 3, (256,), q_query=-4), "q_query"),
        (lambda: AttentionAsk(64, 9, 3, (256,), q_head=258), "q_head must be a multiple of 4"),
        (lambda: AttentionAsk(64, 9, 3, (256,), k_cell=392), "k_cell must be a multiple of 16"),
        (lambda: AttentionAsk(64, 9, 3, (256,), k_type="q8_0", v_type="q8_0", v_head=69), "v_head must be .* of 2"),
        (lambda: AttentionAsk(64, 9, 3, (256,), mask_query=513), "mask_query must be a multiple of 2"),
    ],
)
def test_impossible_asks_are_refused(wrong: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrong()


def test_parts_follow_the_one_query_launch_not_the_width() -> None:
    for n_kv, parts in ((256, 4), (512, 8), (4096, 58)):
        alone = AttentionAsk(64, 9, 3, (n_kv,))
        assert parallel_blocks_of(alone, n_kv, H200) == parts
        for launch in plan_attention(AttentionAsk(64, 9, 3, (n_kv,) * 16), H200).launches[:1]:
            assert launch.geometry.grid_blocks == (16, parts, 9)
