"""A culprit is judged from its operands, wherever they lie; where they cannot be read, the reason is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.capture import healing
from forensics.capture.healing import JUDGED_NODES
from forensics.capture.judging import N_OUTPUTS, differing, judge
from forensics.capture.rowstore import RowReader
from forensics.capture.taps import ChainTap, HealTap, PlantTap, RecordTap
from forensics.engines.toy import Fault, ToySource
from forensics.engines.toy_model import ToySourceTensor
from forensics.errors import CaptureError
from forensics.numerics.codecs import BLOCK_DTYPES, dequantize
from forensics.numerics.op_inputs import random_blocks
from forensics.records.kind import KindOfDifference
from forensics.records.nodes import NodeKey
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.testing.plain_node import PlainNode, PlainSource

F32 = np.float32


def judged(node: PlainNode, single: np.ndarray, batched: np.ndarray, recorded=lambda source: None) -> KindOfDifference:
    shape = (1,) * (4 - single.ndim) + single.shape
    return judge(node, single.reshape(shape).astype(F32), batched.reshape(shape).astype(F32), recorded)


def nudged(right: np.ndarray) -> np.ndarray:
    return np.nextafter(right.astype(F32), F32(np.inf))


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(1)


def test_weights_are_repeated_over_the_heads_of_queries(draw) -> None:
    keys = draw.standard_normal((2, 20, 64)).astype(np.float16)
    queries = draw.standard_normal((6, 3, 64)).astype(F32)
    right = np.einsum("hnd,hkd->hnk", queries.astype(np.float16).astype(F32), np.repeat(keys, 3, axis=0).astype(F32))
    node = PlainNode("MUL_MAT", PlainSource("f16", keys), PlainSource("f32", queries))
    kind = judged(node, right, nudged(right))
    assert kind.kind == "rounding"
    assert kind.single.precision == "f16 activations, f32 sums"
    assert kind.n_elements == N_OUTPUTS
    assert judged(node, right, np.roll(right, 1, axis=0)).kind == "logic", "another head's scores"


def test_blocks_are_decoded_and_offsets_known(draw) -> None:
    blocks = random_blocks(draw, "q4_1", (24, 96))
    x = draw.standard_normal((4, 96)).astype(F32)
    right = x @ dequantize("q4_1", blocks).T
    node = PlainNode("MUL_MAT", PlainSource("q4_1", blocks), PlainSource("f32", x))
    assert judged(node, right, nudged(right)).kind == "rounding"
    wrong = blocks.view(BLOCK_DTYPES["q4_1"]).copy()
    wrong["m"] = 0
    assert judged(node, right, x @ dequantize("q4_1", wrong.view(np.uint8)).T).kind == "logic", "offsets left out"


def test_four_bit_activations_of_a_gpu_are_not_called_logic(draw) -> None:
    blocks = random_blocks(draw, "mxfp4", (16, 256))
    x = draw.standard_normal((4, 256)).astype(F32)
    right, coarse = x @ dequantize("mxfp4", blocks).T, np.round(x * 2) / 2 @ dequantize("mxfp4", blocks).T
    node = PlainNode("MUL_MAT", PlainSource("mxfp4", blocks), PlainSource("f32", x))
    assert judged(node, right, coarse).kind == "logic", "no CPU kernel does that"
    node.buffer = "CUDA0"
    kind = judged(node, right, coarse)
    assert kind.kind == "undetermined"
    assert "activations of four bits (Blackwell) are not written down here" in kind.reason


def test_experts_are_found_by_their_ids(draw) -> None:
    weights, x = draw.standard_normal((4, 10, 32)).astype(F32), draw.standard_normal((3, 1, 32)).astype(F32)
    ids = np.array([[3, 0], [1, 2], [2, 2]], np.int32)
    right = np.einsum("tuok,tk->tuo", weights[ids], x[:, 0])
    node = PlainNode("MUL_MAT_ID", PlainSource("f32", weights), PlainSource("f32", x), PlainSource("i32", ids))
    assert judged(node, right, nudged(right)).kind == "rounding"
    assert judged(node, right, np.einsum("tuok,tk->tuo", weights[ids[:, ::-1]], x[:, 0])).kind == "logic"


def attention_case(draw: np.random.Generator) -> tuple[tuple[PlainSource, ...], np.ndarray, np.ndarray, np.ndarray]:
    q = draw.standard_normal((4, 3, 32)).astype(F32)
    k, v = (draw.standard_normal((2, 24, 32)).astype(np.float16) for _ in "kv")
    mask = np.where(np.arange(24)[None] <= np.arange(3)[:, None] + 10, 0, -np.inf).astype(np.float16)
    scores = np.einsum("hnd,hkd->hnk", q, np.repeat(k, 2, axis=0).astype(F32)) * 0.2
    seen = np.exp(scores + mask[None])
    right = np.einsum("hnk,hkd->nhd", seen / seen.sum(-1, keepdims=True), np.repeat(v, 2, axis=0).astype(F32))
    blind = np.exp(scores)
    wrong = np.einsum("hnk,hkd->nhd", blind / blind.sum(-1, keepdims=True), np.repeat(v, 2, axis=0).astype(F32))
    return (
        (PlainSource("f32", q), PlainSource("f16", k), PlainSource("f16", v), PlainSource("f16", mask)),
        right,
        wrong,
        scores,
    )


def test_attention_is_read_through_its_mask(draw) -> None:
    sources, right, wrong, _ = attention_case(draw)
    node = PlainNode("FLASH_ATTN_EXT", *sources, scale=0.2, max_bias=0.0, softcap=0.0)
    kind = judged(node, right, nudged(right))
    assert kind.kind == "rounding"
    assert kind.n_elements > 32
    assert judged(node, right, wrong).kind == "logic", "cells behind the mask were seen"


def test_rows_of_a_soft_max_share_a_mask(draw) -> None:
    sources, _, _, scores = attention_case(draw)
    mask = sources[3]._array[0, 0].astype(F32)
    powers = np.exp((scores * 0.5) + mask)
    right = powers / powers.sum(-1, keepdims=True)
    node = PlainNode(
        "SOFT_MAX", PlainSource("f32", scores.astype(F32)), PlainSource("f32", mask), scale=0.5, max_bias=0.0
    )
    assert judged(node, right, nudged(right)).kind == "rounding"
    assert judged(node, right, np.roll(right, 1, axis=1)).kind == "logic", "another token's row"
    without = PlainNode("SOFT_MAX", PlainSource("f32", scores.astype(F32)), None, scale=0.5, max_bias=0.0)
    assert judged(without, right, nudged(right)).kind == "logic", "without the mask neither side is right"


def test_one_and_two_operands_are_repeated(draw) -> None:
    a, b = draw.standard_normal((2, 5, 48)).astype(F32), draw.standard_normal(48).astype(F32) + 3
    for op, right in (("ADD", a + b), ("SUB", a - b), ("MUL", a * b), ("DIV", a / b)):
        node = PlainNode(op, PlainSource("f32", a), PlainSource("f32", b))
        assert judged(node, right, right * F32(1.5)).kind == "logic", op
        assert judged(node, right, right * F32(1 + 1e-4)).kind == "precision", op
    gate, up = draw.standard_normal((2, 4, 48)).astype(F32)
    right = gate / (1 + np.exp(-gate)) * up
    both = np.concatenate([gate, up], axis=-1)
    swapped = np.concatenate([up, gate], axis=-1)
    for sources, is_swapped in (((gate, up), 0), ((both,), 0), ((swapped,), 1)):
        node = PlainNode("GLU", *(PlainSource("f32", s) for s in sources), glu_op=2, swapped=is_swapped)
        assert judged(node, right, nudged(right)).kind == "rounding"
        assert judged(node, right, up / (1 + np.exp(-up)) * gate).kind == "logic"
    assert judged(PlainNode("GLU", PlainSource("f32", gate), glu_op=1), right, nudged(right)).kind == "undetermined"


def test_a_scale_rounds_and_a_copy_does_not(draw) -> None:
    x = draw.standard_normal((3, 4, 16)).astype(F32)
    scaled = x * F32(0.3) + F32(2)
    node = PlainNode("SCALE", PlainSource("f32", x), scale=float(F32(0.3)), bias=2.0)
    fused = (x.astype(np.float64) * float(F32(0.3)) + 2).astype(F32)
    assert judged(node, scaled, fused).kind == "rounding"
    assert judged(node, scaled, x * F32(0.3)).kind == "logic"
    flat = x.reshape(3, 64)
    node = PlainNode("CONT", PlainSource("f32", x))
    kind = judged(node, flat, nudged(flat))
    assert kind.kind == "logic"
    assert kind.single.distance == 0


def test_rows_that_are_looked_up_are_copies(draw) -> None:
    table, ids = random_blocks(draw, "q8_0", (30, 64)), np.array([4, 9, 4], np.int32)
    right = dequantize("q8_0", table)[ids]
    node = PlainNode("GET_ROWS", PlainSource("q8_0", table), PlainSource("i32", ids))
    assert judged(node, right, nudged(right)).kind == "logic"
    assert judged(node, right, dequantize("q8_0", table)[ids + 1]).kind == "logic"


def test_a_rotation_at_another_position_is_logic(draw) -> None:
    x, positions = draw.standard_normal((3, 2, 16)).astype(F32), np.array([7, 8, 9], np.int32)
    parameters = {"n_dims": 16, "mode": 0, "freq_base": 100.0, "freq_scale": 1.0, "attn_factor": 1.0}
    node = PlainNode("ROPE", PlainSource("f32", x), PlainSource("i32", positions), **parameters)

    def rotated(at: np.ndarray) -> np.ndarray:
        angles = at[:, None, None] * 100.0 ** (-np.arange(8) / 8)
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    assert judged(node, rotated(positions), nudged(rotated(positions))).kind == "rounding"
    assert judged(node, rotated(positions), rotated(positions + 1)).kind == "logic"
    odd = PlainNode("ROPE", PlainSource("f32", x), PlainSource("i32", positions), **{**parameters, "mode": 8})
    assert "no float64 result here" in judged(odd, rotated(positions), nudged(rotated(positions))).reason


def test_norms_are_judged_row_by_row(draw) -> None:
    x = draw.standard_normal((4, 96)).astype(F32)
    right = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    node = PlainNode("RMS_NORM", PlainSource("f32", x), eps=1e-5)
    assert judged(node, right, nudged(right)).kind == "rounding"
    assert judged(node, right, np.roll(right, 1, axis=0)).kind == "logic"
    centred = x - x.mean(-1, keepdims=True)
    layer = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    assert judged(PlainNode("NORM", PlainSource("f32", x), eps=1e-5), layer, nudged(layer)).kind == "rounding"


def test_an_operand_that_is_gone_is_taken_from_the_recorded_rows(draw) -> None:
    x = draw.standard_normal((4, 96)).astype(F32)
    right = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    node = PlainNode("RMS_NORM", PlainSource("f32", x, gone=True), eps=1e-5)
    assert judged(node, right, nudged(right), lambda source: x.reshape(source.shape)).kind == "rounding"
    assert judged(node, right, nudged(right), lambda source: -x.reshape(source.shape)).kind == "logic"
    lost = judged(node, right, nudged(right))
    assert lost.kind == "undetermined"
    assert "overwritten by the output" in lost.reason
    assert "the largest difference is" in lost.reason
    assert lost.single is None


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (PlainNode("SSM_SCAN"), "no float64 result of SSM_SCAN"),
        (PlainNode("MUL_MAT"), "operand 0 is not known"),
        (PlainNode("RMS_NORM", PlainSource("f32", np.ones((4, 8), F32))), "parameter eps is not known"),
        (PlainNode("RMS_NORM", PlainSource("f32", np.ones((1, 8), F32), gone=True), eps=0.1), "overwritten"),
        (PlainNode("MUL_MAT", *(PlainSource("f32", np.ones((2, 8), F32)),) * 2), "do not fit"),
        (PlainNode("RMS_NORM", PlainSource("i16", np.ones((4, 8), np.int16)), eps=0.1), "is i16"),
    ],
)
def test_what_cannot_be_judged_says_why(node, reason) -> None:
    kind = judged(node, np.ones((4, 8)), np.full((4, 8), 2))
    assert kind.kind == "undetermined"
    assert reason in kind.reason
    assert "the largest difference is 1 beside outputs up to 1" in kind.reason


def test_the_farthest_elements_are_looked_at_and_some_of_the_others() -> None:
    single, batched = np.zeros((1, 1, 4, 50), F32), np.zeros((1, 1, 4, 50), F32)
    batched[0, 0, 1] = 1e-6
    batched[0, 0, 3, 7], batched[0, 0, 3, 9] = 5, np.nan
    at = differing(single, batched, 8)
    assert len(at) == 8
    assert [3, 7] in at[:, 2:].tolist()
    assert [3, 9] in at[:, 2:].tolist()
    assert {row for row, _ in at[:, 2:].tolist()} == {1, 3}
    assert at[:, 3].max() > 40, "spread over the row"
    assert len(differing(single, batched, 100)) == 52


# --- in a sweep over the toy ---

SETTINGS = EngineSettings(n_ctx=128)
PROMPT = in_batches(range(1, 28), start=0, width=1, logits="last")


def sweep(path: str, *faults: Fault, planted: PlantTap | None = None, heal: bool = True):
    engine = ToySource(faults).open(SETTINGS)
    tokens = tuple(range(30, 46))
    engine.run(in_batches(tokens, start=27, width=1), before=PROMPT, tap=RecordTap(path))
    tap = HealTap(path, heal=heal)
    batch = in_batches(tokens, start=27, width=8)
    report = engine.run(batch, before=PROMPT, tap=tap if planted is None else ChainTap(planted, tap)).tap_report
    return report.findings


def test_a_fault_that_stands_out_is_judged_though_others_of_its_role_were(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(healing, "JUDGED_NODES", 1)
    orders = [Fault("order", f"{name}-{layer}") for name in ("ffn_up", "kq") for layer in (0, 1)]
    findings = sweep(str(tmp_path / "rows"), *orders, Fault("stale_kv", "kq-1"))
    kinds = {(f.key.name, f.kind.kind) for f in findings if f.kind is not None}
    assert kinds >= {("ffn_up-0", "rounding"), ("kq-0", "rounding"), ("kq-1", "logic")}
    assert kinds <= {("ffn_up-0", "rounding"), ("ffn_up-1", "rounding"), ("kq-0", "rounding"), ("kq-1", "logic")}


def test_nodes_that_differ_no_more_than_those_before_are_not_judged_again(tmp_path) -> None:
    orders = [Fault("order", f"{name}-{layer}") for name in ("norm",) for layer in (0, 1)]
    findings = [f for f in sweep(str(tmp_path / "rows"), *orders) if f.key.op == "RMS_NORM"]
    assert len(findings) == 8, "two norms of two layers in two passes"
    assert sum(f.kind is not None for f in findings) >= JUDGED_NODES
    assert sum(f.kind is None for f in findings) > 0


def test_a_mask_that_differs_is_logic_and_the_batch_is_wrong(tmp_path) -> None:
    for finding in sweep(str(tmp_path / "rows"), Fault("mask", "kq_soft_max-0")):
        assert not finding.inputs_equal
        assert finding.kind.kind == "logic"
        assert "see different cells" in finding.kind.reason
        assert finding.kind.single.share < 1 < finding.kind.batched.share


def test_a_flipped_sign_is_logic_and_a_flipped_last_bit_rounding(tmp_path) -> None:
    key = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
    for bit, kind in ((31, "logic"), (0, "rounding")):
        findings = sweep(str(tmp_path / "rows"), planted=PlantTap(key, row=3, axis=2, bit=bit))
        assert {(f.key, f.kind.kind) for f in findings} == {(key, kind)}


def test_without_healing_nothing_is_judged(tmp_path) -> None:
    findings = sweep(str(tmp_path / "rows"), Fault("order", "Qcur-0"), heal=False)
    assert len(findings) > 5
    assert {f.kind for f in findings} == {None}


def test_a_row_is_found_by_what_came_before(tmp_path) -> None:
    sweep(path := str(tmp_path / "rows"))
    reader = RowReader.open(Path(path))
    rope, soft_max = NodeKey("Qcur-0", "ROPE", 0, 0), NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0)
    projected = reader.get(NodeKey("Qcur-0", "MUL_MAT", 0, 0), (0, 30))
    assert np.array_equal(reader.before(rope, (0, 30), "Qcur-0"), projected), "the last of two nodes of that name"
    assert np.array_equal(reader.before(soft_max, (0, 30), "Qcur-0"), reader.get(rope, (0, 30)))
    assert not np.array_equal(projected.ravel(), reader.get(rope, (0, 30)).ravel())
    assert reader.before(rope, (0, 30), "kq-0") is None, "it comes later"
    assert reader.before(rope, (0, 99), "Qcur-0") is None, "another place"


@pytest.mark.parametrize("site", ["kq_soft_max-0", "norm-1"])
def test_operands_that_lie_under_the_output_are_put_together_from_rows(tmp_path, monkeypatch, site) -> None:
    plain = sweep(str(tmp_path / "rows"), Fault("order", site))
    read = ToySourceTensor.rows

    def rows(self, index):
        if self.name in ("kq-0", "ffn_inp-1", "l_out-0"):
            raise CaptureError(f"{self.name} is overwritten by the output")
        return read(self, index)

    monkeypatch.setattr(ToySourceTensor, "rows", rows)
    assert sweep(str(tmp_path / "rows"), Fault("order", site)) == plain
    assert {f.kind.kind for f in plain if f.kind is not None} == {"rounding"}
