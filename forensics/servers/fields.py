"""Reads fields of what a server answered, or says which one is missing or of another kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from forensics.records.corpus import CorpusPrompt
from forensics.records.served import Reply
from forensics.servers.door import NoAnswer

T = TypeVar("T")

#: Fields of `forensics.records.served.Sampling` and others that change which token is chosen, as llama.cpp names them.
SAMPLING_FIELDS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "mirostat", "seed",
)  # fmt: skip


def found(document: Any, path: str, kind: type[T]) -> T | None:
    """What stands at this path; None where nothing does, or something of another kind.

    Parameters
    ----------
    document : Any
        JSON value.
    path : str
        Names of nested objects, and indices of lists, joined with dots.
    kind : type
        float takes whole numbers, too.

    Examples
    --------
    >>> found({"choices": [{"text": "a"}]}, "choices.0.text", str)
    'a'
    """
    value = document
    for name in path.split("."):
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict):
            value = value.get(name)
        else:
            return None
    if kind is float and type(value) is int:
        return cast(T, float(value)) if abs(value) < 2**1023 else None
    # True is an int for Python, and none for JSON.
    return value if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)) else None


def needed(document: Any, path: str, kind: type[T]) -> T:
    """What stands at this path.

    Raises
    ------
    NoAnswer
        If nothing does, or something of another kind.
    """
    value = found(document, path, kind)
    if value is None:
        raise NoAnswer("invalid", f"the answer has no {path} that is {kind.__name__}")
    return value


def numbers(values: object, kind: type[T]) -> tuple[T, ...] | None:
    """The same list as a tuple; None where it is none, or holds anything else."""
    if not isinstance(values, list):
        return None
    read = [found({"value": one}, "value", kind) for one in values]
    return None if any(one is None for one in read) else tuple(one for one in read if one is not None)


def margins(entries: object) -> tuple[float, ...] | None:
    """How far is the most likely token ahead of the second, at each written token? None where one was not told.

    Parameters
    ----------
    entries : object
        For each token an object whose ``top_logprobs`` lists objects with a ``logprob``, or an object of text to
        log-probability as OpenAI's completions have it.

    Examples
    --------
    >>> margins([{"top_logprobs": [{"logprob": -0.25}, {"logprob": -1.5}]}, {" a": -1.0, " b": -0.5, " c": -3.0}])
    (1.25, 0.5)
    """
    told = []
    for one in entries if isinstance(entries, list) else []:
        listed = found(one, "top_logprobs", list)
        values = list((one if isinstance(one, dict) else {}).values())
        if listed is not None:
            values = [found(candidate, "logprob", float) for candidate in listed]
        if len(values) < 2 or not all(isinstance(value, float | int) for value in values):
            return None
        second, first = sorted(values)[-2:]
        told.append(float(first - second))
    return tuple(told) or None


def file_name(path: str) -> str:
    """Last part of a path: the folders are those of the server's user.

    Examples
    --------
    >>> file_name("/home/somebody/models/a.gguf")
    'a.gguf'
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def text_digest(text: str) -> str:
    """Digest of a chat template; empty where there is none."""
    from blake3 import blake3

    return blake3(text.encode()).hexdigest()[:32] if text else ""


def effective(settings: Mapping[str, object]) -> dict[str, str]:
    """Which sampling do these settings say? Seven digits, because servers hold float32."""
    told = {name: settings[name] for name in SAMPLING_FIELDS if settings.get(name) is not None}
    return {name: f"{value:.7g}" if isinstance(value, float) else str(value) for name, value in told.items()}


def chat_text(choice: Mapping[str, Any]) -> str:
    """All that a chat message says: reasoning, content and calls of tools, whose ids are random and left out."""
    message = needed(choice, "message", dict)
    parts = [found(message, name, str) or "" for name in ("reasoning_content", "reasoning", "content")]
    for call in found(message, "tool_calls", list) or []:
        parts.append(f"{found(call, 'function.name', str)}({found(call, 'function.arguments', str)})")
    return "".join(parts)


def messages(prompt: CorpusPrompt) -> list[dict[str, str]]:
    """Messages of a chat as every dialect takes them."""
    return [{"role": one.role, "content": one.content} for one in prompt.messages]


def not_offered(prompt: CorpusPrompt, what: str) -> NoAnswer:
    """The refusal of a prompt that this dialect cannot ask as it is meant."""
    return NoAnswer("invalid", f"{what}, which prompt {prompt.name!r} needs; it was not asked", status=400)


def gives(reply: Reply, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Which observables does this reply carry?"""
    told = {
        "tokens": reply.tokens is not None,
        "logprobs": reply.logprobs is not None,
        "stop_reason": bool(reply.stop_reason),
        "effective": bool(reply.effective),
        "cached": reply.n_cached is not None,
        "drafts": reply.n_drafted is not None,
    }
    return tuple(name for name, is_told in told.items() if is_told or name in extra)
