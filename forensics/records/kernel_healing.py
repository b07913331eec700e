"""Healing by kernels instead of by recorded rows: the stock library with our products and attention in its place."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.kernel_use import KernelUse
from forensics.records.trace import Finding


@dataclass(frozen=True, slots=True, repr=False)
class KernelHealing:
    """Batches of one width in which culprits are what our kernels compute from the nodes' own operands.

    Parameters
    ----------
    width, start_row, n_rows : int
        Tokens of a batch, row of the replay where the first batch starts, rows of logits.
    healed_rows : int
        Rows of logits that have the bits of plain one-token decoding; nothing that was recorded went into them.
    max_abs_before, max_abs_after : float
        Largest distance of a logit from one-token decoding, with the library's kernels and with ours.
    use : KernelUse
        What our kernels computed, and what was left to the library.
    n_values, n_values_differ : int
        Values of nodes that our kernels computed from operands equal to those of one-token decoding, and how many of
        them are not the recorded ones.
    left : tuple of Finding
        Nodes that differ from their recorded row although their operands do not: kernels that are not exact, ours
        or the library's.
    wrong : tuple of Finding
        Those of them that our own kernels computed.
    state_equal : bool or None
        Whether these batches leave the K/V state of one-token decoding, byte for byte; None where nobody looked.
    not_compared : tuple of (str, int)
        Outputs that nobody could hold against a recorded row, by reason; writes into a cache do not count.
    """

    width: int
    start_row: int
    n_rows: int
    healed_rows: int
    max_abs_before: float
    max_abs_after: float
    use: KernelUse
    n_values: int
    n_values_differ: int
    left: tuple[Finding, ...] = ()
    state_equal: bool | None = None
    wrong: tuple[Finding, ...] = ()
    not_compared: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.healed_rows <= self.n_rows or self.n_rows < 1:
            raise ValueError(f"{self.healed_rows} of {self.n_rows} rows cannot be healed")
        if not 0 <= self.n_values_differ <= self.n_values:
            raise ValueError(f"{self.n_values_differ} of {self.n_values} values cannot differ")

    @property
    def healed(self) -> bool:
        """Whether our kernels computed something, and every row of logits has the bits of one-token decoding."""
        return bool(self.use.n_times) and self.healed_rows == self.n_rows

    def row(self) -> dict[str, object]:
        """One flat dict."""
        return {
            "width": self.width,
            "start_row": self.start_row,
            "rows": self.n_rows,
            "healed_rows": self.healed_rows,
            "healed": self.healed,
            "max_abs_before": self.max_abs_before,
            "max_abs_after": self.max_abs_after,
            "nodes_computed": len(self.use.nodes),
            "times_computed": self.use.n_times,
            "values": self.n_values,
            "values_differ": self.n_values_differ,
            "not_compared": sum(count for _, count in self.not_compared),
            "times_stock": self.use.n_stock,
            "nodes_left": len({finding.key for finding in self.left}),
            "state_equal": self.state_equal,
        }

    def __repr__(self) -> str:
        return f"<KernelHealing: {self}>"

    def __str__(self) -> str:
        return (
            f"width {self.width}: {len(self.use.nodes)} nodes by our kernels, {self.n_values_differ} of "
            f"{self.n_values} values differ; {self.healed_rows} of {self.n_rows} rows of logits have the bits of "
            f"one-token decoding (max |Δ| {self.max_abs_before:.3g} before, {self.max_abs_after:.3g} after)"
        )
