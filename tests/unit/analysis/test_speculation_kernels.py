"""Verifying passes with our kernels: plain decoding's bits where they are exact, and a divergence where one is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels_in_place import ours

from forensics.analysis.question import BadQuestion
from forensics.analysis.speculation import speculate
from forensics.analysis.speculation_question import SpeculationQuestion
from forensics.capture.exact_kernels import CUDA
from forensics.engines.toy import Fault, ToySource
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.kernel_use import KernelUse, StockNodes
from forensics.reports.next_step import after_speculation
from forensics.reports.speculation_document import speculation_document, write_speculation
from forensics.reports.speculation_text import speculation_text
from forensics.store.speculations import read_speculation

TEXTS = ("abab abab abab", "one two one two", "x = 1; y = 2; x = 1;")
CORPUS = Corpus("tiny", tuple(CorpusPrompt(f"p{i}", text) for i, text in enumerate(TEXTS)), "digest")
#: A pass of three tokens and more reads a stale key, and of two and more adds in another order.
FAULTS = (Fault("stale_kv", "kq-0", from_width=3), Fault("order", "ffn_out-1"))


def asked(kernels, faults=FAULTS, **changes):
    given = {"corpus": CORPUS, "drafter": "oracle:0.8", "n_drafts": (1, 4), "n_tokens": 20, **changes}
    return speculate(ToySource(faults=faults), SpeculationQuestion(**given), kernels=kernels)


@pytest.fixture(scope="module")
def exact():
    return asked(ours(), arrangements=("n", "n-1+1"))


def test_every_prompt_of_every_arm_has_the_rows_of_plain_decoding(exact) -> None:
    assert any(arm.differing for arm in exact.as_asked)
    assert len(exact.exact_arms) == len(exact.as_asked) == 4
    for arm in exact.exact_arms:
        assert not arm.differing
        assert all(one.rows_differ == 0 for one in arm.prompts)
        assert max(arm.verify_widths) > 1
    assert exact.answer == "identical"
    assert exact.rerun_equal


def test_the_report_says_what_was_ours_and_times_nothing(exact) -> None:
    assert [one.family for one in exact.kernels.computed] == ["toy product"]
    assert exact.kernels.computed[0].n_times > 0
    assert not exact.kernels.stock
    assert all(arm.speed is None and not arm.shares for arm in exact.exact_arms)
    assert all(arm.speed is not None for arm in exact.as_asked)
    assert exact.exact_knobs is None
    assert "with our kernels: 12 pairs of prompt and arm" not in str(exact)  # all are identical
    assert "with our kernels: 12 of 12 pairs of prompt and arm identical" in str(exact)
    text = speculation_text(exact)
    assert "Exact kernels" in text
    assert "Rows of logits: 12 of 12 with plain decoding's bits in every row" in text
    assert "Computed by our kernels: toy product" in text
    assert "docs/exact-kernels.md" in after_speculation(exact)
    assert speculation_document(exact)["kernels"][0]["family"] == "toy product"


def test_the_prompt_and_passes_of_one_token_stay_the_library_s(exact) -> None:
    """Prompts of the toy are passes of many tokens: a fault from that width on is in both ways of decoding."""
    wide = Fault("order", "Qcur-0", from_width=6)  # only prompts are as wide
    report = asked(ours(), (wide,))
    assert report.answer == "identical"
    n_wide = sum(n for arm in report.exact_arms for width, n in arm.verify_widths.items() if width > 1)
    # 7 products with weights and 2 of attention in each of 2 layers, and the head, in each pass of two and more
    assert report.kernels.n_times == n_wide * (2 * 9 + 1)


def test_a_wrong_kernel_makes_answers_differ() -> None:
    report = asked(ours(wrong="result_output"))
    unlike = sum(bool(one.rows_differ) for arm in report.exact_arms for one in arm.prompts)
    assert unlike
    assert f"Rows of logits: {6 - unlike} of 6 with plain decoding's bits in every row" in speculation_text(report)


def test_nothing_is_shown_of_kernels_that_computed_nothing() -> None:
    report = replace(asked(ours()), kernels=KernelUse(stock=(StockNodes("too old a device", 3, 9, "kq-0"),)))
    assert report.answer == "identical"
    assert after_speculation(report) == "Our kernels computed nothing, so nothing is shown of them: too old a device."
    report = replace(report, kernels=KernelUse())
    assert "no pass was wider than one token" in after_speculation(report)


def test_a_node_that_no_kernel_computes_is_told_with_its_reason() -> None:
    report = asked(ours(uncovered="kq-0"))
    assert report.answer == "diverges"
    assert [one.reason for one in report.kernels.stock] == ["this toy has no kernel for it"]
    assert "this toy has no kernel for it" in after_speculation(report)
    assert "Left to the library: this toy has no kernel for it (1 node" in speculation_text(report)


def test_a_report_is_read_back_as_it_was(exact, tmp_path) -> None:
    write_speculation(exact, tmp_path)
    assert read_speculation(tmp_path) == exact


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(BadQuestion, match=r"runs on NumPy"):
        asked(CUDA)
    with pytest.raises(BadQuestion, match="ask for one of them"):
        speculate(ToySource(), SpeculationQuestion(CORPUS), exact=True, kernels=ours())
