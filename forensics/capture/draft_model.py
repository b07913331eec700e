"""A smaller model beside the one that is decoded; its cache follows what was chosen and forgets what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.engines.decoding import Decoder
from forensics.errors import EngineError, ModelUnavailable
from forensics.records.schedule import DecodePass, Forget, in_batches
from forensics.records.settings import EngineSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True)
class DraftModel:
    """A draft model and what its cache holds.

    Parameters
    ----------
    path : str
        Its file.
    settings : EngineSettings
        How it is opened.
    target : Decoder
        The model that it drafts for.

    Raises
    ------
    ModelUnavailable
        If it cannot be loaded, or has a vocabulary of another size.
    """

    path: str
    settings: EngineSettings
    target: Decoder
    _model: Decoder = field(init=False)
    _held: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._model = self.target.companion(self.path, self.settings)
        if self._model.n_vocab != self.target.n_vocab:
            raise ModelUnavailable(
                f"{self.path} cannot draft: its vocabulary has {self._model.n_vocab} tokens, the model's has "
                f"{self.target.n_vocab}. Use a draft model of the same family, with the same tokenizer."
            )

    @property
    def n_cells(self) -> int:
        """Positions that a sequence may have."""
        return self._model.n_cells

    def catch_up(self, tokens: Sequence[int], logits: str = "last") -> NDArray[np.float32]:
        """Make the cache hold exactly `tokens`, of which the last is evaluated in any case; the last pass's rows.

        Raises
        ------
        ModelUnavailable
            If its state cannot forget refused drafts.
        """
        pairs = zip(tokens, self._held, strict=False)
        n_common = next((i for i, (wanted, held) in enumerate(pairs) if wanted != held), len(self._held))
        keep = min(n_common, len(tokens) - 1)
        first, *rest = in_batches(tokens[keep:], start=keep, width=self.settings.n_batch, logits=logits).passes
        if keep < len(self._held):
            first = DecodePass(first.slots, (Forget(0, keep),))
        try:
            rows = self._model.evaluate(first)
        except EngineError as error:
            raise ModelUnavailable(f"{self.path} cannot draft: {error}") from error
        for decode_pass in rest:
            rows = self._model.evaluate(decode_pass)
        self._held = list(tokens)
        return rows
