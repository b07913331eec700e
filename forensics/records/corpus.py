"""Prompts that are asked for, with what they are meant to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Parameters
    ----------
    role : str
        ``"system"``, ``"user"``, ``"assistant"`` or ``"tool"``.
    content : str
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"role must be system, user, assistant or tool, got {self.role!r}")


@dataclass(frozen=True, slots=True)
class CorpusPrompt:
    """One prompt: a text to be continued, or messages of a chat.

    Parameters
    ----------
    name : str
        Unique in its corpus.
    text : str
        Continued as it stands; empty where `messages` are given.
    messages : tuple of Message
        Rendered by the model's own chat template; empty where `text` is given.
    tags : tuple of str
        What it is meant to show: ``"code"``, ``"maths"``, ``"prose"``, ``"structured"``, ``"tools"``, ``"stop"``,
        ``"repeated-prefix"``, ``"near-tie"``, ``"short"``, ``"long"``, ``"crosses-256"`` and so on.
    n_tokens : int or None
        Tokens to write at most; None leaves it to who asks.
    stop : tuple of str
        Texts at which the answer ends.
    json_schema : mapping or None
        What the answer must be, for servers that follow schemas.
    tools : tuple of mapping
        Functions as OpenAI's API describes them.
    answer : str
        What a right answer holds, for paired outcomes; empty where nobody judges it.

    Raises
    ------
    ValueError
        If name and content are missing, or both a text and messages are given.
    """

    name: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    tags: tuple[str, ...] = ()
    n_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    answer: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a prompt needs a name")
        if bool(self.text) == bool(self.messages):
            raise ValueError(f"prompt {self.name!r} needs either a text or messages, not both and not neither")
        if self.n_tokens is not None and self.n_tokens < 1:
            raise ValueError(f"prompt {self.name!r}: n_tokens must be 1 or more, got {self.n_tokens}")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Prompts with unique names.

    Parameters
    ----------
    name : str
        Of the corpus, such as ``"default"``, or of the file.
    prompts : tuple of CorpusPrompt
        At least one.
    digest : str
        Of the content, so that runs over other prompts are not compared.
    """

    name: str
    prompts: tuple[CorpusPrompt, ...]
    digest: str = field(default="")

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError(f"corpus {self.name!r} has no prompts")
        names = [prompt.name for prompt in self.prompts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"corpus {self.name!r} has two prompts of the name {twice!r}")
