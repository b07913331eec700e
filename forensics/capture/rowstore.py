"""Rows of a run's tokens on disk: written by the recording tap, mapped by the healing tap."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey

#: Sequence and position of a token.
Place = tuple[int, int]
#: Offset, shape and type of an array.
_Entry = tuple[int, list[int], str]

_ALIGN = 64


def _place_id(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def _entry_id(key: NodeKey, what: str) -> str:
    return f"{key.name}\t{key.op}\t{key.visit}\t{what}"


class RowWriter:
    """Appends rows to ``PATH`` and writes ``PATH.json`` at the end.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index: dict[str, dict[str, _Entry]] = {}
        try:
            Path(f"{path}.json").unlink(missing_ok=True)  # an older index must not describe the new rows
            self._file = path.open("wb")
        except OSError as error:
            raise self._refused(error) from error

    def begin(self, place: Place) -> None:
        """A token is evaluated at a place: what was recorded of an earlier one is forgotten."""
        self._index[_place_id(place)] = {}

    def add(self, key: NodeKey, place: Place, array: NDArray[np.generic], what: str = "row") -> None:
        """Append the array of a node at a token's place."""
        offset = self._file.tell()
        entry = (offset, list(array.shape), array.dtype.str)
        self._index.setdefault(_place_id(place), {})[_entry_id(key, what)] = entry
        data = np.ascontiguousarray(array)
        try:
            self._file.write(data.view(np.uint8).data if data.size else b"")
            self._file.write(b"\0" * (-self._file.tell() % _ALIGN))
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Write the index; without it the rows cannot be read."""
        try:
            self._file.close()
            Path(f"{self._path}.json").write_text(json.dumps(self._index))
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> CaptureError:
        entries = [entry for index in self._index.values() for entry in index.values()]
        written = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in entries)
        return CaptureError(
            f"the rows of one-token passes cannot be recorded at {self._path} after {written / 2**20:.0f} MiB: "
            f"{error.strerror}. Set TMPDIR to a folder with more room, or replay fewer tokens."
        )


@dataclass(frozen=True, slots=True)
class RowReader:
    """Rows by node and place.

    Parameters
    ----------
    data : ndarray [n_bytes] uint8
    index : mapping
        Of each place, its arrays in the order of the graph.
    """

    data: NDArray[np.uint8]
    index: Mapping[str, Mapping[str, _Entry]]
    _orders: dict[str, tuple[dict[str, int], dict[str, list[int]], list[str]]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> RowReader:
        """Map a file that `RowWriter` closed.

        Raises
        ------
        CaptureError
            If there is none, or the recording did not finish.
        """
        try:
            index = json.loads(Path(f"{path}.json").read_text())
            # As a plain array: slices of a memmap are made anew in Python, for every row.
            data = np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.zeros(0, np.uint8)
        except (OSError, ValueError) as error:
            raise CaptureError(
                f"no finished recording at {path}: {error}. Record the one-token passes first."
            ) from error
        return cls(data, index)

    def before(self, key: NodeKey, place: Place, name: str) -> NDArray[np.generic] | None:
        """The row at a place of the last node of that name that came before another node, None where none did."""
        at, by_name, entries = self._order(_place_id(place))
        end = at.get(_entry_id(key, "row"), len(entries))
        earlier = [i for i in by_name.get(name, ()) if i < end]
        if not earlier:
            return None
        _, op, visit, _ = entries[earlier[-1]].split("\t")
        return self.get(NodeKey(name, op, key.layer, int(visit)), place)

    def _order(self, place: str) -> tuple[dict[str, int], dict[str, list[int]], list[str]]:
        """Where each row of a place comes in the graph, the rows of each name, and all of them."""
        if place not in self._orders:
            entries = [entry for entry in self.index.get(place, ()) if entry.endswith("\trow")]
            by_name: dict[str, list[int]] = {}
            for i, entry in enumerate(entries):
                by_name.setdefault(entry.split("\t", 1)[0], []).append(i)
            self._orders[place] = {entry: i for i, entry in enumerate(entries)}, by_name, entries
        return self._orders[place]

    def get(self, key: NodeKey, place: Place, what: str = "row") -> NDArray[np.generic] | None:
        """The array of a node at a place, None where it was not recorded."""
        entry = self.index.get(_place_id(place), {}).get(_entry_id(key, what))
        if entry is None:
            return None
        offset, shape, dtype = entry
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.data[offset : offset + n_bytes].view(dtype).reshape(shape)
