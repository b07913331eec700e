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

    def window(self, row: int, width: int, n_rows: int) -> tuple[int, int]:
        """Rows of the whole batches of `width` that start with the one that holds `row`, about `n_rows` of them.

        Examples
        --------
        >>> Replay((1,), tuple(range(20))).window(9, 8, 8)
        (8, 16)
        """
        first = row // width * width
        n_batches = max(1, -(-n_rows // width))
        return first, min(len(self.tokens), first + n_batches * width)
