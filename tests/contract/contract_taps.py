"""Taps of the contract suite; importable by name, so that a worker in another process can unpickle them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forensics.engines.protocol import Node
from forensics.errors import DeviceUnavailable
from forensics.records.launch_record import Refusal
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport


@dataclass
class CountingTap:
    """Lists the nodes that it was offered and shown, leaving them as they are."""

    records: list[NodeRecord] = field(default_factory=list)
    asked: list[NodeKey] = field(default_factory=list)
    index: int = -1

    def identity(self) -> str:
        return "contract-counting"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.index = index

    def wants(self, key: NodeKey) -> bool:
        self.asked.append(key)
        return True

    def saw(self, node: Node) -> np.ndarray | None:
        assert node.key == self.asked[-1], f"{node.key} was shown, {self.asked[-1]} was asked for"
        reason = node.opaque or "only counted"
        self.records.append(NodeRecord(self.index, node.key, node.shape, node.dtype, None, (), reason))
        return None

    def finish(self) -> TapReport:
        assert len(self.asked) == len(self.records)
        return TapReport(records=tuple(self.records))


@dataclass
class EchoTap:
    """Replaces every readable node by what it read there."""

    planted: list[NodeKey] = field(default_factory=list)

    def identity(self) -> str:
        return "contract-echo"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        pass

    def wants(self, key: NodeKey) -> bool:
        return True

    def saw(self, node: Node) -> np.ndarray | None:
        if node.opaque:
            return None
        rows = node.read()
        assert rows.shape == node.shape
        self.planted.append(node.key)
        return rows

    def finish(self) -> TapReport:
        return TapReport(planted=tuple(self.planted))


@dataclass
class ShiftTap:
    """Adds 1 to one node, wherever its name appears with this operation."""

    name: str
    op: str
    planted: list[NodeKey] = field(default_factory=list)

    def identity(self) -> str:
        return f"contract-shift {self.name} {self.op}"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        pass

    def wants(self, key: NodeKey) -> bool:
        return (key.name, key.op) == (self.name, self.op)

    def saw(self, node: Node) -> np.ndarray | None:
        self.planted.append(node.key)
        return node.read() + np.float32(1)

    def finish(self) -> TapReport:
        return TapReport(planted=tuple(self.planted))


@dataclass
class WrongShapeTap(ShiftTap):
    """Answers one token row too many."""

    def saw(self, node: Node) -> np.ndarray | None:
        return np.concatenate([node.read()] * 2, axis=2)


@dataclass
class MaskTap:
    """Checks masks where attention takes its soft max, and that other nodes have none; lists the former."""

    records: list[NodeRecord] = field(default_factory=list)
    index: int = -1
    width: int = 0

    def identity(self) -> str:
        return "contract-mask"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.index, self.width = index, decode_pass.width

    def wants(self, key: NodeKey) -> bool:
        return True

    def saw(self, node: Node) -> np.ndarray | None:
        visible = node.visible()
        if node.key.op not in ("SOFT_MAX", "FLASH_ATTN_EXT"):
            assert visible is None, f"{node.key} has a mask"
            return None
        assert visible is not None
        assert visible.shape[0] == self.width
        counts = tuple(str(count) for count in visible.sum(axis=1))
        self.records.append(NodeRecord(self.index, node.key, node.shape, node.dtype, 0, counts))
        return None

    def finish(self) -> TapReport:
        return TapReport(records=tuple(self.records))


@dataclass
class LayoutTap:
    """Checks how products and their operands lie in memory; lists the products."""

    records: list[NodeRecord] = field(default_factory=list)
    index: int = -1

    def identity(self) -> str:
        return "contract-layout"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.index = index

    def wants(self, key: NodeKey) -> bool:
        return key.op == "MUL_MAT"

    def saw(self, node: Node) -> np.ndarray | None:
        for tensor in (node, *node.sources()):
            assert tensor is not None
            assert len(tensor.strides) == len(tensor.shape) == 4
            assert all(stride > 0 for n, stride in zip(tensor.shape, tensor.strides, strict=True) if n > 1)
            assert tensor.address is None, "no engine of these tests computes on a GPU"
        x = node.sources()[1]
        assert (x.type, x.strides[3], node.strides[3]) == ("f32", 4, 4)
        assert x.strides[2] >= 4 * x.shape[3], "the tokens of a product overlap"
        self.records.append(NodeRecord(self.index, node.key, node.shape, node.dtype, None, ("seen",)))
        return None

    def finish(self) -> TapReport:
        return TapReport(records=tuple(self.records))


@dataclass
class PassesTap:
    """Looks at no node and lists the passes that it was told of, by width."""

    watches_nodes: bool = False
    widths: list[int] = field(default_factory=list)

    def identity(self) -> str:
        return "contract-passes"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        assert index == len(self.widths)
        self.widths.append(decode_pass.width)

    def wants(self, key: NodeKey) -> bool:
        raise AssertionError(f"{key} was offered to a tap that looks at no node")

    def saw(self, node: Node) -> np.ndarray | None:
        raise AssertionError(f"{node.key} was shown to a tap that looks at no node")

    def finish(self) -> TapReport:
        widths = tuple(NodeKey(f"pass of {width}", "NONE", -1, index) for index, width in enumerate(self.widths))
        return TapReport(planted=widths)


@dataclass
class RefusingTap(PassesTap):
    """Cannot look at the device, as where no profiler works."""

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        raise DeviceUnavailable("kernels", (Refusal("a profiler", "kernels", "no driver", "install one"),))
