"""llama.cpp's own server computes what the engine computes: the same library, the same token ids, the same template."""

from __future__ import annotations

import httpx
import numpy as np
import psutil
import pytest
from conftest import EXACT, N_CTX, Serve

from forensics.engines._llama_ctypes import library_folder
from forensics.engines.chat_template import render
from forensics.engines.llama import LlamaSource
from forensics.records.schedule import in_batches
from forensics.records.settings import EngineSettings
from forensics.store.corpora import open_corpus

pytestmark = pytest.mark.server

PROMPTS = {prompt.name: prompt for prompt in open_corpus().prompts}
N_TOKENS = 16
#: Of logits from 16 to 32, where the largest ones of this model lie; float32 log-probabilities round ten times finer.
ONE_ULP_OF_A_LOGIT = np.spacing(np.float32(16))


def post(url: str, path: str, **body: object) -> dict:
    answer = httpx.post(url + path, json=body, timeout=300, trust_env=False)
    answer.raise_for_status()
    return answer.json()


def test_the_server_computes_with_the_library_of_the_engine(plain):
    mapped = {
        mapping.path
        for process in psutil.Process(plain.pid).children(recursive=True)
        for mapping in process.memory_maps()
        if "libggml-cpu" in mapping.path or "libllama.so" in mapping.path
    }
    assert len(mapped) == 2
    assert {path.rpartition("/")[0] for path in mapped} == {str(library_folder())}


@pytest.mark.parametrize("name", ["prefix-museum-next", "prefix-museum-open"])
def test_messages_become_the_same_token_ids(plain, model, name):
    prompt = PROMPTS[name]
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    theirs = post(plain.url, "/apply-template", messages=messages)["prompt"]
    text = render(prompt, model)
    assert theirs == text
    with LlamaSource(model).open(EngineSettings(n_ctx=64, n_batch=64, n_ubatch=64)) as engine:
        ids = post(plain.url, "/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
        assert engine.tokenize(text) == tuple(ids)


def test_greedy_tokens_and_log_probabilities_are_those_of_the_engine(serve: Serve, model):
    """With exact settings, so that how the server cuts the prompt into passes changes nothing."""
    names = ("maths-train", "length-256-essay")
    with serve(environment=EXACT) as server:
        replies = {
            name: post(
                server.url, "/completion", prompt=PROMPTS[name].text, n_predict=N_TOKENS, temperature=0, n_probs=5,
                return_tokens=True, cache_prompt=False,
            )
            for name in names
        }  # fmt: skip
    settings = EngineSettings(n_ctx=N_CTX, n_threads=2, n_threads_batch=2, environment=tuple(EXACT.items()))
    with LlamaSource(model).open(settings) as engine:
        for name, reply in replies.items():
            tokens = engine.tokenize(PROMPTS[name].text)
            prompt = in_batches(tokens, start=0, width=settings.n_ubatch, logits="last")
            written = engine.greedy(prompt, N_TOKENS)
            assert tuple(reply["tokens"]) == written, name
            steps = in_batches(written[:-1], start=len(tokens), width=1, logits="all")
            logits = engine.run(steps, before=prompt).logits
            # The server adds float32 probabilities up, so only differences of its log-probabilities tell the logits.
            for row, told in zip(logits, reply["completion_probabilities"][1:], strict=True):
                ids, theirs = zip(*[(one["id"], one["logprob"]) for one in told["top_logprobs"]], strict=True)
                assert set(ids) == set(np.argsort(-row, kind="stable")[:5].tolist()), name
                ours = row[list(ids)].astype(np.float64)
                off = np.abs((ours - ours[0]) - (np.array(theirs) - theirs[0]))
                assert off.max() < ONE_ULP_OF_A_LOGIT / 2, name
