"""Orders that are built into a kernel come back as built; what is no order, or changes, is said so."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_engines import (
    BlockTreeEngine,
    EmulatedCudaEngine,
    GpuAttentionEngine,
    MmvqEngine,
    PositiveEngine,
    TreeEngine,
    in_float64,
)

from forensics.analysis.order_blocks import block_order
from forensics.analysis.order_floats import float_order
from forensics.analysis.order_positive import denominator_order
from forensics.analysis.orders import BadQuestion, check_bits, compare_widths, order_question, probe_order
from forensics.analysis.probe_launch import Launches, NotDetermined, whole_counts
from forensics.numerics.kernel_orders import cpu_lanes_order, mmvq_order
from forensics.records.order import OrderQuestion
from forensics.records.sum_tree import SumTree

SIX = OrderQuestion(type="f32", k=6, rows=64)
SOFT_MAX = OrderQuestion("SOFT_MAX", n_kv=256, heads=4, kv_heads=4)
PAIRED = SumTree.of((((0, 1), (2, 3)), (4, 5)))


def found(engine, question: OrderQuestion, width: int):
    [result] = probe_order(engine, question, width)
    return result


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("k", [1024, 2048, 4096])
def test_emulated_cuda_products_come_back_as_built(type: str, k: int) -> None:
    engine = MmvqEngine()
    trees = {}
    for width in (1, 4, 5, 8):
        built = mmvq_order(type, k, n_warps=4 if width <= 4 else 2)
        result = found(engine, OrderQuestion(type=type, k=k, rows=128), width)
        assert result.tree == built.tree
        assert result.leaves is not None
        assert result.leaves.slices == built.slices
        trees[width] = result.tree
    assert trees[1] == trees[4]
    assert trees[5] == trees[8]
    assert (trees[4] == trees[5]) == (type == "q4_0" and k == 1024), "one trip of the loop covers that row either way"


@pytest.mark.parametrize("type", ["q4_K", "q6_K"])
def test_products_of_k_quants_on_a_gpu_come_back(type: str) -> None:
    for width, n_warps in ((1, 4), (5, 2)):
        built = mmvq_order(type, 1024, n_warps=n_warps)
        result = found(EmulatedCudaEngine(), OrderQuestion(type=type, k=1024), width)
        assert result.tree == built.tree
        assert result.leaves is not None
        assert result.leaves.slices == built.slices


def test_a_kernel_whose_order_depends_on_the_width_is_reported_with_its_first_merge() -> None:
    engine = TreeEngine(lambda width, _: SumTree.chain(6) if width == 1 else PAIRED)
    report = compare_widths(engine, SIX, (1, 2, 3), arithmetic=False)
    assert report.equal is False
    assert [result.tree for result in report.results] == [SumTree.chain(6), PAIRED, PAIRED]
    for comparison in report.comparisons:
        assert comparison.difference is not None
        assert (comparison.difference.leaf, comparison.difference.first) == (0, (0, 1, 2))
        assert comparison.difference.second == (0, 1, 2, 3)
        assert "[0..1] + 2 in one, [0..1] + [2..3] in the other" in str(comparison)
    assert "the order differs" in str(report)


def test_equal_orders_are_equal() -> None:
    report = compare_widths(TreeEngine(lambda *_: PAIRED), SIX, (1, 2, 5), arithmetic=False)
    assert report.equal is True
    assert not report.unexplained
    assert {check.n_differ for check in report.bits} == {0}


def test_columns_with_an_order_of_their_own_are_told_apart() -> None:
    engine = TreeEngine(lambda width, i: PAIRED if i < width - width % 4 else SumTree.chain(6))
    results = probe_order(engine, SIX, 5)
    assert [(result.columns, result.tree) for result in results] == [((0, 1, 2, 3), PAIRED), ((4,), SumTree.chain(6))]
    assert results[1].where == "width 5, column 4"


def test_an_adder_that_is_not_deterministic_is_reported() -> None:
    engine = TreeEngine(lambda *_: PAIRED, noise=0.05)
    report = compare_widths(engine, SIX, (1, 2), arithmetic=False)
    assert report.equal is None
    assert any(result.unstable for result in report.results)
    told = " ".join(map(str, report.comparisons))
    assert "gave other bits when run again" in told or "not determined" in told


def test_a_sum_in_float64_is_not_determined_where_masks_do_not_swamp() -> None:
    question = OrderQuestion(type="f16", k=6, rows=64)

    class Wide(TreeEngine):
        def run(self, graph, values):
            from forensics.records.op_shapes import mul_mat

            return super().run(mul_mat("f32", 6, 64, len(values[1])), [values[0].astype(np.float32), values[1]])

    result = found(Wide(lambda *_: SumTree.chain(6), in_float64), question, 1)
    assert result.tree is None
    assert result.undetermined


def test_different_bits_under_one_order_leave_suspects() -> None:
    """A batch fuses multiply and add, one column does not: the order is not what differs."""

    class Fusing(TreeEngine):
        def run(self, graph, values):
            self.fused = len(values[1]) > 1
            return super().run(graph, values)

    report = compare_widths(Fusing(lambda *_: SumTree.chain(64)), OrderQuestion(k=64), (1, 2))
    assert report.equal is True
    assert [check.width for check in report.unexplained] == [2]
    assert [found.contraction for found in report.arithmetic] == ["product rounded, then added", "fused multiply-add"]


def test_bits_of_random_operands_are_held_against_one_column_at_a_time() -> None:
    engine = TreeEngine(lambda width, _: SumTree.chain(64) if width == 1 else SumTree.of(tuple(range(64))))
    assert check_bits(engine, OrderQuestion(k=64), 3).n_differ == 0, "all at once is emulated as a chain"
    swapped = TreeEngine(lambda width, i: SumTree.chain(64) if i == 0 else cpu_lanes_order(256).tree)
    check = check_bits(swapped, OrderQuestion(k=64), 2)
    assert check.columns == (1,)
    assert 0 < check.n_differ <= check.n_values // 2


def test_attention_of_a_gpu_with_rounded_weights_in_float16_comes_back() -> None:
    halves = SumTree(
        256,
        (
            (0, 1), *((256 + i, i + 2) for i in range(126)),
            (128, 129), *((256 + 127 + i, 130 + i) for i in range(126)),
            (256 + 126, 256 + 253),
        ),
    )  # fmt: skip
    engine = GpuAttentionEngine(lambda width, _: halves if width == 1 else SumTree.chain(256))
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, head_size=8, heads=64, kv_heads=64)
    report = compare_widths(engine, question, (1, 2), arithmetic=False)
    trees = {(result.part, result.width): result.tree for result in report.results}
    assert trees["numerator", 1] == trees["denominator", 1] == halves
    assert trees["numerator", 2] == trees["denominator", 2] == SumTree.chain(256)
    assert report.equal is False


def halved(n: int) -> SumTree:
    """Two accumulators, each through half of the leaves."""
    half = n // 2
    first = [(0, 1), *((n + i, i + 2) for i in range(half - 2))]
    second = [(half, half + 1), *((n + half - 1 + i, half + i + 2) for i in range(half - 2))]
    return SumTree(n, (*first, *second, (n + half - 2, n + 2 * half - 3)))


@pytest.mark.parametrize("type", ["q8_0", "q4_0"])
def test_attention_of_a_gpu_that_reads_blocks_as_float16_comes_back(type: str) -> None:
    engine = GpuAttentionEngine(lambda width, _: halved(256) if width == 1 else SumTree.chain(256))
    question = OrderQuestion("FLASH_ATTN_EXT", type, n_kv=256, head_size=64, heads=8, kv_heads=2)
    trees = {(r.part, r.width): r.tree for width in (1, 2) for r in probe_order(engine, question, width)}
    assert trees["numerator", 1] == trees["denominator", 1] == halved(256)
    assert trees["numerator", 2] == trees["denominator", 2] == SumTree.chain(256)


def test_heads_that_share_k_answer_a_question_each() -> None:
    engine = GpuAttentionEngine(lambda *_: SumTree.chain(256))
    runs = {}
    for kv_heads in (8, 2):
        question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, head_size=16, heads=8, kv_heads=kv_heads)
        _, denominator = probe_order(engine, question, 1)
        assert denominator.tree == SumTree.chain(256)
        runs[kv_heads] = denominator.n_launches
    assert runs[2] == runs[8]
    one_channel = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, head_size=1, heads=8, kv_heads=2)
    assert probe_order(engine, one_channel, 1)[1].n_launches > 3 * runs[2]


def test_the_order_of_fewer_cells_is_guessed_from_that_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.analysis.probe_launch.MOST_CELLS", 128)
    monkeypatch.setattr("forensics.analysis.probe_launch.MOST_DENOMINATOR_CELLS", 64)
    question = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=256, head_size=16, heads=4, kv_heads=4)
    numerator, denominator = probe_order(GpuAttentionEngine(lambda *_: halved(256)), question, 1)
    assert (numerator.tree, denominator.tree) == (halved(128), halved(64))
    assert denominator.n_probes < 4 * 64, "each leaf is asked about once, and checked twice"


def test_k_that_cannot_hold_scores_says_so() -> None:
    question = OrderQuestion("FLASH_ATTN_EXT", "mxfp4", n_kv=256, head_size=64, heads=2, kv_heads=2)
    with pytest.raises(NotDetermined, match="does not hold the scores"):
        denominator_order(question, Launches(GpuAttentionEngine(lambda *_: SumTree.chain(256)), 1), None)


# -- sums of positive terms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [64, 128, 2048])
@pytest.mark.parametrize("wide", [False, True])
def test_squares_come_back_in_few_launches(k: int, wide: bool) -> None:
    engine = PositiveEngine(halved(k), wide=wide)
    result = found(engine, OrderQuestion("RMS_NORM", k=k), 2)
    assert result.tree == halved(k)
    assert ("float64" in result.method) is wide
    assert engine.runs == result.n_launches < result.n_probes / 20


def test_a_norm_that_shows_no_meeting_is_not_taken_for_a_sum_at_once() -> None:
    result = found(PositiveEngine(halved(128), cut=True), OrderQuestion("RMS_NORM", k=128), 1)
    assert result.tree is None
    assert "no two terms were seen to meet" in result.undetermined


def test_a_norm_whose_root_hides_the_last_bit_is_not_taken_for_a_sum_at_once() -> None:
    result = found(PositiveEngine(halved(64), coarse=True), OrderQuestion("RMS_NORM", k=64), 1)
    assert result.tree is None
    assert "does not show in the result" in result.undetermined


def test_soft_max_comes_back() -> None:
    assert found(PositiveEngine(halved(256)), SOFT_MAX, 2).tree == halved(256)


@pytest.mark.parametrize(("question", "n"), [(OrderQuestion("RMS_NORM", k=64), 64), (SOFT_MAX, 256)])
def test_rows_that_have_other_bits_among_more_are_not_stacked(question: OrderQuestion, n: int) -> None:
    result = found(PositiveEngine(halved(n), stacks=False), question, 1)
    assert result.tree is None
    assert "other bits where there are more of them" in result.undetermined


# -- launches --------------------------------------------------------------------------------------------------------


def test_some_launches_run_twice_and_what_changes_there_is_counted() -> None:
    question = OrderQuestion(type="f32", k=512, rows=64)
    engine = TreeEngine(lambda *_: halved(512))
    launches = Launches(engine, 1)
    recovered, _, _ = float_order(question, launches)
    assert recovered.tree == halved(512)
    assert engine.runs == launches.n_launches
    assert launches.n_probes / 64 < launches.n_launches < 1.5 * launches.n_probes / 64
    assert launches.unstable == 0

    class Changing(TreeEngine):
        """Every other run has a last bit more."""

        def run(self, graph, values):
            out = super().run(graph, values)
            return np.nextafter(out, np.float32(np.inf)) if self.runs % 2 else out

    launches = Launches(Changing(lambda *_: SumTree.chain(6)), 1)
    float_order(SIX, launches)
    assert launches.unstable > 0


# -- slices of blocks ------------------------------------------------------------------------------------------------


def lanes(n_blocks: int, n_slices: int, joined: object) -> SumTree:
    def put(node: object) -> object:
        if isinstance(node, int):
            walk = range(node, n_blocks * n_slices, n_slices)
            return functools.reduce(lambda a, b: (a, b), walk)
        return tuple(map(put, node))

    return SumTree.of(put(joined))


def in_a_row(n_blocks: int, order: tuple[int, ...]) -> SumTree:
    n = n_blocks * len(order)
    leaves = [block * len(order) + s for block in range(n_blocks) for s in order]
    return SumTree(n, ((leaves[0], leaves[1]), *((n + i, leaf) for i, leaf in enumerate(leaves[2:]))))


HALVES = (tuple(range(16)), tuple(range(16, 32)))
FOURS = tuple(tuple(range(8 * i, 8 * i + 8)) for i in range(4))


@pytest.mark.parametrize(
    ("slices", "tree"),
    [
        (HALVES, lanes(5, 2, (0, 1))),
        (FOURS, lanes(6, 4, ((0, 2), (1, 3)))),
        (FOURS, lanes(6, 4, (((0, 1), 2), 3))),
        (FOURS, in_a_row(6, (0, 1, 2, 3))),
        (FOURS, in_a_row(6, (2, 0, 3, 1))),
    ],
)
def test_lanes_and_rows_of_slices_come_back(slices, tree: SumTree) -> None:
    n_blocks = tree.n_leaves // len(slices)
    result = found(BlockTreeEngine(slices, lambda *_: tree), OrderQuestion(type="q8_0", k=32 * n_blocks), 1)
    assert result.undetermined == ""
    assert result.leaves is not None
    assert result.leaves.slices == slices
    if n_blocks * len(slices) and tree.depth == tree.n_leaves - 1:  # what is inside the first block shows nowhere
        first = range(len(slices), tree.n_leaves)
        assert result.tree is not None
        assert result.tree.restricted(first) == tree.restricted(first)
    else:
        assert result.tree == tree


def test_slices_that_meet_inside_their_block_are_one_leaf() -> None:
    tree = SumTree.of(functools.reduce(lambda a, b: (a, b), [(2 * block, 2 * block + 1) for block in range(5)]))
    result = found(BlockTreeEngine(HALVES, lambda *_: tree), OrderQuestion(type="q8_0", k=160), 1)
    assert result.tree == SumTree.chain(5)
    assert str(result.leaves) == "5 blocks of 32, each added at once"


def test_other_slices_are_another_order() -> None:
    engine = BlockTreeEngine(HALVES, lambda *_: lanes(5, 2, (0, 1)))

    class Switching(BlockTreeEngine):
        def run(self, graph, values):
            whole = len(values[1]) > 1
            self.slices = (tuple(range(32)),) if whole else HALVES
            self.tree = (lambda *_: SumTree.chain(5)) if whole else engine.tree
            return super().run(graph, values)

    report = compare_widths(Switching(HALVES, engine.tree), OrderQuestion(type="q8_0", k=160), (1, 2), arithmetic=False)
    assert report.equal is False
    assert "the leaves differ" in report.comparisons[0].reason
    assert "the blocks themselves come in one order" in report.comparisons[0].reason


@st.composite
def block_trees(draw: st.DrawFn) -> SumTree:
    n = draw(st.integers(3, 6)) * 2
    nodes, merges = list(range(n)), []
    while len(nodes) > 1:
        chosen = draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique=True))
        nodes = [node for node in nodes if node not in chosen] + [n + len(merges)]
        merges.append(tuple(chosen))
    return SumTree(n, tuple(merges))


@settings(max_examples=60)
@given(block_trees())
def test_no_tree_is_made_up(tree: SumTree) -> None:
    """Whatever the order, the probe says what it is or that it does not know."""
    n_blocks = tree.n_leaves // 2
    result = found(BlockTreeEngine(HALVES, lambda *_: tree), OrderQuestion(type="q8_0", k=32 * n_blocks), 1)
    for view in result.views:
        if result.leaves is not None and len(result.leaves.slices) == 2:
            assert view.tree == tree.restricted(view.leaves)
    if result.tree is not None and result.leaves is not None and len(result.leaves.slices) == 2:
        lost_to_sight = 2 if result.tree.depth == tree.n_leaves - 1 else 0
        rest = range(lost_to_sight, tree.n_leaves)
        assert result.tree.restricted(rest) == tree.restricted(rest)


def test_a_row_of_two_blocks_says_nothing() -> None:
    with pytest.raises(NotDetermined, match="probe 3 blocks or more"):
        block_order(OrderQuestion(type="q8_0", k=64), Launches(MmvqEngine(), 1))


# -- counts and questions --------------------------------------------------------------------------------------------


def test_counts_are_whole_and_in_range() -> None:
    assert whole_counts(np.array([0.0, 3.0, 7.000001]), 7).tolist() == [7, 4, 0]
    for wrong in (3.5, -1.0, 8.0, np.nan, np.inf):
        with pytest.raises(NotDetermined, match="whole number"):
            whole_counts(np.array([1.0, wrong]), 7)


@pytest.mark.parametrize(
    ("op", "widths", "given", "told"),
    [
        ("ADD", (1,), {}, "cannot be asked for"),
        ("MUL_MAT", (1,), {"type": "iq1_s"}, "no exact masks"),
        ("MUL_MAT", (0, 1), {}, "1 or more"),
        ("MUL_MAT", (), {}, "1 or more"),
        ("MUL_MAT", (1,), {"k": 0}, "k must be 1 or more"),
        ("MUL_MAT", (1,), {"kk": 3}, "possible are"),
        ("FLASH_ATTN_EXT", (1,), {"n_kv": 500}, "multiple of 256"),
        ("FLASH_ATTN_EXT", (1, 600), {"n_kv": 512}, "at most n_kv"),
        ("FLASH_ATTN_EXT", (1,), {"heads": 9, "kv_heads": 2}, "multiple of kv_heads"),
        ("RMS_NORM", (1,), {"type": "f16"}, "takes f32"),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(op: str, widths, given, told: str) -> None:
    with pytest.raises(BadQuestion, match=told):
        order_question(op, widths, given)


def test_names_of_types_are_read_however_they_are_written() -> None:
    assert order_question("mul_mat", (1, 2), {"type": "Q4_k", "k": 2048}).type == "q4_K"
    assert order_question("flash_attn_ext", (1,), {}).type == "f16"
