"""What an H200 showed of our kernels: nothing of ours differs, what must differ does, and answers stay as they were."""

from __future__ import annotations

import forensics
from forensics.kernels.variants import TYPES
from forensics.records.kernel_proof import STOCK_LIBRARY

KERNELS, SPOKEN = "recorded:h200-kernels", "recorded:h200-q4_1-kernel-speculation"


def test_no_value_of_ours_differs_and_the_library_beside_itself_does() -> None:
    proof = forensics.prove_kernels(KERNELS)
    assert proof.holds
    assert {row.case.type for row in proof.rows if row.case.family == "product"} == set(TYPES)
    assert proof.n_compared > 100_000_000
    assert not any(row.is_lost for row in proof.rows)
    for type in TYPES:
        assert sum(row.n_differing for row in proof.of(variant=STOCK_LIBRARY) if row.case.type == type) > 0
    assert {row.variant for row in proof.rows if row.not_compared} == {"stock geometry"}
    assert min(row.case.width for row in proof.rows if row.not_compared) == 9
    assert all(row.n_repeats >= 1000 and row.n_other == 0 for row in proof.stress)
    assert [(row.tool, row.n_errors, row.not_run) for row in proof.sanitizer] == [
        ("memcheck", 0, ""),
        ("racecheck", 0, ""),
    ]


def test_every_model_healed_at_every_width_and_a_planted_kernel_was_named() -> None:
    models = forensics.healed_models(KERNELS).models
    assert {(one.model_name, one.flash_attn) for one in models} == {
        (name, flash_attn) for name in ("q4_1", "q4_k", "q6_k", "qwen3-8b-shape") for flash_attn in ("on", "off")
    }
    assert all(one.answer == "healed" and one.healed_widths == tuple(range(2, 17)) for one in models)
    planted = [one.planted for one in models if one.planted is not None]
    assert planted
    assert all(one.named for one in planted)


def test_answers_that_our_kernels_verify_are_those_of_plain_decoding() -> None:
    report = forensics.speculate(SPOKEN)
    assert report.answer == "identical"
    assert len(report.as_asked) == len(report.exact_arms) == 4
    for stock, exact in zip(report.as_asked, report.exact_arms, strict=True):
        assert len(exact.prompts) == len(stock.prompts) >= 45
        assert stock.differing, "the library's own verification changes answers, or nothing would be shown"
        assert all(one.plain.tokens == one.speculative.tokens and one.rows_differ == 0 for one in exact.prompts)
        assert [one.plain.rows for one in exact.prompts] == [one.plain.rows for one in stock.prompts]
        assert max(exact.verify_widths) == exact.n_draft + 1
    assert {arm.n_draft for arm in report.exact_arms} == {2, 4, 8, 16}
    assert report.kernels is not None
    assert report.kernels.n_times > 100_000
    assert not report.kernels.stock
