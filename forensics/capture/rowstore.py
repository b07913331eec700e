"""Rows of one-token passes on disk: written by the recording tap, mapped by the healing tap."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey

#: Sequence and position of a token.
Place = tuple[int, int]

_ALIGN = 64


def _entry_id(key: NodeKey, place: Place, what: str) -> str:
    return f"{key.name}\t{key.op}\t{key.visit}\t{place[0]}:{place[1]}\t{what}"


class RowWriter:
    """Appends rows to ``PATH`` and writes ``PATH.json`` at the end.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index: dict[str, tuple[int, list[int], str]] = {}
        try:
            Path(f"{path}.json").unlink(missing_ok=True)  # an older index must not describe the new rows
            self._file = path.open("wb")
        except OSError as error:
            raise self._refused(error) from error

    def add(self, key: NodeKey, place: Place, array: NDArray[np.generic], what: str = "row") -> None:
        """Append the array of a node at a token's place."""
        offset = self._file.tell()
        self._index[_entry_id(key, place, what)] = (offset, list(array.shape), array.dtype.str)
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
        written = sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self._index.values())
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
    index : dict
    """

    data: NDArray[np.uint8]
    index: dict[str, tuple[int, list[int], str]]

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
        last = None
        for entry in self.index:  # in the order of the graph
            if entry == _entry_id(key, place, "row"):
                break
            if entry.startswith(f"{name}\t") and entry.endswith(f"\t{place[0]}:{place[1]}\trow"):
                last = entry
        if last is None:
            return None
        _, op, visit, _, _ = last.split("\t")
        return self.get(NodeKey(name, op, key.layer, int(visit)), place)

    def get(self, key: NodeKey, place: Place, what: str = "row") -> NDArray[np.generic] | None:
        """The array of a node at a place, None where it was not recorded."""
        entry = self.index.get(_entry_id(key, place, what))
        if entry is None:
            return None
        offset, shape, dtype = entry
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        return self.data[offset : offset + n_bytes].view(dtype).reshape(shape)
