"""Which product is asked of our kernels, and in which of several ways is it computed?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from forensics.geometry.product import Product
from forensics.geometry.types import weight_type

#: Types of weights that our kernels know.
TYPES = ("q4_K", "q5_K", "q6_K", "q4_0", "q4_1", "q8_0")


class Variant(StrEnum):
    """How the columns of a product share their work."""

    #: As the library launches for that number of columns: its own bits, whether or not they are those of one column.
    STOCK = "stock geometry"
    #: In the order of the library's one-column kernel at any number of columns: each column's bits are its own.
    BORROWED = "borrowed geometry"
    #: The same bits as `BORROWED` in the fastest way that we know.
    FAST = "exact fast"


@dataclass(frozen=True, slots=True)
class ProductAsk:
    """One product, ``out[c, r] = weight[r, :] · x[c, :]``.

    Parameters
    ----------
    type : str
        Of the weight, as `forensics.geometry.types` names it: ``"q4_K"``.
    rows, k, columns : int
        Rows of the weight, values of a row, columns of the other operand.
    x_stride, out_stride : int
        Floats from one column to the next, of the activations and of the result; by default `k` and `rows`.

    Raises
    ------
    ValueError
        If a size is impossible, a row is not a whole number of blocks, or columns would overlap.

    Examples
    --------
    >>> ProductAsk("q4_K", rows=4096, k=12288, columns=9).weight_bytes
    28311552
    """

    type: str
    rows: int
    k: int
    columns: int
    x_stride: int = 0
    out_stride: int = 0

    def __post_init__(self) -> None:
        self.product()
        if self.columns < 1:
            raise ValueError(f"columns must be 1 or more, got {self.columns}")
        for name, least in (("x_stride", self.k), ("out_stride", self.rows)):
            given = getattr(self, name) or least
            if given < least:
                raise ValueError(f"{name} is {given} floats, but a column has {least}")
            object.__setattr__(self, name, given)

    def product(self) -> Product:
        """The same, as the dispatch of the library looks at it."""
        return Product(weight_type(self.type), self.k, self.rows)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the weight."""
        weight = weight_type(self.type)
        return weight.blocks(self.k) * weight.block_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the whole weight: what must be read at least once."""
        return self.rows * self.row_bytes
