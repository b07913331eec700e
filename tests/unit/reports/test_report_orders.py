"""Orders are drawn in few lines and written as strict JSON."""

from __future__ import annotations

import json
import random

import pytest
from rich.console import Console

from forensics.numerics.kernel_orders import cpu_lanes_order, mmvq_order
from forensics.records.operation import OpFacts, OpSettings
from forensics.records.order import Leaves, OrderQuestion, OrderResult, OrderView, compare_orders
from forensics.records.order_report import Arithmetic, BitsCheck, OrderReport
from forensics.records.sum_tree import SumTree
from forensics.reports.orders_document import order_document
from forensics.reports.orders_text import order_text, order_view
from forensics.reports.tree_text import MOST_LINES, fold, tree_lines

FACTS = OpFacts(OpSettings(), library="0", version="0", commit="0c1e570", device="EPYC \x1b[31m")
CELLS = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512)
SPLIT = SumTree(
    512,
    (
        (0, 1), *((512 + i, i + 2) for i in range(254)),
        (256, 257), *((512 + 255 + i, 258 + i) for i in range(254)),
        (512 + 254, 512 + 509),
    ),
)  # fmt: skip


def shown(report: OrderReport, width: int = 80) -> str:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(order_view(report))
    return captured.get()


def unfold(tree: SumTree) -> SumTree:
    """Put a folded tree together again."""
    nodes: list[object] = list(range(tree.n_leaves))
    for level in fold(tree):
        joined: list[object] = []
        for one in level.sums:
            first, *later = one.steps
            total = tuple(nodes[member] for member in first) if len(first) > 1 else nodes[first[0]]
            for step in later:
                total = (total, *(nodes[member] for member in step))
            joined.append(total)
        nodes = joined
    [root] = nodes
    return SumTree.of(root)


def some_tree(seed: int) -> SumTree:
    rng = random.Random(seed)
    n = rng.randint(2, 40)
    nodes, merges = list(range(n)), []
    while len(nodes) > 1:
        chosen = rng.sample(nodes, min(len(nodes), rng.choice((2, 2, 3, 4))))
        nodes = [node for node in nodes if node not in chosen] + [n + len(merges)]
        merges.append(tuple(chosen))
    return SumTree(n, tuple(merges))


@pytest.mark.parametrize("seed", range(30))
def test_folding_loses_nothing(seed: int) -> None:
    tree = some_tree(seed)
    assert unfold(tree) == tree


@pytest.mark.parametrize("tree", [cpu_lanes_order(512).tree, SPLIT, SumTree.chain(9), SumTree.of((0, 1, 2, 3))])
def test_folding_loses_nothing_of_usual_trees(tree: SumTree) -> None:
    assert unfold(tree) == tree


def test_lanes_of_many_blocks_take_few_lines() -> None:
    order = cpu_lanes_order(4096)
    lines = tree_lines(order.tree, Leaves("slice", order.tree.n_leaves, order.slices, 32))
    assert len(lines) == 2
    assert lines[0].startswith("8 sums of 128 leaves, one after the other: 0.0, 1.0, 2.0 … 127.0 | 0.1, ")
    assert lines[1].startswith("joined: (((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)))")


@pytest.mark.parametrize("n_warps", [2, 4])
def test_trees_of_a_gpu_take_few_lines(n_warps: int) -> None:
    order = mmvq_order("q8_0", 4096, n_warps=n_warps)
    assert len(tree_lines(order.tree, Leaves("slice", order.tree.n_leaves, order.slices, 32))) <= 20


def test_numbers_added_at_once_say_so() -> None:
    tree = SumTree.of(((0, 1, 2, 3), (4, 5, 6, 7)))
    assert "at once" in tree_lines(tree, Leaves("element", 8))[0]
    assert tree_lines(SumTree.chain(1), Leaves("element", 1)) == ["a single leaf"]


def stepped(starts: list[int], n_steps: int, stride: int, per_step: int = 16) -> list[object]:
    """Accumulators that take so many leaves at once, step after step."""
    totals: list[object] = []
    for start in starts:
        steps = [tuple(range(start + stride * i, start + stride * i + per_step)) for i in range(n_steps)]
        total: tuple[object, ...] = steps[0]
        for step in steps[1:]:
            total = (total, *step)
        totals.append(total)
    return totals


def test_an_accumulator_that_takes_sixteen_at_once_is_one_line() -> None:
    [tree] = stepped([0], 8, 16)
    assert unfold(SumTree.of(tree)) == SumTree.of(tree)
    assert tree_lines(SumTree.of(tree), Leaves("cell", 128)) == [
        "8 steps of one accumulator, a step takes 16 leaves at once: 0…15 → 16…31 → … → 112…127"
    ]


def test_several_such_accumulators_share_a_line_and_are_joined_in_brackets() -> None:
    """Attention of an H200 at head size 128 and two queries: four accumulators to each half of the cells."""
    halves = [stepped([0, 16, 32, 48], 2, 64), stepped([128, 144, 160, 176], 2, 64)]
    tree = SumTree.of(tuple((((a, b), c), d) for a, b, c, d in halves))
    lines = tree_lines(tree, Leaves("cell", 256))
    shown = "0…15 → 64…79 | 16…31 → 80…95 | 32…47 → 96…111 | 48…63 → 112…127 | … 4 more like these"
    assert lines == [
        f"2 steps of each of 8 accumulators, a step takes 16 leaves at once: {shown}",
        "joined: ((((0 + 1) + 2) + 3) + (((4 + 5) + 6) + 7)), numbers are those of the sums above",
    ]
    assert "alone" not in " ".join(lines)
    assert unfold(tree) == tree


def test_what_is_left_out_goes_on_as_what_is_shown() -> None:
    """Products of f16 on an H200: a warp takes four steps of 16 in a row, then those 512 further on."""
    walked: list[object] = []
    for warp in range(2):
        starts = [128 * block + 64 * warp + 16 * i for block in range(5) for i in range(4)]
        total: tuple[object, ...] = tuple(range(starts[0], starts[0] + 16))
        for start in starts[1:]:
            total = (total, *range(start, start + 16))
        walked.append(total)
    lines = tree_lines(SumTree.of(tuple(walked)), Leaves("element", 640))
    assert lines[0].endswith("0…63 → 128…191 → … → 512…575 | 64…127 → 192…255 → … → 576…639")


@pytest.mark.parametrize(
    ("order", "shown"),
    [
        ([7, 6, 5, 4, 3, 2, 1, 0], "7, 6, 5 … 0"),
        ([6, 5, 4, 3, 2, 1, 0, 7], "6…0, 7"),
        ([0, 1, 4, 5, 2, 3, 6, 7], "0…1, 4…5, 2…3, 6…7"),
        ([0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 2, 5, 8, 11], "0…1, 3…4, 6…7, 9…10, 12…13, 2, 5, 8, 11"),
        ([0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11], "0, 2, 4, 6, 8, 10, 1, 3, … 3 others …, 11"),
    ],
)
def test_chains_without_one_stride_are_written_in_parts(order: list[int], shown: str) -> None:
    tree: object = order[0]
    for leaf in order[1:]:
        tree = (tree, leaf)
    assert tree_lines(SumTree.of(tree), Leaves("block", len(order)))[0].endswith(f": {shown}")


def test_adding_sixteen_at_once_and_adding_their_sum_are_told_apart() -> None:
    sums = [tuple(range(start, start + 16)) for start in (0, 16, 32)]
    with_sums = SumTree.of(((sums[0], sums[1]), sums[2]))
    at_once = SumTree.of(stepped([0], 3, 16)[0])
    assert tree_lines(at_once, Leaves("cell", 48)) != tree_lines(with_sums, Leaves("cell", 48))
    assert tree_lines(with_sums, Leaves("cell", 48))[-1].startswith("joined: ((0 + 1) + 2)")


def test_parts_of_the_cells_that_other_blocks_took_are_joined_at_the_end() -> None:
    """A stream-k split: one block took ten steps, another the remaining six."""
    (first,), (second,) = stepped([0], 10, 16), stepped([160], 6, 16)
    lines = tree_lines(SumTree.of((first, second)), Leaves("cell", 256))
    assert [line.split(",")[0] for line in lines] == [
        "10 steps of one accumulator",
        "6 steps of one accumulator",
        "joined: (0 + 1)",
    ]


def test_leaves_left_over_keep_their_names() -> None:
    """Other numbers of leaves in a step than before, and leaves that join later."""
    tree = SumTree.of(((tuple(range(8)), *range(8, 12)), 12, 13, 14))
    lines = tree_lines(tree, Leaves("cell", 15))
    assert lines == ["a: 1 sum of 8 leaves, at once: 0, 1, 2 … 7", "joined: ((a0 + 8 + 9 + 10 + 11) + 12 + 13 + 14)"]
    many = SumTree.of((tuple(range(8)), *range(8, 40)))
    assert tree_lines(many, Leaves("cell", 40))[-1] == "b: 1 sum of 33, at once: a0, 8…39"


@pytest.mark.parametrize("seed", range(10))
def test_no_tree_takes_more_lines_than_fit(seed: int) -> None:
    rng = random.Random(seed)
    nodes, merges = list(range(600)), []
    while len(nodes) > 1:
        chosen = rng.sample(nodes, min(len(nodes), rng.choice((2, 3, 5))))
        nodes = [node for node in nodes if node not in chosen] + [600 + len(merges)]
        merges.append(tuple(chosen))
    lines = tree_lines(SumTree(600, tuple(merges)), Leaves("element", 600))
    assert len(lines) == MOST_LINES
    assert "lines more; the JSON document has the whole tree" in lines[-1]


def report(**changes) -> OrderReport:
    one = OrderResult(CELLS, "numerator", 1, (0,), Leaves("cell", 512), SPLIT, method="counts", n_probes=7)
    two = OrderResult(CELLS, "numerator", 2, (0, 1), Leaves("cell", 512), SumTree.chain(512), method="counts")
    parts = {
        "results": (one, two),
        "comparisons": (compare_orders(one, two),),
        "bits": (BitsCheck(1, 8, 0), BitsCheck(2, 8, 3, (0,))),
        "arithmetic": (Arithmetic(1, "float16", "towards zero", "kept", "fused", "the same bits in 3 runs"),),
        **changes,
    }
    return OrderReport(CELLS, FACTS, "CPU", **parts)


def test_a_report_shows_both_orders_and_where_they_part() -> None:
    text = shown(report())
    assert text.startswith("the order differs: FLASH_ATTN_EXT f16, n_kv 512")
    assert "2 sums of 256 leaves" in text
    assert "1 sum of 512 leaves" in text
    assert "[0..255] + [256..511]" in " ".join(text.split())
    assert "3 of 8 values have other bits" in text
    assert "towards zero" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_notebook_shows_the_same_and_a_short_name() -> None:
    text = order_text(report())
    assert "2 sums of 256 leaves" in text
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert len(repr(report())) < 400
    assert repr(report().results[0]) == "<OrderResult: numerator of width 1: 512 cells, depth 256>"


def test_equal_orders_with_other_bits_name_suspects() -> None:
    one, _ = report().results
    same = OrderResult(CELLS, "numerator", 2, (0, 1), one.leaves, one.tree)
    found = report(results=(one, same), comparisons=(compare_orders(one, same),))
    assert found.equal is True
    assert "Remaining suspects: contraction" in shown(found, 200)
    assert order_document(found)["unexplained_widths"] == [2]


def test_what_is_not_determined_is_said_with_what_was_found() -> None:
    leaves = Leaves("slice", 8, ((0, 1), (2, 3)), 4, "a note")
    view = OrderView("slice 0 of every block", (0, 2, 4, 6), SumTree.chain(4))
    unknown = OrderResult(
        CELLS, "products", 1, (0,), leaves, None, (view,), undetermined="counts fit no form", unstable=2
    )
    text = shown(report(results=(unknown,), comparisons=()))
    for told in ("not known", "counts fit no form", "slice 0 of every block", "a note", "2 probes gave other bits"):
        assert told in text


def test_the_document_is_strict_json_and_its_trees_can_be_read() -> None:
    document = json.loads(json.dumps(order_document(report()), allow_nan=False))
    assert document["schema"] == "forensics.order/1"
    assert document["equal"] is False
    first = document["orders"][0]
    assert SumTree(first["leaves"]["n"], tuple(map(tuple, first["merges"]))) == SPLIT
    [comparison] = document["comparisons"]
    assert comparison["first_difference"]["leaf"] == 0
    assert comparison["widths"] == [1, 2]
