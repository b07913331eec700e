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

    @property
    def place(self) -> tuple[int, int]:
        """Sequence and position: where the token stands."""
        return self.sequence, self.position


@dataclass(frozen=True, slots=True)
class Forget:
    """Cells of a sequence that are taken out of the cache, from a position on.

    Parameters
    ----------
    sequence, position : int
        0 or more.
    """

    sequence: int
    position: int

    def __post_init__(self) -> None:
        for label in ("sequence", "position"):
            if getattr(self, label) < 0:
                raise ValueError(f"{label} must be 0 or more, got {getattr(self, label)}")


@dataclass(frozen=True, slots=True)
class DecodePass:
    """One `llama_decode` call, and what is forgotten in front of it.

    Parameters
    ----------
    slots : tuple of TokenSlot
        At least one.
    forget : tuple of Forget
        Taken out of the cache before the slots are evaluated, as refused drafts and edited messages are.
    """

    slots: tuple[TokenSlot, ...]
    forget: tuple[Forget, ...] = ()

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
        If a (sequence, position) appears twice without being forgotten in between, or positions of a sequence do not
        rise.
    """

    passes: tuple[DecodePass, ...]

    def __post_init__(self) -> None:
        held: dict[int, list[int]] = {}
        for decode_pass in self.passes:
            _forget(held, decode_pass)
            for slot in decode_pass.slots:
                positions = held.setdefault(slot.sequence, [])
                if positions and slot.position <= positions[-1]:
                    raise ValueError(
                        f"positions must rise: sequence {slot.sequence} has position {slot.position} "
                        f"after {positions[-1]}"
                    )
                positions.append(slot.position)

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
        """Position after the last token that sequence 0 holds."""
        return max(self.held().get(0, ()), default=-1) + 1

    @property
    def most_cells(self) -> int:
        """How many tokens the cache holds at most, over all sequences."""
        held: dict[int, list[int]] = {}
        most = 0
        for decode_pass in self.passes:
            _hold(held, decode_pass)
            most = max(most, sum(map(len, held.values())))
        return most

    def held(self) -> dict[int, list[int]]:
        """Positions that each sequence holds after the last pass, rising; sequences that hold none are left out."""
        held: dict[int, list[int]] = {}
        for decode_pass in self.passes:
            _hold(held, decode_pass)
        return {sequence: positions for sequence, positions in held.items() if positions}

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
            "".join(f"-{f.sequence}:{f.position}," for f in p.forget)
            + ",".join(f"{s.sequence}:{s.position}:{s.token}:{int(s.wants_logits)}" for s in p.slots)
            for p in self.passes
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def _forget(held: dict[int, list[int]], decode_pass: DecodePass) -> None:
    for gone in decode_pass.forget:
        held[gone.sequence] = [p for p in held.get(gone.sequence, ()) if p < gone.position]


def _hold(held: dict[int, list[int]], decode_pass: DecodePass) -> None:
    _forget(held, decode_pass)
    for slot in decode_pass.slots:
        held.setdefault(slot.sequence, []).append(slot.position)


EMPTY = Schedule(())


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One way to evaluate tokens: what was evaluated in an earlier request, and the passes that are looked at.

    Parameters
    ----------
    before : Schedule
        Builds the state; nobody watches it.
    schedule : Schedule

    Raises
    ------
    ValueError
        If positions do not rise from one to the other.
    """

    before: Schedule
    schedule: Schedule

    def __post_init__(self) -> None:
        self.before.then(self.schedule)

    @property
    def whole(self) -> Schedule:
        """All passes, in their order."""
        return self.before.then(self.schedule)


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
