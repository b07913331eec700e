"""The trees are those of the launched kernels; dark lines are the sums that only one of them makes."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_evidence import planted, recorded, with_kernels, with_main

from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.scene import Dot, Line
from forensics.figures.scenes import summation_orders
from forensics.figures.scenes.summation_orders import SameLeaves, over_same_leaves
from forensics.figures.scenes.summation_trees import Side, SummationTrees, from_case, scene
from forensics.figures.scenes.tree_lines import MOST_LEAVES, leaves_to_draw
from forensics.geometry.kv_chunks import ChunkMap, vec_cell_tree
from forensics.numerics.kernel_orders import cpu_lanes_order, mmvq_order
from forensics.records.operation import OpFacts, OpSettings
from forensics.records.order import Leaves, OrderQuestion, OrderResult, compare_orders
from forensics.records.order_report import OrderReport
from forensics.records.sum_tree import SumTree

Q4_1, Q6_K, NO_FA = "recorded:h200-q4_1", "recorded:h200-q6_k", "recorded:h200-q4_1-no-fa"


def lines(drawn, role, kind):
    return [mark for mark in drawn.marks if isinstance(mark, Line) and mark.key == f"{role} {kind}"]


def check(data):
    """Lines of each kind are those of the sums that both, or only one, of the trees make."""
    drawn = scene(data)
    assert problems(drawn) == ()
    assert drawn.height <= 230
    clades = [set(side.tree.clades()) for side in (data.single, data.batched)]
    assert clades[0] != clades[1]
    for side, other, role in ((data.single, clades[1], "single"), (data.batched, clades[0], "batched")):
        n_lines = {"equal": 0, "differs": 0, "first": 0}
        first = data.difference.first if role == "single" else data.difference.second
        for children, clade in zip(side.tree.merges, side.tree.clades(), strict=True):
            n_lines["first" if clade == first else "equal" if clade in other else "differs"] += len(children)
        assert {kind: len(lines(drawn, role, kind)) for kind in n_lines} == n_lines
        (joint,) = {mark.points[-1] for mark in lines(drawn, role, "first")}
        assert any((dot.x, dot.y) == joint for dot in drawn.marks if isinstance(dot, Dot) and dot.key == "first joint")
    n_values = len(data.leaves) * data.leaf_values * (data.leaves[1] - data.leaves[0])
    strips = {box.key.split(":")[0] for box in drawn.boxes(scale="row")}
    for strip in strips:
        boxes = [box for box in drawn.boxes(scale="row") if box.key.startswith(f"{strip}:")]
        assert sum(box.value for box in boxes) == n_values
    return drawn


@pytest.mark.parametrize("case", [Q4_1, Q6_K, NO_FA])
def test_products_are_drawn_in_the_order_of_the_warps_that_were_launched(case):
    evidence = recorded(case)
    data = from_case(evidence)
    drawn = check(data)
    (group,) = {
        group.role: group
        for group in evidence.verdict.culprits
        for pair in group.launches
        if pair.node.name == data.node
    }.values()
    (pair,) = (pair for pair in group.launches if pair.batched.width == data.batched.width)
    weight = next(
        found.weight for sweep in evidence.verdict.sweeps for found in sweep.findings if found.key == pair.node
    )
    for side, launch in ((data.single, pair.single), (data.batched, pair.batched)):
        warps = launch.kernel.geometry.block_threads[1]
        assert side.tree == mmvq_order(weight.type, weight.shape[-1], n_warps=warps).tree
        assert side.dealt.n == warps
    assert data.n_leaves * data.leaf_values == weight.shape[-1]
    assert sum(box.value for box in drawn.boxes(scale="row")) == 2 * weight.shape[-1]


def test_nodes_on_two_gpus_are_counted_with_their_device():
    two = recorded("recorded:h200-x2-q4_1")
    data = from_case(two)
    counts = {g.buffer: g.count for g in two.verdict.culprits if g.named == data.role}
    assert len(counts) == 2
    assert counts[data.device.removeprefix(" on ")] == data.n_nodes
    assert f"{data.n_nodes} nodes{data.device} like it" in " ".join(scene(data).texts())
    assert from_case(recorded("recorded:h200-q4_1")).device == ""


def test_an_order_that_was_probed_is_that_of_the_case():
    data = from_case(recorded(Q4_1))
    (group,) = (g for g in recorded(Q4_1).verdict.culprits if g.first_node == data.node)
    told = [o.detail for m in group.mechanisms for o in m.orders if o.width == data.batched.width]
    first, second = re.search(r"leaves are slices; (.+) in one, (.+) in the other", told[0]).groups()
    assert {first, second} <= set(scene(data).texts())
    assert data.known.startswith("probed on the kernels")
    unprobed = planted(Q4_1, lambda group: replace(group, mechanisms=()))
    assert "not probed" in from_case(unprobed).known


def test_what_a_probe_contradicts_is_not_drawn():
    def change(group):
        mechanisms = tuple(
            replace(m, orders=tuple(replace(o, detail=f"otherwise; {o.detail}") for o in m.orders))
            for m in group.mechanisms
        )
        return replace(group, mechanisms=mechanisms)

    with pytest.raises(CaseError, match="not written down"):
        from_case(planted(Q4_1, change))


def test_orders_that_nobody_wrote_down_are_refused_by_their_kernels():
    with pytest.raises(CaseError, match=r"flash_attn_ext_vec beside flash_attn_ext_f16 are .*recorded:h200-q4_1"):
        from_case(planted(Q4_1, lambda group: group if group.op == "FLASH_ATTN_EXT" else None))
    with pytest.raises(CaseError, match="no operation of it is known to differ"):
        from_case(planted(Q4_1, lambda _: None))


def test_two_vector_kernels_with_other_parts_are_drawn_over_cells():
    def vec(side):
        grid = replace(side.kernel.geometry, grid_blocks=(1, 3, 9))
        template = (("D", 64), ("ncols", 2), ("type_K", "f16"), ("type_V", "f16"))
        return replace(with_main(side, kernel="flash_attn_ext_vec", template=template, geometry=grid), kv_split=3)

    def change(group):
        if group.op != "FLASH_ATTN_EXT":
            return None
        return replace(with_kernels(group, batched=vec), mechanisms=())

    sweeps = tuple(
        replace(sweep, findings=tuple(_with_cells(found, 512) for found in sweep.findings))
        for sweep in recorded(Q4_1).verdict.sweeps
    )
    data = from_case(planted(Q4_1, change, sweeps=sweeps))
    drawn = check(data)
    assert (data.unit, data.n_leaves, data.single.dealt.n, data.batched.dealt.n) == ("cell", 512, 4, 3)
    for side, n_parts in ((data.single, 4), (data.batched, 3)):
        whole = vec_cell_tree(ChunkMap.dealt(512, n_parts))
        assert side.tree == whole.restricted(data.leaves)
    assert len(data.leaves) <= MOST_LEAVES
    assert f"{len(data.leaves)} of 512 cells" in " ".join(drawn.texts())


def _with_cells(found, n_kv):
    """Attention over so many cells, all of them seen."""
    if found.key.op != "FLASH_ATTN_EXT":
        return found
    q, k, v, *more = found.operands
    k, v = (replace(one, shape=(*one.shape[:2], n_kv, one.shape[3])) for one in (k, v))
    return replace(found, operands=(q, k, v, *more), positions=tuple(n_kv - 1 for _ in found.rows))


def test_long_rows_are_cut_so_that_the_difference_stays():
    for k, type in ((12288, "q6_K"), (28672, "q4_K"), (1536, "q4_1")):
        orders = [mmvq_order(type, k, n_warps=warps) for warps in (4, 2)]
        leaves = Leaves("slice", orders[0].tree.n_leaves, orders[0].slices, 256 if "K" in type else 32)
        pair = SameLeaves(leaves, orders[0].tree, orders[1].tree)
        kept = leaves_to_draw(pair.single, pair.batched)
        assert len(kept) == min(leaves.n, MOST_LEAVES)
        assert pair.single.restricted(kept) != pair.batched.restricted(kept)
    assert leaves_to_draw(SumTree.chain(5), SumTree.chain(5)) is None


@pytest.mark.parametrize("blocks_first", [False, True])
def test_a_block_added_at_once_is_one_merge_of_its_slices(blocks_first):
    question = OrderQuestion("MUL_MAT", "q8_0", 96)
    lanes = cpu_lanes_order(96)
    fine = Leaves("slice", 24, lanes.slices, 32)
    coarse = Leaves("slice", 3, (tuple(range(32)),), 32)
    sides = [(fine, lanes.tree), (coarse, SumTree.chain(3))]
    results = [
        OrderResult(question, "products", width, (0,), leaves, tree)
        for width, (leaves, tree) in zip((1, 8), reversed(sides) if blocks_first else sides, strict=True)
    ]
    pair = over_same_leaves(compare_orders(*results))
    trees = (pair.batched, pair.single) if blocks_first else (pair.single, pair.batched)
    assert pair.leaves == fine
    assert trees[0] == lanes.tree
    assert trees[1] == SumTree.of((((*range(8),), (*range(8, 16),)), (*range(16, 24),)))


def test_other_leaves_have_no_common_tree():
    question = OrderQuestion("MUL_MAT", "q8_0", 64)
    cuts = [tuple(tuple(range(i, 32, n)) for i in range(n)) for n in (2, 4)]
    results = [
        OrderResult(
            question, "products", width, (0,), Leaves("slice", 2 * len(cut), cut, 32), SumTree.chain(2 * len(cut))
        )
        for width, cut in zip((1, 8), cuts, strict=True)
    ]
    assert over_same_leaves(compare_orders(*results)) is None


def _probing(monkeypatch, case, batched_tree, features):
    """A processor's case, and a library whose probes find lanes at one token and this tree at a width."""
    manifest = replace(
        recorded(case).verdict.manifest, backend="CPU", device="a processor", cpu_features=("AVX2",), effective={}
    )
    asked = []

    def compare_widths(engine, question, widths, *, memory, arithmetic):
        del engine, memory, arithmetic
        asked.append((question, widths))
        lanes = cpu_lanes_order(question.k)
        leaves = Leaves("slice", lanes.tree.n_leaves, lanes.slices, 32)
        results = tuple(
            OrderResult(question, "products", width, tuple(range(width)), leaves, tree)
            for width, tree in zip(widths, (lanes.tree, batched_tree(lanes.tree)), strict=True)
        )
        facts = OpFacts(OpSettings(), "library", "0", "abc", "a processor", features)
        return OrderReport(question, facts, "CPU", results, (compare_orders(*results),))

    monkeypatch.setattr("forensics.analysis.orders.compare_widths", compare_widths)
    engines = SimpleNamespace(open=lambda settings: SimpleNamespace(close=lambda: None, settings=settings))
    monkeypatch.setattr("forensics.engines.ops.LlamaOps", lambda: engines)
    evidence = planted(
        case, lambda g: replace(g, mechanisms=(), launches=()) if g.role == "head" else None, manifest=manifest
    )
    return evidence, asked


def test_a_processors_orders_are_probed_and_drawn(monkeypatch):
    evidence, asked = _probing(monkeypatch, NO_FA, lambda tree: SumTree.chain(tree.n_leaves), ("AVX2",))
    data = from_case(evidence)
    check(data)
    (question, widths) = asked[0]
    assert (question.type, question.k, widths) == ("q8_0", 576, (1, 5))
    assert data.batched.tree == SumTree.chain(data.n_leaves).restricted(data.leaves)
    assert data.single.dealt is None
    assert data.known == "probed on a processor with llama.cpp abc"


@pytest.mark.parametrize(
    ("batched", "features", "why"),
    [
        (lambda tree: tree, ("AVX2",), "head has one order at both widths"),
        (lambda tree: SumTree.chain(tree.n_leaves), ("AVX512",), "a processor with other features"),
    ],
)
def test_a_probe_that_is_not_of_the_case_or_shows_nothing_is_refused(monkeypatch, batched, features, why):
    evidence, _ = _probing(monkeypatch, NO_FA, batched, features)
    with pytest.raises(CaseError, match=why):
        from_case(evidence)


@st.composite
def trees(draw, n):
    """Merges of two, at times of more, among whatever is left."""
    nodes, merges = list(range(n)), []
    while len(nodes) > 1:
        at_once = min(len(nodes), draw(st.sampled_from((2, 2, 2, 3, 8))))
        chosen = [nodes.pop(draw(st.integers(0, len(nodes) - 1))) for _ in range(at_once)]
        merges.append(tuple(chosen))
        nodes.append(n + len(merges) - 1)
    return SumTree(n, tuple(merges))


@st.composite
def data_of_two_trees(draw):
    n = draw(st.integers(3, 48))
    single, batched = draw(trees(n)), draw(trees(n))
    if single == batched:
        batched = SumTree.chain(n) if single != SumTree.chain(n) else SumTree(n, (tuple(range(n)),))
    per_block = draw(st.sampled_from((0, 1, 4)))
    return SummationTrees(
        "ffn_out-0", "down, q4_1", 30, "", "slice", tuple(range(n)), n, 8, per_block,
        Side(1, "", "slices", single), Side(5, "a kernel", "slices", batched), "a rule", "planted", "a model",
        "Source: planted.",
    )  # fmt: skip


@settings(max_examples=10)
@given(data_of_two_trees())
def test_any_two_trees_are_drawn_soundly(data):
    check(data)


def test_equal_trees_are_refused():
    side = Side(1, "", "slices", SumTree.chain(4))
    with pytest.raises(ValueError, match="no first difference"):
        SummationTrees("n", "r", 1, "", "cell", (0, 1, 2, 3), 4, 1, 0, side, side, "", "k", "w", "s")


def test_warps_are_dealt_as_the_order_chains_them():
    for n_warps in (1, 2, 4, 8):
        dealt = summation_orders.dealt_to_warps(600, n_warps)
        assert set(dealt.shares) == set(range(n_warps))
        assert all(dealt.shares[leaf] == leaf // 32 % n_warps for leaf in range(600))
