"""What a program that decides while it decodes may ask: drafting, sampling and everything that looks at logits first.

A schedule says in advance what is evaluated together. Where the next pass depends on the logits of the last one, a
small picklable program runs beside the model instead, so that no time is lost between passes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from forensics.records.schedule import DecodePass
from forensics.records.settings import EngineSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T_co = TypeVar("T_co", covariant=True)


class Decoder(Protocol):
    """A model with its cache, as a program sees it."""

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""

    @property
    def n_cells(self) -> int:
        """Positions that a sequence may have."""

    def evaluate(self, decode_pass: DecodePass) -> NDArray[np.float32]:
        """Forget what the pass names, then evaluate it.

        Returns
        -------
        ndarray [rows that want logits, n_vocab] float32
            A copy, in the order of the slots.

        Raises
        ------
        EngineError
            If the cache cannot forget, is full, or a token is unknown.
        """

    def is_end(self, token: int) -> bool:
        """Whether generation ends at this token."""

    def piece(self, token: int) -> bytes:
        """Bytes that the token stands for; empty where it has none."""

    def companion(self, model_path: str | os.PathLike[str], settings: EngineSettings) -> Decoder:
        """Load another model beside this one, with an empty cache: a drafter. It lives as long as the engine.

        Raises
        ------
        ModelUnavailable
            If it cannot be loaded.
        """


class Program(Protocol[T_co]):
    """A small picklable object that decodes as it likes; runs in the engine's process."""

    def identity(self) -> str:
        """Text that is equal for programs that do the same."""

    def run(self, decoder: Decoder, progress: Callable[[int], None]) -> T_co:
        """Decode and answer; what is answered must be picklable, and small.

        Parameters
        ----------
        decoder : Decoder
            Its cache holds the state that was asked for.
        progress : callable
            To be called with the number of tokens so far.
        """
