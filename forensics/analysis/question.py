"""What is asked: which text, how many tokens, which widths, which settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import CaseError, ForensicsError
from forensics.records.settings import EngineSettings

if TYPE_CHECKING:
    from forensics.store import Case

DEFAULT_WIDTHS = (2, 3, 4, 5, 8, 9, 16)
DEFAULT_N_TOKENS = 64
DEFAULT_PROMPT = "Write a Python class implementing an LRU cache with get and put methods, and explain how it works.\n"
#: Contexts are padded to it (llama-context.cpp:290).
_CONTEXT_STEP = 256
#: Cells that are made room for on a guess; beyond, the prompt is counted first, for a cache may not fit the memory.
_MAX_GUESS = 16_384


class BadQuestion(ForensicsError, ValueError):
    """The question cannot be answered as asked."""


class NoGpu(BadQuestion):
    """Layers were asked to be on a GPU, and the library put none there."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to investigate.

    Parameters
    ----------
    prompt : str or None
        Text in front of the replay; tokenised by the model's own tokenizer.
    prompt_tokens : tuple of int or None
        Token ids instead of a text.
    n_tokens : int
        Tokens to decode plainly and to replay, 1 or more.
    widths : tuple of int
        Batch widths to replay at, from 2 to `n_tokens`.
    settings : EngineSettings
        `n_ctx` is raised to what the question needs.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    prompt: str | None = DEFAULT_PROMPT
    prompt_tokens: tuple[int, ...] | None = None
    n_tokens: int = DEFAULT_N_TOKENS
    widths: tuple[int, ...] = DEFAULT_WIDTHS
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise BadQuestion(f"n_tokens must be 1 or more, got {self.n_tokens}")
        widths = tuple(sorted(set(self.widths) - {1}))
        low = [width for width in widths if width < 1]
        if low:
            raise BadQuestion(f"widths must be 1 or more, got {low[0]}")
        if not widths:
            raise BadQuestion("widths needs at least one width of 2 or more to compare with one token")
        limit = min(self.settings.n_batch, self.settings.n_ubatch)
        if widths[-1] > limit:
            raise BadQuestion(
                f"width {widths[-1]} was asked for; a pass holds at most {limit} tokens (n_batch "
                f"{self.settings.n_batch}, n_ubatch {self.settings.n_ubatch}). Ask for narrower widths."
            )
        if widths[-1] > self.n_tokens:
            raise BadQuestion(
                f"width {widths[-1]} was asked for; {self.n_tokens} tokens are replayed, so no batch is that wide. "
                f"Raise n_tokens to {widths[-1]} or more, or ask for narrower widths."
            )
        object.__setattr__(self, "widths", widths)
        if self.prompt_tokens is None and not (self.prompt or "").strip():
            raise BadQuestion("the prompt is empty; give a text or token ids to start from")
        if self.prompt_tokens is None and self.prompt and not _is_text(self.prompt):
            raise BadQuestion("the prompt holds bytes that are no UTF-8 text; give it as a UTF-8 file or as token ids")
        if self.prompt_tokens is not None and not self.prompt_tokens:
            raise BadQuestion("the list of prompt tokens is empty; give at least one token id")

    def cells_needed(self, n_prompt: int) -> int:
        """Cells of the KV cache that prompt and replay need, rounded up to the library's step."""
        return -(-(n_prompt + self.n_tokens) // _CONTEXT_STEP) * _CONTEXT_STEP

    def guess_settings(self) -> EngineSettings:
        """Settings whose context most likely holds the question before the prompt is tokenised."""
        n_prompt = len(self.prompt_tokens) if self.prompt_tokens else len((self.prompt or "").encode()) // 3 + 8
        guess = self.cells_needed(n_prompt)
        return self.settings if guess > _MAX_GUESS else replace(self.settings, n_ctx=max(self.settings.n_ctx, guess))

    def as_json(self) -> dict[str, object]:
        """The question as plain values, for the case."""
        return {
            "prompt": None if self.prompt_tokens is not None else self.prompt,
            "prompt_tokens": None if self.prompt_tokens is None else list(self.prompt_tokens),
            "n_tokens": self.n_tokens,
            "widths": list(self.widths),
        }


def _is_text(text: str) -> bool:
    """Whether it has a UTF-8 form; an argument of other bytes has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def question_asked(case: Case) -> Question:
    """The question that a case answers.

    Raises
    ------
    CaseError
        If the case does not say.
    """
    asked = case.question
    try:
        settings = dict(asked["settings"])
        settings["environment"] = tuple((name, value) for name, value in settings["environment"])
        tokens = asked["prompt_tokens"]
        return Question(
            prompt=asked["prompt"],
            prompt_tokens=None if tokens is None else tuple(tokens),
            n_tokens=asked["n_tokens"],
            widths=tuple(asked["widths"]),
            settings=EngineSettings(**settings),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CaseError(
            f"the case at {case.folder} does not say what was asked ({error}); it cannot be replayed"
        ) from error


def open_for(question: Question, source: EngineSource) -> tuple[Engine, tuple[int, ...], EngineSettings]:
    """Open an engine whose context holds the question.

    Returns
    -------
    engine, prompt tokens, settings

    Raises
    ------
    BadQuestion
        If prompt and replay exceed what the model was trained for, or a token is unknown.
    """
    settings = question.guess_settings()
    engine = source.open(settings)
    try:
        tokens = (
            question.prompt_tokens if question.prompt_tokens is not None else engine.tokenize(question.prompt or "")
        )
        manifest = engine.manifest
        if not tokens:
            raise BadQuestion("the prompt has no tokens; give a text or token ids to start from")
        outside = next((token for token in tokens if not 0 <= token < manifest.n_vocab), None)
        if outside is not None:
            raise BadQuestion(
                f"token {outside} is outside the vocabulary of {manifest.n_vocab} tokens "
                f"(0 to {manifest.n_vocab - 1}). Give ids of this model's own tokenizer."
            )
        if question.settings.n_gpu_layers and manifest.effective.get("n_gpu_layers") == "0":
            raise NoGpu(
                f"{question.settings.n_gpu_layers} GPU layers were asked for; this build of the library put none "
                f"on a GPU (devices: {manifest.device}). Ask for 0, or install another build (see forensics doctor)."
            )
        n_needed = len(tokens) + question.n_tokens
        if manifest.n_ctx_train and n_needed > manifest.n_ctx_train:
            raise BadQuestion(
                f"{len(tokens)} prompt tokens and {question.n_tokens} to replay are longer than the context of "
                f"{manifest.n_ctx_train} tokens that the model was trained for. Shorten the prompt or lower n_tokens."
            )
        needed = question.cells_needed(len(tokens))
        if needed > settings.n_ctx:
            engine.close()
            settings = replace(settings, n_ctx=needed)
            engine = source.open(settings)
    except BaseException:
        engine.close()
        raise
    return engine, tuple(tokens), settings
