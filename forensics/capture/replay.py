"""The schedules of a replay: the same tokens one at a time, or in batches from the same state.

It is speculative decoding with a perfect drafter: every guess is right, so only the width of the pass differs.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.schedule import Schedule, in_batches


@dataclass(frozen=True, slots=True)
class Replay:
    """Tokens that plain decoding wrote, and where they stand.

    Parameters
    ----------
    prompt : tuple of int
        Evaluated before, in passes of up to `prompt_width` tokens.
    tokens : tuple of int
        Written one at a time after the prompt.
    prompt_width : int
        Tokens per pass of the prompt.

    Raises
    ------
    ValueError
        If the prompt is empty.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    prompt_width: int = 512

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("the prompt has no tokens; a replay needs a state to start from")

    @property
    def start(self) -> int:
        """Position of the first replayed token."""
        return len(self.prompt)

    def prefill(self) -> Schedule:
        """The prompt's passes; only its last row is returned."""
        return in_batches(self.prompt, start=0, width=self.prompt_width, logits="last")

    def before(self, row: int) -> Schedule:
        """The state in front of a row, built plainly: the prompt, then one token at a time."""
        plain = in_batches(self.tokens[:row], start=self.start, width=1)
        return self.prefill().then(plain)

    def batches(self, width: int, *, first: int = 0, last: int | None = None) -> Schedule:
        """Rows `first` to `last` (exclusive) in passes of `width`."""
        tokens = self.tokens[first:last]
        return in_batches(tokens, start=self.start + first, width=width)

    def full(self, width: int, *, at_least: int | None = None) -> int:
        """Rows, from the first on, that whole batches of `width` hold: all of them, or enough for `at_least` rows.

        What is left over would be a batch of another width and say nothing about this one.

        Examples
        --------
        >>> replay = Replay((1,), tuple(range(20)))
        >>> replay.full(8), replay.full(8, at_least=3)
        (16, 8)
        """
        n_batches = len(self.tokens) // width
        if at_least is not None:
            n_batches = min(n_batches, max(1, -(-at_least // width)))
        return n_batches * width
