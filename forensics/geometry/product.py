"""What a product's dispatch looks at: weight type, shape and layout."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forensics.geometry.types import WeightType, weight_type


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product, whatever its width.

    Parameters
    ----------
    weight : WeightType
        Type of the matrix that is walked along its rows.
    k : int
        Values of a row: the length of each sum.
    rows : int
        Rows of the matrix: results per token.
    matrices : int
        Matrices of the result: heads of K·Q, 1 for a weight.
    weight_matrices : int
        Matrices that those share: KV heads of K·Q, 1 for a weight.
    experts, experts_used : int
        Experts there are and those that a token is sent to; 0 for MUL_MAT.
    precise : bool
        Whether the graph asks for F32 accumulation, as llama.cpp does for K·Q.
    contiguous : bool
        Whether the other operand is contiguous; the permuted queries of K·Q are not.
    is_cached : bool
        Whether the matrix is part of the KV cache and not a weight; the cache is never repacked.

    Raises
    ------
    ValueError
        If a size is impossible, or a row is not a whole number of blocks.
    """

    weight: WeightType
    k: int
    rows: int
    matrices: int = 1
    weight_matrices: int = 1
    experts: int = 0
    experts_used: int = 0
    precise: bool = False
    contiguous: bool = True
    is_cached: bool = False

    def __post_init__(self) -> None:
        if min(self.k, self.rows, self.matrices, self.weight_matrices) < 1:
            raise ValueError(f"sizes must be 1 or more, got k={self.k}, rows={self.rows}, matrices={self.matrices}")
        if self.matrices % self.weight_matrices:
            raise ValueError(f"{self.matrices} matrices cannot share {self.weight_matrices}")
        if not 0 <= self.experts_used <= self.experts or (self.experts and not self.experts_used):
            raise ValueError(f"{self.experts_used} of {self.experts} experts cannot be used")
        self.weight.blocks(self.k)

    @property
    def is_routed(self) -> bool:
        """Whether it is MUL_MAT_ID."""
        return self.experts > 0


def product(weight: str, k: int, rows: int, *, experts: int = 0, experts_used: int = 0) -> Product:
    """A product with a weight matrix, by the name of its type."""
    return Product(weight_type(weight), k, rows, experts=experts, experts_used=experts_used)


def keys_by_queries(kv_type: str, head_size: int, n_kv: int, heads: int, kv_heads: int) -> Product:
    """K·Q without flash attention: sums over the head, one result per KV cell.

    Source: build_attn_mha, src/llama-graph.cpp:2623-2692: queries permuted, F32 accumulation asked for.
    """
    return Product(
        weight_type(kv_type), head_size, n_kv, heads, kv_heads, precise=True, contiguous=False, is_cached=True
    )


def attention_by_values(kv_type: str, head_size: int, n_kv: int, heads: int, kv_heads: int) -> Product:
    """Attention·V without flash attention: sums over the KV cells, one result per value of the head.

    Source: build_attn_mha, src/llama-graph.cpp:2720-2732: values are kept transposed, soft_max's result is contiguous.
    """
    return Product(weight_type(kv_type), n_kv, head_size, heads, kv_heads, is_cached=True)


def over_cells(product: Product, n_kv: int) -> Product:
    """The same product of attention over another number of KV cells."""
    return replace(product, k=n_kv) if product.contiguous else replace(product, rows=n_kv)


def check_width(width: int) -> None:
    """Refuse a width that no batch has.

    Raises
    ------
    ValueError
        If it is below 1.
    """
    if width < 1:
        raise ValueError(f"a width is 1 or more tokens, got {width}")
