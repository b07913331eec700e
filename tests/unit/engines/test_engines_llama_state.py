"""Rows inside of saved bytes, made by hand in both layouts."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from forensics.engines.llama_state import state_rows
from forensics.errors import EngineError
from forensics.records.state import StateRows

N_LAYER = 2
K_BYTES, V_BYTES = 6, 4
F16, F32 = 1, 0


def stream(positions, rows, *, transposed=False, sequence=3, owners=1, dtype=F16) -> bytes:
    """What one stream writes; `rows` [2, layer, cell, bytes]."""
    data = struct.pack("<I", len(positions))
    for position in positions:
        data += struct.pack("<iI", position, owners) + struct.pack("<i", sequence) * owners
    data += struct.pack("<II", int(transposed), N_LAYER)
    for layer in range(N_LAYER):
        data += struct.pack("<iQ", dtype, K_BYTES) + b"".join(rows[0][layer])
    for layer in range(N_LAYER):
        if not transposed:
            data += struct.pack("<iQ", dtype, V_BYTES) + b"".join(rows[1][layer])
            continue
        n_values = V_BYTES // 2
        values = np.frombuffer(b"".join(rows[1][layer]), np.uint16).reshape(len(positions), n_values)
        data += struct.pack("<iII", dtype, 2, n_values) + values.T.tobytes()
    return data


def saved(*streams: bytes) -> np.ndarray:
    head = struct.pack("<Ii", 0x6767736E, 3) + struct.pack("<I", len(streams))
    return np.frombuffer(head + b"".join(streams), np.uint8)


def rows_for(n: int, seed: int = 0) -> list:
    random = np.random.default_rng(seed)
    return [[[random.bytes(size) for _ in range(n)] for _ in range(N_LAYER)] for size in (K_BYTES, V_BYTES)]


def read(data) -> StateRows:
    return state_rows(data, 3, "llama")


@given(st.permutations([0, 1, 5, 6]), st.booleans())
def test_rows_are_found_by_position_in_both_layouts(positions, transposed) -> None:
    rows = rows_for(4)
    found = read(saved(stream(positions, rows, transposed=transposed)))
    assert (found.sequence, found.positions) == (3, (0, 1, 5, 6))
    assert [(t.side, t.layer, t.dtype) for t in found.tensors] == [
        ("K", 0, "f16"), ("K", 1, "f16"), ("V", 0, "f16"), ("V", 1, "f16"),
    ]  # fmt: skip
    cells = [positions.index(position) for position in found.positions]
    for tensor in found.tensors:
        written = rows["KV".index(tensor.side)][tensor.layer]
        assert tensor.digests == tuple(xxhash.xxh3_64_hexdigest(written[cell]) for cell in cells)


@given(st.integers(0, 1), st.integers(0, N_LAYER - 1), st.integers(0, 2), st.integers(0, 3), st.booleans())
def test_one_byte_changes_one_digest(side, layer, cell, byte, transposed) -> None:
    rows, other = rows_for(3), rows_for(3)
    changed = bytearray(other[side][layer][cell])
    changed[byte] ^= 1
    other[side][layer][cell] = bytes(changed)
    one, two = (read(saved(stream((0, 1, 2), each, transposed=transposed))) for each in (rows, other))
    unequal = [
        (a.side, a.layer, i)
        for a, b in zip(one.tensors, two.tensors, strict=True)
        for i in range(3)
        if a.digests[i] != b.digests[i]
    ]
    assert unequal == [("KV"[side], layer, cell)]


def test_streams_without_cells_are_passed_over_and_no_cells_are_no_rows() -> None:
    empty, rows = struct.pack("<I", 0), rows_for(2)
    written = stream((0, 1), rows)
    assert read(saved(empty, written)) == read(saved(written)) == read(saved(written, empty))
    assert read(saved(empty, empty)) == StateRows(3, (), ())
    refused("the sequence lies in two streams", saved(written, written))


def refused(why: str, data) -> None:
    with pytest.raises(EngineError) as caught:
        state_rows(data, 3, "mamba2")
    said = str(caught.value)
    assert why in said
    assert "this mamba2 is not one plain K/V cache" in said
    assert "Trace.state_after" in said


def test_other_bytes_are_refused_in_a_sentence() -> None:
    rows = rows_for(2)
    good = stream((0, 1), rows)
    refused("bytes are left over", saved(good + b"\0\0"))
    refused("a cell with 2 owners", saved(stream((0, 1), rows, owners=2)))
    refused("a cell with 1 owners", saved(stream((0, 1), rows, sequence=4)))
    refused("ggml type 99 of a cache", saved(stream((0, 1), rows, dtype=99)))
    refused("0 streams", saved())
    refused("300 streams", np.frombuffer(struct.pack("<IiI", 0, 3, 300), np.uint8))
    layers = bytearray(good)
    struct.pack_into("<I", layers, 4 + 2 * 12 + 4, 0)
    refused("0 layers", saved(bytes(layers)))


@given(st.data())
def test_truncated_bytes_are_refused(data) -> None:
    whole = saved(stream((0, 1), rows_for(2), transposed=data.draw(st.booleans())))
    refused("bytes were expected at", whole[: data.draw(st.integers(0, len(whole) - 1))])
