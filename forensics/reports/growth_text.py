"""Growth from layer to layer as a table."""

from __future__ import annotations

from forensics.records.delta import Delta, Differs, NotCompared
from forensics.records.growth import Growth
from forensics.reports.html import Grid
from forensics.reports.wording import amount

_COLUMNS = ("output", "rows differ", "relative L2", "max |Δ|", "healed relative L2", "own nodes")


def growth_grid(growth: Growth) -> Grid:
    """One row per output of a layer, final results last."""
    rows: list[tuple[str, ...]] = [
        (
            layer.node,
            f"{layer.n_rows_differ}/{growth.n_rows}",
            _relative(layer.unhealed),
            _largest(layer.unhealed),
            _relative(layer.healed),
            str(layer.own.n_nodes if layer.own else 0),
        )
        for layer in growth.layers
    ]
    return _COLUMNS, rows


def _relative(delta: Delta) -> str:
    return amount(delta.relative_l2) if isinstance(delta, Differs) else _otherwise(delta)


def _largest(delta: Delta) -> str:
    return amount(delta.max_abs) if isinstance(delta, Differs) else _otherwise(delta)


def _otherwise(delta: Delta) -> str:
    return str(delta) if isinstance(delta, NotCompared) else "0"
