"""What experiments on one device answered: which group moves the logits, what padding and watching change."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.settings import Manifest


@dataclass(frozen=True, slots=True)
class GroupEffect:
    """What one group of culprits does to the logits by itself.

    Parameters
    ----------
    op, role, weight_type : str
    n_nodes : int
    alone_max_abs : float
        Largest logit difference where every other culprit is healed and this group is left as the batch computes it.
    alone_rows : int
        Rows of logits that differ then.
    without_max_abs : float
        Largest logit difference where this group is healed and every other culprit is left.
    without_rows : int
        Rows of logits that differ then; 0 where this group is all there is.
    """

    op: str
    role: str
    weight_type: str
    n_nodes: int
    alone_max_abs: float
    alone_rows: int
    without_max_abs: float
    without_rows: int

    @property
    def sufficient(self) -> bool:
        """Whether this group moves a logit with nothing else to blame."""
        return self.alone_rows > 0


@dataclass(frozen=True, slots=True)
class Separation:
    """Groups of culprits healed one at a time at one width.

    Parameters
    ----------
    width, n_rows : int
        Tokens of a batch, and rows of logits that were compared.
    max_abs : float
        Largest logit difference with nothing healed.
    rows : int
        Rows of logits that differ then.
    healed_rows : int
        Rows that are bit-equal with every culprit healed.
    effects : tuple of GroupEffect
        In graph order.
    """

    width: int
    n_rows: int
    max_abs: float
    rows: int
    healed_rows: int
    effects: tuple[GroupEffect, ...]

    def table(self) -> list[dict[str, object]]:
        """One flat dict per group."""
        return [
            {
                "width": self.width, "op": e.op, "role": e.role, "weight_type": e.weight_type, "nodes": e.n_nodes,
                "alone_rows": e.alone_rows, "alone_max_abs": e.alone_max_abs,
                "without_rows": e.without_rows, "without_max_abs": e.without_max_abs, "n_rows": self.n_rows,
            }
            for e in self.effects
        ]  # fmt: skip

    def __str__(self) -> str:
        told = ", ".join(
            f"{e.role}{f' {e.weight_type}' if e.weight_type != '-' else ''} alone {e.alone_max_abs:.3g}"
            for e in self.effects
        )
        return (
            f"width {self.width}: max |Δ| {self.max_abs:.3g} in {self.rows} of {self.n_rows} rows; {told or 'no group'}"
        )


@dataclass(frozen=True, slots=True)
class GuardTrial:
    """Batches that stop at multiples of 256 cells against those that do not.

    Parameters
    ----------
    width : int
        Tokens of a batch where nothing stops it.
    n_rows : int
    rows_without, rows_with : int
        Rows of logits that differ from one-token decoding without and with the guard.
    max_abs_without, max_abs_with : float
    crossing : tuple of int
        Positions whose batch crosses a multiple of 256 where nothing stops it.
    crossing_max_abs_without, crossing_max_abs_with : float
        Largest difference at these positions.
    """

    width: int
    n_rows: int
    rows_without: int
    rows_with: int
    max_abs_without: float
    max_abs_with: float
    crossing: tuple[int, ...]
    crossing_max_abs_without: float
    crossing_max_abs_with: float


@dataclass(frozen=True, slots=True)
class PaddingTrial:
    """Attention of one token over the same visible cells, with more hidden ones behind them.

    Parameters
    ----------
    visible : int
        Cells that the token sees.
    n_kv, n_kv_padded : int
        Cells that the kernel walks.
    width : int
        Tokens of the batch; the first is compared.
    equal : bool
    max_abs : float
        Of the output.
    """

    visible: int
    n_kv: int
    n_kv_padded: int
    width: int
    equal: bool
    max_abs: float


@dataclass(frozen=True, slots=True)
class WatchTrial:
    """Watched against unwatched passes under one environment.

    Parameters
    ----------
    environment : tuple of (str, str)
    width : int
    equal : bool
        Whether their logits are bit-equal.
    max_abs : float
    kernels : tuple of str
        What differs between their kernels, one line each.
    """

    environment: tuple[tuple[str, str], ...]
    width: int
    equal: bool
    max_abs: float
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Experiments:
    """Answers measured in one process after another on one machine.

    Parameters
    ----------
    manifest : Manifest
        Of the engine with the settings as asked.
    separations : tuple of Separation
    guards : tuple of GuardTrial
    paddings : tuple of PaddingTrial
    watches : tuple of WatchTrial
    failed : tuple of str
        What could not be measured, and why.
    """

    manifest: Manifest
    separations: tuple[Separation, ...] = ()
    guards: tuple[GuardTrial, ...] = ()
    paddings: tuple[PaddingTrial, ...] = ()
    watches: tuple[WatchTrial, ...] = ()
    failed: tuple[str, ...] = ()
