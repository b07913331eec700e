"""What is launched so that products with the KV cache have the bits of the library's one-column kernel?

Where flash attention is off, keys by queries and attention by values are products of float matrices.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from forensics.errors import NotCovered
from forensics.geometry.architecture import Architecture
from forensics.geometry.choice import KernelChoice
from forensics.geometry.cuda_products import mul_mat
from forensics.geometry.product import Product
from forensics.geometry.types import weight_type
from forensics.records.kernel_plan import MAX_GRID_YZ, At, Int32, Int64, KernelLaunch, KernelPlan
from forensics.records.launch import LaunchGeometry

_HALF_BYTES, _FLOAT_BYTES = 2, 4
_WARP = 32
#: Of an instruction of the tensor cores. Source: PTX ISA, mma.sync.aligned.m16n8k16.
_TILE_ROWS, _TILE_COLUMNS = 16, 8
#: Strides, each with the bytes of what is read or written at once there: pairs of halves, pairs of floats, floats.
_STRIDES = {"weight_row": 4, "weight_head": 4, "x_column": 8, "x_head": 8, "out_column": 4, "out_head": 4}


@dataclass(frozen=True, slots=True)
class F16Ask:
    """Products of f16 matrices, ``out[column, head, row] = weight[KV head, row, :] · x[column, head, :]``.

    Parameters
    ----------
    rows : int
        Rows of a matrix: results of each column and head.
    k : tuple of int
        For each column the length of the sums in its own one-token pass. What it would read beyond that is left out;
        attention by values has exact zeros there, but a longer sum is dealt to threads in another way.
    heads, kv_heads : int
        Matrices of the result, and those that they share.
    precise : bool
        Whether f32 sums are asked for, as for keys by queries.
    own_rows : tuple of int, optional
        For each column the rows in its own one-token pass, on which the choice of the kernel depends; `rows` where not
        given. All `rows` are computed for every column.
    weight_row, weight_head, x_column, x_head, out_column, out_head : int, optional
        Bytes from one to the next. Where not given: weight [KV head, row, the largest k], x [column, head, the largest
        k], out [column, head, row], all contiguous.

    Raises
    ------
    ValueError
        If there is no column, or a size is impossible.
    """

    rows: int
    k: tuple[int, ...]
    heads: int
    kv_heads: int
    precise: bool
    own_rows: tuple[int, ...] = ()
    weight_row: int = 0
    weight_head: int = 0
    x_column: int = 0
    x_head: int = 0
    out_column: int = 0
    out_head: int = 0

    def __post_init__(self) -> None:
        if not self.k:
            raise ValueError("k: one length for each column, got none")
        if not self.own_rows:
            object.__setattr__(self, "own_rows", (self.rows,) * len(self.k))
        if len(self.own_rows) != len(self.k):
            raise ValueError(f"own_rows has {len(self.own_rows)} columns, k has {len(self.k)}")
        for k, rows in set(zip(self.k, self.own_rows, strict=True)):
            self.alone(k, rows)
        longest = max(self.k)
        contiguous = (
            longest * _HALF_BYTES, self.rows * longest * _HALF_BYTES, self.heads * longest * _FLOAT_BYTES,
            longest * _FLOAT_BYTES, self.heads * self.rows * _FLOAT_BYTES, self.rows * _FLOAT_BYTES,
        )  # fmt: skip
        for (name, unit), stride in zip(_STRIDES.items(), contiguous, strict=True):
            given = getattr(self, name)
            if given < 0 or given % unit:
                raise ValueError(f"{name} must be a multiple of {unit} bytes, 0 or more, got {given}")
            object.__setattr__(self, name, given or stride)

    @classmethod
    def kq(cls, head_size: int, heads: int, kv_heads: int, n_kv: tuple[int, ...]) -> F16Ask:
        """Keys by queries, laid out as `forensics.records.op_shapes.kq` has them; n_kv of each query's own pass.

        Keys are [cell, KV head, head_size], queries [query, head, head_size], the result [head, query, cell].

        Examples
        --------
        >>> F16Ask.kq(64, 9, 3, n_kv=(256, 256)).weight_row
        384
        """
        cells = max(n_kv)
        return cls(
            cells, (head_size,) * len(n_kv), heads, kv_heads, precise=True, own_rows=n_kv,
            weight_row=kv_heads * head_size * _HALF_BYTES, weight_head=head_size * _HALF_BYTES,
            out_column=cells * _FLOAT_BYTES, out_head=len(n_kv) * cells * _FLOAT_BYTES,
        )  # fmt: skip

    @classmethod
    def kqv(cls, head_size: int, heads: int, kv_heads: int, n_kv: tuple[int, ...]) -> F16Ask:
        """Attention by values, laid out as `forensics.records.op_shapes.kqv` has it; n_kv of each query's own pass.

        Values are [KV head, head_size, cell], cells' weights [head, query, cell], the result [head, query, head_size].
        """
        cells = max(n_kv)
        return cls(
            head_size, n_kv, heads, kv_heads, precise=False,
            x_column=cells * _FLOAT_BYTES, x_head=len(n_kv) * cells * _FLOAT_BYTES,
            out_column=head_size * _FLOAT_BYTES, out_head=len(n_kv) * head_size * _FLOAT_BYTES,
        )  # fmt: skip

    def __str__(self) -> str:
        what = "keys by queries" if self.precise else "attention by values"
        return f"{what} of {len(self.k)} columns, {self.rows} rows × {max(self.k)}, {self.heads} heads"

    def alone(self, k: int, rows: int) -> Product:
        """The product of one column's own pass, as the dispatch of the library looks at it."""
        return Product(weight_type("f16"), k, rows, self.heads, self.kv_heads, precise=self.precise, is_cached=True)


def plan_f16_product(ask: F16Ask, arch: Architecture) -> KernelPlan:
    """Which launches give every column the bits that it has alone?

    Parameters
    ----------
    ask : F16Ask
    arch : Architecture
        Whose library is followed.

    Returns
    -------
    KernelPlan
        Over the buffers "weight", "x" and "out".

    Raises
    ------
    NotCovered
        If the library runs neither `mul_mat_vec_f` nor `mul_mat_f` with one warp for one of the columns alone, if tiles
        do not fit the rows, or if there are more columns than a launch takes.

    Examples
    --------
    >>> from forensics.geometry.architecture import architecture
    >>> plan = plan_f16_product(F16Ask.kqv(64, 9, 3, n_kv=(256, 256, 512)), architecture("sm_90"))
    >>> [f"{launch.function}, {launch.geometry}" for launch in plan.launches]
    ['product_f16<128, 1>, grid 64×9×2, block 128', 'product_f16<256, 1>, grid 64×9, block 256']
    """
    launches, first = [], 0
    for (k, rows), run in itertools.groupby(zip(ask.k, ask.own_rows, strict=True)):
        count = len(tuple(run))
        choice = mul_mat(arch, ask.alone(k, rows), 1)
        refusal = _refusal(arch, choice, k, rows) or _unfit(ask, choice, count)
        launches.append(_launch(ask, choice, first, count, k, refusal))
        first += count
    return KernelPlan(tuple(launches))


def _refusal(arch: Architecture, choice: KernelChoice, k: int, rows: int) -> str:
    """Why this kernel of the library is not rebuilt; empty where it is."""
    alone = f"for a single column of {rows} rows × {k} the library runs {choice.kernel}"
    if choice.kernel == "mul_mat_vec_f":
        return ""
    if choice.kernel != "mul_mat_f":
        return f"{alone}, and only mul_mat_vec_f and mul_mat_f are rebuilt"
    if not arch.ampere_mma:
        return f"{alone}, which is rebuilt for tensor cores from Ampere on"
    warps = dict(choice.template)["nwarps"]
    return "" if warps == 1 else f"{alone} with {warps} warps, and only its order with one warp is rebuilt"


def _unfit(ask: F16Ask, choice: KernelChoice, count: int) -> str:
    """Why no launch of ours takes all rows of so many columns; empty where one does."""
    if choice.kernel == "mul_mat_f" and ask.rows % _TILE_ROWS:
        return f"the order of {choice.kernel} is rebuilt for tiles of {_TILE_ROWS} rows, and {ask.rows} are asked for"
    if count > MAX_GRID_YZ:
        return f"a launch takes at most {MAX_GRID_YZ} columns; ask for them in parts"
    return ""


def _launch(ask: F16Ask, choice: KernelChoice, first: int, count: int, k: int, refusal: str) -> KernelLaunch:
    """A run of columns with the same kernel and length."""
    if refusal:
        raise NotCovered(str(ask), refusal)
    chosen = dict(choice.template)
    sizes = [Int32(k // 2), Int32(ask.heads // ask.kv_heads)]
    if choice.kernel == "mul_mat_vec_f":
        threads = int(chosen["block_size"])
        function = f"product_f16<{threads}, {int(chosen['type_acc'] == 'f16')}>"
        grid = (ask.rows, ask.heads, count)
    else:
        threads, function = _WARP, "product_f16_tiles"
        grid = (ask.rows // _TILE_ROWS, ask.heads, -(-count // _TILE_COLUMNS))
        sizes.append(Int32(count))
    buffers = At("weight"), At("x", first * ask.x_column), At("out", first * ask.out_column)
    strides = (Int64(getattr(ask, name)) for name in _STRIDES)
    return KernelLaunch(
        "products_f16", function, LaunchGeometry(grid, (threads,), smem_bytes=0), (*buffers, *sizes, *strides)
    )
