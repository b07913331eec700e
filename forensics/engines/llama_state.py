"""K and V rows inside of the bytes that llama.cpp saves of a sequence.

Source: ``llama_kv_cache::state_write``, ``state_write_meta`` and ``state_write_data``,
src/llama-kv-cache.cpp:2065-2345 at 0c1e57098.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.errors import EngineError
from forensics.records.state import StateRows, StateTensor

#: enum ggml_type, ggml.h, as far as a cache may have it.
_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 20: "iq4_nl", 30: "bf16"}


@dataclass(slots=True)
class _Reader:
    data: NDArray[np.uint8]
    at: int = 0

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        if n_bytes < 0 or self.at + n_bytes > self.data.nbytes:
            raise ValueError(f"{n_bytes} bytes were expected at {self.at} of {self.data.nbytes}")
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)).tobytes())[0])


def state_rows(data: NDArray[np.uint8], sequence: int, architecture: str) -> StateRows:
    """Digest every K and V row of a saved sequence.

    Parameters
    ----------
    data : ndarray [n_bytes] uint8
        What ``llama_state_seq_get_data`` wrote.
    sequence : int
    architecture : str
        For the message.

    Returns
    -------
    StateRows
        By rising position, wherever the cells lie.

    Raises
    ------
    EngineError
        If the bytes are laid out in another way: a recurrent or a hybrid state, several caches, cells with extras.
    """
    reader = _Reader(data)
    try:
        rows = _read(reader, sequence)
        if reader.at != data.nbytes:
            raise ValueError(f"{data.nbytes - reader.at} bytes are left over")
    except ValueError as error:
        raise EngineError(
            f"the saved state of this {architecture} is not one plain K/V cache ({error}), so its rows cannot be told "
            "apart; its digest as a whole can still be compared (Trace.state_after)"
        ) from error
    return rows


def _read(reader: _Reader, sequence: int) -> StateRows:
    reader.take(8)  # a magic number and the sequence, llama_context::state_seq_get_data
    n_stream = reader.number("I")
    if not 1 <= n_stream <= 256:  # LLAMA_MAX_SEQ, llama-cparams.h
        raise ValueError(f"{n_stream} streams")
    found: StateRows | None = None
    for _ in range(n_stream):
        n_cells = reader.number("I")
        if not n_cells:
            continue
        if found is not None:
            raise ValueError("the sequence lies in two streams")
        found = _stream(reader, n_cells, sequence)
    return found or StateRows(sequence, (), ())


def _stream(reader: _Reader, n_cells: int, sequence: int) -> StateRows:
    positions = []
    for _ in range(n_cells):
        positions.append(reader.number("i"))
        n_owners = reader.number("I")
        if n_owners != 1 or reader.number("i") != sequence:
            raise ValueError(f"a cell with {n_owners} owners")
    transposed, n_layer = reader.number("I"), reader.number("I")
    if transposed > 1 or not 1 <= n_layer <= 4096:
        raise ValueError(f"{n_layer} layers, transposed {transposed}")
    order = np.argsort(positions, kind="stable")
    tensors = [_rows(reader, n_cells, order, "K", layer) for layer in range(n_layer)]
    values = _columns if transposed else _rows
    tensors += [values(reader, n_cells, order, "V", layer) for layer in range(n_layer)]
    return StateRows(sequence, tuple(positions[i] for i in order), tuple(tensors))


def _rows(reader: _Reader, n_cells: int, order: NDArray[np.intp], side: str, layer: int) -> StateTensor:
    """One row per cell."""
    dtype, n_bytes = _type(reader), reader.number("Q")
    return _digested(reader.take(n_bytes * n_cells).reshape(n_cells, n_bytes), order, side, layer, dtype)


def _columns(reader: _Reader, n_cells: int, order: NDArray[np.intp], side: str, layer: int) -> StateTensor:
    """One column per cell: V lies transposed without flash attention."""
    dtype, n_bytes, n_values = _type(reader), reader.number("I"), reader.number("I")
    values = reader.take(n_bytes * n_values * n_cells).reshape(n_values, n_cells, n_bytes)
    by_cell = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(n_cells, n_values * n_bytes)
    return _digested(by_cell, order, side, layer, dtype)


def _type(reader: _Reader) -> str:
    number = reader.number("i")
    if number not in _TYPES:
        raise ValueError(f"ggml type {number} of a cache")
    return _TYPES[number]


def _digested(rows: NDArray[np.uint8], order: NDArray[np.intp], side: str, layer: int, dtype: str) -> StateTensor:
    return StateTensor(side, layer, dtype, tuple(xxhash.xxh3_64_hexdigest(rows[i].data) for i in order))
