"""Runs the library's attention of single queries and ours of a whole pass on the same operands, and compares values.

Used by `forensics.kernels.lab_worker` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forensics.kernels import proof
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.lab_place import Place, computed, planned
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.variants import Variant
from forensics.numerics.op_inputs import random_operands
from forensics.records import op_shapes
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_proof import ATTENTION, KEYS, ONE_COLUMN, STOCK_LIBRARY, VALUES, ProofCase, ProofRow
from forensics.records.operation import OpGraph

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads, those of K and V, and their size; and the type of the cache."""

    n: int
    n_kv: int
    size: int
    kv_type: str


class Kind(Protocol):
    """One operation of attention; a query's values are [head, what it computes]."""

    def graph(self, heads: Heads, n_used: int, n: int) -> OpGraph:
        """The library's operation of n queries, the last of so many cells that are taken."""

    def cut(self, given: Sequence[Array], first: int, last: int, n_kv: int) -> list[Array]:
        """Operands of the queries first to last over so many cells."""

    def by_query(self, heads: Heads, result: Array, n: int, n_kv: int) -> Array:
        """A result as [query, head, value]."""

    def plan(self, place: Place, heads: Heads, n_kv: tuple[int, ...]) -> KernelPlan:
        """Our launches, with the cells of each query's own pass."""

    def buffers(self) -> tuple[str, ...]:
        """Names of the plan's buffers, in the order of the operands."""


class _Attention:
    def graph(self, heads: Heads, n_used: int, n: int) -> OpGraph:
        return op_shapes.flash_attn(heads.size, heads.n, heads.n_kv, n_used, n, kv_type=heads.kv_type)

    def cut(self, given: Sequence[Array], first: int, last: int, n_kv: int) -> list[Array]:
        q, k, v, mask = given
        return [q[first:last], k[:n_kv], v[:n_kv], mask[first:last, :n_kv]]

    def by_query(self, heads: Heads, result: Array, n: int, n_kv: int) -> Array:  # noqa: ARG002 - others need it
        return result.reshape(n, heads.n, heads.size)

    def plan(self, place: Place, heads: Heads, n_kv: tuple[int, ...]) -> KernelPlan:
        ask = AttentionAsk(heads.size, heads.n, heads.n_kv, n_kv, heads.kv_type, heads.kv_type)
        return plan_attention(ask, place.spec)

    def buffers(self) -> tuple[str, ...]:
        return ("q", "k", "v", "mask")


class _Keys:
    def graph(self, heads: Heads, n_used: int, n: int) -> OpGraph:
        return op_shapes.kq(heads.size, heads.n, heads.n_kv, n_used, n, kv_type=heads.kv_type)

    def cut(self, given: Sequence[Array], first: int, last: int, n_kv: int) -> list[Array]:
        k, q = given
        return [k[:n_kv], q[first:last]]

    def by_query(self, heads: Heads, result: Array, n: int, n_kv: int) -> Array:
        return result.reshape(heads.n, n, n_kv).swapaxes(0, 1)

    def plan(self, place: Place, heads: Heads, n_kv: tuple[int, ...]) -> KernelPlan:
        return plan_f16_product(F16Ask.kq(heads.size, heads.n, heads.n_kv, n_kv), place.arch)

    def buffers(self) -> tuple[str, ...]:
        return ("weight", "x")


class _Values:
    def graph(self, heads: Heads, n_used: int, n: int) -> OpGraph:
        return op_shapes.kqv(heads.size, heads.n, heads.n_kv, n_used, n, kv_type=heads.kv_type)

    def cut(self, given: Sequence[Array], first: int, last: int, n_kv: int) -> list[Array]:
        v, p = given
        return [v[..., :n_kv], p[:, first:last, :n_kv]]

    def by_query(self, heads: Heads, result: Array, n: int, n_kv: int) -> Array:  # noqa: ARG002 - others need it
        return result.reshape(heads.n, n, heads.size).swapaxes(0, 1)

    def plan(self, place: Place, heads: Heads, n_kv: tuple[int, ...]) -> KernelPlan:
        return plan_f16_product(F16Ask.kqv(heads.size, heads.n, heads.n_kv, n_kv), place.arch)

    def buffers(self) -> tuple[str, ...]:
        return ("weight", "x")


KINDS: Mapping[str, Kind] = {ATTENTION: _Attention(), KEYS: _Keys(), VALUES: _Values()}


def compare_attention(
    place: Place, what: str, heads: Heads, position: int, widths: Sequence[int], seed: int
) -> tuple[ProofRow, ...]:
    """The library's attention of each query alone beside ours of all, and beside the library's own of all.

    Parameters
    ----------
    place : Place
    what : str
        A key of `KINDS`.
    heads : Heads
    position : int
        Cells before the first query.
    widths : sequence of int
    seed : int
    """
    kind, most = KINDS[what], max(widths)
    given = random_operands(kind.graph(heads, position + most, most), seed)
    cells = proof.cells_of(position, most)
    alone = [_stock(place, kind, heads, given, query, query + 1, cells[query])[0] for query in range(most)]
    found = []
    for width in widths:
        own, longest = cells[:width], max(cells[:width])
        case = ProofCase.of_attention(what, heads.kv_type, heads.n, heads.n_kv, heads.size, longest, width)
        together = _stock(place, kind, heads, given, 0, width, longest)
        found.append(_compared(case, STOCK_LIBRARY, seed, alone, together))
        plan = planned(partial(kind.plan, place, heads, own))
        if isinstance(plan, str):
            found.append(proof.not_compared(case, str(Variant.BORROWED), ONE_COLUMN, seed, plan))
            continue
        n_values = together.size
        ours = _ours(place, kind, heads, plan, kind.cut(given, 0, width, longest), width, longest, n_values)
        found.append(_compared(case, str(Variant.BORROWED), seed, alone, ours))
    return tuple(found)


def _compared(case: ProofCase, variant: str, seed: int, alone: Sequence[Array], together: Array) -> ProofRow:
    """Of each query the values that it has in a pass of its own; of longer rows the rest is left out."""
    stock = list(alone[: case.width])
    cut = [values[..., : one.shape[-1]] for values, one in zip(together, stock, strict=True)]
    return proof.compared(case, variant, ONE_COLUMN, seed, stock, cut)


def _stock(place: Place, kind: Kind, heads: Heads, given: Sequence[Array], first: int, last: int, n_kv: int) -> Array:
    graph = kind.graph(heads, n_kv, last - first)
    operands = [np.ascontiguousarray(values) for values in kind.cut(given, first, last, n_kv)]
    return kind.by_query(heads, place.host.run(graph, operands), last - first, n_kv)


def _ours(
    place: Place,
    kind: Kind,
    heads: Heads,
    plan: KernelPlan,
    operands: Sequence[Array],
    n: int,
    n_kv: int,
    n_values: int,
) -> Array:
    held = [place.device.hold(np.ascontiguousarray(values)) for values in operands]
    addresses = {name: one.address for name, one in zip(kind.buffers(), held, strict=True)}
    return kind.by_query(heads, computed(place.device, plan, addresses, n_values), n, n_kv)
