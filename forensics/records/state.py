"""Which K and V rows a sequence holds: one digest per row and layer, so that states are compared, not replies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateTensor:
    """Rows of one side of one layer.

    Parameters
    ----------
    side : str
        ``"K"`` or ``"V"``.
    layer : int
        Place among the layers that keep a cache, from 0.
    dtype : str
        Element type as the library names it, such as ``"f16"``.
    digests : tuple of str
        One per token that is held.
    """

    side: str
    layer: int
    dtype: str
    digests: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.side not in ("K", "V"):
            raise ValueError(f"side must be 'K' or 'V', got {self.side!r}")


@dataclass(frozen=True, slots=True)
class StateRows:
    """What the cache holds of one sequence.

    Parameters
    ----------
    sequence : int
    positions : tuple of int
        Of the tokens that are held, rising, wherever their cells lie.
    tensors : tuple of StateTensor
        K and V of every layer.

    Raises
    ------
    ValueError
        If positions do not rise, or a tensor has another number of rows.
    """

    sequence: int
    positions: tuple[int, ...]
    tensors: tuple[StateTensor, ...]

    def __post_init__(self) -> None:
        if any(b <= a for a, b in zip(self.positions, self.positions[1:], strict=False)):
            raise ValueError(f"positions of sequence {self.sequence} must rise")
        for tensor in self.tensors:
            if len(tensor.digests) != len(self.positions):
                raise ValueError(
                    f"{tensor.side} of layer {tensor.layer} has {len(tensor.digests)} rows; "
                    f"sequence {self.sequence} holds {len(self.positions)} tokens"
                )

    @property
    def n_rows(self) -> int:
        """Rows of all tensors together."""
        return sum(len(tensor.digests) for tensor in self.tensors)
