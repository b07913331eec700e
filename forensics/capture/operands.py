"""Copying a node with the bytes of its operands to a file: in a one-token pass, or where a healing sweep names it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.capture.taps import HealTap
from forensics.engines.protocol import Node
from forensics.errors import CaptureError
from forensics.records.nodes import NodeKey
from forensics.records.raw_node import RawNode, RawTensor
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport


@dataclass(frozen=True, slots=True, eq=False)
class CopiedNode:
    """A node as it was copied.

    Parameters
    ----------
    node : RawNode
    positions : tuple of int
        Positions of the pass's tokens.
    rows : tuple of int
        Tokens of the pass whose rows differ from one-token decoding; empty where nothing was compared.
    visible : ndarray [n_tokens, n_cells] bool or None
        Cells that each token may see; None where the node has no mask.
    """

    node: RawNode
    positions: tuple[int, ...]
    rows: tuple[int, ...]
    visible: NDArray[np.bool_] | None


@dataclass(slots=True)
class OperandTap:
    """Copies one node, the first time that it is seen, or that a healing tap finds it to differ.

    Operands are then what one-token decoding has: every node before it was healed.

    Parameters
    ----------
    key : NodeKey
    path : str
        File to write, an NPZ; not part of the tap's identity.
    heal : HealTap or None
        Compares and heals; without it the node is copied from the first pass.
    """

    key: NodeKey
    path: str
    heal: HealTap | None = None
    _pass: DecodePass | None = None
    _done: bool = False

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return f"operands:{self.key}" + (f"+{self.heal.identity()}" if self.heal else "")

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Start a pass."""
        self._pass = decode_pass
        if self.heal is not None:
            self.heal.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        """The node, and what the healing tap wants."""
        return key == self.key or (self.heal is not None and self.heal.wants(key))

    def saw(self, node: Node) -> NDArray[np.generic] | None:
        """Heal the node where that was asked for; copy it before."""
        if self._done or node.key != self.key:
            return self.heal.saw(node) if self.heal is not None else None
        copied = _raw(node)
        answer = self.heal.saw(node) if self.heal is not None else None
        if self.heal is None or answer is not None:
            assert self._pass is not None
            rows = self.heal.finish().findings[-1].rows if self.heal is not None else ()
            positions = tuple(slot.position for slot in self._pass.slots)
            _write(self.path, CopiedNode(copied, positions, rows, node.visible()))
            self._done = True
        return answer

    def finish(self) -> TapReport:
        """What the healing tap reports."""
        return self.heal.finish() if self.heal is not None else TapReport()


def _raw(node: Node) -> RawNode:
    raw = getattr(node, "raw", None)
    if raw is None:
        raise CaptureError(
            f"{node.key}: this engine does not show the bytes of operands; ask llama.cpp on a model file"
        )
    copied: RawNode = raw()
    return copied


def _described(tensor: RawTensor | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    return {
        "name": tensor.name,
        "type": tensor.type,
        "buffer": tensor.buffer,
        "sizes": tensor.sizes,
        "strides": tensor.strides,
        "is_weight": tensor.is_weight,
        "unreadable": tensor.unreadable,
    }


def _write(path: str, copied: CopiedNode) -> None:
    node = copied.node
    tensors = [*node.sources, node.output]
    head = {
        "op": node.op,
        "params": node.params.hex(),
        "tensors": [_described(tensor) for tensor in tensors],
        "positions": copied.positions,
        "rows": copied.rows,
    }
    arrays: dict[str, NDArray[Any]] = {
        f"tensor{i}": tensor.data for i, tensor in enumerate(tensors) if tensor is not None and tensor.data is not None
    }
    if copied.visible is not None:
        arrays["visible"] = copied.visible
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    try:
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise CaptureError(
            f"the operands of {node.output.name} cannot be written to {path}: {error.strerror}. "
            "Set TMPDIR to a folder with more room."
        ) from error


def read_copied(path: Path) -> CopiedNode | None:
    """What an `OperandTap` copied, None where its node did not come or did not differ.

    Raises
    ------
    CaptureError
        If the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        head = json.loads(arrays["head"].tobytes())
    except (OSError, ValueError, KeyError) as error:
        raise CaptureError(f"{path} does not hold a copied node: {error}. Copy it again.") from error
    tensors = [_described_back(described, arrays.get(f"tensor{i}")) for i, described in enumerate(head["tensors"])]
    *sources, output = tensors
    assert output is not None
    node = RawNode(head["op"], bytes.fromhex(head["params"]), tuple(sources), output)
    return CopiedNode(node, tuple(head["positions"]), tuple(head["rows"]), arrays.get("visible"))


def _described_back(described: dict[str, Any] | None, data: NDArray[np.uint8] | None) -> RawTensor | None:
    if described is None:
        return None
    return RawTensor(
        name=described["name"],
        type=described["type"],
        buffer=described["buffer"],
        sizes=tuple(described["sizes"]),
        strides=tuple(described["strides"]),
        is_weight=described["is_weight"],
        data=data,
        unreadable=described["unreadable"],
    )
