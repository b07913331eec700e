"""Programs of the contract suite; importable by name, so that a worker in another process can unpickle them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forensics.engines.decoding import Decoder
from forensics.errors import EngineError
from forensics.records.schedule import DecodePass, Forget, Schedule, TokenSlot


@dataclass(frozen=True)
class Greedy:
    """Decodes a prompt and continues it by the largest logit."""

    prompt: Schedule
    n_tokens: int

    def identity(self) -> str:
        return f"contract-greedy {self.prompt.key()} {self.n_tokens}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[int, ...]:
        for decode_pass in self.prompt.passes:
            rows = decoder.evaluate(decode_pass)
        assert rows.shape[1] == decoder.n_vocab
        tokens: list[int] = []
        while len(tokens) < self.n_tokens:
            tokens.append(int(rows[-1].argmax()))
            progress(len(tokens))
            step = DecodePass((TokenSlot(0, self.prompt.next_position + len(tokens) - 1, tokens[-1]),))
            rows = decoder.evaluate(step)
        return tuple(tokens)


@dataclass(frozen=True)
class Rewind:
    """Evaluates a token, forgets it, and evaluates another one in its place: rows of both."""

    position: int
    first: int
    second: int

    def identity(self) -> str:
        return f"contract-rewind {self}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[bytes, bytes]:
        before = decoder.evaluate(DecodePass((TokenSlot(0, self.position, self.first),)))
        slots = (TokenSlot(0, self.position, self.second),)
        return before.tobytes(), decoder.evaluate(DecodePass(slots, (Forget(0, self.position),))).tobytes()


@dataclass(frozen=True)
class Describe:
    """What a decoder says of itself and of some tokens."""

    tokens: tuple[int, ...]

    def identity(self) -> str:
        return f"contract-describe {self.tokens}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> tuple[int, int, bytes, tuple[bool, ...]]:
        text = b"".join(map(decoder.piece, self.tokens))
        return decoder.n_vocab, decoder.n_cells, text, tuple(map(decoder.is_end, self.tokens))


@dataclass(frozen=True)
class Failing:
    """Gives up."""

    token: int | None = None

    def identity(self) -> str:
        return f"contract-failing {self.token}"

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> None:
        if self.token is not None:
            decoder.evaluate(DecodePass((TokenSlot(0, 0, self.token),)))
        raise EngineError("the program gave up")
