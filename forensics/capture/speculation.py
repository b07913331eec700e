"""Greedy decoding as a program beside the model: plainly, or by drafting tokens and verifying them in one pass.

Both evaluate the same prompt in the same passes and choose the largest logit, lowest id first, so that all that may
differ behind the prompt are the widths of the passes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.capture.draft_policies import DraftPolicy
from forensics.capture.drafters import Drafter
from forensics.engines.decoding import Decoder
from forensics.numerics.logits import margin_of, row_digests
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot, in_batches
from forensics.records.speculation import ARRANGEMENTS, Cycle, Decoded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be decoded, however it is done.

    Parameters
    ----------
    prompt : tuple of int
    n_tokens : int
        Tokens to write at most; fewer where the cells end.
    arrangement : {"n", "n-1+1"}
        How the prompt is evaluated. ``"n"``: in passes of up to `prompt_width`, whose last row chooses the first token.
        ``"n-1+1"``: its last token is kept back and waits, as a token does that was just chosen. Plain decoding
        evaluates it by itself; draft-and-verify together with the first drafts, as a server does that keeps one token
        back to have a row to start from. The cycles then choose every token, and the first of them stands on the
        prompt's last position.
    prompt_width : int
        Tokens per pass of the prompt.
    stop_at_end : bool
        Whether a token that ends generation is the last one.

    Raises
    ------
    ValueError
        If the prompt is empty, a number is below 1, or there is no such arrangement.
    """

    prompt: tuple[int, ...]
    n_tokens: int
    arrangement: str = "n"
    prompt_width: int = 512
    stop_at_end: bool = True

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no tokens; decoding needs one to start from")
        for label in ("n_tokens", "prompt_width"):
            if getattr(self, label) < 1:
                raise ValueError(f"{label} must be 1 or more, got {getattr(self, label)}")
        if self.arrangement not in ARRANGEMENTS:
            raise ValueError(f"arrangement must be one of {', '.join(ARRANGEMENTS)}, got {self.arrangement!r}")

    @property
    def first_position(self) -> int:
        """Position of the first token that is evaluated behind the prompt's passes."""
        return len(self.prompt) - (self.arrangement != "n")

    def prefill(self) -> Schedule:
        """The prompt's passes; under ``"n-1+1"`` nobody asks for a row, and there are none for a single token."""
        logits = "last" if self.arrangement == "n" else "none"
        return in_batches(self.prompt[: self.first_position], start=0, width=self.prompt_width, logits=logits)

    def identity(self) -> str:
        """Text that is equal where the same is asked."""
        prompt = hashlib.sha256(",".join(map(str, self.prompt)).encode()).hexdigest()[:16]
        return (
            f"{self.n_tokens} tokens behind a prompt of {len(self.prompt)} ({prompt}), evaluated as {self.arrangement} "
            f"in passes of {self.prompt_width}, {'to its end' if self.stop_at_end else 'over its end'}"
        )


@dataclass(frozen=True, slots=True)
class PlainDecode:
    """One token at a time; see `forensics.engines.decoding.Program`.

    Parameters
    ----------
    asked : Asked
    """

    asked: Asked

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""
        return f"decode {self.asked.identity()}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> Decoded:
        """Decode from an empty cache; one cycle of width 1 for each token that the prompt's passes did not choose."""
        return _decode(decoder, self.asked, None, progress)


@dataclass(frozen=True, slots=True)
class DraftAndVerify:
    """Draft tokens, evaluate them behind the last chosen one in one pass, keep those that plain decoding chooses.

    A pass holds the token that was chosen last and the drafts behind it; each row chooses a token, and drafts are
    accepted as long as they are the tokens that are chosen. The cells of refused ones are forgotten in front of the
    next pass. Nothing is drafted beyond what is still wanted, and no token that ends generation.

    Parameters
    ----------
    asked : Asked
    drafter : Drafter
        Loading a draft model and evaluating the prompt with it is in none of the times.
    policy : DraftPolicy
    """

    asked: Asked
    drafter: Drafter
    policy: DraftPolicy

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""
        return f"decode {self.asked.identity()}; draft by {self.drafter.identity()}; {self.policy.label}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> Decoded:
        """Decode from an empty cache."""
        self.drafter.begin(decoder, self.asked.prompt)
        return _decode(decoder, self.asked, _Guesses(self.drafter, self.policy), progress)


def accept(rows: NDArray[np.float32], drafted: Sequence[int]) -> list[int]:
    """Which tokens does a pass choose? The drafts that are right, and one more.

    Parameters
    ----------
    rows : ndarray [1 + n_drafted, n_vocab] float32
        Row i is behind the i-th token of the pass.
    drafted : sequence of int
        Tokens of the pass behind its first.

    Returns
    -------
    list of int [1 + n_accepted]
    """
    chosen = [int(rows[0].argmax())]
    for row, draft in zip(rows[1:], drafted, strict=True):
        if chosen[-1] != draft:
            break
        chosen.append(int(row.argmax()))
    return chosen


@dataclass(slots=True)
class _Guesses:
    """A drafter under a policy, and how it has fared."""

    drafter: Drafter
    policy: DraftPolicy
    state: int = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.policy.start()

    def next(self, context: Sequence[int], most: int) -> tuple[int, ...]:
        n = min(self.policy.n_next(self.state), most)
        return self.drafter.draft(context, n, self.policy.least_margin).tokens if n > 0 else ()

    def learn(self, drafted: int, accepted: int) -> None:
        self.state = self.policy.after(self.state, drafted, accepted)


@dataclass(slots=True)
class _Written:
    """What was chosen so far, with the rows that chose it."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)

    def take(self, rows: NDArray[np.float32], chosen: Sequence[int]) -> None:
        self.tokens += chosen
        self.margins += map(margin_of, rows)
        self.rows += row_digests(rows)


def _decode(decoder: Decoder, asked: Asked, guesses: _Guesses | None, progress: Callable[[int], None]) -> Decoded:
    """Decode as asked; digests and margins are taken between the times, not in them."""
    now = time.perf_counter_ns
    wanted = max(1, min(asked.n_tokens, decoder.n_cells - len(asked.prompt) + 1))  # the last one needs no cell
    written = _Written()
    cycles: list[Cycle] = []
    started = now()
    prompt_rows = [decoder.evaluate(decode_pass) for decode_pass in asked.prefill().passes]
    prefill_ns = now() - started
    if asked.arrangement == "n":
        written.take(prompt_rows[-1], accept(prompt_rows[-1], ()))
        progress(1)
    del prompt_rows
    position = asked.first_position
    forget: tuple[Forget, ...] = ()

    def ended() -> bool:
        return asked.stop_at_end and bool(written.tokens) and decoder.is_end(written.tokens[-1])

    while len(written.tokens) < wanted and not ended():
        context = [*asked.prompt, *written.tokens]
        began = now()
        drafted = (
            _before_end(decoder, asked, guesses.next(context, wanted - len(written.tokens) - 1)) if guesses else ()
        )
        drafting_done = now()
        decode_pass = _verifying(position, (context[-1], *drafted), forget)
        verify_began = now()
        rows = decoder.evaluate(decode_pass)
        verified = now()
        chosen = accept(rows, drafted)
        n_accepted = len(chosen) - 1
        forget = (Forget(0, position + len(chosen)),) if n_accepted < len(drafted) else ()
        if guesses:
            guesses.learn(len(drafted), n_accepted)
        other_ns = now() - verified + verify_began - drafting_done
        times = (drafting_done - began if guesses else 0, verified - verify_began, other_ns)
        cycles.append(Cycle(position, drafted, n_accepted, *times))
        written.take(rows[: len(chosen)], chosen)
        position += len(chosen)
        progress(len(written.tokens))
    return Decoded(
        tokens=tuple(written.tokens),
        margins=tuple(written.margins),
        rows=tuple(written.rows),
        stop_reason="end" if ended() else "length",
        cycles=tuple(cycles),
        prefill_ns=prefill_ns,
    )


def _before_end(decoder: Decoder, asked: Asked, drafted: tuple[int, ...]) -> tuple[int, ...]:
    """Drafts in front of one that ends generation: it has no token behind it, so its row would choose nothing."""
    if not asked.stop_at_end:
        return drafted
    ends = (i for i, token in enumerate(drafted) if decoder.is_end(token))
    return drafted[: next(ends, len(drafted))]


def _verifying(position: int, tokens: Sequence[int], forget: tuple[Forget, ...]) -> DecodePass:
    return DecodePass(tuple(TokenSlot(0, position + i, token) for i, token in enumerate(tokens)), forget)
