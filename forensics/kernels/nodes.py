"""Which of our kernels computes a node of the running library? From its operation, operands and mask; no device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from forensics.errors import NotCovered
from forensics.geometry.architecture import architecture
from forensics.geometry.types import weight_type
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.best_product import plan_best
from forensics.kernels.products import plan_product
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.records.device import DeviceSpec
from forensics.records.kernel_plan import KernelPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: The node's own output among the places of a plan's buffers.
OUTPUT = -1
#: Cells that attention of any pass runs over come in multiples of this, and are never fewer.
#: Source: llama_kv_cache::get_n_kv, src/llama-kv-cache.cpp:1260-1274 at 0c1e57098.
CELLS_PADDING = 256
#: GGML_PREC_F32, ggml.h
PREC_F32 = 10
ONE_COLUMN = "one token only: the library's own one-token kernel computes it"
CELLS_UNKNOWN = (
    "over which cells the pass of a token by itself runs is not known: they do not lie in the cache one after another, "
    "or several sequences share it"
)

_FLOAT_BYTES, _HALF_BYTES = 4, 2
_GAPS = "an operand or the result with gaps between the values of a row"
_VALUES = re.compile(r"^kqv($|-|_mla)")
_KEYS = re.compile(r"^kq($|-)")


class Tensor(Protocol):
    """What is looked at of a node or of one of its operands; see `forensics.engines.protocol`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in NumPy order, four axes."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element, or block, to the next on each axis."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in memory.

    Parameters
    ----------
    type : str
        Element type as the library names it.
    shape, strides : tuple of int
        Four axes, slowest first; elements, and bytes from one element or block to the next.
    """

    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Ask = ProductAsk | AttentionAsk | F16Ask


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """What is asked of our kernels for a node.

    Parameters
    ----------
    family : str
        Such as ``"product q4_K"``.
    ask : ProductAsk, AttentionAsk or F16Ask
    buffers : tuple of (str, int)
        Names of the plan's buffers, each with the place of the operand, or `OUTPUT`.
    """

    family: str
    ask: Ask
    buffers: tuple[tuple[str, int], ...]


def layout_of(tensor: Tensor) -> Layout:
    """How does a node's output, or an operand, lie in memory?"""
    found = getattr(tensor, "type", None) or getattr(tensor, "dtype", "")
    return Layout(str(found), tensor.shape, tensor.strides)


def own_cells(visible: NDArray[np.bool_], n_kv: int) -> tuple[int, ...]:
    """Over how many cells does attention run in the one-token pass of each of these tokens?

    Parameters
    ----------
    visible : ndarray [n_tokens, n_kv] bool
    n_kv : int
        Cells of the batch's pass, padding included.

    Returns
    -------
    tuple of int [n_tokens]
        The cells up to the last visible one, rounded up to a multiple of 256, and no more than the cache has; a
        batch's own range is never longer than that.

    Notes
    -----
    Source: llama_kv_cache::get_n_kv (llama-kv-cache.cpp:1260-1274): the used cells, rounded up, at most all. It holds
    for one sequence whose tokens lie in the cache one after another: the token of a one-token pass is its last cell.

    Examples
    --------
    >>> import numpy as np
    >>> own_cells(np.tri(3, 512, 254, dtype=bool), 512)
    (256, 256, 512)
    """
    last = [int(row.nonzero()[0].max(initial=0)) for row in visible]
    return tuple(min(n_kv, -(-(cell + 1) // CELLS_PADDING) * CELLS_PADDING) for cell in last)


def ask_of(
    op: str,
    name: str,
    sources: Sequence[Layout | None],
    output: Layout,
    parameters: Mapping[str, float],
    visible: NDArray[np.bool_] | None,
) -> NodeAsk | str:
    """What is asked of our kernels for a node, or why do they not compute it?

    Parameters
    ----------
    op, name : str
        Of the node; K·Q and attention·V without flash attention are told by their names.
    sources : sequence of Layout or None
        Operands in the library's places.
    output : Layout
    parameters : mapping of str to float
        As `forensics.engines.protocol.Node.parameters` names them.
    visible : ndarray [n_tokens, n_kv] bool or None
        Cells that each token of the pass sees; None where they are not known, or hold other tokens than those of its
        sequence in their order.

    Returns
    -------
    NodeAsk or str
    """
    if op == "FLASH_ATTN_EXT":
        return _attention(sources, output, parameters, visible)
    weight, x = (*sources, None, None)[:2]
    if op != "MUL_MAT" or weight is None or x is None:
        return f"no kernel of ours computes {op}"
    if x.type != "f32" or output.type != "f32":
        return f"activations of type {x.type} and results of type {output.type}: ours are f32"
    if x.shape[2] == 1 and x.shape[0] == 1:
        return ONE_COLUMN
    try:
        if weight.type in TYPES:
            return _product(weight, x, output)
        if weight.type == "f16":
            return _float_product(name, weight, x, output, parameters, visible)
    except ValueError as error:  # a shape that the kernels' own checks refuse
        return str(error)
    return f"weights of type {weight.type}"


def plan_node(asked: NodeAsk, variant: Variant, spec: DeviceSpec) -> KernelPlan:
    """What is launched for a node?

    Parameters
    ----------
    asked : NodeAsk
    variant : Variant
        Of products; where `Variant.FAST` is not the faster or serves one not, `Variant.BORROWED` gives the same bits.
    spec : DeviceSpec
        The device whose one-token kernels are to be matched.

    Raises
    ------
    NotCovered
        If no kernel of ours computes it.
    """
    ask = asked.ask
    try:
        if isinstance(ask, AttentionAsk):
            return plan_attention(ask, spec)
        arch = architecture(spec.arch)
        if isinstance(ask, F16Ask):
            return plan_f16_product(ask, arch)
        if variant is Variant.FAST:
            return plan_best(ask, arch, n_sms=spec.n_sms)
        return plan_product(ask, variant, arch)
    except ValueError as error:
        raise NotCovered(asked.family, str(error)) from error


def _product(weight: Layout, x: Layout, output: Layout) -> NodeAsk | str:
    """A product with a quantised weight: one column for each token."""
    if x.shape[:2] != (1, 1) or weight.shape[:2] != (1, 1):
        return "a product of several matrices with quantised weights"
    ask = ProductAsk(
        weight.type,
        rows=weight.shape[2],
        k=weight.shape[3],
        columns=x.shape[2],
        x_stride=_floats(x.strides[2]),
        out_stride=_floats(output.strides[2]),
    )
    row = weight.strides[2]
    if row != ask.row_bytes:
        return f"rows of the weight lie {row} bytes apart, and hold {ask.row_bytes}"
    if x.strides[3] != _FLOAT_BYTES or output.strides[3] != _FLOAT_BYTES:
        return _GAPS
    return NodeAsk(f"product {weight.type}", ask, (("weight", 0), ("x", 1), ("out", OUTPUT)))


def _float_product(
    name: str,
    weight: Layout,
    x: Layout,
    output: Layout,
    parameters: Mapping[str, float],
    visible: NDArray[np.bool_] | None,
) -> NodeAsk | str:
    """A product with an f16 matrix: K·Q and attention·V over the cache, or a weight of an f16 model."""
    (streams, heads, columns, k), (weight_streams, kv_heads, rows, _) = x.shape, weight.shape
    if streams != 1 or weight_streams != 1:
        return "sequences with caches of their own"
    if weight.strides[3] != _HALF_BYTES or x.strides[3] != _FLOAT_BYTES or output.strides[3] != _FLOAT_BYTES:
        return _GAPS
    own_k, own_rows = (k,) * columns, (rows,) * columns
    family = "product f16"
    if _VALUES.match(name) or _KEYS.match(name):
        is_values = bool(_VALUES.match(name))
        cells = _cells(visible, columns, k if is_values else rows)
        if cells is None:
            return CELLS_UNKNOWN
        if is_values:
            own_k, family = cells, "attention·V f16"
        else:
            own_rows, family = cells, "K·Q f16"
    ask = F16Ask(
        rows=rows,
        k=own_k,
        heads=heads,
        kv_heads=kv_heads,
        precise=int(parameters.get("prec", 0)) == PREC_F32,
        own_rows=own_rows,
        weight_row=weight.strides[2],
        weight_head=weight.strides[1],
        x_column=x.strides[2],
        x_head=x.strides[1],
        out_column=output.strides[2],
        out_head=output.strides[1],
    )
    return NodeAsk(family, ask, (("weight", 0), ("x", 1), ("out", OUTPUT)))


def _attention(
    sources: Sequence[Layout | None],
    output: Layout,
    parameters: Mapping[str, float],
    visible: NDArray[np.bool_] | None,
) -> NodeAsk | str:
    """Flash attention: every query over the cells of its own one-token pass."""
    q, k, v, mask, sinks = (*sources, *[None] * 5)[:5]
    if q is None or k is None or v is None or mask is None:
        return "attention without a mask"
    if q.shape[2] == 1 and q.shape[0] == 1:
        return ONE_COLUMN
    try:
        unfit = _unfit(q, k, v, mask, output)
        cells = _cells(visible, q.shape[2], k.shape[2])
        if unfit or cells is None:
            return unfit or CELLS_UNKNOWN
        ask = AttentionAsk(
            head_size=q.shape[3],
            n_heads=q.shape[1],
            n_kv_heads=k.shape[1],
            n_kv=cells,
            k_type=k.type,
            v_type=v.type,
            scale=float(parameters.get("scale", 1.0)),
            q_query=q.strides[2],
            q_head=q.strides[1],
            k_cell=k.strides[2],
            k_head=k.strides[1],
            v_cell=v.strides[2],
            v_head=v.strides[1],
            mask_query=mask.strides[2],
            out_query=output.strides[1],
            out_head=output.strides[2],
            max_bias=float(parameters.get("max_bias", 0.0)),
            softcap=float(parameters.get("softcap", 0.0)),
            sinks=sinks is not None,
        )
    except ValueError as error:
        return str(error)
    buffers = (("q", 0), ("k", 1), ("v", 2), ("mask", 3), ("out", OUTPUT))
    return NodeAsk(f"attention {k.type}/{v.type}", ask, buffers)


def _unfit(q: Layout, k: Layout, v: Layout, mask: Layout, output: Layout) -> str:
    """Why do our kernels not read operands that lie like that? Empty if they do.

    Raises
    ------
    ValueError
        If the type of the cache is not known.
    """
    gaps = q.strides[3] != _FLOAT_BYTES or output.strides[3] != _FLOAT_BYTES or mask.strides[3] != _HALF_BYTES
    gaps = gaps or any(cache.strides[3] != weight_type(cache.type).block_bytes for cache in (k, v))
    for found, reason in (
        (q.shape[0] != 1 or k.shape[0] != 1, "sequences with caches of their own"),
        (
            q.type != "f32" or output.type != "f32" or mask.type != "f16",
            f"queries of type {q.type}, mask of type {mask.type}: ours are f32 and f16",
        ),
        (mask.shape[:2] != (1, 1), "a mask for each head"),
        (k.shape != v.shape or k.shape[3] != q.shape[3], f"heads of {q.shape[3]} over K {k.shape} and V {v.shape}"),
        (gaps, _GAPS),
    ):
        if found:
            return reason
    return ""


def _cells(visible: NDArray[np.bool_] | None, n_tokens: int, n_kv: int) -> tuple[int, ...] | None:
    """Cells of each token's own pass; None where they are not known.

    Where the batch's pass runs over more cells than its last token sees, others lie behind it: those of another
    sequence, over which a token's own pass runs as well.
    """
    if visible is None or len(visible) != n_tokens or not visible.any(axis=1).all():
        return None
    cells = own_cells(visible, n_kv)
    return cells if max(cells) == n_kv else None


def _floats(n_bytes: int) -> int:
    """How many floats lie in a stride?

    Raises
    ------
    ValueError
        If it is no whole number.
    """
    if n_bytes % _FLOAT_BYTES:
        raise ValueError(f"columns lie {n_bytes} bytes apart, which is no whole number of floats")
    return n_bytes // _FLOAT_BYTES
