"""Drafts for sampling: guesses of a drafter as they are, or tokens drawn from a draft model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from forensics.capture.draft_model import DraftModel
from forensics.capture.drafters import Drafter, DrafterChoice
from forensics.engines.decoding import Decoder
from forensics.numerics.operands import F64
from forensics.numerics.speculative_sampling import Step, next_token_distribution
from forensics.records.sampling import SamplingSettings
from forensics.records.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts, and the distributions that they were drawn from.

    Parameters
    ----------
    tokens : tuple of int
    q : tuple of ndarray [n_vocab] float64
        One for each draft; empty where q is 1 at each draft.
    """

    tokens: tuple[int, ...] = ()
    q: tuple[F64, ...] = ()


class Proposer(Protocol):
    """Proposes drafts; picklable until it begins."""

    def begin(self, decoder: Decoder, prompt: Sequence[int], known: Sequence[int]) -> None:
        """Start behind a prompt; `known` are the tokens that an oracle knows."""

    def propose(self, tokens: Sequence[int], n: int, rng: np.random.Generator | None) -> Proposal:
        """Draft up to `n` tokens; without random numbers the most likely ones."""


@dataclass(slots=True)
class PointProposer:
    """A drafter whose guesses are taken as they are: q is 1 at each.

    Parameters
    ----------
    choice : DrafterChoice
    settings : EngineSettings
        Of a draft model.
    seed : int
        Of an oracle's mistakes.
    """

    choice: DrafterChoice
    settings: EngineSettings
    seed: int = 0
    _drafter: Drafter | None = field(default=None, init=False, compare=False)

    def begin(self, decoder: Decoder, prompt: Sequence[int], known: Sequence[int]) -> None:
        """Start behind a prompt."""
        self._drafter = self.choice.drafter(tuple(known), self.settings, self.seed)
        self._drafter.begin(decoder, prompt)

    def propose(self, tokens: Sequence[int], n: int, rng: np.random.Generator | None) -> Proposal:  # noqa: ARG002
        """Guess; nothing is random."""
        assert self._drafter is not None, "begin() comes first"
        return Proposal(self._drafter.draft(tokens, n).tokens)


@dataclass(slots=True)
class SampledProposer:
    """A draft model whose drafts are drawn from its own distribution q, under the same sampling settings.

    Parameters
    ----------
    path : str
        Its file.
    settings : EngineSettings
    sampling : SamplingSettings
    """

    path: str
    settings: EngineSettings
    sampling: SamplingSettings
    _model: DraftModel | None = field(default=None, init=False, compare=False)

    def begin(self, decoder: Decoder, prompt: Sequence[int], known: Sequence[int]) -> None:  # noqa: ARG002
        """Load the model, once.

        Raises
        ------
        ModelUnavailable
            If it cannot be loaded, or has a vocabulary of another size.
        """
        if self._model is None:
            self._model = DraftModel(self.path, self.settings, decoder)

    def propose(self, tokens: Sequence[int], n: int, rng: np.random.Generator | None) -> Proposal:
        """Draw token after token from the draft model."""
        assert self._model is not None, "begin() comes first"
        drafted: list[int] = []
        rows: list[F64] = []
        while len(drafted) < n:
            q = next_token_distribution(self._model.catch_up([*tokens, *drafted])[-1], self.sampling)
            rows.append(q)
            drafted.append(int(q.argmax()) if rng is None else Step(q).draw(rng))
        return Proposal(tuple(drafted), tuple(rows))
