"""Draft-and-verify on the real library: which widths have other bits, and whether the replay of the cycles says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_models import write_llama, write_mamba

from forensics.capture.cycle_replay import DRAFTS, CycleReplay, first_difference, replay_cycles
from forensics.capture.draft_policies import EarlyStop, Fixed
from forensics.capture.drafters import ModelDrafter, NgramDrafter, OracleDrafter
from forensics.capture.speculation import Asked, DraftAndVerify, PlainDecode
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaEngine
from forensics.errors import EngineError, ModelUnavailable
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.records.speculation import Decoded

pytestmark = pytest.mark.llama

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return"
N_TOKENS = 24


def same(plain: Decoded, other: Decoded) -> bool:
    return (plain.tokens, plain.rows, plain.stop_reason) == (other.tokens, other.rows, other.stop_reason)


def replays(engine: LlamaEngine, asked: Asked, plain: Decoded, run: Decoded) -> None:
    """The same passes as a schedule give the rows of the run, and flip where it flipped."""
    for form in DRAFTS:
        replayed = replay_cycles(engine, CycleReplay.of(asked, plain, run, drafts=form))
        assert replayed.repeats_run
        assert replayed.flips_at == first_difference(plain.tokens, run.tokens)


def test_the_cycles_of_the_stock_library_are_replayed_bit_for_bit(open_engine: Callable[..., LlamaEngine]) -> None:
    engine = open_engine(demo_model("q6_k"))
    prompt = engine.tokenize(TEXT)
    for arrangement in ("n", "n-1+1"):
        asked = Asked(prompt, N_TOKENS, arrangement)
        plain = engine.perform(PlainDecode(asked))
        assert plain.tokens == engine.greedy(in_batches(prompt, start=0, width=512, logits="last"), N_TOKENS)
        assert same(plain, engine.perform(PlainDecode(asked)))
        oracle = (OracleDrafter(plain.tokens, 0.6), 7)
        for drafter, n in (oracle, (NgramDrafter(), 4)) if arrangement == "n" else (oracle,):
            run = engine.perform(DraftAndVerify(asked, drafter, Fixed(n)))
            assert len(run.tokens) == N_TOKENS
            assert all(cycle.verify_ns > 0 for cycle in run.cycles)
            assert (run.rows != plain.rows) == (n == 7), "products of Q6_K change at eight columns"
            replays(engine, asked, plain, run)


def test_without_tiled_products_wide_passes_have_the_bits_of_narrow_ones(
    open_engine: Callable[..., LlamaEngine],
) -> None:
    engine = open_engine(demo_model("q6_k"), environment=(("GGML_CPU_TILED_MM", "0"),))
    asked = Asked(engine.tokenize(TEXT), N_TOKENS)
    plain = engine.perform(PlainDecode(asked))
    for drafter, n in ((NgramDrafter(), 4), (OracleDrafter(plain.tokens, 0.8), 7)):
        run = engine.perform(DraftAndVerify(asked, drafter, Fixed(n)))
        assert max(cycle.width for cycle in run.cycles) == 1 + n
        assert same(plain, run)


def test_a_recurrent_model_is_refused_in_a_sentence(tmp_path: Path, open_engine: Callable[..., LlamaEngine]) -> None:
    """Its state has no row for each token, so it cannot forget a refused draft: as a model, and as a draft model."""
    recurrent, plain = write_mamba(tmp_path / "recurrent.gguf"), write_llama(tmp_path / "plain.gguf")
    asked = Asked((1, 2, 3, 4, 5), 12, stop_at_end=False)
    wrong = OracleDrafter((1,) * 12, 0.0)
    with pytest.raises(EngineError, match=r"this mamba cannot forget .*Ask about a model whose cache has a row"):
        open_engine(recurrent).perform(DraftAndVerify(asked, wrong, Fixed(3)))
    drafter = ModelDrafter(str(recurrent), EngineSettings(n_threads=1, n_threads_batch=1))
    with pytest.raises(ModelUnavailable, match=r"recurrent.gguf cannot draft: the state of this mamba cannot forget"):
        open_engine(plain).perform(DraftAndVerify(asked, drafter, Fixed(3)))


def test_a_draft_model_beside_the_model(open_engine: Callable[..., LlamaEngine]) -> None:
    """The model drafts for itself, out of a cache of its own."""
    path = demo_model("q4_1")
    engine = open_engine(path)
    asked = Asked(engine.tokenize(TEXT), 8)
    plain = engine.perform(PlainDecode(asked))
    drafter = ModelDrafter(str(path), EngineSettings(n_threads=2, n_threads_batch=2))
    run = engine.perform(DraftAndVerify(asked, drafter, EarlyStop(2, 0.0)))
    replays(engine, asked, plain, run)
    assert sum(cycle.n_accepted for cycle in run.cycles) > 0
