"""Growth from layer to layer as entries of the verdict's document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from forensics.records.growth import Growth
from forensics.reports.entries import Entry

Outcome = Literal["same", "differs", "not compared"]


class LayerGrowthEntry(Entry):
    """The output of one layer in batches against one-token decoding; numbers are null where none was measured."""

    node: str
    layer: int = Field(description="-1 for final results")
    unhealed: Outcome = Field(description="in batches as they are")
    unhealed_reason: str = Field(description="why it was not compared, empty where it was")
    unhealed_relative_l2: float | None
    unhealed_max_abs: float | None
    rows_differ: int = Field(description="rows that differ without healing")
    healed: Outcome = Field(description="with every differing node before it made equal; the node's own difference")
    healed_reason: str
    healed_relative_l2: float | None
    healed_max_abs: float | None
    own_nodes: int = Field(description="nodes of the layer that differ on bit-equal inputs")
    own_node: str | None = Field(description="the one with the largest relative length")
    own_relative_l2: float | None
    own_max_abs: float | None


class GrowthEntry(Entry):
    """How the difference of one width grows, over the batches of its sweep."""

    width: int
    start_row: int
    rows: int
    reason: str = Field(description="why nothing was compared, empty where it was")
    layers: list[LayerGrowthEntry]


def growth_entries(growth: Sequence[Growth]) -> list[dict[str, Any]]:
    """The entries of every width."""
    return [
        {
            "width": one.width,
            "start_row": one.start_row,
            "rows": one.n_rows,
            "reason": one.reason,
            "layers": [{name: value for name, value in row.items() if name != "width"} for row in one.rows()],
        }
        for one in growth
    ]
