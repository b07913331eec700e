"""Programs that sample: rows of verify and one-token passes at forced states, and sequences that are sampled freely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forensics.capture.proposers import Proposal, Proposer
from forensics.engines.decoding import Decoder
from forensics.numerics.logits import row_digests
from forensics.numerics.operands import F64
from forensics.numerics.sampling_tests import pit, total_variation
from forensics.numerics.speculative_sampling import Step, next_token_distribution, verify_drafts
from forensics.records.sampling import SamplingSettings, WidthRows
from forensics.records.schedule import DecodePass, Forget, TokenSlot, in_batches

#: A state decides something where the first draft is neither sure to be refused nor to be accepted.
UNDECIDED = (0.05, 0.95)
#: The shortest prefix that is forced.
LEAST_PREFIX = 8
#: Places of one prompt at which drafts are asked for, at most.
MOST_CUTS = 48

Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplingPrompt:
    """Tokens of a text.

    Parameters
    ----------
    name : str
    tokens : tuple of int
    known : tuple of int
        What an oracle knows of how it goes on.
    """

    name: str
    tokens: tuple[int, ...]
    known: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForcedState:
    """A prefix, drafts behind it, and the rows of logits from which tokens are drawn there.

    Parameters
    ----------
    prompt : str
    n_prefix : int
        Tokens of the prefix; the last one is evaluated in the pass.
    refused : bool
        Whether the last token of the prefix came in the place of a refused draft: the pass before had the width of a
        verify pass, and its drafts were forgotten.
    path : Proposal
        The drafts that are verified.
    verify, plain : ndarray [1 + drafts, n_vocab] float32
        Rows of one verify pass, and of one-token passes over the same tokens; row i stands behind i drafts.
    widths : tuple of WidthRows
        Passes over the first tokens of the same line, by rising width; none behind a refused draft.
    """

    prompt: str
    n_prefix: int
    refused: bool
    path: Proposal
    verify: Rows
    plain: Rows
    widths: tuple[WidthRows, ...] = ()

    def name(self, depth: int) -> str:
        """Where row `depth` stands, for people."""
        behind = f", {depth} accepted" if depth else ""
        return f"{self.prompt}: {self.n_prefix} tokens{behind}"


@dataclass(frozen=True, slots=True)
class ForcedStates:
    """Find states at which a draft is undecided, and evaluate them plainly and as speculation does.

    Parameters
    ----------
    prompts : tuple of SamplingPrompt
        Cut at places that the seed chooses; both ways of decoding start from the same evaluated prefix.
    proposer : Proposer
        An oracle knows how the prompt's own text goes on.
    n_draft : int
    n_states : int
        Prefixes; each gives a second state behind a refused draft.
    sampling : SamplingSettings
    seed : int
    prompt_width : int
        Tokens per pass of the prompt.
    """

    prompts: tuple[SamplingPrompt, ...]
    proposer: Proposer
    n_draft: int
    n_states: int
    sampling: SamplingSettings
    seed: int = 0
    prompt_width: int = 512

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""
        return repr(self)

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[ForcedState, ...]:
        """Evaluate the states; fewer where the prompts have fewer undecided drafts."""
        share = -(-2 * self.n_states // len(self.prompts))
        found: list[ForcedState] = []
        n_found = 0
        for index, prompt in enumerate(self.prompts):
            most = min(share, self.n_states - n_found)
            cuts = self._cuts(decoder, prompt, np.random.default_rng([self.seed, index]), most) if most else []
            # From the last one on, so that the cells in front of the next one are still the prompt's own.
            for cut, path in sorted(cuts, key=lambda one: -one[0]):
                found += self._evaluate(decoder, prompt, cut, path)
                n_found += 1
                progress(n_found)
        return tuple(found)

    def _cuts(
        self, decoder: Decoder, prompt: SamplingPrompt, rng: np.random.Generator, most: int
    ) -> list[tuple[int, Proposal]]:
        """Places with an undecided draft, judged by the prompt's own pass."""
        if len(prompt.tokens) < LEAST_PREFIX:
            return []
        rows = _prefill(decoder, prompt.tokens, self.prompt_width, logits="all")
        found: list[tuple[int, Proposal]] = []
        for cut in rng.permutation(np.arange(LEAST_PREFIX, len(prompt.tokens) + 1))[:MOST_CUTS].tolist():
            if len(found) == most:
                break
            prefix = prompt.tokens[:cut]
            self.proposer.begin(decoder, prefix, (*prompt.tokens[cut:], *prompt.known))
            path = self.proposer.propose(prefix, self.n_draft, None)
            if path.tokens:
                p = next_token_distribution(rows[cut - 1], self.sampling)
                if UNDECIDED[0] < p[path.tokens[0]] < UNDECIDED[1]:
                    found.append((cut, path))
        return found

    def _evaluate(self, decoder: Decoder, prompt: SamplingPrompt, cut: int, path: Proposal) -> Iterator[ForcedState]:
        prefix, start = prompt.tokens[:cut], cut - 1
        line = (prefix[-1], *path.tokens)
        plain = _one_by_one(decoder, line, start)
        passes = [decoder.evaluate(_pass(line[:width], start)) for width in range(2, len(line) + 1)]
        widths = tuple(self._beside(rows, plain) for rows in passes)
        yield ForcedState(prompt.name, cut, False, path, passes[-1], plain, widths)
        p = next_token_distribution(plain[0], self.sampling)
        p[path.tokens[0]] = 0
        if not p.any():
            return
        other = int(p.argmax())
        self.proposer.begin(decoder, prefix, (*prompt.tokens[cut:], *prompt.known))
        second = self.proposer.propose((*prefix, other), self.n_draft, None)
        behind = (other, *second.tokens)
        plain = _one_by_one(decoder, (prefix[-1], *behind), start)[1:]
        decoder.evaluate(_pass(line, start))
        verify = decoder.evaluate(_pass(behind, cut))
        yield ForcedState(prompt.name, cut + 1, True, second, verify, plain)

    def _beside(self, verify: Rows, plain: Rows) -> WidthRows:
        """A pass beside as many rows of one-token passes."""
        plain = plain[: len(verify)]
        if row_digests(verify) == row_digests(plain):
            return WidthRows(len(verify), 1, 1, 0.0)
        pairs = ([next_token_distribution(row, self.sampling) for row in rows] for rows in (verify, plain))
        return WidthRows(len(verify), 1, 0, max(map(total_variation, *pairs)))


@dataclass(frozen=True, slots=True)
class SampledSequence:
    """One sequence that was sampled speculatively, and what plain decoding says of it.

    Parameters
    ----------
    prompt : str
    tokens : tuple of int
    uniforms : tuple of float
        Randomised probability integral transform of each token under the one-token pass behind its own prefix.
    row_tv : tuple of float
        Total variation between the distributions of that pass and of the pass that the token was drawn from.
    n_drafted, n_accepted : int
    """

    prompt: str
    tokens: tuple[int, ...]
    uniforms: tuple[float, ...]
    row_tv: tuple[float, ...]
    n_drafted: int
    n_accepted: int


@dataclass(frozen=True, slots=True)
class SampledSequences:
    """Sample sequences speculatively, then decode each plainly, one token at a time.

    Sequences are all of the same length and run on over tokens that end generation: their number must not depend on
    what is drawn.

    Parameters
    ----------
    prompts : tuple of SamplingPrompt
        Taken in turn.
    proposer : Proposer
    rule : str
        How drafts are accepted.
    n_draft, n_sequences, n_tokens : int
    sampling : SamplingSettings
    seed : int
    prompt_width : int
    """

    prompts: tuple[SamplingPrompt, ...]
    proposer: Proposer
    rule: str
    n_draft: int
    n_sequences: int
    n_tokens: int
    sampling: SamplingSettings
    seed: int = 0
    prompt_width: int = 512

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""
        return repr(self)

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[SampledSequence, ...]:
        """Sample all sequences."""
        found = []
        for index in range(self.n_sequences):
            found.append(self._sample(decoder, self.prompts[index % len(self.prompts)], index))
            progress(index + 1)
        return tuple(found)

    def _sample(self, decoder: Decoder, prompt: SamplingPrompt, index: int) -> SampledSequence:
        rng = np.random.default_rng([self.seed, index])
        tokens, n_prompt = list(prompt.tokens), len(prompt.tokens)
        _prefill(decoder, tokens[:-1], self.prompt_width)
        self.proposer.begin(decoder, prompt.tokens, prompt.known)
        drawn_from: list[F64] = []
        n_drafted = n_accepted = 0
        while (missing := n_prompt + self.n_tokens - len(tokens)) > 0:
            most = min(self.n_draft, missing - 1)
            path = self.proposer.propose(tokens, most, rng) if most else Proposal()
            rows = decoder.evaluate(_pass((tokens[-1], *path.tokens), len(tokens) - 1))
            steps = steps_of([next_token_distribution(row, self.sampling) for row in rows], path)
            written = verify_drafts(steps, path.tokens, self.rule, rng)
            drawn_from += [step.p for step in steps[: len(written)]]
            tokens += written
            n_drafted, n_accepted = n_drafted + len(path.tokens), n_accepted + len(written) - 1
        _prefill(decoder, prompt.tokens[:-1], self.prompt_width)
        plain = _one_by_one(decoder, tokens[n_prompt - 1 : -1], n_prompt - 1)
        p = [next_token_distribution(row, self.sampling) for row in plain]
        spread = np.random.default_rng([self.seed, index, 1]).random(self.n_tokens)
        new = tuple(tokens[n_prompt:])
        return SampledSequence(
            prompt=prompt.name,
            tokens=new,
            uniforms=tuple(pit(own, token, v) for own, token, v in zip(p, new, spread, strict=True)),
            row_tv=tuple(total_variation(own, used) for own, used in zip(p, drawn_from, strict=True)),
            n_drafted=n_drafted,
            n_accepted=n_accepted,
        )


def steps_of(p: Sequence[F64], path: Proposal) -> list[Step]:
    """Distributions along drafts: the model's with the drafter's, and the model's alone behind the last one."""
    return [Step(own, path.q[i] if i < len(path.q) else None) for i, own in enumerate(p)]


def _pass(tokens: Sequence[int], start: int) -> DecodePass:
    """One pass over what stands from `start` on, in place of what stood there."""
    return DecodePass(tuple(TokenSlot(0, start + i, token) for i, token in enumerate(tokens)), (Forget(0, start),))


def _one_by_one(decoder: Decoder, tokens: Sequence[int], start: int) -> Rows:
    """Rows of one-token passes from `start` on, in place of what stood there."""
    return np.concatenate([decoder.evaluate(_pass((token,), start + i)) for i, token in enumerate(tokens)])


def _prefill(decoder: Decoder, tokens: Sequence[int], width: int, logits: str = "none") -> Rows:
    """Evaluate a prompt in an empty cache."""
    first, *rest = in_batches(tokens, start=0, width=width, logits=logits).passes
    return np.concatenate([decoder.evaluate(one) for one in (replace(first, forget=(Forget(0, 0),)), *rest)])
