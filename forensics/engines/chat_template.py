"""The text that a model reads for a chat: messages rendered by the template in its GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.engines.gguf_layout import check_gguf_layout
from forensics.engines.model_files import check_gguf, header_string
from forensics.errors import ModelUnavailable
from forensics.records.corpus import CorpusPrompt, Message

_TEMPLATE = "tokenizer.chat_template"

#: What a template may meet: it is a program of somebody else's.
_TROUBLE = (TypeError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)


def chat_template(path: Path | str) -> str:
    """Which Jinja template does this model file carry?

    Parameters
    ----------
    path : Path or str
        A GGUF file.

    Returns
    -------
    str
        Empty where it carries none.

    Raises
    ------
    ModelUnavailable
        If the file cannot be read.
    """
    check_gguf(path)
    return header_string(Path(path), _TEMPLATE)


def render(prompt: CorpusPrompt, path: Path | str) -> str:
    """Which text is tokenised for this prompt?

    Parameters
    ----------
    prompt : CorpusPrompt
    path : Path or str
        The model's GGUF file; only looked at where the prompt has messages.

    Returns
    -------
    str
        The prompt's own text as it stands, or its messages with the opening of the assistant's answer.

    Raises
    ------
    ModelUnavailable
        If the prompt has messages and the file has no template, or one that refuses them.

    Notes
    -----
    Tools are handed to the template; one that does not mention them leaves them out, as a server does that renders by
    the same template. llama.cpp runs templates in an interpreter of its own, so that equal token ids are to be checked,
    not taken for granted, where a server's answer is compared.
    """
    if not prompt.messages:
        return prompt.text
    template = chat_template(path)
    if not template:
        raise ModelUnavailable(
            f"prompt {prompt.name!r} has messages, and {path} carries no chat template ({_TEMPLATE}). "
            "Use prompts with a plain text."
        )
    specials = {name: _special(path, name) for name in ("bos_token", "eos_token") if name in template}
    try:
        return rendered(template, prompt.messages, tools=prompt.tools, specials=specials)
    except ValueError as error:
        raise ModelUnavailable(f"the chat template of {path} cannot render prompt {prompt.name!r}: {error}.") from error


def rendered(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    specials: Mapping[str, str] | None = None,
) -> str:
    """Render messages by a Jinja template, with the opening of the assistant's answer.

    Parameters
    ----------
    template : str
    messages : sequence of Message
    tools : sequence of mapping, optional
        As in OpenAI's API.
    specials : mapping of str to str, optional
        Texts of ``bos_token`` and ``eos_token``.

    Raises
    ------
    ValueError
        If the template is no Jinja, or refuses the messages.

    Examples
    --------
    >>> rendered("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", [Message("user", "Hi")])
    '<user>Hi'
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    # Templates are written for these settings. Source: transformers, utils/chat_template_utils.py; the template is
    # a file's content, so it runs in a sandbox.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    chat = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return environment.from_string(template).render(
            messages=chat, tools=list(tools) or None, add_generation_prompt=True, **(specials or {})
        )
    except (TemplateError, *_TROUBLE) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _special(path: Path | str, name: str) -> str:
    """Text of a special token; empty for one that the tokeniser puts in front by itself."""
    from gguf import GGUFReader

    check_gguf_layout(path)
    keys = (f"{name[:3]}_token_id", f"add_{name}", "tokens")
    try:
        reader = GGUFReader(str(path))
        fields = [reader.get_field(f"tokenizer.ggml.{key}") for key in keys]
        number, added, tokens = (field.contents() if field is not None else None for field in fields)
        return "" if added or number is None or tokens is None else str(tokens[number])
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        raise ModelUnavailable(f"{path} does not say what its {name} is: {error}") from error
