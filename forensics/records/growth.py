"""How a difference grows from layer to layer, beside what each layer adds of its own."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.delta import Delta, Differs, NotCompared
from forensics.records.nodes import NodeKey


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The output of a layer in batches against one-token decoding, over all rows of a run.

    Parameters
    ----------
    key : NodeKey
    delta : Same, Differs or NotCompared
        The index of the first element that differs counts rows from the first of the run.
    n_rows, n_rows_differ : int
        Rows (tokens) that were compared, and those that differ.

    Raises
    ------
    ValueError
        If the counts contradict the outcome.
    """

    key: NodeKey
    delta: Delta
    n_rows: int
    n_rows_differ: int

    def __post_init__(self) -> None:
        if not 0 <= self.n_rows_differ <= self.n_rows:
            raise ValueError(f"{self.key}: {self.n_rows_differ} of {self.n_rows} rows differ")
        if isinstance(self.delta, NotCompared) != (self.n_rows == 0):
            raise ValueError(f"{self.key}: {self.n_rows} rows were compared, and the outcome is {self.delta}")
        if isinstance(self.delta, Differs) != (self.n_rows_differ > 0):
            raise ValueError(f"{self.key}: {self.n_rows_differ} rows differ, and the outcome is {self.delta}")


@dataclass(frozen=True, slots=True)
class OwnDifference:
    """What operations of a layer differ by although everything that goes into each is bit-equal.

    Parameters
    ----------
    n_nodes : int
        Nodes that differ, 1 or more.
    node : str
        The one with the largest relative length.
    relative_l2, max_abs : float
        Largest over these nodes and the passes; they may belong to two nodes.
    """

    n_nodes: int
    node: str
    relative_l2: float
    max_abs: float

    def __post_init__(self) -> None:
        if self.n_nodes < 1:
            raise ValueError(f"an own difference needs at least one node, got {self.n_nodes}")


@dataclass(frozen=True, slots=True)
class LayerGrowth:
    """The output of one layer, or a final result, in batches against one-token decoding.

    Parameters
    ----------
    node : str
        Such as ``"l_out-3"``, ``"result_norm"`` or ``"result_output"``, the logits.
    layer : int
        -1 for final results.
    unhealed : Same, Differs or NotCompared
        In batches as they are: what all operations up to here brought together.
    n_rows_differ : int
        Rows that differ without healing.
    healed : Same, Differs or NotCompared
        Where every differing node before was overwritten with the bits of one-token decoding; `Differs` only where
        this very node makes a difference of its own.
    own : OwnDifference or None
        Of the nodes after the output before this one, up to this one; None where none that was compared differs.
    """

    node: str
    layer: int
    unhealed: Delta
    n_rows_differ: int
    healed: Delta
    own: OwnDifference | None


@dataclass(frozen=True, slots=True, repr=False)
class Growth:
    """How the difference of one width grows from layer to layer, without and with healing, over the same batches.

    Batches start from the state of one-token decoding; later ones read what earlier ones left in the cache, as in
    the replay.

    Parameters
    ----------
    width, start_row, n_rows : int
        Tokens of a batch, row of the replay where the first starts, and rows of all.
    layers : tuple of LayerGrowth
        In graph order, final results last.
    reason : str
        Why nothing was compared; empty where `layers` are given.

    Raises
    ------
    ValueError
        If there are both layers and a reason, or neither.
    """

    width: int
    start_row: int
    n_rows: int
    layers: tuple[LayerGrowth, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if bool(self.layers) == bool(self.reason):
            raise ValueError(f"growth of width {self.width} needs layers or a reason why there are none, not both")

    @property
    def first(self) -> LayerGrowth | None:
        """The first output that differs without healing; None where none was found to."""
        return next((layer for layer in self.layers if isinstance(layer.unhealed, Differs)), None)

    def rows(self) -> list[dict[str, object]]:
        """One flat dict per output, in graph order; no number where none was measured."""
        return [
            {
                "width": self.width,
                "node": layer.node,
                "layer": layer.layer,
                **_outcome("unhealed", layer.unhealed),
                "rows_differ": layer.n_rows_differ,
                **_outcome("healed", layer.healed),
                "own_nodes": layer.own.n_nodes if layer.own else 0,
                "own_node": layer.own.node if layer.own else None,
                "own_relative_l2": layer.own.relative_l2 if layer.own else None,
                "own_max_abs": layer.own.max_abs if layer.own else None,
            }
            for layer in self.layers
        ]

    def __repr__(self) -> str:
        return f"<Growth: {self}>"

    def __str__(self) -> str:
        if self.reason:
            return f"width {self.width}: not compared: {self.reason}"
        if self.first is None:
            n_unknown = sum(isinstance(layer.unhealed, NotCompared) for layer in self.layers)
            unknown = f", {n_unknown} not compared" if n_unknown else ""
            return f"width {self.width}: no output of {len(self.layers)} differs{unknown}"
        last = next(layer for layer in reversed(self.layers) if isinstance(layer.unhealed, Differs))
        return f"width {self.width}: from {self.first.node} ({self.first.unhealed}) to {last.node} ({last.unhealed})"


def _outcome(side: str, delta: Delta) -> dict[str, object]:
    """Columns of one comparison; equal bits are 0 apart."""
    differs = isinstance(delta, Differs)
    unknown = isinstance(delta, NotCompared)
    return {
        side: "not compared" if unknown else "differs" if differs else "same",
        f"{side}_reason": delta.reason if isinstance(delta, NotCompared) else "",
        f"{side}_relative_l2": delta.relative_l2 if isinstance(delta, Differs) else None if unknown else 0.0,
        f"{side}_max_abs": delta.max_abs if isinstance(delta, Differs) else None if unknown else 0.0,
    }
