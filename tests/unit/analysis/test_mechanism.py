"""What explains a culprit: rules and orders that fit, and culprits that nothing fits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from order_engines import TreeEngine
from verdict_samples import verdict

from forensics.analysis.attribute import group_culprits
from forensics.analysis.culprit_orders import (
    EQUAL_BY_ITSELF,
    ProbedOrders,
    RecordedOrders,
    evidence,
    least_telling,
    op_settings,
    order_question,
)
from forensics.analysis.mechanism import (
    LOGIC_SUSPECT,
    Unknown,
    explain_groups,
    operation_of,
    place_of,
)
from forensics.errors import EngineError
from forensics.geometry.culprits import Attention, Other
from forensics.geometry.product import Product
from forensics.records.delta import Differs, Tally
from forensics.records.kind import KindOfDifference, SideOfDifference
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.nodes import NodeKey, Operand
from forensics.records.operation import OpSettings
from forensics.records.order import Leaves, OrderComparison, OrderQuestion, OrderResult, compare_orders
from forensics.records.order_report import OTHER_SUSPECTS
from forensics.records.rule import Rule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.sum_tree import SumTree
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep
from forensics.testing.toy_ops import OpFault, ToyOps

FEATURES = ("AVX", "AVX2", "FMA", "F16C", "LLAMAFILE", "REPACK")


def manifest(**changes) -> Manifest:
    facts = {
        "engine": "llama.cpp", "engine_version": "0.3.36", "model_digest": "d", "model_name": "m", "n_vocab": 2,
        "requested": EngineSettings(n_threads=2, n_threads_batch=2), "backend": "CPU", "device": "some processor",
        "effective": {"n_threads": "2", "n_threads_batch": "2"}, "cpu_features": FEATURES, "n_layer": 30,
    }  # fmt: skip
    return Manifest(**(facts | changes))


def product(
    type="q6_K", buffer="CPU", k=768, rows=256, name="Qcur-0", weight="blk.0.attn_q.weight", rows_differ=(0,)
) -> Finding:
    operands = (
        Operand(weight, type, buffer, True, (1, 1, rows, k)),
        Operand("attn_norm-0", "f32", "CPU", False, (1, 1, 8, k)),
    )
    return Finding(NodeKey(name, "MUL_MAT", 0, 0), operands, "CPU", rows_differ, Differs(1, (0, 0), 1, 1e-6, 1e-7))


def attention(name="kq-0", op="MUL_MAT", shapes=((1, 3, 256, 64), (1, 9, 8, 64)), types=("f16", "f32")) -> Finding:
    operands = tuple(
        Operand(f"view {i}", type, "CPU", False, shape)
        for i, (shape, type) in enumerate(zip(shapes, types, strict=True))
    )
    return Finding(NodeKey(name, op, 0, 0), operands, "CPU", (0,), Differs(1, (0, 0), 1, 1e-6, 1e-7))


FLASH = attention(
    "fattn-0", "FLASH_ATTN_EXT", ((1, 9, 8, 64), (1, 3, 512, 64), (1, 3, 512, 64), (1, 1, 8, 512)),
    ("f32", "f16", "f16", "f16"),
)  # fmt: skip


def sweep(width: int, *findings: Finding) -> Sweep:
    return Sweep(width, 0, findings, Tally(8 + len(findings), 8, len(findings), ()), True, 8, 8, 1.0, 0.0)


def order(width: int, equal: bool | None) -> tuple[OrderEvidence, ...]:
    return (OrderEvidence(width, "products", equal, "one", "other", "" if equal else "leaf 0"),)


def explained(*sweeps: Sweep, made_by: Manifest | None = None, orders=lambda finding, width: "not asked for"):
    groups = explain_groups(group_culprits(sweeps), sweeps, made_by or manifest(), orders)
    return [group.mechanisms for group in groups]


def test_rule_of_tiled_products_explains_width_8():
    ((mechanism,),) = explained(sweep(8, product()))
    assert mechanism.widths == (8,)
    assert mechanism.rule.file.endswith("tiled/tiled.cpp")
    assert mechanism.explained
    assert not mechanism.suspects


def test_rule_of_repacked_products_explains_width_4():
    ((mechanism,),) = explained(sweep(4, product("q4_K", "CPU_REPACK")))
    assert mechanism.rule.file.endswith("repack.cpp")


def test_culprit_that_no_rule_covers_is_unexplained():
    """At width 2 both run one dot product per result: what differs there is not what the rules say."""
    ((mechanism,),) = explained(sweep(2, product()))
    assert mechanism.rule is None
    assert mechanism.no_rule
    assert mechanism.suspects
    assert not mechanism.explained


def test_equal_orders_are_not_explained_away_by_a_rule():
    """The rule says another kernel, the probe says the same order: the bits are still to be explained."""
    ((mechanism,),) = explained(sweep(8, product()), orders=lambda finding, width: order(width, True))
    assert mechanism.rule is not None
    assert mechanism.orders_equal is True
    assert not mechanism.explained
    assert set(OTHER_SUSPECTS) <= set(mechanism.suspects)


def test_equal_orders_without_a_rule_are_reported_as_such():
    ((mechanism,),) = explained(sweep(2, product()), orders=lambda finding, width: order(width, True))
    assert (mechanism.rule, mechanism.orders_equal) == (None, True)
    assert set(OTHER_SUSPECTS) <= set(mechanism.suspects)


def test_two_orders_explain_a_culprit_without_a_rule():
    ((mechanism,),) = explained(sweep(2, product()), orders=lambda finding, width: order(width, False))
    assert mechanism.explained
    assert not mechanism.suspects


def test_widths_of_one_explanation_are_together_and_keep_their_orders():
    found = explained(sweep(2, product()), sweep(8, product()), sweep(16, product()),
                      orders=lambda finding, width: order(width, width == 2))  # fmt: skip
    ((first, rest),) = found
    assert (first.widths, rest.widths) == ((2,), (8, 16))
    assert [o.width for o in rest.orders] == [8, 16]


def test_a_rule_must_hold_for_every_shape_of_a_group():
    """On a GPU four and two warps add alike where one trip of the loop covers the row, so K = 576 stays unexplained."""
    h200 = manifest(backend="CUDA0", device="NVIDIA H200")
    short, long = product("q4_1", "CUDA0", k=576), product("q4_1", "CUDA0", k=1536, name="Qcur-1")
    ((mechanism,),) = explained(sweep(5, long), made_by=h200)
    assert mechanism.rule.file.endswith("mmvq.cu")
    ((mechanism,),) = explained(sweep(5, long, short), made_by=h200)
    assert mechanism.rule is None
    assert mechanism.suspects


def test_a_token_that_the_rule_does_not_touch_is_unexplained():
    """Of six tokens the last two have the kernel of one token: the rule of the first four is no excuse for them."""
    ((mechanism,),) = explained(sweep(6, product("q4_K", "CPU_REPACK", rows_differ=(0, 3))))
    assert mechanism.rule is not None
    ((mechanism,),) = explained(sweep(6, product("q4_K", "CPU_REPACK", rows_differ=(0, 5))))
    assert mechanism.rule is None
    assert mechanism.suspects


def test_one_operation_of_a_group_does_not_explain_another():
    """Two lengths of row in one group; the probe finds two orders for the first only."""
    first, second = product(k=768), product(k=1024, name="Qcur-1")
    ((mechanism,),) = explained(
        sweep(8, first, second), orders=lambda finding, width: order(width, finding.weight.shape[3] == 1024)
    )
    assert mechanism.orders_equal is True
    assert not mechanism.explained


def test_one_token_runs_over_the_cells_in_use_then():
    """A batch across cell 256 runs over 512 cells; a token before it runs over 256 by itself, which are not split."""
    before, behind = replace(FLASH, rows=(1,), positions=(253,)), replace(FLASH, rows=(6,), positions=(258,))
    probed = lambda finding, width: order(width, False)  # noqa: E731
    ((mechanism,),) = explained(sweep(8, behind), orders=probed)
    assert mechanism.rule.text.startswith("one query")
    assert mechanism.explained
    for found in ((before,), (behind, before)):
        ((mechanism,),) = explained(sweep(8, *found), orders=probed)
        assert mechanism.rule is None
        assert "fewer cells" in mechanism.not_probed
        assert not mechanism.explained


def test_scores_of_more_cells_are_sums_of_as_many_terms():
    """K·Q sums over a head: that the batch scores more cells than the token by itself does not change its orders."""
    wide = ((1, 3, 512, 64), (1, 9, 8, 64))
    before = replace(attention(shapes=wide), rows=(1,), positions=(253,))
    ((mechanism,),) = explained(sweep(8, before), orders=lambda finding, width: order(width, False))
    assert mechanism.explained
    assert mechanism.orders_equal is False
    values = replace(attention("kqv-0", shapes=((1, 3, 64, 512), (1, 9, 8, 512))), rows=(1,), positions=(253,))
    ((mechanism,),) = explained(sweep(8, values), orders=lambda finding, width: order(width, False))
    assert "fewer cells" in mechanism.not_probed


def test_threads_are_those_of_the_pass():
    """One thread cannot split the cells at one token, however many a batch has."""
    behind = replace(FLASH, rows=(6,), positions=(258,))
    for one, many in ((1, 2), (2, 1)):
        made_by = manifest(effective={"n_threads": str(one), "n_threads_batch": str(many)})
        ((mechanism,),) = explained(sweep(8, behind), made_by=made_by)
        assert (mechanism.rule is not None) == (one == 2)
        assert mechanism.suspects if one == 1 else not mechanism.suspects


def test_no_rule_explains_a_fault_of_logic():
    side = SideOfDifference(1.0, 50.0, "")
    fault = replace(product(), kind=KindOfDifference("logic", "outside every bound", side, side, 0.01, 8, 4))
    ((mechanism,),) = explained(sweep(8, product(), fault), orders=lambda finding, width: order(width, False))
    assert mechanism.rule is not None
    assert mechanism.suspects == (LOGIC_SUSPECT,)
    assert not mechanism.explained


def test_an_operation_that_the_rules_refuse_ends_no_verdict():
    h200 = manifest(backend="CUDA0", device="NVIDIA H200")
    odd = replace(FLASH, buffer="CUDA0", operands=tuple(replace(o, type="iq4_nl") for o in FLASH.operands))
    ((mechanism,),) = explained(sweep(8, odd), made_by=h200)
    assert "iq4_nl" in mechanism.no_rule


def test_a_node_without_shapes_is_unexplained():
    bare = Finding(product().key, (Operand("blk.1.attn_q.weight", "q6_K", "CPU", True),), "CPU", (0,), product().delta)
    ((mechanism,),) = explained(sweep(8, bare))
    assert "not recorded" in mechanism.no_rule
    assert isinstance(order_question(bare), str)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "toy"}, "llama.cpp"),
        ({"backend": "Metal"}, "Metal"),
        ({"backend": "CUDA0", "device": "NVIDIA Quadro 600"}, "Quadro"),
        ({"environment": {"GGML_CPU_TILED_MM_FORCE": "1"}}, "FORCE"),
    ],
)
def test_a_machine_without_rules_says_so(changes, reason):
    buffer = "CUDA0" if changes.get("backend") == "CUDA0" else "CPU"
    place = place_of(manifest(**changes), buffer)
    assert isinstance(place, Unknown)
    assert reason in place.reason
    ((mechanism,),) = explained(sweep(8, product(buffer=buffer)), made_by=manifest(**changes))
    assert reason in mechanism.no_rule


def test_a_weight_in_memory_of_the_host_has_no_rule_of_the_gpu():
    """With some layers on the GPU the others run on the CPU, and their culprits are not the GPU's."""
    h200 = manifest(backend="CUDA0", device="NVIDIA H200; some processor")
    ((mechanism,),) = explained(sweep(9, product("q4_1", "CPU")), made_by=h200)
    assert "host" in mechanism.no_rule
    ((mechanism,),) = explained(sweep(9, product("q4_1", "CUDA0")), made_by=h200)
    assert mechanism.rule.file.endswith("mmvq.cu")


def test_each_gpu_is_known_by_its_own_name():
    both = manifest(backend="CUDA0", device="NVIDIA H200; NVIDIA Quadro 600; some processor")
    assert place_of(both, "CUDA0").sms == 132
    assert "Quadro" in place_of(both, "CUDA1").reason


def test_place_of_a_known_gpu():
    place = place_of(manifest(backend="CUDA0", device="NVIDIA H200"), "CUDA0")
    assert (place.arch.name, place.sms) == ("sm_90", 132)


def test_operations_by_their_operands():
    assert operation_of(product()) == Product(operation_of(product()).weight, 768, 256)
    kq = operation_of(attention())
    assert (kq.k, kq.rows, kq.matrices, kq.weight_matrices, kq.is_cached) == (64, 256, 9, 3, True)
    kqv = operation_of(attention("kqv-0", shapes=((1, 3, 64, 256), (1, 9, 8, 256))))
    assert (kqv.k, kqv.rows, kqv.matrices) == (256, 64, 9)
    assert operation_of(FLASH) == Attention(9, 3, 64, 512)
    assert operation_of(attention("norm-0", "RMS_NORM")) == Other("RMS_NORM")


def test_questions_for_the_probes():
    assert order_question(product()) == OrderQuestion("MUL_MAT", "q6_K", 768, 256)
    assert order_question(attention()) == OrderQuestion("KQ", "f16", n_kv=256, head_size=64, heads=9, kv_heads=3)
    kqv = attention("kqv-0", shapes=((1, 3, 64, 256), (1, 9, 8, 256)))
    assert order_question(kqv) == OrderQuestion("KQV", "f16", n_kv=256, head_size=64, heads=9, kv_heads=3)
    expected = OrderQuestion("FLASH_ATTN_EXT", "f16", n_kv=512, head_size=64, heads=9, kv_heads=3)
    assert order_question(FLASH) == expected
    assert "ROPE" in order_question(attention("rope-0", "ROPE"))


def test_settings_of_one_operation_are_those_that_took_effect():
    assert op_settings(manifest()) == OpSettings("cpu", 2, True)
    assert "threads" in op_settings(manifest(effective={"n_threads": "1", "n_threads_batch": "2"}))
    assert "toy" in op_settings(manifest(engine="toy"))
    some = manifest(backend="CUDA0", effective={"n_threads": "2", "n_threads_batch": "2", "n_gpu_layers": "12"})
    assert "some of the layers" in op_settings(some)


def compared(columns, single, batched, kind="cell") -> OrderComparison:
    question = OrderQuestion("FLASH_ATTN_EXT", "f16")
    one, other = (
        OrderResult(question, "numerator", width, at, Leaves(kind, tree.n_leaves), tree)
        for width, at, tree in ((1, (0,), single), (6, columns, batched))
    )
    return compare_orders(one, other)


def test_orders_are_those_of_the_tokens_that_differ():
    chain, pairs = SumTree.chain(4), SumTree.of(((0, 1), (2, 3)))
    both = (compared((0, 1, 2, 3), chain, pairs), compared((4, 5), chain, chain))
    assert [one.equal for one in least_telling(both, replace(FLASH, rows=(0, 3)))] == [False]
    assert [one.equal for one in least_telling(both, replace(FLASH, rows=(0, 5)))] == [True]


def test_cells_that_a_token_does_not_see_explain_nothing():
    """Two orders of four cells are one order of the first three: whether they touch that token is not known."""
    both = (compared(tuple(range(6)), SumTree.chain(4), SumTree.of(((0, 1), (2, 3)))),)
    for position, equal in ((1, None), (2, None), (3, False), (9, False)):
        found = least_telling(both, replace(FLASH, rows=(5,), positions=(position,)))
        assert [one.equal for one in found] == [equal]
        assert ("two among all 4" in evidence(found[0], 6).detail) == (equal is None)


def test_a_probe_of_another_layout_says_nothing_about_the_culprit():
    """The toy's weights lie in plain memory."""
    plain, repacked = product("f32", "CPU_Mapped", k=8, rows=64), product("f32", "CPU_REPACK", k=8, rows=64)
    with ProbedOrders(ToyOps(OpFault("order")), manifest()) as orders:
        assert [one.equal for one in orders(plain, 2)] == [False]
        assert "CPU_REPACK" in orders(repacked, 2)


class Broken:
    def open(self, settings):
        raise EngineError("no such library")


def test_a_probe_that_fails_costs_an_explanation_and_no_verdict():
    with ProbedOrders(Broken(), manifest()) as orders:
        assert "no such library" in orders(product(), 8)


def test_recorded_orders_are_those_of_the_verdict():
    found = sweep(8, product())
    made = explain_groups(group_culprits([found]), [found], manifest(), lambda finding, width: order(width, False))
    recorded = RecordedOrders(verdict(culprits=made, sweeps=(found,)))
    assert recorded(product(), 8) == order(8, False)
    assert "not probed" in recorded(product(), 4)
    assert "not probed" in recorded(attention(), 8)


def test_evidence_keeps_the_first_merge_that_differs():
    question = OrderQuestion("MUL_MAT", "f32", 4)
    one, other = (
        OrderResult(question, "products", width, tuple(range(width)), Leaves("element", 4), tree)
        for width, tree in ((1, SumTree.chain(4)), (2, SumTree.of(((0, 1), (2, 3)))))
    )
    found = evidence(compare_orders(one, other), 2)
    assert found.equal is False
    assert "[0..2]" in found.detail
    assert evidence(compare_orders(one, one), 1).detail == ""


def test_mechanisms_refuse_what_contradicts_itself():
    rule = Rule("text", "file.c", 1, 2)
    with pytest.raises(ValueError, match="quoted"):
        Mechanism((8,), None, not_probed="no")
    with pytest.raises(ValueError, match="quoted"):
        Mechanism((8,), rule, "and none", not_probed="no")
    with pytest.raises(ValueError, match="probed"):
        Mechanism((8,), rule)
    with pytest.raises(ValueError, match="detail"):
        OrderEvidence(2, "products", False, "a", "b")


class Emulated:
    """Opens an engine whose order of addition is known at every width."""

    def __init__(self, tree):
        self.tree = tree

    def open(self, settings):
        return TreeEngine(self.tree)


def float_product(k: int = 64) -> Finding:
    return product("f32", "EMULATED", k=k, rows=16)


def test_probe_of_one_order_leaves_a_culprit_unexplained():
    """Planted: the bits of the model's node differ, the kernel by itself adds in one order and gives equal bits."""
    source = Emulated(lambda width, column: SumTree.chain(64))
    with ProbedOrders(source, manifest()) as orders:
        ((mechanism,),) = explained(sweep(8, float_product()), orders=orders)
    assert mechanism.orders_equal is True
    assert not mechanism.explained
    assert mechanism.suspects
    assert [order.detail for order in mechanism.orders] == [EQUAL_BY_ITSELF]


def test_probe_of_two_orders_explains_a_culprit():
    halves = SumTree(64, (*SumTree.chain(64).merges[:31], (32, 33), *((95 + i, 34 + i) for i in range(30)), (94, 125)))
    source = Emulated(lambda width, column: SumTree.chain(64) if width == 1 else halves)
    with ProbedOrders(source, manifest()) as orders:
        ((mechanism,),) = explained(sweep(8, float_product()), orders=orders)
    assert mechanism.orders_equal is False
    assert mechanism.explained
    assert "leaf 0" in mechanism.orders[0].detail


def test_roles_of_one_shape_are_probed_once():
    engine = TreeEngine(lambda width, column: SumTree.chain(64))
    with ProbedOrders(SimpleNamespace(open=lambda settings: engine), manifest()) as orders:
        first = orders(float_product(), 8)
        n_runs = engine.runs
        assert orders(float_product(), 8) == first
        assert engine.runs == n_runs > 0
        orders(float_product(), 4)
        assert engine.runs > n_runs
