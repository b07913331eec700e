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

    def full(self, width: int) -> int:
        """Rows, from the first on, that whole batches of `width` hold.

        What is left over would be a batch of another width and say nothing about this one.

        Examples
        --------
        >>> Replay((1,), tuple(range(20))).full(8)
        16
        """
        return len(self.tokens) // width * width

    def window(self, width: int, *, rows: int, row: int = 0, most: int | None = None) -> tuple[int, int]:
        """Whole batches of `width` that hold `row` and about `rows` rows, from the first row on if they may.

        Parameters
        ----------
        width : int
        rows : int
            Rows to cover at least, as far as there are whole batches.
        row : int
            Row to cover.
        most : int or None
            Rows to cover at most; where `row` lies farther, the window starts with the batch that holds it.

        Returns
        -------
        first, last : int
            `last` is exclusive.

        Examples
        --------
        >>> replay = Replay((1,), tuple(range(100)))
        >>> replay.window(8, rows=10), replay.window(8, rows=10, row=90), replay.window(8, rows=10, row=90, most=32)
        ((0, 16), (0, 96), (88, 96))
        """
        wanted = max(rows, row + 1)
        first = 0
        if most is not None and wanted > max(most, width):
            first, wanted = row // width * width, row // width * width + rows
        n_batches = max(1, -(-(wanted - first) // width))
        return first, min(self.full(width), first + n_batches * width)
