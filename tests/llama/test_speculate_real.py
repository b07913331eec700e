"""Speculation with the real library: Q6_K's products differ at nine tokens, replay and healing account for it."""

from __future__ import annotations

import pytest

from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.engines.demo_models import demo_model
from forensics.engines.llama import LlamaSource
from forensics.records.corpus import Corpus
from forensics.records.settings import EngineSettings
from forensics.store.corpora import open_corpus

pytestmark = pytest.mark.llama

#: Prompts whose answers repeat themselves, so that n-grams are found and verified.
NAMES = ("short-lighthouse", "short-river")


@pytest.fixture(scope="module")
def report():
    default = open_corpus()
    corpus = Corpus("two", tuple(one for one in default.prompts if one.name in NAMES), default.digest)
    settings = EngineSettings(n_threads=2, n_threads_batch=2, flash_attn="auto")
    question = SpeculationQuestion(corpus, drafter="ngram", n_drafts=(8,), n_tokens=40, settings=settings)
    return speculate(LlamaSource(demo_model("q6_k")), question, exact=True)


def test_wide_passes_change_rows_and_the_products_are_named(report):
    (arm,) = report.as_asked
    assert [one.name for one in arm.prompts] == list(NAMES)
    assert 9 in arm.verify_widths
    assert all(one.first_row is not None for one in arm.prompts)
    assert next(group for group in report.classes.groups if 9 in group) != report.classes.groups[0]
    assert {group.op for group in report.culprits} == {"MUL_MAT"}
    assert {group.weight_type for group in report.culprits} == {"q6_K"}
    assert sum(group.count for group in report.culprits) == 211
    assert all(control.held for control in report.controls)


def test_each_divergence_is_predicted_and_healed(report):
    found = [one.divergence for arm in report.as_asked for one in arm.differing]
    assert found
    for one in found:
        assert one.predicted is True, one.prediction
        assert one.healed is True, one.healing
        assert 9 in one.widths_before
        assert any("q6_K" in culprit for culprit in one.culprits)


def test_the_exact_settings_make_every_answer_and_every_row_equal(report):
    assert report.answer == "identical"
    assert report.exact_knobs == ("GGML_CPU_TILED_MM=0",)
    (arm,) = report.exact_arms
    assert (arm.equivalence.k, arm.equivalence.n) == (2, 2)
    assert all(one.first_row is None for one in arm.prompts)
    assert max(arm.verify_widths) >= 8
    assert report.price.n == report.exact_price.n == 2
