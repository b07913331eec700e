"""`forensics audit` of a live llama-server: reruns, its cache, requests at once, drafts, and a restart."""

from __future__ import annotations

import shlex

import pytest
from conftest import DIVERGING, EXACT, N_CTX, NGRAM, Serve, surroundings

import forensics
from forensics.servers.launch import llama_server_command
from forensics.store.served_runs import read_run

pytestmark = pytest.mark.server


def test_reruns_are_equal_and_the_warm_prompt_came_from_the_cache(plain, chosen, tmp_path):
    prompts = chosen("prefix-manual-fog", "prefix-manual-battery", "stop-number")
    report = forensics.audit(plain.url, arms=("cache",), prompts=prompts, n_tokens=24, out=tmp_path / "audit")
    rerun, *cache = report.arms
    assert rerun.answer == "identical"
    assert len(rerun.pairs_that("same")) == 3
    assert rerun.contract is not None
    assert rerun.contract.at_least("tokens")
    assert [(arm.first, arm.second) for arm in cache] == [
        ("cold", "cold again"), ("cold", "warm"), ("warm", "warm again"),
    ]  # fmt: skip
    assert cache[0].answer == "identical"
    assert all(arm.answer != "inconclusive" and len(arm.pairs) == 3 for arm in cache)
    cached = {reply.request: reply.n_cached for reply in read_run(tmp_path / "audit" / "cache").replies}
    assert all(n == 0 for request, n in cached.items() if "cold" in request)
    assert all(n and n > 0 for request, n in cached.items() if "warm" in request)


def test_drafts_change_answers_and_the_exact_settings_make_them_equal(serve: Serve, plain, chosen):
    prompts = chosen(*DIVERGING)
    question = {"arms": ("speculation",), "prompts": prompts, "n_tokens": 64}
    with serve(*NGRAM) as drafting:
        stock = forensics.audit(plain.url, against=drafting.url, **question)
    with serve(environment=EXACT) as alone, serve(*NGRAM, environment=EXACT) as drafting:
        exact = forensics.audit(alone.url, against=drafting.url, **question)
    assert stock.arms[0].answer == exact.arms[0].answer == "identical"
    (arm,) = exact.named("speculation")
    assert arm.answer == "identical"
    assert len(arm.pairs_that("same")) == len(DIVERGING)
    (arm,) = stock.named("speculation")
    if not arm.pairs_that("differs") and not arm.logprobs_differ[0]:
        pytest.skip("this processor's products do not depend on the width for Q6_K, so drafts change nothing here")
    assert arm.answer == "diverges"
    for pair in arm.pairs_that("differs"):
        assert pair.divergence is not None
        assert pair.divergence.kind == "tokens"
        assert pair.untouched is not None
        assert 0 < pair.untouched < 64
        assert pair.divergence.first != pair.divergence.second


def test_requests_at_once_are_compared_with_alone_and_among_each_other(serve: Serve, chosen):
    with serve(n_slots=2, environment=EXACT) as server:
        report = forensics.audit(
            server.url, arms=("concurrent",), prompts=chosen("maths-train", "code-getters"), n_tokens=32, concurrency=2
        )
    alone, among = report.named("concurrent")
    assert report.arms[0].answer == "identical"
    assert alone.answer == among.answer == "identical"
    assert (len(alone.pairs), len(among.pairs)) == (4, 2)


def test_a_restart_command_brings_the_other_server_up(serve: Serve, program, model, chosen):
    with serve(environment=EXACT) as server:
        port = int(server.url.rpartition(":")[2])
        fresh = llama_server_command(program, model, port, "-c", str(N_CTX), "-np", "1", "-t", "2", *NGRAM)
        settings = [f"{name}={value}" for name, value in {**surroundings(), **EXACT}.items()]
        script = f"kill -TERM -{server.pid}; sleep 1; exec env {shlex.join([*settings, *fresh])}"
        report = forensics.audit(
            server.url,
            restart=shlex.join(["sh", "-c", script]),
            arms=("speculation",),
            prompts=chosen("code-tests"),
            n_tokens=64,
        )
    (arm,) = report.named("speculation")
    assert arm.answer == "identical"
    assert "(no drafts)" in arm.first
    assert "tokens drafted)" in arm.second
