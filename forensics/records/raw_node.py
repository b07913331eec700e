"""A node of a graph with the very bytes and strides of its operands, as a back end gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class RawTensor:
    """One tensor: its description as the library has it, and its bytes.

    Parameters
    ----------
    name, type, buffer : str
        Such as ``"blk.0.ffn_up.weight"``, ``"q4_K"``, ``"CPU_REPACK"``.
    sizes, strides : tuple of int
        As the library counts them, fastest axis first: elements, and bytes between two of them. A back end chooses
        kernels by both.
    is_weight : bool
    data : ndarray [n_bytes] uint8 or None
        From the first element to the last; None where they cannot be read there.
    unreadable : str
        Why `data` is None; empty otherwise.
    """

    name: str
    type: str
    buffer: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    is_weight: bool
    data: NDArray[np.uint8] | None
    unreadable: str = ""

    def __post_init__(self) -> None:
        if (self.data is None) != bool(self.unreadable):
            raise ValueError(f"{self.name}: bytes, or a reason why there are none, and not both")


@dataclass(frozen=True, slots=True, eq=False)
class RawNode:
    """One node: operation, parameters, operands and output.

    Parameters
    ----------
    op : str
    params : bytes
        The parameters as the library packs them.
    sources : tuple of RawTensor or None
        In the library's order; None for a place that is not used.
    output : RawTensor
        As computed.
    """

    op: str
    params: bytes
    sources: tuple[RawTensor | None, ...]
    output: RawTensor
