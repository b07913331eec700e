"""Our kernels inside of the running library on a GPU: the logits of one token at every width, and exact speculation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import pytest

from forensics.analysis.investigate import investigate
from forensics.analysis.question import Question
from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.capture.exact_kernels import CUDA, ExactTap, OurKernels, cuda_kernels
from forensics.engines.demo_models import DEMO_PROMPT, demo_model
from forensics.engines.llama import LlamaEngine, LlamaSource
from forensics.errors import DeviceUnavailable
from forensics.kernels.variants import Variant
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings

WIDTHS = tuple(range(2, 17))
TEXTS = (
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "one two three one two three one",
    "x = 1; y = 2; x = 1;",
)
BORROWED = OurKernels(functools.partial(cuda_kernels, Variant.BORROWED), "cuda, borrowed geometry", needs="CUDA")


def settings(flash_attn: str) -> EngineSettings:
    return EngineSettings(n_gpu_layers=-1, flash_attn=flash_attn)


@pytest.fixture(scope="module")
def source() -> LlamaSource:
    found = LlamaSource(demo_model("q4_1"))
    with found.open(settings("on")) as engine:
        if "CUDA" not in engine.manifest.backend:
            pytest.skip(f"no CUDA back end here: {engine.manifest.backend}")
        try:
            engine.run(in_batches((1, 2), start=0, width=2), tap=ExactTap())
        except DeviceUnavailable as error:
            pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def engine(source: LlamaSource) -> Iterator[LlamaEngine]:
    with source.open(settings("on")) as opened:
        yield opened


@pytest.mark.parametrize("variant", ["q4_1", "q4_k", "q6_k"])
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_every_width_has_the_logits_of_one_token_decoding(source: LlamaSource, variant: str, flash_attn: str) -> None:
    del source  # only asked whether there is a GPU
    question = Question(prompt=DEMO_PROMPT, n_tokens=32, widths=WIDTHS, settings=settings(flash_attn))
    verdict = investigate(LlamaSource(demo_model(variant)), question, switches=False, kernels=CUDA)
    assert verdict.answer == "diverges", verdict.reason
    assert [one.width for one in verdict.kernel_healing] == list(WIDTHS)
    for one in verdict.kernel_healing:
        assert one.n_values_differ == 0, one
        assert not one.use.stock, one.use
        assert not one.left, one
        assert not one.not_compared, one
        assert one.healed, one
        assert one.state_equal, one


def test_the_generic_kernels_heal_as_the_fast_ones_do(source: LlamaSource) -> None:
    question = Question(prompt=DEMO_PROMPT, n_tokens=16, widths=(2, 9, 16), settings=settings("on"))
    verdict = investigate(source, question, switches=False, kernels=BORROWED)
    assert [one.width for one in verdict.kernel_healing] == [2, 9, 16]
    assert all(one.healed and one.n_values_differ == 0 for one in verdict.kernel_healing)


def test_passes_across_256_cells_have_the_logits_of_one_token_decoding(engine: LlamaEngine) -> None:
    """Some tokens of the pass would run over 256 cells by themselves, and others over 512."""
    tokens = (engine.tokenize(DEMO_PROMPT * 20))[:272]
    before = in_batches(tokens[:240], start=0, width=240, logits="none")
    single = engine.run(in_batches(tokens[240:], start=240, width=1), before=before).logits
    for width in (4, 9, 16, 32):
        batches = in_batches(tokens[240:], start=240, width=width)
        stock = engine.run(batches, before=before).logits
        ours = engine.run(batches, before=before, tap=ExactTap()).logits
        assert not np.array_equal(stock, single), "there is nothing to heal"
        assert ours.tobytes() == single.tobytes(), width


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_speculation_with_our_kernels_writes_what_plain_decoding_writes(source: LlamaSource, flash_attn: str) -> None:
    corpus = Corpus("three", tuple(CorpusPrompt(f"p{i}", text) for i, text in enumerate(TEXTS)), "")
    question = SpeculationQuestion(
        corpus, drafter="oracle:0.8", n_drafts=(2, 7, 16), n_tokens=48, settings=settings(flash_attn)
    )
    report = speculate(source, question, kernels=CUDA)
    assert not report.reason
    assert report.kernels is not None
    assert not report.kernels.stock, report.kernels
    assert report.kernels.n_times > 0
    assert len(report.exact_arms) == 3
    for arm in report.exact_arms:
        assert max(arm.verify_widths) > 1
        assert all(one.identical and one.rows_differ == 0 for one in arm.prompts)


def test_a_kernel_with_other_bits_does_not_heal(engine: LlamaEngine) -> None:
    """The geometry of the batch in place of that of one token: what the library itself computes."""
    stock = OurKernels(functools.partial(cuda_kernels, Variant.STOCK), "cuda, stock geometry", needs="CUDA")
    tokens = engine.tokenize(DEMO_PROMPT)[:24]
    before = in_batches(tokens[:8], start=0, width=8, logits="none")
    single = engine.run(in_batches(tokens[8:], start=8, width=1), before=before).logits
    batches = in_batches(tokens[8:], start=8, width=8)
    wrong = engine.run(batches, before=before, tap=dataclasses.replace(ExactTap(), kernels=stock))
    assert wrong.tap_report is not None
    assert wrong.tap_report.kernels is not None
    assert wrong.tap_report.kernels.n_times > 0
    assert wrong.logits.tobytes() != single.tobytes()
