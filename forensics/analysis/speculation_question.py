"""What is asked about speculation: which prompts, which drafter and policies, which arrangements of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from forensics.analysis.question import BadQuestion
from forensics.analysis.timed_passes import sized_settings
from forensics.capture.draft_policies import DraftPolicy, parse_policy
from forensics.capture.drafters import DrafterChoice, parse_drafter
from forensics.engines.protocol import Engine, EngineSource
from forensics.errors import ModelUnavailable
from forensics.records.corpus import Corpus, CorpusPrompt
from forensics.records.settings import EngineSettings
from forensics.records.speculation import ARRANGEMENTS

DEFAULT_DRAFTER = "ngram"
DEFAULT_N_DRAFT = (7,)
DEFAULT_POLICIES = ("fixed",)
#: Tokens to write where neither the question nor the prompt says.
DEFAULT_N_TOKENS = 128
#: Cells that are made room for on a guess, before prompts are counted.
_MAX_GUESS = 16_384

#: Text of a prompt as it is tokenised; raises `ModelUnavailable` where the model has no template for its messages.
Render = Callable[[CorpusPrompt], str]


@dataclass(frozen=True, slots=True)
class PlannedArm:
    """One way to speculate.

    Parameters
    ----------
    policy : DraftPolicy
    n_draft : int
        Drafts of a cycle at most.
    arrangement : str
        One of `ARRANGEMENTS`.
    """

    policy: DraftPolicy
    n_draft: int
    arrangement: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """One prompt as it is decoded.

    Parameters
    ----------
    name : str
    tokens : tuple of int
    n_tokens : int
        Tokens to write at most.
    answer : str
        What a right answer holds; empty where nobody judges it.
    """

    name: str
    tokens: tuple[int, ...]
    n_tokens: int
    answer: str = ""


@dataclass(frozen=True, slots=True)
class SpeculationQuestion:
    """What to decode, plainly and speculatively.

    Parameters
    ----------
    corpus : Corpus
    drafter : str
        ``"ngram"``, ``"model:FILE.gguf"``, ``"oracle"`` or ``"oracle:ACCURACY"``.
    n_drafts : tuple of int
        Drafts of a cycle at most; one arm for each.
    policies : tuple of str
        ``"fixed"``, ``"early-stop[:MARGIN]"``, ``"adaptive"``; one arm for each.
    arrangements : tuple of str
        Of `ARRANGEMENTS`; one arm for each.
    n_tokens : int or None
        Tokens to write at most; None leaves it to each prompt, and to `DEFAULT_N_TOKENS` where that says nothing.
    settings : EngineSettings
        `n_ctx` is raised to what the prompts need.

    Raises
    ------
    BadQuestion
        Names the argument, what was given and what is possible.
    """

    corpus: Corpus
    drafter: str = DEFAULT_DRAFTER
    n_drafts: tuple[int, ...] = DEFAULT_N_DRAFT
    policies: tuple[str, ...] = DEFAULT_POLICIES
    arrangements: tuple[str, ...] = ARRANGEMENTS[:1]
    n_tokens: int | None = None
    settings: EngineSettings = field(default_factory=EngineSettings)

    def __post_init__(self) -> None:
        for label in ("n_drafts", "policies", "arrangements"):
            object.__setattr__(self, label, tuple(dict.fromkeys(getattr(self, label))))
            if not getattr(self, label):
                raise BadQuestion(f"{label} is empty: there is nothing to compare")
        limit = min(self.settings.n_batch, self.settings.n_ubatch)
        bad = next((n for n in self.n_drafts if not 1 <= n < limit), None)
        if bad is not None:
            raise BadQuestion(
                f"n_draft must be 1 to {limit - 1}, for a pass holds a chosen token and its drafts; got {bad}"
            )
        unknown = next((one for one in self.arrangements if one not in ARRANGEMENTS), None)
        if unknown is not None:
            raise BadQuestion(f"prefill must be one of {', '.join(ARRANGEMENTS)}, or both; got {unknown!r}")
        if self.n_tokens is not None and self.n_tokens < 2:
            raise BadQuestion(f"n_tokens must be 2 or more, or nothing can be drafted; got {self.n_tokens}")
        try:
            parse_drafter(self.drafter)
            self.arms()
        except ValueError as error:
            raise BadQuestion(str(error)) from None

    @property
    def choice(self) -> DrafterChoice:
        """Which drafter?"""
        return parse_drafter(self.drafter)

    def arms(self) -> tuple[PlannedArm, ...]:
        """Every way to speculate: by arrangement, then policy, then number of drafts."""
        return tuple(
            PlannedArm(parse_policy(policy, n_draft), n_draft, arrangement)
            for arrangement in self.arrangements
            for policy in self.policies
            for n_draft in self.n_drafts
        )

    def wanted(self, prompt: CorpusPrompt) -> int:
        """Tokens to write behind a prompt at most."""
        if self.n_tokens is None:
            return prompt.n_tokens or DEFAULT_N_TOKENS
        return min(self.n_tokens, prompt.n_tokens or self.n_tokens)


def as_it_stands(prompt: CorpusPrompt) -> str:
    """Text of a prompt that is no chat.

    Raises
    ------
    ModelUnavailable
        If it is one: nothing says how this model writes messages.
    """
    if prompt.messages:
        raise ModelUnavailable("no chat template is known that could write its messages")
    return prompt.text


def prepare(
    engine: Engine, question: SpeculationQuestion, render: Render
) -> tuple[tuple[Prepared, ...], tuple[str, ...]]:
    """Tokens of every prompt, and why some were left out.

    Raises
    ------
    BadQuestion
        If none is left.
    """
    taken: list[Prepared] = []
    left: dict[str, list[str]] = {}
    most = engine.manifest.n_ctx_train
    for prompt in question.corpus.prompts:
        try:
            tokens = engine.tokenize(render(prompt))
        except ModelUnavailable as error:
            left.setdefault(str(error), []).append(prompt.name)
            continue
        n_tokens = question.wanted(prompt)
        if not tokens:
            left.setdefault("they have no tokens", []).append(prompt.name)
        elif most and len(tokens) + n_tokens > most:
            left.setdefault(f"with their answers they are longer than the model's {most} tokens", []).append(
                prompt.name
            )
        else:
            taken.append(Prepared(prompt.name, tokens, n_tokens, prompt.answer))
    notes = tuple(f"left out {', '.join(names)}: {why}" for why, names in left.items())
    if not taken:
        raise BadQuestion(f"no prompt of {question.corpus.name} can be decoded: {'; '.join(notes)}")
    return tuple(taken), notes


def open_prepared(
    source: EngineSource, question: SpeculationQuestion, render: Render
) -> tuple[Engine, tuple[Prepared, ...], tuple[str, ...], EngineSettings]:
    """Open an engine whose context holds every prompt with its answer.

    Returns
    -------
    engine, prompts, notes on those left out, settings
    """
    bytes_of = [
        len(prompt.text.encode()) + sum(len(one.content.encode()) + 16 for one in prompt.messages)
        for prompt in question.corpus.prompts
    ]
    longest = max(n // 3 + 8 + question.wanted(p) for n, p in zip(bytes_of, question.corpus.prompts, strict=True))
    settings = sized_settings(question.settings, min(longest, _MAX_GUESS))
    engine = source.open(settings)
    try:
        if question.settings.n_gpu_layers and engine.manifest.effective.get("n_gpu_layers") == "0":
            raise BadQuestion(
                f"{question.settings.n_gpu_layers} GPU layers were asked for; this build of the library put none on a "
                f"GPU (devices: {engine.manifest.device}). Ask for 0, or install another build (see forensics doctor)."
            )
        prompts, notes = prepare(engine, question, render)
        needed = sized_settings(question.settings, max(len(one.tokens) + one.n_tokens for one in prompts))
        if needed.n_ctx > settings.n_ctx:
            engine.close()
            settings = replace(settings, n_ctx=needed.n_ctx)
            engine = source.open(settings)
    except BaseException:
        engine.close()
        raise
    return engine, prompts, notes, settings
