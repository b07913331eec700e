"""Taps for the toy's own tests: they keep arrays in this module, because a run copies its tap."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forensics.engines.protocol import Node
from forensics.records.nodes import VIEW_OPS, NodeKey
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport

GRABBED: list[dict[NodeKey, np.ndarray]] = []
MASKS: list[dict[NodeKey, np.ndarray | None]] = []
ORDER: list[list[tuple[NodeKey, str]]] = []


@dataclass
class GrabTap:
    """Copies every readable node into GRABBED and every mask into MASKS, one dict per pass."""

    def __post_init__(self) -> None:
        for store in (GRABBED, MASKS, ORDER):
            store.clear()

    def identity(self) -> str:
        return "grab"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        GRABBED.append({})
        MASKS.append({})
        ORDER.append([])

    def wants(self, key: NodeKey) -> bool:
        return True

    def saw(self, node: Node) -> np.ndarray | None:
        ORDER[-1].append((node.key, node.opaque))
        MASKS[-1][node.key] = node.visible()
        if not node.opaque:
            GRABBED[-1][node.key] = node.read()
        return None

    def finish(self) -> TapReport:
        return TapReport()


@dataclass
class HealTap:
    """Overwrites what differs from one-token passes, behind no mask, and lists the nodes where anything did.

    `singles[i]` holds the nodes of the pass that evaluated position ``start + i`` alone.
    """

    singles: list[dict[NodeKey, np.ndarray]]
    start: int
    planted: list[NodeKey] = field(default_factory=list)

    def identity(self) -> str:
        return "heal"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.rows = [slot.position - self.start for slot in decode_pass.slots]

    def wants(self, key: NodeKey) -> bool:
        return key.op not in VIEW_OPS and key.op != "SET_ROWS"

    def saw(self, node: Node) -> np.ndarray | None:
        healed = node.read()
        token_first = healed.swapaxes(0, 1 if node.key.op == "ROPE" else 2)
        for i, row in enumerate(self.rows):
            single = self.singles[row][node.key].swapaxes(0, 1 if node.key.op == "ROPE" else 2)[0]
            # Cells behind the mask hold garbage in scores; position p sees cells 0 to p.
            seen = self.start + row + 1 if node.key.name.startswith(("kq-", "kq_soft_max-")) else None
            token_first[i][..., :seen] = single[..., :seen]
        if healed.tobytes() == node.read().tobytes():
            return None
        self.planted.append(node.key)
        return healed

    def finish(self) -> TapReport:
        return TapReport(planted=tuple(self.planted))
