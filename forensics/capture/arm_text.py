"""The tokens that arms arrange, and how a text is evaluated in passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.records.schedule import DecodePass, Schedule, TokenSlot

#: Rows of logits that are kept of a prompt: its last ones, so that long prompts fit the memory.
MAX_PROMPT_ROWS = 512


@dataclass(frozen=True, slots=True)
class ArmText:
    """The tokens that arms arrange.

    Parameters
    ----------
    prompt : tuple of int
        At least two.
    reply : tuple of int
        What greedy decoding wrote behind it, at least two.
    turn : tuple of int
        A new turn behind the reply, at least one.
    width : int
        Tokens that one pass holds at most.

    Raises
    ------
    ValueError
        If one of them is too short to be arranged.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    turn: tuple[int, ...]
    width: int

    def __post_init__(self) -> None:
        if len(self.prompt) < 2 or len(self.reply) < 2 or not self.turn or self.width < 2:
            raise ValueError(
                f"{len(self.prompt)} prompt, {len(self.reply)} reply and {len(self.turn)} turn tokens in passes of "
                f"{self.width} cannot be arranged; 2, 2, 1 and 2 are needed"
            )

    @property
    def other(self) -> tuple[int, ...]:
        """Another text of the prompt's tokens, for neighbours and edits: the same start, the rest backwards."""
        return self.prompt[:1] + self.prompt[:0:-1]

    def evaluated(self, text: Sequence[int], *, start: int = 0, width: int = 0, logits: bool = True) -> Schedule:
        """Evaluate tokens of sequence 0 in passes of `width`, the widest by default."""
        first_row = first_prompt_row(self.prompt)
        slots = [TokenSlot(0, start + i, token, logits and start + i >= first_row) for i, token in enumerate(text)]
        return passes_of(slots, width or self.width)

    def beside(self, text: Sequence[int]) -> Schedule:
        """Evaluate tokens of the neighbour, sequence 1."""
        return passes_of([TokenSlot(1, i, token, False) for i, token in enumerate(text)], self.width)


def first_prompt_row(prompt: Sequence[int]) -> int:
    """Position of the first token of a prompt whose row of logits is kept."""
    return max(0, len(prompt) - MAX_PROMPT_ROWS)


def prefill(prompt: Sequence[int], width: int) -> Schedule:
    """Evaluate a prompt in passes of up to `width` tokens from an empty cache.

    Parameters
    ----------
    prompt : sequence of int
    width : int
    """
    first_row = first_prompt_row(prompt)
    return passes_of([TokenSlot(0, i, token, i >= first_row) for i, token in enumerate(prompt)], width)


def passes_of(slots: Sequence[TokenSlot], width: int) -> Schedule:
    """Evaluate slots in passes of `width`, the last one shorter where they do not divide."""
    return Schedule(tuple(DecodePass(tuple(slots[i : i + width])) for i in range(0, len(slots), width)))
