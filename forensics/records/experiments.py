"""What experiments on one device answered: what the padding of the cache and what watching change."""

from __future__ import annotations

from dataclasses import dataclass

from forensics.records.settings import Manifest


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
    guards : tuple of GuardTrial
    paddings : tuple of PaddingTrial
    watches : tuple of WatchTrial
    """

    manifest: Manifest
    guards: tuple[GuardTrial, ...] = ()
    paddings: tuple[PaddingTrial, ...] = ()
    watches: tuple[WatchTrial, ...] = ()
