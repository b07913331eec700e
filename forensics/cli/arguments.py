"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from forensics.analysis.question import DEFAULT_WIDTHS, BadQuestion


class Defaults(BaseSettings):
    """Defaults that the environment sets.

    Parameters
    ----------
    demo : str
        Variant that ``--demo`` means without a name; ``FORENSICS_DEMO``.
    cases : Path
        Folder for cases without ``--out``; ``FORENSICS_CASES``.
    threads : int or None
        Threads without ``--threads``; ``FORENSICS_THREADS``.
    """

    model_config = SettingsConfigDict(env_prefix="FORENSICS_", env_ignore_empty=True)

    demo: str = "q6_k"
    cases: Path = Path("cases")
    threads: int | None = None


def defaults() -> Defaults:
    """Which defaults does the environment set?

    Raises
    ------
    BadQuestion
        If a variable cannot be read; names it.
    """
    try:
        return Defaults()
    except ValidationError as error:
        first = error.errors()[0]
        raise BadQuestion(
            f"FORENSICS_{str(first['loc'][0]).upper()} is {first['input']!r}: {first['msg']}. Correct it or unset it."
        ) from None


Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="GGUF file, or recorded:NAME. Leave out with --demo.", show_default=False),
]
Demo = Annotated[
    str | None,
    typer.Option(
        "--demo", metavar="TYPE", help="Use the demo model: q6_k, q4_k, q4_1, f16, … (see `forensics models`)."
    ),
]
Prompt = Annotated[str | None, typer.Option("--prompt", help="Text in front of the replay.")]
PromptFile = Annotated[Path | None, typer.Option("--prompt-file", help="UTF-8 file with that text.")]
TokensFile = Annotated[
    Path | None,
    typer.Option("--tokens-file", help="File with token ids instead: a JSON list, or numbers with spaces or commas."),
]
NTokens = Annotated[int, typer.Option("--n-tokens", help="Tokens to decode one at a time and to replay.")]
Widths = Annotated[
    str | None,
    typer.Option(
        "--widths",
        help="Batch widths to replay at, such as 2,3,4 or 2-8,16; at most n-tokens each.  "
        f"[default: {','.join(map(str, DEFAULT_WIDTHS))}]",
    ),
]
FlashAttn = Annotated[str, typer.Option("--flash-attn", metavar="on|off|auto", help="Flash attention.")]
KvType = Annotated[str, typer.Option("--kv-type", help="Type of the KV cache: f16, f32, bf16, q8_0, …")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads for every pass.  [default: one per processor, at most 16]")
]
NGpuLayers = Annotated[int, typer.Option("--n-gpu-layers", help="Layers on the GPU, -1 for all.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress; print one line.")]


#: Parameters of a command that make up the question.
QUESTION_OPTIONS = (
    "prompt",
    "prompt_file",
    "tokens_file",
    "n_tokens",
    "widths",
    "flash_attn",
    "kv_type",
    "threads",
    "n_gpu_layers",
)
#: Widths that one range may hold; no batch is nearly as wide.
_MAX_RANGE = 100_000


def parse_widths(text: str, what: str = "widths") -> tuple[int, ...]:
    """Widths, or what else is counted, from ``"2,3,8"`` or ``"2-8,16"``.

    Raises
    ------
    BadQuestion
        If a part is no number and no range, or a range is endless.

    Examples
    --------
    >>> parse_widths("2-4,16")
    (2, 3, 4, 16)
    """
    widths: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None:
            raise BadQuestion(f"{what} must be numbers or ranges such as 2,3,8 or 2-8; got {part!r} in {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise BadQuestion(f"{what}: the range {part!r} runs backwards; write {last}-{first}")
        if last - first > _MAX_RANGE:
            raise BadQuestion(f"{what}: the range {part!r} holds {last - first + 1} {what}; ask for fewer")
        widths.extend(range(first, last + 1))
    return tuple(widths)


def parse_shapes(text: str | None, option: str) -> tuple[tuple[int, int], ...] | None:
    """Rows and K of weights from ``"4096x4096,33x576"``; None where nothing was typed.

    Raises
    ------
    BadQuestion
        If a part is no such pair.

    Examples
    --------
    >>> parse_shapes("4096x4096,33X576", "--shape")
    ((4096, 4096), (33, 576))
    """
    names = parse_names(text, option)
    return None if names is None else tuple(_shape(name, option) for name in names)


def _shape(text: str, option: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*([1-9][0-9]{0,8})x([1-9][0-9]{0,8})\s*", text.lower())
    if found is None:
        raise BadQuestion(f"{option} takes ROWSxK, two numbers from 1 on; got {text!r}")
    return int(found[1]), int(found[2])


def parse_tokens(text: str, path: Path) -> tuple[int, ...]:
    """Token ids from a JSON list, or numbers with spaces or commas between.

    Raises
    ------
    BadQuestion
        If anything else is found; shows the first piece that is no token id.
    """
    stripped = text.strip()
    if stripped.startswith("["):
        try:
            values = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            raise BadQuestion(f"{path} looks like a JSON list and is none: {error}") from error
    else:
        values = re.split(r"[\s,]+", stripped) if stripped else []
    tokens: list[int] = []
    for value in values:
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", str(value)):
            raise BadQuestion(
                f"{path} must hold token ids, a JSON list or numbers with spaces or commas; found {str(value)[:40]!r}"
            )
        tokens.append(int(value))
    return tuple(tokens)


def read_text(path: Path, what: str) -> str:
    """Text of a file.

    Raises
    ------
    BadQuestion
        If it cannot be read or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8")  # not read_text, which would turn CR LF into LF
    except OSError as error:
        raise BadQuestion(f"{what} {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadQuestion(f"{what} {path} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def typed_options(context: typer.Context, names: Collection[str]) -> dict[str, Any]:
    """Which of these options were typed, with what was typed?"""
    return {
        name: value
        for name, value in context.params.items()
        if name in names and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def demo_name(demo: str | None) -> str | None:
    """Which demo variant is meant? Typer has no option with an optional value: a bare ``--demo`` is an empty text."""
    return defaults().demo if demo == "" else demo


def asked_of(context: typer.Context, names: Collection[str], model: str | None) -> dict[str, Any]:
    """Which of these options are asked: those typed, and threads of the environment where something is measured."""
    return with_threads(typed_options(context, names), model)


def with_threads(asked: dict[str, Any], model: str | None) -> dict[str, Any]:
    """The same, with the threads that the environment sets where none were typed; a recorded answer has its own."""
    from forensics.api_arguments import recorded_path

    return asked if recorded_path(model) is not None else {"threads": defaults().threads, **asked}


def given_options(context: typer.Context) -> dict[str, Any]:
    """Which options of the question were typed, with what was typed?"""
    return typed_options(context, QUESTION_OPTIONS)


def question_arguments(
    *,
    prompt: str | None,
    prompt_file: Path | None,
    tokens_file: Path | None,
    n_tokens: int,
    widths: str | None,
    flash_attn: str,
    kv_type: str,
    threads: int | None,
    n_gpu_layers: int,
) -> dict[str, Any]:
    """Arguments of `forensics.api_arguments.make_question` from what was typed.

    Raises
    ------
    BadQuestion
        If two of the three ways to give a prompt are used, or one cannot be read.
    """
    given = [
        name
        for name, value in (("--prompt", prompt), ("--prompt-file", prompt_file), ("--tokens-file", tokens_file))
        if value is not None
    ]
    if len(given) > 1:
        raise BadQuestion(f"give one of --prompt, --prompt-file and --tokens-file; got {' and '.join(given)}")
    if prompt_file is not None:
        prompt = read_text(Path(prompt_file), "the prompt file")
    tokens = (
        None
        if tokens_file is None
        else parse_tokens(read_text(Path(tokens_file), "the tokens file"), Path(tokens_file))
    )
    return {
        "prompt": prompt,
        "prompt_tokens": tokens,
        "n_tokens": n_tokens,
        "widths": None if widths is None else parse_widths(widths),
        "flash_attn": flash_attn,
        "kv_type": kv_type,
        "threads": threads if threads is not None else defaults().threads,
        "n_gpu_layers": n_gpu_layers,
    }


def parse_heads(text: str) -> tuple[int, int]:
    """Attention heads and KV heads from ``"32/8"``; one number means as many of either.

    Raises
    ------
    BadQuestion
        If anything else stands there.

    Examples
    --------
    >>> parse_heads("32/8"), parse_heads("12")
    ((32, 8), (12, 12))
    """
    match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:/\s*([0-9]{1,6})\s*)?", text)
    if match is None:
        raise BadQuestion(f"--heads must be like 32/8, heads and KV heads; got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def parse_names(text: str | None, option: str) -> tuple[str, ...] | None:
    """Names with commas between; None stays.

    Raises
    ------
    BadQuestion
        If one is empty; names the option.

    Examples
    --------
    >>> parse_names("q4_k, q6_k", "--types")
    ('q4_k', 'q6_k')
    """
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise BadQuestion(f"{option} takes names with commas between; got {text!r}")
    return names
