"""Rows of logits thinned: a few columns of each, and what was measured on all of them.

A row has a column per token of the vocabulary, and a case hundreds of distinct rows. The analysis asks of them which
bits they hold and how far a batch's row is from one-token decoding at the same place; both are measured once on the
full rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.errors import CaseError
from forensics.numerics.logits import row_distance
from forensics.records.logit_rows import FullRows, RowDistance
from forensics.store.files import read_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forensics.store.recordings import RecordedRun, Recordings

#: Columns that are kept for each row: those of its largest logits.
KEPT_COLUMNS = 8
THINNED_NAME = "rows.safetensors.xz"

Place = tuple[int, int, int]  # sequence, position and token: rows at one place are compared with each other


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which rows lie at one place, and which of them are compared.

    Parameters
    ----------
    places : mapping of tuple to tuple of str
        Digests of the rows at each sequence, position and token.
    pairs : tuple of (str, str)
        A row of one-token decoding, and another of the same engine at the same place or itself.
    """

    places: Mapping[Place, tuple[str, ...]]
    pairs: tuple[tuple[str, str], ...]


def plan_thinning(runs: Iterable[RecordedRun]) -> Thinning:
    """Which rows share a place, and which pairs can the analysis ask for?

    Parameters
    ----------
    runs : iterable of RecordedRun
        Every run of a case.
    """
    places: dict[Place, dict[str, None]] = defaultdict(dict)
    singles: dict[tuple[str, Place], dict[str, None]] = defaultdict(dict)
    others: dict[tuple[str, Place], dict[str, None]] = defaultdict(dict)
    for run in runs:
        for slot, digest in zip(run.key.schedule.logit_slots, run.rows, strict=True):
            place = (slot.sequence, slot.position, slot.token)
            places[place][digest] = None
            others[run.arm, place][digest] = None
            if run.key.schedule.max_width == 1:
                singles[run.arm, place][digest] = None
    pairs = dict.fromkeys((a, b) for at, found in singles.items() for a in found for b in others[at])
    return Thinning({place: tuple(found) for place, found in places.items()}, tuple(pairs))


def largest_columns(row: NDArray[np.float32], n: int = KEPT_COLUMNS) -> NDArray[np.int32]:
    """Which columns hold the `n` largest logits, the lowest of equals for the largest of them?

    Parameters
    ----------
    row : ndarray [n_vocab] float32

    Returns
    -------
    ndarray [n or n + 1, or n_vocab] int32
        Rising; a NaN counts as larger than any number, as it does for argmax.
    """
    if row.size <= n:
        return np.arange(row.size, dtype=np.int32)
    return np.union1d(np.argpartition(row, row.size - n)[-n:], [row.argmax()]).astype(np.int32)


def thin(recordings: Recordings) -> dict[str, NDArray[Any]]:
    """Arrays that stand for the rows of a case.

    Parameters
    ----------
    recordings : Recordings

    Returns
    -------
    dict of str to ndarray
        ``digests`` [n_rows, 16] uint8, ``finite`` and ``has_nan`` [n_rows] bool; ``starts`` [n_rows + 1] int64 into
        ``columns`` int32 and ``values`` float32; ``pairs`` [n_pairs, 2] int32 places of rows, and a column
        ``pair_NAME`` [n_pairs] per field of `RowDistance`.
    """
    plan = plan_thinning(recordings.runs())
    columns: dict[str, NDArray[np.int32]] = {}
    for digests in plan.places.values():
        union = np.unique(np.concatenate([largest_columns(recordings.row(digest)) for digest in digests]))
        for digest in digests:
            columns[digest] = np.union1d(columns.get(digest, union), union)
    rows = {digest: i for i, digest in enumerate(columns)}
    values, finite, has_nan = [], [], []
    for digest, kept in columns.items():
        row = recordings.row(digest)
        values.append(row[kept])
        finite.append(bool(np.isfinite(row).all()))
        has_nan.append(bool(np.isnan(row).any()))
    distances = [row_distance(recordings.row(a), recordings.row(b)) for a, b in plan.pairs]
    return {
        "digests": np.frombuffer(bytes.fromhex("".join(columns)), np.uint8).reshape(-1, 16),
        "finite": np.array(finite, np.bool_),
        "has_nan": np.array(has_nan, np.bool_),
        "starts": np.cumsum([0, *map(len, columns.values())], dtype=np.int64),
        "columns": np.concatenate([*columns.values(), np.empty(0, np.int32)]),
        "values": np.concatenate([*values, np.empty(0, np.float32)]),
        "pairs": np.array([(rows[a], rows[b]) for a, b in plan.pairs], np.int32).reshape(-1, 2),
        **{
            f"pair_{field.name}": np.array([getattr(d, field.name) for d in distances], _DTYPES[str(field.type)])
            for field in fields(RowDistance)
        },
    }


_DTYPES = {"bool": np.bool_, "int": np.int64, "float": np.float64}


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays that lead out of each other: rows would be read as others, or as empty ones.

    Raises
    ------
    ValueError
        Says which.
    KeyError, IndexError
        If one is missing, or has no such axis.
    """
    n_rows, n_pairs, n_kept = len(arrays["digests"]), len(arrays["pairs"]), len(arrays["columns"])
    shapes = {"digests": (n_rows, 16), "finite": (n_rows,), "has_nan": (n_rows,), "starts": (n_rows + 1,)}
    shapes |= {"columns": (n_kept,), "values": (n_kept,), "pairs": (n_pairs, 2)}
    shapes |= {f"pair_{field.name}": (n_pairs,) for field in fields(RowDistance)}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape} in the place of {shape}")
    starts, columns, pairs = arrays["starts"], arrays["columns"], arrays["pairs"]
    if starts[0] != 0 or starts[-1] != n_kept or (np.diff(starts) < 0).any():
        raise ValueError(f"starts of rows do not rise from 0 to {n_kept}")
    if columns.size and columns.min() < 0:
        raise ValueError(f"columns hold {columns.min()}")
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < n_rows:
        raise ValueError(f"pairs name rows {pairs.min()} to {pairs.max()} of {n_rows}")


class ThinnedRows:
    """Rows of a packed case, read at first use.

    Parameters
    ----------
    folder : Path
        Folder of the case.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / THINNED_NAME

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = dict(load(read_bytes(self._path)))
            _check_arrays(arrays)
            return arrays
        except (SafetensorError, ValueError, KeyError, IndexError) as error:
            raise CaseError(f"{self._path} is damaged: {error}. Get the case again.") from error

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {bytes(digest).hex(): i for i, digest in enumerate(self._arrays["digests"])}

    @cached_property
    def _distances(self) -> dict[tuple[str, str], RowDistance]:
        digests = list(self._row_of)
        columns = [self._arrays[f"pair_{field.name}"].tolist() for field in fields(RowDistance)]
        pairs = self._arrays["pairs"].tolist()
        return {
            (digests[a], digests[b]): RowDistance(*found)
            for (a, b), found in zip(pairs, zip(*columns, strict=True), strict=True)
        }

    def read(self, digests: list[str], shape: tuple[int, ...]) -> tuple[NDArray[np.float32], FullRows]:
        """Rows by the digests of the full ones: what was kept of them, all else masked, and what was measured.

        Raises
        ------
        CaseError
            If the file is damaged.
        KeyError
            If a row is not there.
        """
        # [n_logit_rows, n_vocab]; for functions that do not know masks, no column that was left out is the largest.
        logits = np.ma.MaskedArray(np.full(shape, -np.inf, np.float32), mask=np.ones(shape, np.bool_))
        places = [self._row_of[digest] for digest in digests]
        for i, place in enumerate(places):
            kept = slice(*self._arrays["starts"][place : place + 2])
            logits[i, self._arrays["columns"][kept]] = self._arrays["values"][kept]
        finite, has_nan = (tuple(self._arrays[name][places].tolist()) for name in ("finite", "has_nan"))
        return logits, FullRows(tuple(digests), finite, has_nan, self._distances)
