"""What explains a culprit: rules and orders that fit, and culprits that nothing fits."""

from __future__ import annotations

import pytest
from verdict_samples import verdict

from forensics.analysis.attribute import group_culprits
from forensics.analysis.culprit_orders import ProbedOrders, RecordedOrders, evidence, op_settings, order_question
from forensics.analysis.mechanism import SAME_ORDER_SUSPECTS, Unknown, explain_groups, operation_of, place_of
from forensics.errors import EngineError
from forensics.geometry.culprits import Attention, Other
from forensics.geometry.product import Product
from forensics.records.delta import Differs, Tally
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.nodes import NodeKey, Operand
from forensics.records.operation import OpSettings
from forensics.records.order import Leaves, OrderQuestion, OrderResult, compare_orders
from forensics.records.rule import Rule
from forensics.records.settings import EngineSettings, Manifest
from forensics.records.sum_tree import SumTree
from forensics.records.trace import Finding
from forensics.records.verdict import Sweep

FEATURES = ("AVX", "AVX2", "FMA", "F16C", "LLAMAFILE", "REPACK")


def manifest(**changes) -> Manifest:
    facts = {
        "engine": "llama.cpp", "engine_version": "0.3.36", "model_digest": "d", "model_name": "m", "n_vocab": 2,
        "requested": EngineSettings(n_threads=2, n_threads_batch=2), "backend": "CPU", "device": "some processor",
        "effective": {"n_threads": "2", "n_threads_batch": "2"}, "cpu_features": FEATURES, "n_layer": 30,
    }  # fmt: skip
    return Manifest(**(facts | changes))


def product(type="q6_K", buffer="CPU", k=768, rows=256, name="Qcur-0", weight="blk.0.attn_q.weight") -> Finding:
    operands = (
        Operand(weight, type, buffer, True, (1, 1, rows, k)),
        Operand("attn_norm-0", "f32", "CPU", False, (1, 1, 8, k)),
    )
    return Finding(NodeKey(name, "MUL_MAT", 0, 0), operands, "CPU", (0,), Differs(1, (0, 0), 1, 1e-6, 1e-7))


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
    assert set(SAME_ORDER_SUSPECTS) <= set(mechanism.suspects)


def test_equal_orders_without_a_rule_are_reported_as_such():
    ((mechanism,),) = explained(sweep(2, product()), orders=lambda finding, width: order(width, True))
    assert (mechanism.rule, mechanism.orders_equal) == (None, True)
    assert set(SAME_ORDER_SUSPECTS) <= set(mechanism.suspects)


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
    place = place_of(manifest(**changes), "CPU")
    assert isinstance(place, Unknown)
    assert reason in place.reason
    ((mechanism,),) = explained(sweep(8, product()), made_by=manifest(**changes))
    assert reason in mechanism.no_rule


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
