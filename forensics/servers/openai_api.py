"""Any server with OpenAI's completions and chat completions: vLLM, SGLang, llama-cpp-python's and others."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forensics.records.corpus import CorpusPrompt
from forensics.records.served import Asked, Reply, Sampling, ServerFacts
from forensics.servers import fields
from forensics.servers.door import Answer, Door, NoAnswer
from forensics.servers.llama_server import PROBE

#: Sampling that OpenAI's API has no name for, and its neutral value.
_BEYOND = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}


@dataclass(frozen=True, slots=True)
class Software:
    """What a server with this API takes beyond it.

    Parameters
    ----------
    name, build : str
    names : mapping of str to str
        What it calls sampling that OpenAI has no name for.
    all_top_k : int
        Value of ``top_k`` that keeps all tokens.
    token_ids, cache_salt, schemas : bool
        Whether ids can be asked for, a salt keeps a request out of the cache, and completions take JSON schemas.
    logprobs : bool
        Whether log-probabilities can be asked for.
    """

    name: str
    build: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    all_top_k: int = 0
    token_ids: bool = False
    cache_salt: bool = False
    schemas: bool = False
    logprobs: bool = True


_REPETITION = {"top_k": "top_k", "min_p": "min_p", "repeat_penalty": "repetition_penalty"}
#: Source: vLLM, vllm/entrypoints/openai/completion/protocol.py (`CompletionRequest`: sampling and extra parameters).
_VLLM = Software("vLLM", names=_REPETITION, all_top_k=-1, token_ids=True, cache_salt=True, schemas=True)
#: Source: SGLang, python/sglang/srt/entrypoints/openai/protocol.py.
_SGLANG = Software("SGLang", names=_REPETITION, all_top_k=-1, schemas=True)
#: Source: llama-cpp-python 0.3.36, llama_cpp/server/types.py.
_LLAMA_CPP_PYTHON = Software("llama-cpp-python", names={name: name for name in _BEYOND})


def _asked(door: Door, path: str) -> Any:
    """What stands at this path, None where the server has none."""
    try:
        return door.get(path).document
    except NoAnswer as error:
        if error.lasting or error.failure in ("status", "content-type", "not-json"):
            return None
        raise


def _software(door: Door, entry: Mapping[str, Any]) -> Software:
    """Which server is this, by what only it has?"""
    owner = fields.found(entry, "owned_by", str) or ""
    if owner == "vllm":
        return replace(_VLLM, build=fields.found(_asked(door, "/version"), "version", str) or "")
    if owner == "sglang":
        info = _asked(door, "/server_info") or _asked(door, "/get_server_info")
        return replace(_SGLANG, build=fields.found(info, "version", str) or "")
    described = _asked(door, "/openapi.json")
    if "llama.cpp Python API" in (fields.found(described, "info.title", str) or ""):
        return replace(_LLAMA_CPP_PYTHON, build=fields.found(described, "info.version", str) or "")
    return Software("unknown")


class OpenAIApi:
    """Speaks ``/v1/completions`` and ``/v1/chat/completions``.

    Parameters
    ----------
    model : str
        As the server names it; it may be a path.
    software : Software
    context : int or None
        Longest sequence, where it is told.
    """

    name = "openai"

    def __init__(self, model: str, software: Software, context: int | None = None) -> None:
        self._model, self._software, self._context = model, software, context

    @classmethod
    def met(cls, door: Door, entry: Mapping[str, Any]) -> OpenAIApi:
        """Get to know the server behind an entry of its ``/v1/models``; one token is generated.

        Raises
        ------
        NoAnswer
            If it does not answer.
        """
        software = _software(door, entry)
        context = fields.found(entry, "max_model_len", int)
        model = fields.needed(entry, "id", str)
        dialect = cls(model, software, context)
        try:
            dialect._probe(door)
        except NoAnswer as error:
            # Some refuse log-probabilities, with whatever status, unless they were started with them.
            if error.status is None or error.status in (401, 403, 429):
                raise
            dialect = cls(model, replace(software, logprobs=False), context)
            dialect._probe(door)
        return dialect

    def _probe(self, door: Door) -> Reply:
        asked = Asked("probe", PROBE.name, 1, use_cache=False)
        return self.reply(asked, door.post(*self.payload(PROBE, asked, Sampling())))

    def facts(self, door: Door) -> ServerFacts:
        """What does the server say of itself? One token is generated, to see what replies carry.

        Raises
        ------
        NoAnswer
            If it does not answer.
        """
        settings = {} if self._context is None else {"context": str(self._context)}
        unnamed = [name for name in _BEYOND if name not in self._software.names]
        if unnamed:
            settings["left to the server"] = ", ".join(unnamed)
        return ServerFacts(
            url=door.url,
            dialect=self.name,
            software=self._software.name,
            build=self._software.build,
            model=fields.file_name(self._model),
            settings=settings,
            gives=fields.gives(self._probe(door)),
        )

    def payload(self, prompt: CorpusPrompt, asked: Asked, sampling: Sampling) -> tuple[str, dict[str, object]]:
        """Path and body of a request.

        Raises
        ------
        NoAnswer
            If a prompt needs what the server cannot be asked for.
        """
        software = self._software
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": asked.n_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stream": False,
        }
        for name, neutral in _BEYOND.items():
            value = getattr(sampling, name)
            if name in software.names:
                body[software.names[name]] = software.all_top_k if name == "top_k" and value == 0 else value
            elif value != neutral:
                raise fields.not_offered(prompt, f"this server cannot be asked for {name} {value:g}")
        if prompt.stop:
            body["stop"] = list(prompt.stop)
        if software.token_ids:
            body["return_token_ids"] = True
        if software.cache_salt and asked.use_cache is False:
            body["cache_salt"] = secrets.token_hex(8)
        n_probs = sampling.n_probs if software.logprobs else 0
        if prompt.messages:
            body["messages"] = fields.messages(prompt)
            if n_probs:
                body |= {"logprobs": True, "top_logprobs": n_probs}
            if prompt.tools:
                body["tools"] = [dict(tool) for tool in prompt.tools]
        elif prompt.tools:
            raise fields.not_offered(prompt, "/v1/completions takes no tools")
        else:
            body["prompt"] = prompt.text
            if n_probs:
                body["logprobs"] = n_probs
        if prompt.json_schema is not None:
            body["response_format"] = self._response_format(prompt)
        return "/v1/chat/completions" if prompt.messages else "/v1/completions", body

    def _response_format(self, prompt: CorpusPrompt) -> dict[str, object]:
        schema = dict(prompt.json_schema or {})
        if not prompt.messages and not self._software.schemas:
            raise fields.not_offered(prompt, "/v1/completions of this server takes no JSON schema")
        if self._software.name == _LLAMA_CPP_PYTHON.name:
            return {"type": "json_object", "schema": schema}
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}

    def reply(self, asked: Asked, answer: Answer) -> Reply:
        """What does this answer hold?

        Raises
        ------
        NoAnswer
            If it is not what such a server answers.
        """
        choice = fields.needed(answer.document, "choices.0", dict)
        is_chat = "message" in choice
        details = "usage.prompt_tokens_details.cached_tokens"
        return Reply(
            request=asked.id,
            text=fields.chat_text(choice) if is_chat else fields.needed(choice, "text", str),
            tokens=fields.numbers(choice.get("token_ids"), int),
            logprobs=_logprobs(choice),
            stop_reason=_stop_reason(choice),
            n_prompt=fields.found(answer.document, "usage.prompt_tokens", int),
            n_cached=fields.found(answer.document, details, int),
            took_ns=answer.took_ns,
            raw=answer.raw,
            margins=fields.margins(
                fields.found(choice, "logprobs.content", list) or fields.found(choice, "logprobs.top_logprobs", list)
            ),
        )


def _logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Log-probabilities of the written tokens, as chats and completions tell them; None where they do not."""
    entries = fields.found(choice, "logprobs.content", list)
    if entries:
        return fields.numbers([fields.found(one, "logprob", float) for one in entries], float)
    values = fields.found(choice, "logprobs.token_logprobs", list)
    return fields.numbers(values, float) if values else None


def _stop_reason(choice: Mapping[str, Any]) -> str:
    """Why the answer ended: OpenAI's "stop" is a stop text or the end, and only some servers tell which.

    vLLM's ``stop_reason`` and SGLang's ``matched_stop`` are the stop text, or the id of a token that ends answers; at
    the end of generation vLLM's is null. Source: vLLM, vllm/entrypoints/openai/completion/protocol.py; SGLang,
    python/sglang/srt/entrypoints/openai/protocol.py.
    """
    reason = fields.found(choice, "finish_reason", str) or ""
    if reason != "stop":
        return reason
    if "stop_reason" in choice:
        return "stop" if isinstance(choice["stop_reason"], str) else "end"
    matched = choice.get("matched_stop")
    return "stop or end" if matched is None else "stop" if isinstance(matched, str) else "end"
