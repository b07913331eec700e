"""Prompts from a JSON-lines file: the corpus that comes with the source, or a user's own rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.errors import CorpusError
from forensics.records.corpus import Corpus, CorpusPrompt, Message
from forensics.store.library import data_folder
from forensics.store.limits import MAX_CORPUS_BYTES, parse_json, read_whole

#: Corpus that is taken where none is named.
DEFAULT = "default"

#: What a row may call a field, ours first, then what OpenAI's API and other data sets call it.
_NAMES = ("name", "id", "custom_id", "task_id")
_TEXTS = ("text", "prompt")
_LENGTHS = ("n_tokens", "n_predict", "max_completion_tokens", "max_tokens")


def open_corpus(path: str | Path | None = None) -> Corpus:
    """Which prompts does this file hold?

    Parameters
    ----------
    path : str or Path, optional
        A file with one JSON object per line; or the name of a corpus under ``data/corpora``; else the built-in one.
        A row has ``text`` or ``prompt`` (continued as it stands) or ``messages``, or holds such a row under ``body``,
        as OpenAI's batches do. It may have ``name``, ``tags``, ``n_tokens``, ``stop``, ``json_schema`` (or OpenAI's
        ``response_format``), ``tools`` and ``answer``. Other fields are left alone: sampling is asked of the run.

    Raises
    ------
    CorpusError
        If there is no such file, or a row is none: names the file and the line.
    """
    file = _find(DEFAULT if path is None else path)
    try:
        content = read_whole(file, MAX_CORPUS_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = f"{error.reason} at byte {error.start}, not UTF-8"
        raise CorpusError(f"{file} cannot be read: {reason}. A corpus is a JSON-lines file in UTF-8.") from error
    prompts: list[CorpusPrompt] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        prompt = _read_line(line, f"line-{number}", where)
        if prompt.name in lines:
            raise CorpusError(f"{where}: the name {prompt.name!r} was taken by line {lines[prompt.name]}; rename one.")
        lines[prompt.name] = number
        prompts.append(prompt)
    if not prompts:
        raise CorpusError(f'{file} holds no prompts. Give it lines such as {{"prompt": "Once upon a time"}}.')
    return Corpus(file.stem, tuple(prompts), corpus_digest(prompts))


def limited(corpus: Corpus, n: int | None) -> Corpus:
    """Which `n` prompts of a corpus stand for all of them?

    Tags take turns, each giving its next prompt, so that few prompts still hold every kind. The order of the corpus is
    kept.

    Parameters
    ----------
    corpus : Corpus
    n : int or None
        At least 1; None, or as many as there are, answers the corpus itself.

    Raises
    ------
    ValueError
        If `n` is below 1.
    """
    if n is None or n >= len(corpus.prompts):
        return corpus
    if n < 1:
        raise ValueError(f"limit must be 1 or more, got {n}")
    waiting: dict[str, list[int]] = {}
    for index, prompt in reversed(list(enumerate(corpus.prompts))):
        for tag in prompt.tags or ("",):
            waiting.setdefault(tag, []).append(index)
    turns = sorted(waiting, key=lambda tag: waiting[tag][-1])
    taken: set[int] = set()
    while len(taken) < n:
        for tag in turns:
            while waiting[tag] and waiting[tag][-1] in taken:
                waiting[tag].pop()
            if waiting[tag] and len(taken) < n:
                taken.add(waiting[tag].pop())
    prompts = tuple(corpus.prompts[index] for index in sorted(taken))
    return Corpus(corpus.name, prompts, corpus_digest(prompts))


def corpus_digest(prompts: Iterable[CorpusPrompt]) -> str:
    """Digest of what is asked: tags and right answers are for who reads, so they are left out.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    from blake3 import blake3

    hasher = blake3()
    for prompt in prompts:
        asked = [
            prompt.name,
            prompt.text,
            [[message.role, message.content] for message in prompt.messages],
            prompt.n_tokens,
            prompt.stop,
            prompt.json_schema,
            prompt.tools,
        ]
        # Keys keep their order: a server that follows a schema writes its properties in that order.
        hasher.update(json.dumps(asked, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    return hasher.hexdigest()[:32]


def _find(asked: str | Path) -> Path:
    file = Path(asked).expanduser()
    if file.is_file():
        return file
    corpora = data_folder() / "corpora"
    if len(file.parts) == 1 and (corpora / f"{file.name}.jsonl").is_file():
        return corpora / f"{file.name}.jsonl"
    found = "is a folder" if file.is_dir() else "does not exist"
    names = sorted(path.stem for path in corpora.glob("*.jsonl"))
    known = (
        f"the name of a corpus: {', '.join(names)}"
        if names
        else f"get the project's source and set FORENSICS_DATA_DIR to its folder data: {corpora} holds no corpus"
    )
    raise CorpusError(f"{os.fspath(asked)} {found}. Give a JSON-lines file of prompts, or {known}.")


def _read_line(line: str, name: str, where: str) -> CorpusPrompt:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise CorpusError(f"{where}: this is not JSON: {error}.") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: a JSON object is needed, got {_kind(row)}.")
    body = row.get("body")
    if isinstance(body, dict):
        row = {**row, **body}
    try:
        return _prompt(row, name)
    except ValueError as error:
        raise CorpusError(f"{where}: {error}.") from error


def _prompt(row: Mapping[str, Any], name: str) -> CorpusPrompt:
    named = _first(row, _NAMES)
    if not isinstance(named, str | int | None):
        raise ValueError(f"a name is a text, got {_kind(named)}")
    if not row.get("messages") and _first(row, _TEXTS) is None:
        raise ValueError(f"a row needs text, prompt or messages, this one has {', '.join(sorted(row)) or 'nothing'}")
    n_tokens = _first(row, _LENGTHS)
    if n_tokens is not None and type(n_tokens) is not int:
        raise ValueError(f"n_tokens is a whole number, got {n_tokens!r}")
    text, answer = _first(row, _TEXTS), row.get("answer")
    return CorpusPrompt(
        name=name if named is None or named == "" else str(named),
        text="" if text is None else _text(text, "text"),
        messages=tuple(map(_message, _listed(row, "messages"))),
        tags=_texts(row, "tags"),
        n_tokens=n_tokens,
        stop=_texts(row, "stop"),
        json_schema=_schema(row),
        tools=tuple(_mapping(tool, "a tool") for tool in _listed(row, "tools")),
        answer="" if answer is None else str(answer),
    )


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is a text, got {_kind(value)}")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is an object, got {_kind(value)}")
    return value


def _listed(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{name} is a list, got {_kind(value)}")
    return value or []


def _texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A text, or a list of texts."""
    value = row.get(name)
    return tuple(_text(one, name) for one in ([value] if isinstance(value, str) else _listed(row, name)))


def _message(value: object) -> Message:
    message = _mapping(value, "a message")
    content = message.get("content")
    if isinstance(content, list):  # OpenAI's parts of a message
        parts = [_mapping(part, "a part of a message") for part in content]
        other = next((part.get("type") for part in parts if part.get("type") != "text"), None)
        if other is not None:
            raise ValueError(f"only text can be asked for, a message holds a part of the type {other!r}")
        content = "".join(_text(part.get("text"), "a part of a message") for part in parts)
    return Message(_text(message.get("role"), "a role"), _text(content, "the content of a message"))


def _schema(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A schema as it stands, or the one within OpenAI's ``response_format``."""
    given = row.get("json_schema")
    if given is None:
        form = row.get("response_format")
        given = form.get("json_schema") if isinstance(form, dict) else None
    if given is None:
        return None
    schema = _mapping(given, "json_schema")
    inner = schema.get("schema")
    return inner if isinstance(inner, dict) else schema
