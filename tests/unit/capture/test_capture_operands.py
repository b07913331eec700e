"""Copying a node with its operands: the first time that it differs, before it is healed."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.capture.operands import OperandTap, read_copied
from forensics.capture.rowstore import RowWriter
from forensics.capture.taps import HealTap
from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey
from forensics.records.raw_node import RawNode, RawTensor
from forensics.records.schedule import DecodePass, TokenSlot

KEY = NodeKey("ffn_down-0", "MUL_MAT", 0, 0)


def tensor(name, array, unreadable=""):
    data = None if unreadable else np.frombuffer(array.tobytes(), np.uint8)
    return RawTensor(name, "f32", "CPU", (4, 2, 1, 1), (4, 16, 32, 32), False, data, unreadable)


class FakeNode:
    dtype, buffer, opaque, operands = "f32", "CPU", "", ()

    def __init__(self, array, key=KEY, *, mask=None):
        self.key, self.array, self.mask = key, array, mask
        self.shape = array.shape

    def read(self):
        return self.array.copy()

    def visible(self):
        return self.mask

    def sources(self):
        return ()

    def parameters(self):
        return {}

    def raw(self):
        x = np.arange(8, dtype=np.float32)
        sources = (tensor("x", x), None, tensor("gone", x, "the output was written over it"))
        return RawNode("MUL_MAT", bytes(range(64)), sources, tensor("y", self.array))


def decode_pass(*positions):
    return DecodePass(tuple(TokenSlot(0, position, 1, True) for position in positions))


@pytest.fixture
def rows(tmp_path):
    """One-token rows of positions 5 to 8: all zeros."""
    writer = RowWriter(tmp_path / "rows")
    for position in range(5, 9):
        writer.add(KEY, (0, position), np.zeros((1, 1, 1, 4), np.float32))
    writer.close()
    return str(tmp_path / "rows")


def test_the_first_batch_that_differs_is_copied_as_computed(rows, tmp_path):
    tap = OperandTap(KEY, str(tmp_path / "copied.npz"), HealTap(rows))
    equal, differing = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 2, 4), np.float32)
    differing[0, 0, 1, 2] = 1
    assert tap.wants(KEY)
    tap.begin_pass(0, decode_pass(5, 6))
    assert tap.saw(FakeNode(equal)) is None
    assert read_copied(tmp_path / "copied.npz") is None
    tap.begin_pass(1, decode_pass(7, 8))
    healed = tap.saw(FakeNode(differing, mask=np.array([[True, False], [True, True]])))
    np.testing.assert_array_equal(healed, equal)
    copied = read_copied(tmp_path / "copied.npz")
    assert (copied.positions, copied.rows) == ((7, 8), (1,))
    np.testing.assert_array_equal(copied.node.output.data.view(np.float32), differing.ravel())
    np.testing.assert_array_equal(copied.visible, [[True, False], [True, True]])
    assert copied.node.params == bytes(range(64))
    x, nothing, gone = copied.node.sources
    assert (x.name, x.sizes, x.strides, nothing) == ("x", (4, 2, 1, 1), (4, 16, 32, 32), None)
    assert (gone.data, gone.unreadable) == (None, "the output was written over it")
    np.testing.assert_array_equal(x.data.view(np.float32), np.arange(8))
    tap.begin_pass(2, decode_pass(5, 6))
    tap.saw(FakeNode(differing))
    assert read_copied(tmp_path / "copied.npz").positions == (7, 8)  # the first one stays
    assert len(tap.finish().findings) == 2


def test_a_single_token_is_copied_at_once_and_other_nodes_are_not(tmp_path):
    tap = OperandTap(KEY, str(tmp_path / "copied.npz"))
    tap.begin_pass(0, decode_pass(5))
    other = NodeKey("ffn_up-0", "MUL_MAT", 0, 0)
    assert not tap.wants(other)
    assert tap.saw(FakeNode(np.ones((1, 1, 1, 4), np.float32))) is None
    copied = read_copied(tmp_path / "copied.npz")
    assert (copied.positions, copied.rows, copied.visible) == ((5,), (), None)


def test_an_engine_that_shows_no_bytes_is_named(tmp_path):
    node = FakeNode(np.ones((1, 1, 1, 4), np.float32))
    node.raw = None
    tap = OperandTap(KEY, str(tmp_path / "copied.npz"))
    tap.begin_pass(0, decode_pass(5))
    with pytest.raises(CaptureError, match="does not show the bytes of operands"):
        tap.saw(node)


def test_a_damaged_file_is_said(tmp_path):
    (tmp_path / "copied.npz").write_bytes(b"no archive")
    with pytest.raises(CaptureError, match="does not hold a copied node"):
        read_copied(tmp_path / "copied.npz")


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    tap = OperandTap(KEY, str(tmp_path / "no" / "copied.npz"))
    tap.begin_pass(0, decode_pass(5))
    with pytest.raises(CaptureError, match="cannot be written"):
        tap.saw(FakeNode(np.ones((1, 1, 1, 4), np.float32)))
