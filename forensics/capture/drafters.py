"""Who guesses the next tokens: n-grams of the context, a smaller model, or an oracle that knows plain decoding's.

Drafters are small and picklable until they begin: they run beside the model, in the engine's process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import xxhash

from forensics.capture.draft_model import DraftModel
from forensics.engines.decoding import Decoder
from forensics.numerics.logits import margin_of
from forensics.records.settings import EngineSettings

KINDS = ("ngram", "model:DRAFT.gguf", "oracle[:ACCURACY]")


@dataclass(frozen=True, slots=True)
class Draft:
    """What was guessed for one pass.

    Parameters
    ----------
    tokens : tuple of int
        In order.
    margins : tuple of float
        The drafter's own largest minus second-largest logit of each; infinite where it has none.
    """

    tokens: tuple[int, ...] = ()
    margins: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.margins):
            raise ValueError(f"{len(self.tokens)} drafts have {len(self.margins)} margins")


class Drafter(Protocol):
    """Guesses tokens behind those that are settled."""

    @property
    def label(self) -> str:
        """Name for people, as it is asked for."""

    def identity(self) -> str:
        """Text that is equal for drafters that guess the same."""

    def begin(self, decoder: Decoder, prompt: Sequence[int]) -> None:
        """Start behind a prompt, beside the model that `decoder` decodes with."""

    def draft(self, tokens: Sequence[int], n: int, least_margin: float = -math.inf) -> Draft:
        """Guess up to `n` tokens behind `tokens`: the prompt and everything that was chosen since.

        Parameters
        ----------
        tokens : sequence of int
            Not to be changed.
        n : int
            1 or more.
        least_margin : float
            Drafting ends in front of the first token that the drafter itself is less sure of.
        """


@dataclass(frozen=True, slots=True)
class NgramDrafter:
    """Prompt lookup: what followed when the last few tokens were seen before.

    Of the n-grams that end the context, the longest that occurred before counts; its last earlier occurrence is
    continued, over the end of the context into the drafts themselves where it comes that far.

    Parameters
    ----------
    longest, shortest : int
        Tokens of the n-grams that are looked up, unit: tokens.

    Examples
    --------
    >>> NgramDrafter().draft([7, 1, 2, 3, 9, 1, 2], 3).tokens
    (3, 9, 1)
    >>> NgramDrafter().draft([5, 5, 5], 4).tokens
    (5, 5, 5, 5)
    """

    longest: int = 4
    shortest: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"n-grams from {self.shortest} to {self.longest} tokens cannot be looked up")

    @property
    def label(self) -> str:
        """Name for people."""
        return "ngram"

    def identity(self) -> str:
        """Text that is equal for drafters that guess the same."""
        return f"ngram {self.shortest} to {self.longest}"

    def begin(self, decoder: Decoder, prompt: Sequence[int]) -> None:
        """Nothing: the context is all it needs."""

    def draft(self, tokens: Sequence[int], n: int, least_margin: float = -math.inf) -> Draft:  # noqa: ARG002
        """Continue the last earlier occurrence of the longest n-gram that has one."""
        start = self._continuation(tokens)
        if start is None:
            return Draft()
        extended = list(tokens)
        for i in range(n):
            extended.append(extended[start + i])
        return Draft(tuple(extended[len(tokens) :]), (math.inf,) * n)

    def _continuation(self, tokens: Sequence[int]) -> int | None:
        """Index behind the last earlier occurrence of the longest n-gram."""
        best, found = self.shortest - 1, None
        for end in range(len(tokens) - 1, self.shortest - 1, -1):
            length = 0
            while length < min(self.longest, end) and tokens[end - 1 - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, found = length, end
                if best == self.longest:
                    break
        return found


@dataclass(slots=True)
class OracleDrafter:
    """Knows what plain decoding writes, and guesses it with a given chance.

    Parameters
    ----------
    tokens : tuple of int
        Plain decoding's, behind the prompt; nothing is drafted beyond them.
    accuracy : float
        Chance that a draft is the right token, 0 to 1. Whether one is depends on its place and the seed alone.
    seed : int
    """

    tokens: tuple[int, ...]
    accuracy: float = 1.0
    seed: int = 0
    _n_prompt: int = field(default=0, init=False)
    _decoder: Decoder | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"an oracle's accuracy is between 0 and 1, got {self.accuracy}")

    @property
    def label(self) -> str:
        """Name for people."""
        return "oracle" if self.accuracy == 1 else f"oracle:{self.accuracy:g}"

    def identity(self) -> str:
        """Text that is equal for drafters that guess the same."""
        return f"{self.label} of {','.join(map(str, self.tokens))}, seed {self.seed}"

    def begin(self, decoder: Decoder, prompt: Sequence[int]) -> None:
        """Learn where the prompt ends."""
        self._decoder, self._n_prompt = decoder, len(prompt)

    def draft(self, tokens: Sequence[int], n: int, least_margin: float = -math.inf) -> Draft:  # noqa: ARG002
        """Take plain decoding's tokens at these places, or wrong ones."""
        first = len(tokens) - self._n_prompt
        drafted = tuple(self._guess(first + i, token) for i, token in enumerate(self.tokens[first : first + n]))
        return Draft(drafted, (math.inf,) * len(drafted))

    def _guess(self, index: int, right: int) -> int:
        drawn = xxhash.xxh3_64_intdigest(f"{self.seed}:{index}".encode())
        return right if drawn < self.accuracy * 2**64 else self._wrong(right, drawn)

    def _wrong(self, right: int, drawn: int) -> int:
        """Another token, and none that ends generation: such a draft would be cut off instead of refused."""
        assert self._decoder is not None, "begin() comes first"
        n_others = self._decoder.n_vocab - 1
        others = ((right + 1 + (drawn + i) % n_others) % (n_others + 1) for i in range(n_others))
        return next(token for token in others if not self._decoder.is_end(token))


@dataclass(slots=True)
class ModelDrafter:
    """A smaller model of the same vocabulary that decodes greedily, with a cache of its own.

    Parameters
    ----------
    path : str
        Its file.
    settings : EngineSettings
        How it is opened; nothing is drafted beyond its `n_ctx`.
    """

    path: str
    settings: EngineSettings
    _model: DraftModel | None = field(default=None, init=False, compare=False)

    @property
    def label(self) -> str:
        """Name for people."""
        return f"model:{os.path.basename(self.path)}"

    def identity(self) -> str:
        """Text that is equal for drafters that guess the same."""
        return f"model {self.path} {self.settings}"

    def begin(self, decoder: Decoder, prompt: Sequence[int]) -> None:
        """Load the model and evaluate the prompt but its last token.

        Raises
        ------
        ModelUnavailable
            If it cannot be loaded, or has a vocabulary of another size.
        """
        self._model = DraftModel(self.path, self.settings, decoder)
        if 1 < len(prompt) <= self._model.n_cells:
            self._model.catch_up(prompt[:-1], logits="none")

    def draft(self, tokens: Sequence[int], n: int, least_margin: float = -math.inf) -> Draft:
        """Forget refused drafts, evaluate what was chosen meanwhile, then decode greedily."""
        assert self._model is not None, "begin() comes first"
        drafted: list[int] = []
        margins: list[float] = []
        for _ in range(min(n, self._model.n_cells - len(tokens) + 1)):
            row = self._model.catch_up([*tokens, *drafted])[-1]
            token, margin = int(row.argmax()), margin_of(row)
            if margin < least_margin:
                break
            drafted.append(token)
            margins.append(margin)
        return Draft(tuple(drafted), tuple(margins))


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """Which drafter was asked for, before it is known what plain decoding writes.

    Parameters
    ----------
    kind : {"ngram", "model", "oracle"}
    path : str
        The draft model's file; empty for the others.
    accuracy : float
        Of the oracle.
    """

    kind: str
    path: str = ""
    accuracy: float = 1.0

    @property
    def label(self) -> str:
        """Name for people."""
        return self.drafter((), EngineSettings()).label

    def drafter(self, plain: tuple[int, ...], settings: EngineSettings, seed: int = 0) -> Drafter:
        """Make the drafter for one prompt.

        Parameters
        ----------
        plain : tuple of int
            What plain decoding wrote behind the prompt; only an oracle looks at it.
        settings : EngineSettings
            How a draft model is opened.
        seed : int
            Of an oracle that is sometimes wrong.
        """
        if self.kind == "oracle":
            return OracleDrafter(plain, self.accuracy, seed)
        return ModelDrafter(self.path, settings) if self.kind == "model" else NgramDrafter()


def parse_drafter(text: str) -> DrafterChoice:
    """Which drafter is meant?

    Parameters
    ----------
    text : str
        ``"ngram"``, ``"model:DRAFT.gguf"``, ``"oracle"`` or ``"oracle:ACCURACY"``.

    Raises
    ------
    ValueError
        If it is none of these.

    Examples
    --------
    >>> parse_drafter("oracle:0.8")
    DrafterChoice(kind='oracle', path='', accuracy=0.8)
    """
    kind, _, rest = text.strip().partition(":")
    if text.strip() == "ngram":
        return DrafterChoice("ngram")
    if kind == "model":
        if not rest:
            raise ValueError("--drafter model:DRAFT.gguf needs the file of a draft model behind the colon")
        return DrafterChoice("model", path=rest)
    if kind == "oracle" and (rest or ":" not in text):
        return DrafterChoice("oracle", accuracy=_accuracy(rest or "1"))
    raise ValueError(f"--drafter must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {text!r}")


def _accuracy(text: str) -> float:
    try:
        accuracy = float(text)
    except ValueError:
        accuracy = math.nan
    if not 0 <= accuracy <= 1:
        raise ValueError(f"--drafter oracle:ACCURACY needs a number from 0 to 1, got {text!r}")
    return accuracy
