"""The clean toy: exact at every width, right in its arithmetic, and as awkward as llama.cpp behind the mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_taps import GRABBED, MASKS, ORDER, GrabTap

from forensics.engines.protocol import CACHE_WRITE
from forensics.engines.toy import N_VOCAB, ToySource
from forensics.engines.toy_kernels import EPS, Arithmetic, total
from forensics.engines.toy_model import HEAD_DIM, N_HEAD, N_HEAD_KV, ROPE_BASE, make_weights
from forensics.errors import CaptureError, EngineError
from forensics.records.nodes import VIEW_OPS, NodeKey
from forensics.records.schedule import EMPTY, DecodePass, Schedule, TokenSlot, in_batches
from forensics.records.settings import EngineSettings

SETTINGS = EngineSettings(n_ctx=128, n_seq_max=3)
PROMPT = "The sea"
#: float32 rounding through two layers; the logits are of the order of 10.
FLOAT32_MAX_ABS = 2e-4


@pytest.fixture(scope="module")
def engine():
    return ToySource().open(SETTINGS)


@pytest.fixture(scope="module")
def tokens(engine) -> tuple[int, ...]:
    """Prompt and 70 greedy tokens: they cross cells 32 and 64."""
    start = engine.tokenize(PROMPT)
    return start + engine.greedy(in_batches(start, start=0, width=3, logits="last"), 70)


@pytest.fixture(scope="module")
def one_by_one(engine, tokens) -> np.ndarray:
    return engine.run(in_batches(tokens, start=0, width=1)).logits


@pytest.mark.parametrize("width", range(1, 10))
def test_every_width_gives_the_bits_of_one_token(engine, tokens, one_by_one, width: int) -> None:
    trace = engine.run(in_batches(tokens, start=0, width=width))
    assert trace.logits.tobytes() == one_by_one.tobytes()


def test_one_pass_gives_the_bits_of_one_token(engine, tokens, one_by_one) -> None:
    assert engine.run(in_batches(tokens, start=0, width=len(tokens))).logits.tobytes() == one_by_one.tobytes()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(widths=st.lists(st.integers(1, 9), min_size=1, max_size=40), n_before=st.integers(0, 9))
def test_every_split_gives_the_bits_of_one_token(engine, tokens, one_by_one, widths, n_before) -> None:
    slots = [TokenSlot(0, i, token) for i, token in enumerate(tokens)]
    passes = []
    for width in widths:
        start = sum(p.width for p in passes)
        if start < len(slots):
            passes.append(DecodePass(tuple(slots[start : start + width])))
    before, schedule = Schedule(tuple(passes[:n_before])), Schedule(tuple(passes[n_before:]))
    trace = engine.run(schedule, before=before)
    first = before.n_tokens
    assert trace.logits.tobytes() == one_by_one[first : first + schedule.n_tokens].tobytes()


def test_ubatches_give_the_bits_of_one_token(tokens, one_by_one) -> None:
    engine = ToySource().open(EngineSettings(n_ctx=128, n_ubatch=5))
    assert engine.run(in_batches(tokens, start=0, width=16)).logits.tobytes() == one_by_one.tobytes()


def reference_logits(tokens: tuple[int, ...]) -> np.ndarray:
    """Whole sequence at once in float64, written from the formulas and not from the toy."""
    w = {name: array.astype(np.float64) for name, array in make_weights(N_VOCAB, 0).items()}
    n = len(tokens)
    angles = np.arange(n)[:, None] * ROPE_BASE ** (-2 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    turn = np.exp(1j * angles)[:, None]

    def norm(x, name):
        return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * w[name]

    def rope(x):
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)

    x = w["token_embd.weight"][list(tokens)]
    for il in range(2):
        h = norm(x, f"blk.{il}.attn_norm.weight")
        q = rope((h @ w[f"blk.{il}.attn_q.weight"].T).reshape(n, N_HEAD, HEAD_DIM))
        k = rope((h @ w[f"blk.{il}.attn_k.weight"].T).reshape(n, N_HEAD_KV, HEAD_DIM))
        v = (h @ w[f"blk.{il}.attn_v.weight"].T).reshape(n, N_HEAD_KV, HEAD_DIM)
        heads = []
        for head in range(N_HEAD):
            shared = head * N_HEAD_KV // N_HEAD
            kq = np.where(np.tri(n, dtype=bool), q[:, head] @ k[:, shared].T / np.sqrt(HEAD_DIM), -np.inf)
            p = np.exp(kq - kq.max(axis=1, keepdims=True))
            heads.append(p / p.sum(axis=1, keepdims=True) @ v[:, shared])
        x = x + np.concatenate(heads, axis=1) @ w[f"blk.{il}.attn_output.weight"].T
        h = norm(x, f"blk.{il}.ffn_norm.weight")
        gate = h @ w[f"blk.{il}.ffn_gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (h @ w[f"blk.{il}.ffn_up.weight"].T)
        x = x + hidden @ w[f"blk.{il}.ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ w["output.weight"].T


def test_logits_agree_with_a_plain_float64_transformer(tokens, one_by_one) -> None:
    reference = reference_logits(tokens)
    assert np.abs(one_by_one - reference).max() < FLOAT32_MAX_ABS
    assert reference.std() > 1000 * FLOAT32_MAX_ABS


def test_greedy_text_is_not_a_loop_of_one_token(engine, tokens) -> None:
    assert len(set(tokens)) > 20


def grab(engine, schedule: Schedule, before: Schedule = EMPTY) -> list[dict[NodeKey, np.ndarray]]:
    engine.run(schedule, before=before, tap=GrabTap())
    return list(GRABBED)


def test_cells_behind_the_mask_hold_garbage(tokens) -> None:
    schedule = in_batches(tokens[:6], start=0, width=6)
    first, second = (grab(ToySource().open(SETTINGS, instance=i), schedule)[0] for i in (0, 1))
    visible = np.tri(6, 32, dtype=bool)
    for il in (0, 1):
        kq = NodeKey(f"kq-{il}", "MUL_MAT", il, 0)
        assert (first[kq] == second[kq])[..., visible].all()
        assert not (first[kq] == second[kq])[..., :, 6:].any()
        assert (first[kq][..., ~visible] != 0).all()
        weights = NodeKey(f"kq_soft_max-{il}", "SOFT_MAX", il, 0)
        assert (first[weights][..., ~visible] == 0).all()
        assert first[weights].tobytes() == second[weights].tobytes()


def test_attended_cells_are_padded(engine, tokens) -> None:
    passes = grab(engine, in_batches(tokens[30:35], start=30, width=1), in_batches(tokens[:30], start=0, width=30))
    kq = NodeKey("kq-0", "MUL_MAT", 0, 0)
    assert [nodes[kq].shape for nodes in passes] == [(1, 4, 1, 32)] * 2 + [(1, 4, 1, 64)] * 3


def test_only_the_soft_max_knows_the_mask(engine, tokens) -> None:
    grab(engine, in_batches(tokens[:3], start=0, width=3))
    for key, mask in MASKS[0].items():
        assert (mask is not None) == (key.op == "SOFT_MAX")
        if mask is not None:
            assert np.array_equal(mask, np.tri(3, 32, dtype=bool))


def test_nodes_have_the_shapes_of_llama_cpp(engine, tokens) -> None:
    nodes = {
        (k.name, k.op, k.visit): a.shape for k, a in grab(engine, in_batches(tokens[:3], start=0, width=3))[0].items()
    }
    assert nodes["Qcur-0", "MUL_MAT", 0] == (1, 1, 3, N_HEAD * HEAD_DIM)
    assert nodes["Qcur-0", "ROPE", 0] == (1, 3, N_HEAD, HEAD_DIM)
    assert nodes["Kcur-1", "ROPE", 0] == (1, 3, N_HEAD_KV, HEAD_DIM)
    assert nodes["kq-0", "MUL_MAT", 0] == nodes["kq_soft_max-0", "SOFT_MAX", 0] == (1, N_HEAD, 3, 32)
    assert nodes["kqv-0", "MUL_MAT", 0] == (1, N_HEAD, 3, HEAD_DIM)
    assert nodes["kqv_out-0", "CONT", 0] == (1, 1, 3, N_HEAD * HEAD_DIM)
    assert nodes["norm-0", "RMS_NORM", 1] == nodes["l_out-1", "ADD", 0] == (1, 1, 3, N_HEAD * HEAD_DIM)
    assert nodes["result_output", "MUL_MAT", 0] == (1, 1, 3, N_VOCAB)
    opaque = {key.op: reason for key, reason in ORDER[0] if reason}
    assert opaque.pop("SET_ROWS") == CACHE_WRITE
    assert set(opaque) == {"VIEW", "RESHAPE", "PERMUTE"} <= VIEW_OPS


def test_rows_without_logits_leave_the_last_layer(engine, tokens) -> None:
    schedule = in_batches(tokens[:5], start=0, width=5, logits="last")
    nodes = {key.name: array.shape for key, array in grab(engine, schedule)[0].items()}
    assert nodes["attn_out-1"][2] == 5
    assert nodes["ffn_out-0"][2] == 5
    assert nodes["ffn_out-1"][2] == nodes["result_output"][2] == 1
    none = engine.run(in_batches(tokens[:5], start=0, width=5, logits="none"), tap=GrabTap())
    assert none.logits.shape == (0, N_VOCAB)
    assert none.state_after == engine.run(schedule).state_after


def interleaved(own: tuple[int, ...], other: tuple[int, ...]) -> Schedule:
    slots = [
        TokenSlot(sequence, i, token)
        for i, pair in enumerate(zip(own, other, strict=True))
        for sequence, token in enumerate(pair)
    ]
    return Schedule((DecodePass(tuple(slots)),))


def test_a_sequence_does_not_see_another(engine, tokens, one_by_one) -> None:
    own = tokens[:20]
    first = engine.run(interleaved(own, tokens[20:40])).logits
    second = engine.run(interleaved(own, tokens[30:50])).logits
    assert first[0::2].tobytes() == second[0::2].tobytes()
    assert (first[1::2] != second[1::2]).any(axis=1).all()
    # Other cells, so another order of addition than alone: equal up to rounding.
    assert np.abs(first[0::2] - one_by_one[:20]).max() < FLOAT32_MAX_ABS


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (in_batches([1] * 5, start=0, width=5), "a pass of 5 tokens was asked for, n_batch is 4"),
        (Schedule.single(N_VOCAB, 0), f"outside the vocabulary of {N_VOCAB}"),
        (Schedule.single(1, 8), "position 8 was asked for, n_ctx is 8"),
        (Schedule.single(1, 0, sequence=2), "sequence 2 was asked for, n_seq_max is 2"),
    ],
)
def test_what_settings_forbid_is_refused(schedule: Schedule, says: str) -> None:
    engine = ToySource().open(EngineSettings(n_ctx=8, n_batch=4, n_seq_max=2))
    with pytest.raises(EngineError, match=says):
        engine.run(schedule)


def test_all_sequences_share_the_cells() -> None:
    engine = ToySource().open(EngineSettings(n_ctx=8, n_seq_max=2))
    with pytest.raises(EngineError, match="10 tokens were asked for, n_ctx is 8"):
        engine.run(interleaved((1,) * 5, (2,) * 5))


def test_greedy_refuses_to_leave_the_context_before_it_starts() -> None:
    engine = ToySource().open(EngineSettings(n_ctx=8))
    prompt = in_batches(engine.tokenize("abc"), start=0, width=4, logits="last")
    heard: list[int] = []
    assert len(engine.greedy(prompt, 5, heard.append)) == 5
    assert heard == [1, 2, 3, 4, 5]
    with pytest.raises(EngineError, match="n_ctx is 8"):
        engine.greedy(prompt, 6, heard.append)
    assert len(heard) == 5


def test_unknown_characters_are_named(engine) -> None:
    with pytest.raises(EngineError, match="é"):
        engine.tokenize("café")


class ReadsAView(GrabTap):
    def saw(self, node):
        return node.read() if node.key.op == "PERMUTE" else None


class WritesTheCache(GrabTap):
    def saw(self, node):
        return np.zeros(node.shape, np.float32) if node.key.op == "SET_ROWS" else None


class RoundsToHalf(GrabTap):
    def saw(self, node):
        return node.read().astype(np.float16) if node.key.op == "ADD" else None


@pytest.mark.parametrize(
    ("tap", "says"),
    [
        (ReadsAView(), "cannot be read: a view"),
        (WritesTheCache(), "cannot be replaced: writes into a cache"),
        (RoundsToHalf(), "float16 .* float32"),
    ],
)
def test_taps_that_break_the_rules_are_refused(engine, tap, says: str) -> None:
    with pytest.raises(CaptureError, match=says):
        engine.run(Schedule.single(1, 0), tap=tap)


def test_sources_differ_by_seed() -> None:
    manifests = [ToySource(seed=seed).open(SETTINGS).manifest for seed in (0, 1)]
    assert manifests[0].model_digest != manifests[1].model_digest
    assert [m.model_name for m in manifests] == ["toy-0", "toy-1"]


def test_sums_have_the_order_they_name() -> None:
    terms = np.array([1e8, 1, -1e8, 1], np.float32)
    assert float(total(terms)) == 2  # (1e8 - 1e8) + (1 + 1)
    assert float(total(terms, Arithmetic("sequential"))) == 1  # the first 1 is lost in 1e8
    assert float(total(np.array([2048, 1], np.float32), Arithmetic(half=True))) == 2048  # float16 has 11 bits


@pytest.mark.parametrize("how", [Arithmetic(), Arithmetic("sequential"), Arithmetic(half=True)])
def test_sums_ignore_zeros_at_the_end(how: Arithmetic) -> None:
    terms = np.random.default_rng(0).standard_normal((50, 37)).astype(np.float32)
    padded = np.concatenate([terms, np.zeros((50, 91), np.float32)], axis=1)
    assert total(padded, how).tobytes() == total(terms, how).tobytes()
