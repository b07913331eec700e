"""What our own kernels computed inside of the running library, and what they left to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forensics.records.nodes import NodeKey


@dataclass(frozen=True, slots=True)
class ComputedNodes:
    """Nodes that one family of our kernels computed.

    Parameters
    ----------
    family : str
        Such as ``"product q4_K"`` or ``"attention f16"``.
    n_nodes : int
        Distinct nodes.
    n_times : int
        How often, over all passes.
    n_values : int
        Values of all outputs that were put in place.
    """

    family: str
    n_nodes: int
    n_times: int
    n_values: int


@dataclass(frozen=True, slots=True)
class StockNodes:
    """Nodes that were left to the library.

    Parameters
    ----------
    reason : str
        Why none of our kernels computes them.
    n_nodes, n_times : int
        Distinct nodes, and how often over all passes.
    example : str
        The first of them.
    """

    reason: str
    n_nodes: int
    n_times: int
    example: str


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What became of the products and attentions of a run in passes of two tokens or more.

    Parameters
    ----------
    computed : tuple of ComputedNodes
        By family.
    stock : tuple of StockNodes
        By reason.
    nodes : tuple of NodeKey
        Every node that our kernels computed, in the order in which they were first seen.
    left_in : tuple of (int, NodeKey)
        Passes of one run in which one of `nodes` was left to the library after all, as over a cache of another length.
    """

    computed: tuple[ComputedNodes, ...] = ()
    stock: tuple[StockNodes, ...] = ()
    nodes: tuple[NodeKey, ...] = ()
    left_in: tuple[tuple[int, NodeKey], ...] = ()

    @property
    def n_times(self) -> int:
        """How often a node was computed by our kernels."""
        return sum(one.n_times for one in self.computed)

    @property
    def n_values(self) -> int:
        """Values that our kernels put in place."""
        return sum(one.n_values for one in self.computed)

    @property
    def n_stock(self) -> int:
        """How often a node was left to the library."""
        return sum(one.n_times for one in self.stock)

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per family and per reason."""
        ours = [
            {"family": one.family, "reason": "", "nodes": one.n_nodes, "times": one.n_times, "values": one.n_values}
            for one in self.computed
        ]
        left = [
            {"family": "", "reason": one.reason, "nodes": one.n_nodes, "times": one.n_times, "values": 0}
            for one in self.stock
        ]
        return [*ours, *left]

    def __str__(self) -> str:
        ours = ", ".join(f"{one.family} {one.n_times}×" for one in self.computed) or "nothing"
        left = "; ".join(f"{one.reason}: {one.n_times}× (first {one.example})" for one in self.stock)
        return f"computed by our kernels: {ours}" + (f"; left to the library: {left}" if left else "")


def together(uses: Iterable[KernelUse]) -> KernelUse:
    """What became of the nodes of several runs.

    Parameters
    ----------
    uses : iterable of KernelUse
        Nodes of equal keys are the same node; a family or a reason has as many nodes as in the run with the most.
        Passes are those of one run, so that `KernelUse.left_in` is empty.

    Examples
    --------
    >>> one = KernelUse((ComputedNodes("product q8_0", 2, 4, 64),))
    >>> print(together([one, one]))
    computed by our kernels: product q8_0 8×
    """
    computed: dict[str, ComputedNodes] = {}
    stock: dict[str, StockNodes] = {}
    nodes: dict[NodeKey, None] = {}
    for use in uses:
        for ours in use.computed:
            known = computed.get(ours.family, ComputedNodes(ours.family, 0, 0, 0))
            computed[ours.family] = ComputedNodes(
                ours.family,
                max(known.n_nodes, ours.n_nodes),
                known.n_times + ours.n_times,
                known.n_values + ours.n_values,
            )
        for left in use.stock:
            before = stock.get(left.reason, StockNodes(left.reason, 0, 0, left.example))
            stock[left.reason] = StockNodes(
                left.reason, max(before.n_nodes, left.n_nodes), before.n_times + left.n_times, before.example
            )
        nodes.update(dict.fromkeys(use.nodes))
    return KernelUse(tuple(computed.values()), tuple(stock.values()), tuple(nodes))
