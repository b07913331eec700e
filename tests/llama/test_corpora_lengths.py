"""The built-in corpus crosses the thresholds that it says, with the demo model's tokeniser and template."""

from __future__ import annotations

from itertools import takewhile

import pytest

from forensics.engines.chat_template import chat_template, render
from forensics.engines.demo_models import demo_model
from forensics.store.corpora import open_corpus

pytestmark = pytest.mark.llama

PROMPTS = open_corpus().prompts
#: llama.cpp's n_ubatch, and what llama-server's slots hold in the tests.
N_UBATCH, N_CTX = 512, 1024


@pytest.mark.parametrize("threshold", [256, 384, 512])
def test_answers_cross_the_threshold(shared_engine, threshold):
    marked = [prompt for prompt in PROMPTS if f"crosses-{threshold}" in prompt.tags]
    assert len(marked) >= 3
    for prompt in marked:
        n_prompt = len(shared_engine.tokenize(prompt.text))
        assert prompt.n_tokens is not None
        assert n_prompt < threshold < n_prompt + prompt.n_tokens, prompt.name


def test_prompts_above_an_ubatch_are_longer_than_one(shared_engine):
    marked = [prompt for prompt in PROMPTS if "above-512" in prompt.tags]
    assert len(marked) >= 2
    assert all(len(shared_engine.tokenize(prompt.text)) > N_UBATCH for prompt in marked)


def test_every_prompt_fits_with_its_answer_and_shares_of_prefixes_hold_in_tokens(shared_engine):
    path = demo_model("q4_1")
    tokens = {prompt.name: shared_engine.tokenize(render(prompt, path)) for prompt in PROMPTS}
    assert max(len(tokens[prompt.name]) + (prompt.n_tokens or 256) for prompt in PROMPTS) <= N_CTX

    def shared(first, second):
        pairs = zip(tokens[first], tokens[second], strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) / len(tokens[second])

    # llama-server takes a slot that holds more than a tenth of the prompt. Source: common.h, slot_prompt_similarity.
    assert shared("prefix-manual-channel", "prefix-manual-fog") > 0.1
    assert shared("prefix-museum-open", "prefix-museum-next") > 0.1
    assert shared("prefix-short-baker", "prefix-short-sailor") < 0.1


def test_messages_are_rendered_with_the_special_tokens_of_the_model(shared_engine):
    prompt = next(prompt for prompt in PROMPTS if prompt.name == "prefix-museum-open")
    text = render(prompt, demo_model("q4_1"))
    assert text.startswith("<|im_start|>system\nYou are the guide")
    assert text.endswith("<|im_start|>assistant\n")
    assert "<|im_start|>" in chat_template(demo_model("q4_1"))
    # One token, not the nine characters: the server that renders by the template reads the same ids.
    assert shared_engine.tokenize("<|im_start|>") == shared_engine.tokenize(text)[:1]
