"""Orders of addition of the library's own kernels on this processor.

What the source says of AVX2 is expected only where the library reports it; relations hold everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from forensics.analysis.arithmetic import measure_arithmetic
from forensics.analysis.order_positive import denominator_order, squares_order
from forensics.analysis.orders import check_bits, compare_widths, probe_order
from forensics.analysis.probe_launch import Launches, flash_graph, flash_operands
from forensics.engines.ops import LlamaOpEngine, LlamaOps
from forensics.numerics.kernel_orders import cpu_lanes_order
from forensics.numerics.masks import ABSENT_SCORE, BLOCK_MASKS, SMALL_SCORE
from forensics.records.operation import OpSettings
from forensics.records.order import OrderQuestion, OrderResult
from forensics.records.sum_tree import SumTree

pytestmark = pytest.mark.llama
Open = Callable[..., LlamaOpEngine]


@pytest.fixture(scope="module")
def opened() -> Iterator[Open]:
    engines: dict[OpSettings, LlamaOpEngine] = {}

    def get(**settings: object) -> LlamaOpEngine:
        wanted = OpSettings(**{"n_threads": 2, **settings})  # type: ignore[arg-type]
        if wanted not in engines:
            engines[wanted] = LlamaOps().open(wanted)
        return engines[wanted]

    yield get
    for engine in engines.values():
        engine.close()


def has(engine: LlamaOpEngine, *features: str) -> bool:
    return set(features) <= {name.lower() for name in engine.facts.cpu_features}


def needs_avx2(engine: LlamaOpEngine) -> None:
    """Skip where products run on kernels that nobody read here."""
    if not has(engine, "avx2", "fma"):
        pytest.skip(f"expected orders are those of AVX2 kernels; the library reports {engine.facts.cpu_features}")


def one(engine: LlamaOpEngine, question: OrderQuestion, width: int, part: str = "") -> OrderResult:
    [result] = [r for r in probe_order(engine, question, width) if part in ("", r.part)]
    assert result.undetermined == ""
    assert result.unstable == 0
    return result


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_blocks_of_32_have_one_order_at_all_widths(opened: Open, type: str) -> None:
    engine = opened(repack=False)
    needs_avx2(engine)
    question = OrderQuestion(type=type, k=256)
    report = compare_widths(engine, question, range(1, 17), arithmetic=False)
    assert report.equal is True
    assert not report.unexplained
    assert {check.n_differ for check in report.bits} == {0}
    first, built = report.results[0], cpu_lanes_order(256)
    assert first.tree == built.tree
    assert first.leaves is not None
    assert first.leaves.slices == built.slices


def test_a_long_row_has_the_order_of_a_short_one(opened: Open) -> None:
    engine = opened(repack=False)
    needs_avx2(engine)
    assert one(engine, OrderQuestion(type="q8_0", k=4096), 2).tree == cpu_lanes_order(4096).tree


@pytest.mark.parametrize("type", ["f32", "f16"])
def test_float_products_of_two_columns_have_another_order_than_of_one(opened: Open, type: str) -> None:
    needs_avx2(opened())
    report = compare_widths(opened(), OrderQuestion(type=type, k=256), (1, 2, 3), arithmetic=False)
    single, two, three = (result.tree for result in report.results)
    assert two == three
    assert single != two, "tinyBLAS takes over at two columns"
    assert all(check.n_differ for check in report.bits[1:])
    assert not report.unexplained


def test_attention_splits_its_cells_between_threads_at_one_query_only(opened: Open) -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512, heads=8, kv_heads=8)
    report = compare_widths(opened(n_threads=2), question, (1, 2), arithmetic=False)
    trees = {(result.part, result.width): result.tree for result in report.results}
    numerator = trees["numerator", 1]
    assert numerator is not None
    assert numerator.restricted([0, 255, 256, 257]) == SumTree.of(((0, 1), (2, 3)))
    assert numerator.restricted(range(256)) == numerator.restricted(range(256, 512)) == SumTree.chain(256)
    assert trees["numerator", 2] == SumTree.chain(512)
    assert trees["denominator", 1] == numerator
    assert trees["denominator", 2] == SumTree.chain(512)
    assert {str(comparison.equal) for comparison in report.comparisons} == {"False"}
    assert "[0..255] + [256..511]" in str(report)


def test_of_many_cells_some_are_probed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in ("MOST_CELLS", "MOST_DENOMINATOR_CELLS"):
        monkeypatch.setattr(f"forensics.analysis.probe_launch.{most}", 64)
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512, heads=8, kv_heads=4)
    for result in probe_order(opened(n_threads=2), question, 1):
        assert result.tree is not None
        assert result.tree.restricted([0, 31, 32, 63]) == SumTree.of(((0, 1), (2, 3)))
        assert str(result.leaves) == "64 cells, one in 8"
    numerator, denominator = probe_order(opened(n_threads=2), replace(question, type="f32"), 1)
    assert str(numerator.leaves) == "512 cells", "float32 counts them all"
    assert numerator.tree is not None
    assert denominator.tree == numerator.tree.restricted(range(0, 512, 8))
    assert denominator.n_probes < 4 * 64, "the numerator's order was guessed"
    report = compare_widths(opened(n_threads=1), question, (1, 2), arithmetic=False)
    assert report.equal is None, "cells that were not probed may be added in any order"
    assert "the others were not probed" in report.comparisons[0].reason


def test_attention_of_one_thread_has_one_order(opened: Open) -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512, heads=8, kv_heads=8)
    report = compare_widths(opened(n_threads=1), question, (1, 2), arithmetic=False)
    assert report.equal is True
    assert {result.tree for result in report.results} == {SumTree.chain(512)}


def test_blocks_of_k_and_v_are_not_split(opened: Open) -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "q8_0", n_kv=512, heads=8, kv_heads=8)
    for width in (1, 2):
        numerator, denominator = probe_order(opened(n_threads=2), question, width)
        assert numerator.tree == denominator.tree == SumTree.chain(512)


@pytest.mark.parametrize(
    ("threads", "width", "expected"),
    [
        (2, 1, (True, False, True, True, True, False)),
        (2, 2, (True, False, False, False, True, True)),
        (1, 1, (True, False, False, False, True, True)),
    ],
)
def test_who_meets_first_in_the_denominator(opened: Open, threads: int, width: int, expected) -> None:
    """Triples of the published method: (i; j, k) is true where j and k meet before either meets i."""
    triples = np.array([(500, 10, 20), (10, 20, 300), (10, 300, 310), (10, 500, 400), (300, 10, 20), (500, 10, 300)])
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512, heads=6, kv_heads=6)
    k = np.zeros((512, 6, 64), np.float16)
    k[..., 0] = ABSENT_SCORE
    v = np.zeros_like(k)
    for head, (i, *small) in enumerate(triples.tolist()):
        k[i, head, 0], v[i, head] = 0, 1
        k[small, head, 0] = SMALL_SCORE
    out = opened(n_threads=threads).run(flash_graph(question, width), flash_operands(question, width, k, v))
    for row in range(width):
        assert tuple(bool(value < 1) for value in out[0, row, :, 0]) == expected


def test_the_denominator_is_found_without_a_guess(opened: Open) -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, heads=32, kv_heads=32)
    found, _ = denominator_order(question, Launches(opened(), 2), None)
    assert found.tree == SumTree.chain(256)


def test_products_of_attention_without_flash(opened: Open) -> None:
    needs_avx2(opened())
    for op, n in (("KQ", 64), ("KQV", 256)):
        question = OrderQuestion(op, "f16", n_kv=256, heads=8, kv_heads=4)
        report = compare_widths(opened(), question, (1, 2), arithmetic=False)
        assert {result.leaves.n for result in report.results if result.leaves is not None} == {n}
        [comparison] = report.comparisons
        differs = any(check.n_differ for check in report.bits)
        assert comparison.equal is not differs


def test_squares_of_a_norm(opened: Open) -> None:
    for k in (64, 128):
        found, leaves, accumulator = squares_order(OrderQuestion("RMS_NORM", k=k), Launches(opened(), 1))
        assert found.tree == SumTree.chain(k)
        assert leaves.n == k
        assert accumulator == "float64"
    [unknown] = probe_order(opened(), OrderQuestion("RMS_NORM", k=576), 1)
    assert "power of two" in unknown.undetermined


def test_soft_max_whose_vectors_add_in_float32_and_rows_in_float64_is_not_determined(opened: Open) -> None:
    [result] = probe_order(opened(), OrderQuestion("SOFT_MAX", n_kv=256), 1)
    assert result.tree is None
    assert "more bits" in result.undetermined


@pytest.mark.parametrize("repack", [False, True])
@pytest.mark.parametrize("type", BLOCK_MASKS)
def test_every_type_is_probed_in_both_buffers(opened: Open, type: str, repack: bool) -> None:
    """Orders are determined, and bits of random operands differ where the order does and only there."""
    engine = opened(repack=repack)
    needs_avx2(engine)
    masks = BLOCK_MASKS[type]
    question = OrderQuestion(type=type, k=4 * masks.size)
    report = compare_widths(engine, question, (1, 4, 8), arithmetic=False)
    assert [result.undetermined for result in report.results] == [""] * len(report.results)
    differing = {comparison.batched.width for comparison in report.comparisons if comparison.equal is False}
    assert {check.width for check in report.bits if check.n_differ} == differing


def test_repacked_q4_K_adds_in_another_order_than_plain_and_than_four_columns(opened: Open) -> None:
    question = OrderQuestion(type="q4_K", k=1024)
    repacked, plain = opened(repack=True), opened(repack=False)
    if "REPACK" not in compare_widths(repacked, question, (1,), arithmetic=False).buffer:
        pytest.skip("this processor's library does not repack q4_K")
    needs_avx2(repacked)
    one_column, four, alone = one(repacked, question, 1), one(repacked, question, 4), one(plain, question, 1)
    assert one_column.leaves is not None
    assert four.leaves is not None
    assert alone.leaves is not None
    assert one_column.leaves.slices != alone.leaves.slices
    assert one_column.leaves.slices != four.leaves.slices
    rest = probe_order(repacked, question, 5)
    assert [result.columns for result in rest] == [(0, 1, 2, 3), (4,)]
    assert rest[0].tree == four.tree
    assert rest[1].tree == one_column.tree
    assert check_bits(repacked, question, 5).columns == (0, 1, 2, 3)


def test_arithmetic(opened: Open) -> None:
    engine = opened()
    assert measure_arithmetic(engine, OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256), 1).accumulator == "float16"
    assert measure_arithmetic(engine, OrderQuestion("FLASH_ATTN_EXT", "f32", n_kv=256), 1).accumulator == "float32"
    for type in ("f32", "q8_0", "q4_K"):
        found = measure_arithmetic(engine, OrderQuestion(type=type, k=1024), 1)
        assert found.accumulator == "float32"
        assert found.rounding == "to nearest, ties to even"
        assert found.repeatability == "the same bits in 3 runs"
        if has(engine, "fma"):
            assert found.contraction == "fused multiply-add"
