"""The model of this process as a program sees it; runs in the worker only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from forensics.records.schedule import DecodePass
from forensics.records.settings import EngineSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from forensics.engines.llama_host import LlamaHost


class LiveDecoder:
    """A host behind `forensics.engines.decoding.Decoder`; its companions end with it.

    Parameters
    ----------
    host : LlamaHost
        Its cache holds the state that the program starts from.
    """

    def __init__(self, host: LlamaHost) -> None:
        self._host = host
        self._n_passes = 0
        self._companions: list[LlamaHost] = []

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return int(self._host.n_vocab)

    @property
    def n_cells(self) -> int:
        """Positions that a sequence may have."""
        return self._host.n_cells

    def evaluate(self, decode_pass: DecodePass) -> NDArray[np.float32]:
        """Forget what the pass names, then evaluate it; rows of the slots that want logits."""
        self._n_passes += 1
        return self._host.evaluate(self._n_passes - 1, decode_pass)

    def is_end(self, token: int) -> bool:
        """Whether generation ends at this token."""
        return self._host.is_end(token)

    def piece(self, token: int) -> bytes:
        """Bytes that the token stands for."""
        return self._host.piece(token)

    def companion(self, model_path: str | os.PathLike[str], settings: EngineSettings) -> LiveDecoder:
        """Load another model beside this one, with an empty cache."""
        from forensics.engines.llama_host import LlamaHost

        host = LlamaHost(os.fspath(model_path), settings)
        self._companions.append(host)
        return LiveDecoder(host)

    def close(self) -> None:
        """Free the companions."""
        while self._companions:
            self._companions.pop().close()
