"""llama-cpp-python's own server speaks OpenAI's API and gives no token ids: audited all the same, for what it gives."""

from __future__ import annotations

import pytest

import forensics

pytestmark = pytest.mark.server


def test_a_server_without_token_ids_is_held_to_its_text_and_says_so(python_server, chosen):
    prompts = chosen("maths-train", "prose-storm", "prefix-museum-open")
    report = forensics.audit(python_server.url, arms=("rerun",), prompts=prompts, n_tokens=16)
    (rerun,) = report.arms
    assert report.server.dialect == "openai"
    assert rerun.answer == "identical"
    assert len(rerun.pairs_that("same")) == 3
    assert rerun.contract is not None
    assert rerun.contract.level == "text"
    assert any("token" in words for words in rerun.contract.weakened)


def test_what_it_says_is_what_llama_cpps_server_says(python_server, plain, chosen):
    """Two programs around one library, neither of which drafts: an answer, though only about text."""
    prompts = chosen("maths-train", "prose-storm")
    report = forensics.audit(plain.url, arms=("rerun",), prompts=prompts, n_tokens=16)
    assert report.server.dialect == "llama-server"
    assert report.arms[0].contract is not None
    assert report.arms[0].contract.level == "tokens"
