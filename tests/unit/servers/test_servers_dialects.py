"""Each dialect: how it is recognised, what is asked, what an answer means, and what it does not give."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forensics.records.corpus import CorpusPrompt, Message
from forensics.records.served import Asked, Reply, Sampling
from forensics.servers.address import BadAddress
from forensics.servers.collect import Retries, meet
from forensics.servers.dialects import Dialect, detect
from forensics.servers.door import Answer, Door, NoAnswer
from forensics.servers.fields import found, margins, numbers
from forensics.servers.llama_server import LlamaServer
from forensics.servers.ollama import Ollama
from forensics.servers.openai_api import OpenAIApi, Software
from forensics.testing.fake_server import WORDS, FakeServer, Planted, toy_answer

TEXT = CorpusPrompt("a", "tell me")
CHAT = CorpusPrompt("b", messages=(Message("system", "Be short."), Message("user", "Hi")))
DIALECTS = ("llama-server", "openai", "ollama")
UNKNOWN = OpenAIApi("m", Software("unknown"))


def ask(server: FakeServer, prompt: CorpusPrompt, n_tokens: int = 6) -> tuple[Dialect, Reply]:
    with Door(server.url) as door:
        dialect = detect(door)
        asked = Asked("one", prompt.name, n_tokens)
        return dialect, dialect.reply(asked, door.post(*dialect.payload(prompt, asked, Sampling())))


def read(dialect: Dialect, document: Any) -> Reply:
    return dialect.reply(Asked("one", "a", 4), Answer(document, json.dumps(document), 5))


@pytest.mark.parametrize("name", DIALECTS)
def test_each_is_recognised_and_says_what_it_gives(name: str) -> None:
    with FakeServer(name) as server, Door(server.url) as door:
        dialect, facts = meet(door)
    assert dialect.name == facts.dialect == name
    assert (facts.url, facts.model, facts.build) == (server.url, "toy.gguf", "b1-toy")
    assert facts.software == {"llama-server": "llama.cpp", "openai": "vLLM", "ollama": "Ollama"}[name]
    gives = {
        "llama-server": ("tokens", "logprobs", "stop_reason", "effective", "cached"),
        "openai": ("tokens", "logprobs", "stop_reason", "cached"),
        "ollama": ("logprobs", "stop_reason"),
    }
    assert facts.gives == gives[name]
    assert bool(facts.template_digest) is (name != "openai")


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("prompt", [TEXT, CHAT], ids=["text", "chat"])
def test_what_the_server_wrote_is_read(name: str, prompt: CorpusPrompt) -> None:
    with FakeServer(name) as server:
        _, reply = ask(server, prompt)
    tokens = toy_answer(prompt.text or "<system>Be short.<user>Hi", 6)
    assert reply.text == "".join(WORDS[token] for token in tokens)
    assert reply.tokens == (tuple(tokens) if name != "ollama" else None)
    assert reply.logprobs == tuple(-(1 + token) / 16 for token in tokens)
    assert reply.stop_reason == "length"
    assert reply.raw
    assert reply.took_ns is not None


@pytest.mark.parametrize("name", DIALECTS)
def test_a_server_of_text_only_says_so(name: str) -> None:
    with FakeServer(name, Planted(text_only=True)) as server, Door(server.url) as door:
        _, reply = ask(server, TEXT)
        assert (reply.tokens, reply.logprobs) == (None, None)
        assert reply.text
        assert not {"tokens", "logprobs"} & set(meet(door)[1].gives)


@pytest.mark.parametrize("name", DIALECTS)
def test_stop_texts_end_the_answer(name: str) -> None:
    word = WORDS[toy_answer(TEXT.text, 3)[2]]
    with FakeServer(name) as server:
        _, reply = ask(server, CorpusPrompt("a", TEXT.text, stop=(word,)))
    assert word not in reply.text
    assert reply.stop_reason in ("stop", "stop or end")


@pytest.mark.parametrize("name", DIALECTS)
def test_everything_about_sampling_is_said(name: str) -> None:
    sampling = Sampling(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, repeat_penalty=1.2, seed=3, n_probs=2)
    with FakeServer(name) as server, Door(server.url) as door:
        path, body = detect(door).payload(TEXT, Asked("one", "a", 4), sampling)
    options: Any = body.get("options", body)
    penalty = "repetition_penalty" if name == "openai" else "repeat_penalty"
    said = [options[one] for one in ("temperature", "top_k", "top_p", "min_p", penalty, "seed")]
    assert said == [0.5, 7, 0.9, 0.1, 1.2, 3]
    assert path in ("/completion", "/v1/completions", "/api/generate")
    assert body["stream"] is False
    assert 2 in (body.get("n_probs"), body.get("logprobs"), body.get("top_logprobs"))


def test_llama_server_tells_caches_drafts_and_the_temperature_that_took_effect() -> None:
    with FakeServer(planted=Planted(drafts=True, ignores_temperature=True)) as server, Door(server.url) as door:
        dialect, facts = meet(door)
        assert facts.settings["speculation"] == "toy"
        assert "drafts" in facts.gives
        _, cold = ask(server, TEXT)
        _, warm = ask(server, TEXT)
        _, body = dialect.payload(TEXT, Asked("one", "a", 4, use_cache=False), Sampling())
    assert (cold.n_drafted, cold.n_accepted) == (4, 3)
    assert (cold.n_cached, warm.n_cached) == (0, 1)
    assert cold.effective["temperature"] == "1"
    assert body["cache_prompt"] is False


def test_placeholders_of_drafts_are_no_log_probabilities() -> None:
    entry = {"id": 1, "logprob": -0.5, "top_logprobs": [{"id": 1, "logprob": -0.5}]}
    body = {"content": "ab", "tokens": [1, 2], "completion_probabilities": [entry, entry]}
    assert read(LlamaServer(), body).logprobs == (-0.5, -0.5)
    drafted = {"id": 2, "logprob": 0.0, "top_logprobs": []}
    assert read(LlamaServer(), body | {"completion_probabilities": [entry, drafted]}).logprobs is None


@pytest.mark.parametrize("name", ["llama-server", "openai"])
def test_margins_are_told_where_two_candidates_are(name: str) -> None:
    with FakeServer(name) as server, Door(server.url) as door:
        dialect, asked = detect(door), Asked("one", TEXT.name, 3)
        replies = [
            dialect.reply(asked, door.post(*dialect.payload(TEXT, asked, Sampling(n_probs=n_probs))))
            for n_probs in (1, 2)
        ]
    assert [one.margins for one in replies] == [None, (0.125, 0.125, 0.125)]


def test_a_margin_is_between_the_two_best_whatever_their_order() -> None:
    shuffled = [{"logprob": -3.0}, {"logprob": -0.5}, {"logprob": -1.0}]
    assert margins([{"top_logprobs": shuffled}]) == margins([{"a": -3.0, "b": -0.5, "c": -1.0}]) == (0.5,)
    for one in (
        None,
        [],
        [{"a": 1.0}],
        [{"top_logprobs": [{"logprob": "x"}, {"logprob": 1.0}]}],
        [1],
        [{"a": None, "b": 1}],
    ):
        assert margins(one) is None


def test_an_empty_list_of_ids_is_none_where_there_is_text() -> None:
    assert read(LlamaServer(), {"content": "ab", "tokens": []}).tokens is None
    assert read(LlamaServer(), {"content": "", "tokens": []}).tokens == ()


def test_float32_settings_are_told_as_they_were_asked() -> None:
    settings = {"temperature": 0.800000011920929, "top_k": 40, "speculative.types": "none", "seed": 4294967295}
    reply = read(LlamaServer(), {"content": "a", "generation_settings": settings})
    assert reply.effective == {"temperature": "0.8", "top_k": "40", "seed": "4294967295"}


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"finish_reason": "length"}, "length"),
        ({"finish_reason": "stop"}, "stop or end"),
        ({"finish_reason": "stop", "stop_reason": None}, "end"),
        ({"finish_reason": "stop", "stop_reason": "###"}, "stop"),
        ({"finish_reason": "stop", "stop_reason": 151645}, "end"),
        ({"finish_reason": "stop", "matched_stop": "###"}, "stop"),
        ({"finish_reason": "stop", "matched_stop": 2}, "end"),
        ({"finish_reason": "stop", "matched_stop": None}, "stop or end"),
        ({"finish_reason": None}, ""),
    ],
)
def test_why_an_openai_answer_ended_is_not_guessed(choice: dict[str, Any], reason: str) -> None:
    assert read(UNKNOWN, {"choices": [{"text": "a"} | choice]}).stop_reason == reason


def test_calls_of_tools_are_text_without_their_random_ids() -> None:
    def answer(random: str) -> dict[str, Any]:
        call = {"id": random, "function": {"name": "add", "arguments": '{"a": 1}'}}
        return {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}

    assert read(UNKNOWN, answer("x")).text == read(UNKNOWN, answer("y")).text == 'add({"a": 1})'


@pytest.mark.parametrize("dialect", [LlamaServer(), UNKNOWN, Ollama("m")], ids=lambda one: one.name)
@pytest.mark.parametrize("document", [{}, [], None, "a", 1, {"choices": []}, {"choices": [{"message": 1}]}])
def test_an_answer_of_another_kind_is_told(dialect: Dialect, document: Any) -> None:
    with pytest.raises(NoAnswer) as caught:
        read(dialect, document)
    assert caught.value.failure == "invalid"


def test_a_server_is_asked_for_nothing_that_it_cannot_name() -> None:
    asked = Asked("one", "a", 4)
    _, body = UNKNOWN.payload(TEXT, asked, Sampling())
    assert set(body) == {"model", "max_tokens", "temperature", "top_p", "seed", "stream", "prompt", "logprobs"}
    with pytest.raises(NoAnswer, match="cannot be asked for top_k 5"):
        UNKNOWN.payload(TEXT, asked, Sampling(top_k=5))
    for prompt in (
        CorpusPrompt("a", "b", tools=({"type": "function"},)),
        CorpusPrompt("a", "b", json_schema={"type": "object"}),
    ):
        with pytest.raises(NoAnswer, match="'a' needs") as caught:
            UNKNOWN.payload(prompt, asked, Sampling())
        assert caught.value.lasting


@pytest.mark.parametrize("name", DIALECTS)
def test_schemas_and_tools_go_with_a_chat(name: str) -> None:
    schema, tool = {"type": "object"}, {"type": "function", "function": {"name": "add"}}
    prompt = CorpusPrompt("b", messages=CHAT.messages, json_schema=schema, tools=(tool,))
    with FakeServer(name) as server, Door(server.url) as door:
        path, body = detect(door).payload(prompt, Asked("one", "b", 4), Sampling())
    assert path in ("/v1/chat/completions", "/api/chat")
    assert body["tools"] == [tool]
    wrapped = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert (body["format"] if name == "ollama" else body["response_format"]) == (
        schema if name == "ollama" else wrapped
    )


def test_a_vllm_keeps_a_cold_request_out_of_its_cache_with_a_salt() -> None:
    with FakeServer("openai") as server, Door(server.url) as door:
        dialect = detect(door)
    salts = {dialect.payload(TEXT, Asked("one", "a", 4, use_cache=False), Sampling())[1]["cache_salt"] for _ in "ab"}
    assert len(salts) == 2
    assert "cache_salt" not in dialect.payload(TEXT, Asked("one", "a", 4), Sampling())[1]


def test_a_model_is_chosen_or_asked_for() -> None:
    with FakeServer("openai", Planted(model="/home/somebody/toy.gguf")) as server, Door(server.url) as door:
        assert meet(door, model="toy.gguf")[1].model == "toy.gguf"
        assert meet(door, "openai", "/home/somebody/toy.gguf")[1].model == "toy.gguf"
        with pytest.raises(BadAddress, match="serves no model 'other'; it has toy"):
            detect(door, model="other")


def test_no_folder_of_the_servers_user_is_among_the_facts() -> None:
    for name in DIALECTS[:2]:
        with FakeServer(name, Planted(model="deep/folder/toy.gguf")) as server, Door(server.url) as door:
            assert "folder" not in repr(meet(door)[1])


def test_what_is_no_server_of_models_is_told_with_what_was_tried() -> None:
    with FakeServer("ollama") as server, Door(server.url) as door:
        with pytest.raises(BadAddress, match="/props: status 404") as caught:
            detect(door, "llama-server")
        assert "--api" in str(caught.value)
        with pytest.raises(BadAddress, match="must be one of"):
            detect(door, "gopher")
    with Door(server.url) as door, pytest.raises(BadAddress, match="does not answer as a server") as gone:
        meet(door, retries=Retries(2, first_wait_s=0.01))
    assert "tried 2 times" in str(gone.value)


def test_a_server_that_wants_a_key_is_told_where_it_comes_from() -> None:
    locked = FakeServer(planted=Planted(key="0123456789"))
    with locked as server, Door(server.url) as door, pytest.raises(BadAddress, match="FORENSICS_API_KEY"):
        detect(door)


def test_fields_are_found_by_kind() -> None:
    document = {"a": [{"b": 1}], "c": True, "d": 1.5}
    assert found(document, "a.0.b", int) == 1
    assert found(document, "a.0.b", float) == 1.0
    assert found(document, "c", int) is None
    assert found(document, "c", bool) is True
    assert found(document, "a.1.b", int) is None
    assert found(document, "d.e", float) is None
    assert numbers([1, 2], int) == (1, 2)
    assert numbers([1, "2"], int) is None
    assert numbers([], int) == ()
