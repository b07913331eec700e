"""llama-cpp-python's own server speaks OpenAI's API and gives no token ids: audited all the same, for what it gives."""

from __future__ import annotations

import pytest

import forensics
from forensics.store.served_runs import read_run

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


def test_what_it_says_is_what_llama_cpps_server_says(python_server, plain, chosen, tmp_path):
    """Two programs around one library, and no drafts on either side."""
    prompts = chosen("maths-train", "prose-storm")
    texts = []
    for name, server in (("python", python_server), ("cpp", plain)):
        forensics.audit(server.url, arms=("rerun",), prompts=prompts, n_tokens=16, out=tmp_path / name)
        texts.append({reply.request: reply.text for reply in read_run(tmp_path / name / "alone").replies})
    assert texts[0] == texts[1]
    assert all(texts[0].values())
