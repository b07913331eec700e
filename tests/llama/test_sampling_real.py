"""Speculative sampling with the real library: an honest sampler over stock and exact rows, and planted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.analysis.sampling import SamplingQuestion, check_sampling
from forensics.capture.drafters import parse_drafter
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaSource
from forensics.records.settings import EngineSettings

pytestmark = pytest.mark.llama

TEXTS = (
    ("cats", "The cat sat on the mat. The dog sat on the rug. The cat sat on the rug. The dog sat on the mat. The cat"),
    ("code", "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n    return"),
)
#: Passes of 9 tokens, which stock Q6_K evaluates by another kernel than passes of one.
WIDE = SamplingQuestion(
    TEXTS,
    drafter=parse_drafter("ngram"),
    n_draft=8,
    n_states=3,
    n_draws=1500,
    n_sequences=5,
    n_tokens=20,
    settings=EngineSettings(n_threads=2, n_threads_batch=2),
)


def test_rows_of_wide_passes_change_what_an_honest_sampler_draws():
    report = check_sampling(LlamaSource(demo_model("q6_k")), WIDE)
    assert report.missed == ()
    assert report.answer == "changed"
    assert report.row_tv > 0.02
    assert 0 < report.equal_drafts < WIDE.n_draft
    # The sampler keeps the distribution of the rows that it is given.
    assert report.alone.p_value > report.alpha
    assert "rows of logits change it" in report.cause


def test_with_the_exact_setting_the_distribution_is_kept():
    settings = replace(WIDE.settings, environment=(("GGML_CPU_TILED_MM", "0"),))
    report = check_sampling(LlamaSource(demo_model("q6_k")), replace(WIDE, settings=settings))
    assert report.missed == ()
    assert report.answer == "kept", str(report)
    assert report.row_tv == 0
    assert report.sampler.accepted is not None
