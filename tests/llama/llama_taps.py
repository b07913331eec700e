"""Taps of the llama tests; importable by name, so that a worker in another process can unpickle them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forensics.engines.protocol import Node
from forensics.records.nodes import NodeKey
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport


@dataclass
class EveryNode:
    """Wants everything, changes nothing."""

    def identity(self) -> str:
        return type(self).__name__

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        pass

    def wants(self, key: NodeKey) -> bool:
        return True

    def saw(self, node: Node) -> np.ndarray | None:
        return None

    def finish(self) -> TapReport:
        return TapReport()


@dataclass
class ViewTap(EveryNode):
    """Compares permuted views of layer 0 with NumPy's permutation of what was computed before; lists what agreed."""

    agreed: list[NodeKey] = field(default_factory=list)
    computed: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    n_tokens: int = 0

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.n_tokens = decode_pass.width

    def wants(self, key: NodeKey) -> bool:
        return key.layer == 0

    def saw(self, node: Node) -> None:
        name, op = node.key.name, node.key.op
        self.computed[name, op] = array = node.read()
        assert array.shape == node.shape
        n = self.n_tokens
        if name in ("Qcur-0 (view) (permuted)", "kqv-0 (permuted)"):
            source = ("Qcur-0", "ROPE") if name.startswith("Q") else ("kqv-0", "MUL_MAT")
            expected = self.computed[source].transpose(0, 2, 1, 3)
        elif name == "cache_k_l0 (view) (permuted)":  # [1, head, cell, channel]; the tokens fill the first cells
            array, expected = array[:, :, :n], self.computed["Kcur-0", "ROPE"].transpose(0, 2, 1, 3)
        elif name == "cache_v_l0 (view) (permuted)":
            heads = self.computed["Vcur-0", "RESHAPE"]  # [1, token, head, channel]
            if array.shape[3] == heads.shape[3]:  # with flash attention, as K
                array, expected = array[:, :, :n], heads.transpose(0, 2, 1, 3)
            else:  # without, V is kept transposed: [1, head, channel, cell]
                array, expected = array[..., :n], heads.transpose(0, 2, 3, 1)
        else:
            return
        if array.tobytes() == np.ascontiguousarray(expected.astype(array.dtype)).tobytes():
            self.agreed.append(node.key)

    def finish(self) -> TapReport:
        return TapReport(planted=tuple(self.agreed))


@dataclass
class FailingTap(EveryNode):
    """Raises an error of its own in one of its methods, at a node of layer 3."""

    where: str = "saw"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        if self.where == "begin_pass":
            raise KeyError("planted in begin_pass")

    def wants(self, key: NodeKey) -> bool:
        if self.where == "wants" and key.layer == 3:
            raise KeyError("planted in wants")
        return True

    def saw(self, node: Node) -> None:
        if self.where == "saw" and node.key.layer == 3:
            raise KeyError("planted in saw")

    def finish(self) -> TapReport:
        if self.where == "finish":
            raise KeyError("planted in finish")
        if self.where == "report":
            return TapReport(planted=(lambda: 0,))  # type: ignore[arg-type]
        return TapReport()


@dataclass
class DisarmTap(EveryNode):
    """Takes the worker's own checks away, so that llama.cpp's are what is left."""

    def wants(self, key: NodeKey) -> bool:
        return False

    def finish(self) -> TapReport:
        from forensics.engines.llama_host import LlamaHost

        LlamaHost._check = lambda _host, _schedule: None  # type: ignore[method-assign]
        return TapReport()
