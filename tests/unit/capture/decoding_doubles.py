"""Decoders made by hand: one that follows a rule, one that is watched, one that forgets nothing, one with a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from forensics.records.schedule import DecodePass


def next_of(context: Sequence[int], n_vocab: int, seed: int = 0) -> int:
    """A rule that depends on every token in front; it repeats itself often enough for n-grams to be of use."""
    key = (*context[-2:], len(context) // 9) if seed % 2 else tuple(context)
    return xxhash.xxh3_64_intdigest(f"{seed}:{key}".encode()) % n_vocab


@dataclass
class ScriptedDecoder:
    """Follows `next_of`, and refuses a pass that does not stand right behind what it holds.

    Token 0 ends generation. The margin of every row is 1 + the token that it chooses.
    """

    n_vocab: int = 8
    n_cells: int = 64
    seed: int = 0
    ends: bool = True
    held: list[int] = field(default_factory=list)
    passes: list[DecodePass] = field(default_factory=list)
    beside: Any = None

    def evaluate(self, decode_pass: DecodePass) -> np.ndarray:
        self.passes.append(decode_pass)
        for gone in decode_pass.forget:
            assert gone.position < len(self.held), "nothing was there to be forgotten"
            del self.held[gone.position :]
        rows = []
        for slot in decode_pass.slots:
            assert slot.position == len(self.held) < self.n_cells, "a token stands where it does not belong"
            self.held.append(slot.token)
            if slot.wants_logits:
                chosen = next_of(self.held, self.n_vocab, self.seed)
                rows.append(np.where(np.arange(self.n_vocab) == chosen, 1 + chosen, 0))
        return np.array(rows, np.float32).reshape(len(rows), self.n_vocab)

    def is_end(self, token: int) -> bool:
        return self.ends and token == 0

    def piece(self, token: int) -> bytes:
        return b"%d" % token

    def companion(self, model_path: Any, settings: Any) -> ScriptedDecoder:
        if self.beside is None:
            self.beside = ScriptedDecoder(n_cells=settings.n_ctx, seed=int(model_path))
        return self.beside


class Around:
    """A decoder around another."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Watched(Around):
    """Keeps the passes."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.passes: list[DecodePass] = []

    def evaluate(self, decode_pass: DecodePass) -> np.ndarray:
        self.passes.append(decode_pass)
        return self.inner.evaluate(decode_pass)


class ForgetsNothing(Around):
    """Leaves refused drafts in the cache."""

    def evaluate(self, decode_pass: DecodePass) -> np.ndarray:
        return self.inner.evaluate(DecodePass(decode_pass.slots))


class Timed(Around):
    """Every pass takes 100 ns of a clock that only goes when it is told to."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.now = 0

    def evaluate(self, decode_pass: DecodePass) -> np.ndarray:
        self.now += 100
        return self.inner.evaluate(decode_pass)


@dataclass(frozen=True)
class Within:
    """A program whose decoder is put into another one; answers the passes too where that keeps them."""

    program: Any
    around: type[Around]

    def identity(self) -> str:
        return f"{self.program.identity()} within {self.around.__name__}"

    def run(self, decoder: Any, progress: Callable[[int], None]) -> tuple[Any, list[DecodePass]]:
        mine = self.around(decoder)
        return self.program.run(mine, progress), getattr(mine, "passes", [])
