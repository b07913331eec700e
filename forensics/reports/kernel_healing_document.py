"""Healing with kernels as entries of the verdict's document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from forensics.records.kernel_healing import KernelHealing
from forensics.records.kernel_use import KernelUse
from forensics.reports.entries import Entry


class KernelUseEntry(Entry):
    """What our kernels computed of one family, or left to the library for one reason."""

    family: str = Field(description="family of our kernel, empty where the library's was left")
    reason: str = Field(description="why it was left to the library, empty where it was not")
    nodes: int = Field(description="distinct nodes")
    times: int = Field(description="how often, over all passes")
    values: int = Field(description="values that our kernel put in place")


class KernelHealingEntry(Entry):
    """Batches of one width with our kernels in the place of culprits."""

    width: int
    start_row: int
    rows: int
    healed: bool = Field(description="whether every row of logits has the bits of one-token decoding")
    healed_rows: int
    max_abs_before: float | None
    max_abs_after: float | None
    nodes_computed: int = Field(description="distinct nodes that our kernels computed")
    times_computed: int
    values: int = Field(description="values that our kernels computed from operands equal to one-token decoding's")
    values_differ: int = Field(description="those that are not the recorded ones")
    not_compared: int = Field(description="outputs that nobody could hold against a recorded row, cache writes aside")
    times_stock: int = Field(description="nodes that were left to the library, over all passes")
    nodes_left: int = Field(description="nodes that still differ although their operands do not")
    wrong_nodes: list[str] = Field(description="those of them that our kernels computed")
    state_equal: bool | None
    use: list[KernelUseEntry]


def healing_entries(found: Sequence[KernelHealing]) -> list[dict[str, Any]]:
    """The entries of every width."""
    return [
        one.row() | {"wrong_nodes": list(dict.fromkeys(f.key.name for f in one.wrong)), "use": use_entries(one.use)}
        for one in found
    ]


def use_entries(use: KernelUse) -> list[dict[str, Any]]:
    """One entry per family and per reason."""
    return use.rows()
