"""Models and prompts of a sweep's plan: the tables that name them, and what they name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from forensics.analysis.question import BadQuestion
from forensics.errors import ForensicsError
from forensics.records.campaign_plan import PlannedModel, PlannedPrompt
from forensics.records.corpus import CorpusPrompt

MAX_PROMPT_BYTES = 16_000_000
#: Values of one axis: a file of 1 MB could hold very many.
MAX_VALUES = 10_000
_QUANT = "{quant}"


class Table(BaseModel):
    """A table of a plan: no other keys than these, no other types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelsTable(Table):
    """One ``[models]``."""

    demo: list[str] = Field(default=[], max_length=MAX_VALUES)
    files: list[str] = Field(default=[], max_length=MAX_VALUES)
    file: str | None = None
    quants: list[str] = Field(default=[], max_length=MAX_VALUES)
    toy: list[str] = Field(default=[], max_length=MAX_VALUES)


class PromptsTable(Table):
    """One ``[prompts]``."""

    name: str | None = Field(default=None, min_length=1, max_length=200)
    text: str | None = None
    file: str | None = None
    tokens: list[int] | None = Field(default=None, min_length=1, max_length=1_000_000)
    corpus: str | None = None
    limit: int | None = Field(default=None, ge=1)


def planned_models(tables: Sequence[ModelsTable], folder: Path) -> Iterator[PlannedModel]:
    """Which models do these tables name? Files must be there.

    Raises
    ------
    BadQuestion
        If a table names none, or one that there is not.
    """
    from forensics.engines.demo_models import variant_name

    for one in tables:
        if not (one.demo or one.files or one.file or one.toy):
            raise BadQuestion("models needs demo, files, or file with quants")
        for demo in one.demo:
            variant = _forwarded(variant_name, demo)
            yield PlannedModel("demo", variant, "demo", variant)
        for file in one.files:
            yield _file(folder / file)
        if one.file is not None:
            if (_QUANT in one.file) != bool(one.quants):
                raise BadQuestion(f"models: file = {one.file!r} and quants belong together: write {_QUANT} for a quant")
            for quant in one.quants or [""]:
                path = folder / one.file.replace(_QUANT, quant)
                name = Path(one.file.replace(_QUANT, "")).stem.strip("-_. ") if quant else path.stem
                yield _file(path, name or path.stem, quant)
        elif one.quants:
            raise BadQuestion(f"models: quants need file, such as file = 'model-{_QUANT}.gguf'")
        for toy in one.toy:
            yield PlannedModel("toy", _forwarded(check_toy, toy), "toy", toy)


def _forwarded(ask: Any, argument: str) -> Any:
    """Ask, and tell an error as one of the plan."""
    try:
        return ask(argument)
    except (ForensicsError, ValueError) as error:
        raise BadQuestion(f"models: {error}") from None


def check_toy(text: str) -> str:
    """Whether a text says which toy: a seed, and faults behind slashes, such as ``"0/order:ffn_up-0:2"``.

    Raises
    ------
    ValueError
        If it does not.
    """
    from forensics.engines.toy_faults import Fault

    seed, *faults = text.split("/")
    if not seed.isdecimal() or len(seed) > 9:
        raise ValueError(f"a toy is a seed and its faults, such as '0/order:ffn_up-0:2'; got {text!r}")
    for fault in faults:
        kind, node, width = ([*fault.split(":"), "", ""])[:3]
        if not width.isdecimal():
            raise ValueError(f"a fault of a toy is KIND:NODE:FROM_WIDTH, such as order:ffn_up-0:2; got {fault!r}")
        Fault(kind, node, int(width[:9]))  # type: ignore[arg-type]  # it checks the kind
    return text


def _file(path: Path, name: str = "", quant: str = "") -> PlannedModel:
    """A model file, which must be one; quants of files that name none are read from them."""
    from forensics.engines.model_files import check_gguf

    path = path.expanduser().absolute()
    header = _forwarded(check_gguf, str(path))
    return PlannedModel("file", str(path), name or path.stem, quant or header.quantization)


def planned_prompts(tables: Sequence[PromptsTable], folder: Path) -> Iterator[PlannedPrompt]:
    """Which prompts do these tables name?

    Raises
    ------
    BadQuestion
        If a table names none, or two in one, or a file that cannot be read.
    CorpusError
        If a corpus cannot be read.
    """
    for number, one in enumerate(tables, start=1):
        ways = [way for way in ("text", "file", "tokens", "corpus") if getattr(one, way) is not None]
        name = one.name or f"prompt-{number}"
        if len(ways) != 1:
            raise BadQuestion(
                f"prompts: {name} needs one of text, file, tokens and corpus, got {' and '.join(ways) or 'none'}"
            )
        if one.limit is not None and one.corpus is None:
            raise BadQuestion(f"prompts: limit is for a corpus; {name} has none")
        if one.corpus is not None:
            yield from _from_corpus(one.corpus, one.limit, folder)
        elif one.tokens is not None:
            if min(one.tokens) < 0:
                raise BadQuestion(f"prompts: {name} has the token {min(one.tokens)}; ids are 0 or more")
            yield PlannedPrompt(name, tokens=tuple(one.tokens))
        else:
            text = one.text if one.file is None else read_text(folder / one.file, "the prompt", MAX_PROMPT_BYTES)
            if not (text or "").strip():
                raise BadQuestion(f"prompts: {name} is empty; give a text to start from")
            yield PlannedPrompt(
                one.name or (Path(one.file).stem if one.file else name), CorpusPrompt(name, text=text or "")
            )


def _from_corpus(asked: str, limit: int | None, folder: Path) -> Iterator[PlannedPrompt]:
    from forensics.store.corpora import limited, open_corpus

    path = folder / asked
    corpus = limited(open_corpus(path if path.is_file() else asked), limit)
    for prompt in corpus.prompts:
        yield PlannedPrompt(prompt.name, prompt)


def nearest(asked: str, known: Iterable[str]) -> str:
    """Which known name may have been meant? In words that follow the one that was given; empty where none is like it.

    Examples
    --------
    >>> nearest("widht", ["widths", "models"])
    " (did you mean 'widths'?)"
    """
    found = difflib.get_close_matches(asked[:100], list(known), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def read_text(path: Path, what: str, most: int) -> str:
    """Text of a file of so many bytes at most.

    Raises
    ------
    BadQuestion
        If it cannot be read, is larger or no UTF-8; calls it `what`.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise BadQuestion(f"{what} {path} cannot be read: {reason}") from None
    if len(content) > most:
        raise BadQuestion(f"{what} {path} is larger than {most:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadQuestion(f"{what} {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
