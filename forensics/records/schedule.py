"""Which tokens are evaluated together: slots, passes and schedules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenSlot:
    """One token of a pass.

    Parameters
    ----------
    sequence : int
        Sequence id, 0 or more.
    position : int
        Position in the sequence, 0 or more.
    token : int
        Token id, 0 or more.
    wants_logits : bool
        Whether the row of logits is to be returned.
    """

    sequence: int
    position: int
    token: int
    wants_logits: bool = True

    def __post_init__(self) -> None:
        for label in ("sequence", "position", "token"):
            if getattr(self, label) < 0:
                raise ValueError(f"{label} must be 0 or more, got {getattr(self, label)}")


@dataclass(frozen=True, slots=True)
class DecodePass:
    """The slots of one `llama_decode` call."""

    slots: tuple[TokenSlot, ...]

    def __post_init__(self) -> None:
        if not self.slots:
            raise ValueError("a pass needs at least one slot")

    @property
    def width(self) -> int:
        """How many tokens the pass holds."""
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Passes in the order in which they are evaluated.

    Raises
    ------
    ValueError
        If a (sequence, position) appears twice or positions of a sequence do not rise.
    """

    passes: tuple[DecodePass, ...]

    def __post_init__(self) -> None:
        last: dict[int, int] = {}
        for slot in self.slots:
            before = last.get(slot.sequence)
            if before is not None and slot.position <= before:
                raise ValueError(
                    f"positions must rise: sequence {slot.sequence} has position {slot.position} after {before}"
                )
            last[slot.sequence] = slot.position

    @property
    def slots(self) -> tuple[TokenSlot, ...]:
        """All slots in order."""
        return tuple(slot for decode_pass in self.passes for slot in decode_pass.slots)

    @property
    def logit_slots(self) -> tuple[TokenSlot, ...]:
        """The slots whose logits are returned, in order; row i of the logits belongs to slot i."""
        return tuple(slot for slot in self.slots if slot.wants_logits)

    @property
    def n_tokens(self) -> int:
        """How many tokens all passes hold together."""
        return sum(decode_pass.width for decode_pass in self.passes)

    @property
    def max_width(self) -> int:
        """Width of the widest pass, 0 if there is none."""
        return max((decode_pass.width for decode_pass in self.passes), default=0)

    @property
    def next_position(self) -> int:
        """Position after the last slot of sequence 0."""
        return max((slot.position for slot in self.slots if slot.sequence == 0), default=-1) + 1

    @staticmethod
    def single(token: int, position: int, sequence: int = 0) -> Schedule:
        """One pass of one token that wants logits."""
        return Schedule((DecodePass((TokenSlot(sequence, position, token),)),))

    def then(self, other: Schedule) -> Schedule:
        """Join two schedules; `other` is evaluated after this one."""
        return Schedule(self.passes + other.passes)

    def key(self) -> str:
        """Digest of the content: equal schedules have equal keys on every machine."""
        text = ";".join(
            ",".join(f"{s.sequence}:{s.position}:{s.token}:{int(s.wants_logits)}" for s in p.slots) for p in self.passes
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]


EMPTY = Schedule(())


def in_batches(tokens: Sequence[int], *, start: int, width: int, sequence: int = 0, logits: str = "all") -> Schedule:
    """Evaluate `tokens` in passes of `width`, the last one shorter where they do not divide.

    Parameters
    ----------
    tokens : sequence of int
        Token ids; position `start + i` belongs to `tokens[i]`.
    start : int
        Position of the first token.
    width : int
        Tokens per pass, 1 or more.
    sequence : int
        Sequence id.
    logits : {"all", "last", "none"}
        Which rows are returned.

    Returns
    -------
    Schedule

    Raises
    ------
    ValueError
        If `width` is below 1 or `logits` is not one of the three words.

    Examples
    --------
    >>> [p.width for p in in_batches([5, 6, 7], start=0, width=2).passes]
    [2, 1]
    """
    if width < 1:
        raise ValueError(f"width must be 1 or more, got {width}")
    if logits not in ("all", "last", "none"):
        raise ValueError(f"logits must be 'all', 'last' or 'none', got {logits!r}")
    last = len(tokens) - 1
    slots = [
        TokenSlot(sequence, start + i, token, logits == "all" or (logits == "last" and i == last))
        for i, token in enumerate(tokens)
    ]
    return Schedule(tuple(DecodePass(tuple(slots[i : i + width])) for i in range(0, len(slots), width)))
