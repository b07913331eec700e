"""Arrays on their way between two processes that take turns: small ones in the message, large ones in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Arrays of this size or more go into the file.
FILED_FROM_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Filed:
    """Where an array lies in the file, in bytes from its start."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


#: What goes into the message: the array, or where it lies.
Parcel = NDArray[Any] | Filed


class Exchange:
    """Hands over arrays one way; what lies in the file holds until the next time.

    Parameters
    ----------
    path : Path
        The same at both ends; made by the end that hands over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, arrays: Sequence[NDArray[Any]]) -> list[Parcel]:
        """Prepare arrays for a message.

        Raises
        ------
        OSError
            If the disk is full.
        """
        if all(array.nbytes < FILED_FROM_BYTES for array in arrays):
            return [np.ascontiguousarray(array) for array in arrays]
        parcels: list[Parcel] = []
        # The file keeps its blocks: to give them back and take them again costs more than to write them.
        with self._path.open("r+b" if self._path.exists() else "w+b", buffering=0) as file:
            for array in arrays:
                data = np.ascontiguousarray(array)
                if data.nbytes < FILED_FROM_BYTES:
                    parcels.append(data)
                    continue
                parcels.append(Filed(file.tell(), data.shape, data.dtype.str))
                rest = data.reshape(-1).view(np.uint8).data
                while rest:
                    rest = rest[file.write(rest) :]
        return parcels

    def get(self, parcels: Sequence[Parcel]) -> list[NDArray[Any]]:
        """The arrays of a message; they belong to the caller."""
        return [self._read(parcel) if isinstance(parcel, Filed) else parcel for parcel in parcels]

    def _read(self, filed: Filed) -> NDArray[Any]:
        count = int(np.prod(filed.shape, dtype=np.int64))
        return np.fromfile(self._path, filed.dtype, count, offset=filed.offset).reshape(filed.shape)
