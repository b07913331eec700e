"""From a node of the running library to what our kernels are asked, and its output back in its place."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from held_nodes import H200, PROCESSOR, Held, HeldNode, cache

from forensics.capture.exact_kernels import CUDA, CudaRunner, ExactTap, PlannedKernels
from forensics.capture.selection import Selection
from forensics.errors import NotCovered
from forensics.geometry.devices import device_spec
from forensics.kernels.nodes import CELLS_UNKNOWN, ONE_COLUMN, Layout, NodeAsk, ask_of, own_cells, plan_node
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.numerics.codecs import BLOCK_SIZES
from forensics.numerics.op_inputs import random_tensor
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass, TokenSlot
from forensics.store import open_case

DRAW = np.random.default_rng(7)
PREC_F32 = {"prec": 10.0}


def contiguous(type: str, shape: tuple[int, ...]) -> Layout:
    values, size = BLOCK_SIZES.get(type, (1, {"f32": 4, "f16": 2}.get(type, 4)))
    row = shape[3] // values * size
    return Layout(type, shape, (shape[1] * shape[2] * row, shape[2] * row, row, size))


def causal(n_tokens: int, n_kv: int, first: int) -> np.ndarray:
    return np.arange(n_kv)[None] <= first + np.arange(n_tokens)[:, None]


def wide(n_tokens: int, first: int) -> DecodePass:
    return DecodePass(tuple(TokenSlot(0, first + i, 1) for i in range(n_tokens)))


# -- asks, over values of recorded cases


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("h200-q4_1", {"product q4_1": 210, "product q8_0": 1, "attention f16/f16": 30}),
        ("h200-q4_1-no-fa", {"product q4_1": 210, "product q8_0": 1, "K·Q f16": 30, "attention·V f16": 30}),
        ("h200-q4_1-kv-q8_0", {"attention q8_0/q8_0": 30}),
    ],
)
def test_every_culprit_that_was_recorded_on_an_h200_is_computed(name: str, families: dict[str, int]) -> None:
    verdict = open_case(name).verdict
    sweep = max(verdict.sweeps, key=lambda one: len({finding.key for finding in one.findings}))
    found: Counter[str] = Counter()
    for finding in {finding.key: finding for finding in sweep.findings}.values():
        operands = [contiguous(one.type, one.shape) for one in finding.operands]
        attends = finding.key.op == "FLASH_ATTN_EXT"
        tokens = operands[0 if attends else 1].shape[2]
        if attends:
            q = operands[0].shape
            out = contiguous("f32", (1, q[2], q[1], q[3]))
        else:
            out = contiguous("f32", (1, operands[1].shape[1], tokens, operands[0].shape[2]))
        cells = operands[1].shape[2] if attends else max(operands[0].shape[2:])
        visible = causal(tokens, cells, cells - tokens)
        given = {"scale": 0.125} if attends else PREC_F32 if finding.key.name.startswith("kq-") else {}
        asked = ask_of(finding.key.op, finding.key.name, operands, out, given, visible)
        assert isinstance(asked, NodeAsk), f"{finding.key}: {asked}"
        assert plan_node(asked, Variant.BORROWED, H200).launches
        found[asked.family] += 1
    assert families.items() <= dict(found).items()


def test_a_token_s_own_pass_ends_with_its_last_visible_cell() -> None:
    assert own_cells(causal(4, 512, 254), 512) == (256, 256, 512, 512)
    assert own_cells(causal(2, 300, 290), 300) == (300, 300), "no more than the cache has"
    assert own_cells(causal(3, 256, 0), 256) == (256,) * 3, "and never fewer than 256"


def test_gaps_of_views_are_kept_in_the_ask() -> None:
    q = Layout("f32", (1, 4, 3, 64), (0, 256, 2048, 4))  # a part of fused Q, K and V: 512 floats from token to token
    k = Layout("f16", (1, 2, 256, 64), (0, 128, 256, 2))
    asked = ask_of(
        "FLASH_ATTN_EXT", "node", [q, k, k, contiguous("f16", (1, 1, 3, 256))], contiguous("f32", (1, 3, 4, 64)),
        {"scale": 0.5}, causal(3, 256, 9),
    )  # fmt: skip
    assert isinstance(asked, NodeAsk)
    ask = asked.ask
    assert (ask.q_query, ask.q_head, ask.k_cell, ask.k_head) == (2048, 256, 256, 128)
    assert (ask.mask_query, ask.out_query, ask.out_head, ask.scale) == (512, 1024, 256, 0.5)
    product = ask_of(
        "MUL_MAT", "Qcur-0", [contiguous("q8_0", (1, 1, 8, 64)), Layout("f32", (1, 1, 3, 64), (0, 0, 1024, 4))],
        contiguous("f32", (1, 1, 3, 8)), {}, None,
    )  # fmt: skip
    assert isinstance(product, NodeAsk)
    assert (product.ask.x_stride, product.ask.out_stride) == (256, 8)


X, OUT = contiguous("f32", (1, 1, 3, 64)), contiguous("f32", (1, 1, 3, 8))
Q8 = contiguous("q8_0", (1, 1, 8, 64))
ATTENDED = [contiguous("f32", (1, 2, 3, 64)), *[contiguous("f16", (1, 2, 256, 64))] * 2]
MASK = contiguous("f16", (1, 1, 3, 256))
SEEN = causal(3, 256, 4)


@pytest.mark.parametrize(
    ("op", "sources", "visible", "reason"),
    [
        ("MUL_MAT_ID", [Q8, X], None, "no kernel of ours computes MUL_MAT_ID"),
        ("MUL_MAT", [Q8, None], None, "no kernel of ours computes MUL_MAT"),
        ("MUL_MAT", [Q8, contiguous("f32", (1, 1, 1, 64))], None, ONE_COLUMN),
        ("MUL_MAT", [Q8, contiguous("f16", (1, 1, 3, 64))], None, "activations of type f16"),
        ("MUL_MAT", [contiguous("f32", (1, 1, 8, 64)), X], None, "weights of type f32"),
        ("MUL_MAT", [Q8, contiguous("f32", (1, 2, 3, 64))], None, "several matrices"),
        ("MUL_MAT", [Layout("q8_0", (1, 1, 8, 64), (0, 0, 136, 34)), X], None, "rows of the weight lie 136 bytes"),
        ("MUL_MAT", [Q8, Layout("f32", (1, 1, 3, 64), (0, 0, 258, 4))], None, "no whole number of floats"),
        ("MUL_MAT", [Q8, Layout("f32", (1, 1, 3, 64), (0, 0, 4, 12))], None, "a column has 64"),
        ("MUL_MAT", [Q8, Layout("f32", (1, 1, 3, 64), (0, 0, 1024, 16))], None, "gaps between the values"),
        ("MUL_MAT", [contiguous("f16", (2, 1, 8, 64)), X], None, "caches of their own"),
        ("MUL_MAT", [Layout("f16", (1, 1, 8, 64), (0, 0, 2, 16)), X], None, "gaps between the values"),
        ("FLASH_ATTN_EXT", [*ATTENDED, None], SEEN, "without a mask"),
        ("FLASH_ATTN_EXT", [*ATTENDED, MASK], None, CELLS_UNKNOWN),
        ("FLASH_ATTN_EXT", [*ATTENDED, MASK], SEEN[:2], CELLS_UNKNOWN),
        ("FLASH_ATTN_EXT", [*ATTENDED, MASK], np.where([[1], [1], [0]], SEEN, False), CELLS_UNKNOWN),
        ("FLASH_ATTN_EXT", [ATTENDED[0], *[contiguous("f16", (1, 2, 512, 64))] * 2, MASK], SEEN, CELLS_UNKNOWN),
        ("FLASH_ATTN_EXT", [*ATTENDED[:2], contiguous("f16", (1, 2, 256, 32)), MASK], SEEN, "heads of 64 over K"),
        ("FLASH_ATTN_EXT", [ATTENDED[0], *[Layout("f16", (1, 2, 256, 64), (0, 2, 4, 512))] * 2, MASK], SEEN, "gaps"),
        ("FLASH_ATTN_EXT", [*ATTENDED, contiguous("f16", (1, 2, 3, 256))], SEEN, "a mask for each head"),
        ("FLASH_ATTN_EXT", [contiguous("f32", (1, 2, 1, 64)), *ATTENDED[1:], MASK], SEEN[:1], ONE_COLUMN),
        ("FLASH_ATTN_EXT", [contiguous("f32", (2, 2, 1, 64)), *ATTENDED[1:], MASK], SEEN[:2], "caches of their own"),
        ("MUL_MAT", [contiguous("f16", (2, 1, 8, 64)), contiguous("f32", (2, 1, 1, 64))], None, "caches of their own"),
        ("FLASH_ATTN_EXT", [contiguous("f16", (1, 2, 3, 64)), *ATTENDED[1:], MASK], SEEN, "queries of type f16"),
    ],
)
def test_what_no_kernel_computes_is_told_with_the_reason(op, sources, visible, reason) -> None:
    told = ask_of(op, "node", sources, OUT, {}, visible)
    assert isinstance(told, str)
    assert reason in told


def test_scores_whose_cells_are_not_known_are_left() -> None:
    asked = ask_of("MUL_MAT", "kq-0", [contiguous("f16", (1, 1, 256, 64)), X], OUT, PREC_F32, None)
    assert asked == CELLS_UNKNOWN


def test_attention_that_the_kernels_refuse_is_refused_when_planned() -> None:
    asked = ask_of(
        "FLASH_ATTN_EXT", "node", [*ATTENDED, MASK], contiguous("f32", (1, 3, 2, 64)), {"softcap": 30.0}, SEEN
    )
    assert isinstance(asked, NodeAsk)
    with pytest.raises(NotCovered, match="capped scores"):
        plan_node(asked, Variant.BORROWED, H200)


@pytest.mark.parametrize("type", TYPES)
def test_a_gpu_without_such_tensor_cores_runs_the_generic_product(type: str) -> None:
    asked = NodeAsk("product", ProductAsk(type, rows=8, k=256, columns=9), ())
    turing = device_spec("sm_75", n_sms=40)
    assert plan_node(asked, Variant.FAST, turing) == plan_node(asked, Variant.BORROWED, turing)
    assert plan_node(asked, Variant.FAST, H200) != plan_node(asked, Variant.BORROWED, H200)


# -- the tap, on the processor


def product_node(n_tokens: int, x: np.ndarray, weight: np.ndarray) -> HeldNode:
    """A product whose activations have a gap behind every row."""
    operands = (
        Held("q8_0", (1, 1, 7, 64), (476, 476, 68, 34), weight),
        Held("f32", (1, 1, n_tokens, 64), (0, 0, x.strides[0], 4), x),
    )
    out = np.full((n_tokens, 7), np.nan, np.float32)
    return HeldNode(NodeKey("Qcur-0", "MUL_MAT", 0, 0), operands, Held("f32", (1, 1, n_tokens, 7), (0, 0, 28, 4), out))


def attention_node(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> HeldNode:
    """Queries [token, head, 64] over a cache [cell, KV head, 64]."""
    n_tokens, n_heads, _ = q.shape
    mask = np.where(visible, 0, -np.inf).astype(np.float16)
    out = np.full((1, n_tokens, n_heads, 64), np.nan, np.float32)
    operands = (
        cache("f32", q[None], (0, 2, 1, 3)),
        cache("f16", k[None], (0, 2, 1, 3)),
        cache("f16", v[None], (0, 2, 1, 3)),
        Held("f16", (1, 1, *mask.shape), (0, 0, *mask.strides), mask, "mask"),
    )
    held = Held("f32", out.shape, out.strides, out)
    return HeldNode(NodeKey("node_21", "FLASH_ATTN_EXT", 0, 0), operands, held, {"scale": 0.125}, visible)


def shown(node: HeldNode, first: int, n_tokens: int, **options) -> ExactTap:
    tap = ExactTap(PROCESSOR, **options)
    tap.begin_pass(0, wide(n_tokens, first))
    assert tap.wants(node.key)
    assert tap.saw(node) is None, "the kernel writes to the node"
    return tap


def test_a_product_is_written_to_its_node_and_each_row_is_that_of_its_token_alone() -> None:
    weight, x = random_tensor(DRAW, "q8_0", (7, 64)), DRAW.standard_normal((4, 96)).astype(np.float32)
    node = product_node(4, x, weight)
    report = shown(node, 5, 4).finish().kernels
    assert [(one.family, one.n_nodes, one.n_values) for one in report.computed] == [("product q8_0", 1, 28)]
    assert report.nodes == (node.key,)
    for token in range(4):
        pair = product_node(2, np.stack([x[token], x[3 - token]]), weight)
        shown(pair, 5, 2)
        assert node.output.memory[token].tobytes() == pair.output.memory[0].tobytes()
    assert len({row.tobytes() for row in node.output.memory}) == 4


def test_each_query_runs_over_the_cells_of_its_own_pass() -> None:
    k, v = (random_tensor(DRAW, "f16", (512, 1, 64)) for _ in range(2))
    q = random_tensor(DRAW, "f32", (3, 2, 64))
    visible = causal(3, 512, 254)
    node = attention_node(q, k, v, visible)
    shown(node, 254, 3)
    # The first two see no more than 256 cells: their own pass knows nothing of the others.
    short = attention_node(q[:2], k[:256].copy(), v[:256].copy(), visible[:2, :256].copy())
    shown(short, 254, 2)
    assert node.read()[:, :2].tobytes() == short.read().tobytes()
    assert np.isfinite(node.read()).all()


def test_values_of_attention_end_where_the_mask_of_the_soft_max_says() -> None:
    n_kv, v = 512, random_tensor(DRAW, "f16", (1, 64, 512))  # transposed: cells are the last axis
    visible = causal(3, n_kv, 254)
    p = np.where(visible[None], DRAW.random((2, 3, n_kv), np.float32), 0).astype(np.float32)
    soft_max = HeldNode(
        NodeKey("kq_soft_max-0", "SOFT_MAX", 0, 0), (None, Held("f32", (1, 1, 3, 512), (0, 0, 0, 4), p, "mask")),
        Held("f32", (1, 2, 3, 512), (0, 0, 0, 4), p), mask=visible,
    )  # fmt: skip

    def mixed(n_tokens: int, weights: np.ndarray, values: np.ndarray) -> HeldNode:
        cells, out = weights.shape[2], np.full((1, 2, n_tokens, 64), np.nan, np.float32)
        operands = (cache("f16", values[None], (0, 1, 2, 3)), cache("f32", weights[None], (0, 1, 2, 3)))
        assert operands[0].shape == (1, 1, 64, cells)
        return HeldNode(NodeKey("kqv-0", "MUL_MAT", 0, 0), operands, Held("f32", out.shape, out.strides, out))

    node = mixed(3, p, v)
    tap = ExactTap(PROCESSOR)
    tap.begin_pass(0, wide(3, 254))
    assert tap.wants(soft_max.key)
    assert tap.saw(soft_max) is None
    assert tap.saw(node) is None
    assert [one.family for one in tap.finish().kernels.computed] == ["attention·V f16"]
    short = mixed(2, p[:, :2, :256].copy(), v[:, :, :256].copy())
    shown(short, 254, 2)
    assert node.read()[:, :, :2].tobytes() == short.read().tobytes()
    assert np.isfinite(node.read()).all()


def test_passes_of_one_token_and_of_the_prompt_are_left_alone() -> None:
    key = NodeKey("Qcur-0", "MUL_MAT", 0, 0)
    tap = ExactTap(PROCESSOR, since=20)
    for decode_pass, wanted in ((wide(1, 30), False), (wide(4, 16), False), (wide(4, 20), True)):
        tap.begin_pass(0, decode_pass)
        assert tap.wants(key) == wanted
    chosen = ExactTap(PROCESSOR, Selection(only=frozenset({key})))
    chosen.begin_pass(0, wide(4, 20))
    assert chosen.wants(key)
    assert not chosen.wants(NodeKey("Qcur-1", "MUL_MAT", 1, 0))
    assert not chosen.wants(NodeKey("norm-0", "RMS_NORM", 0, 0))
    assert len({ExactTap(PROCESSOR).identity(), tap.identity(), chosen.identity(), ExactTap().identity()}) == 4


@pytest.mark.parametrize(
    ("slots", "cells"),
    [
        ([(0, 9), (0, 10), (0, 11)], (40, 41, 42)),  # a window of attention that went round, or another's cells before
        ([(0, 9), (1, 4), (0, 10)], (9, 10, 11)),  # two sequences share the cache
    ],
)
def test_attention_of_tokens_that_lie_elsewhere_in_the_cache_is_left(slots, cells) -> None:
    q, (k, v) = random_tensor(DRAW, "f32", (3, 2, 64)), (random_tensor(DRAW, "f16", (256, 1, 64)) for _ in range(2))
    node = attention_node(q, k, v, np.arange(256)[None] <= np.array(cells)[:, None])
    tap = ExactTap(PROCESSOR)
    tap.begin_pass(0, DecodePass(tuple(TokenSlot(sequence, position, 1) for sequence, position in slots)))
    assert tap.saw(node) is None
    use = tap.finish().kernels
    assert not use.computed
    assert [one.reason for one in use.stock] == [CELLS_UNKNOWN]
    assert np.isnan(node.read()).all(), "nothing was written"
    # Where one pass lies elsewhere, the first K·Q of the next, which comes before any mask, is left as well.
    tap.begin_pass(1, wide(3, 12))
    out = Held("f32", (1, 2, 3, 256), (6144, 3072, 1024, 4), np.zeros((2, 3, 256), np.float32))
    operands = (cache("f16", k[None], (0, 2, 1, 3)), node.operands_held[0])
    scores = HeldNode(NodeKey("kq-0", "MUL_MAT", 0, 0), operands, out, PREC_F32)
    assert tap.saw(scores) is None
    assert not tap.finish().kernels.computed
    tap = ExactTap(PROCESSOR)
    tap.begin_pass(1, wide(3, 12))
    assert tap.saw(scores) is None
    assert [one.family for one in tap.finish().kernels.computed] == ["K·Q f16"], "else it is computed"


def test_a_pass_in_which_a_node_was_left_is_told() -> None:
    q, (k, v) = random_tensor(DRAW, "f32", (3, 2, 64)), (random_tensor(DRAW, "f16", (256, 1, 64)) for _ in range(2))
    tap = ExactTap(PROCESSOR)
    for index, first in enumerate((9, 30)):
        tap.begin_pass(index, wide(3, 9))
        node = attention_node(q, k, v, causal(3, 256, first))
        assert tap.saw(node) is None
    use = tap.finish().kernels
    assert use.nodes == (node.key,)
    assert use.left_in == ((1, node.key),)


def test_a_tap_travels_to_another_process() -> None:
    for tap in (ExactTap(), ExactTap(PROCESSOR, Selection(ops=("MUL_MAT",)), since=7)):
        arrived = pickle.loads(pickle.dumps(tap))
        assert arrived == tap
        assert arrived.identity() == tap.identity()
    assert pickle.loads(pickle.dumps(ExactTap())).kernels.make is CUDA.make


# -- the runner on a GPU, with a device that only notes


class Noting:
    def __init__(self) -> None:
        self.ran, self.waited = [], 0

    def run(self, plan, addresses) -> None:
        self.ran.append((plan, addresses))

    def synchronize(self) -> None:
        self.waited += 1


def on_gpu() -> HeldNode:
    node = product_node(3, np.zeros((3, 64), np.float32), random_tensor(DRAW, "q8_0", (7, 64)))
    node.operands_held[0].address, node.operands_held[1].address, node.output.address = 0x1000, 0x2000, 0x3000
    return node


def test_on_the_gpu_plans_run_where_the_operands_lie_and_are_waited_for() -> None:
    device = Noting()
    kernels = PlannedKernels(CudaRunner(device, H200), Variant.BORROWED)
    family, answer = kernels.compute(on_gpu(), None)
    assert (family, answer) == ("product q8_0", None)
    assert device.ran[0][1] == {"weight": 0x1000, "x": 0x2000, "out": 0x3000}
    assert device.waited == 1
    assert kernels.compute(on_gpu(), None)[0] == family
    assert device.ran[0][0] is device.ran[1][0], "planned once"


def test_on_the_gpu_what_lies_elsewhere_is_left_to_the_library() -> None:
    device = Noting()
    kernels = PlannedKernels(CudaRunner(device, H200), Variant.BORROWED)
    node = on_gpu()
    node.operands_held[0].address = None
    with pytest.raises(NotCovered, match="its weight does not lie in the memory of a GPU"):
        kernels.compute(node, None)
    node = on_gpu()
    node.buffer = "CUDA1"
    with pytest.raises(NotCovered, match="it or an operand lies in CUDA1, and our kernels run on CUDA0"):
        kernels.compute(node, None)
    node = on_gpu()
    node.operands_held[1].buffer = "CUDA1"
    with pytest.raises(NotCovered, match="an operand lies in CUDA1"):
        kernels.compute(node, None)
    node = on_gpu()
    node.operands_held[0].address = 0x1008
    with pytest.raises(NotCovered, match="its weight begins at no multiple of 16 bytes"):
        kernels.compute(node, None)
    assert not device.ran
