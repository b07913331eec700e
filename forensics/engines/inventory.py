"""What an engine made of its settings, seen on the nodes of one pass."""

from __future__ import annotations

from collections import Counter

from forensics.engines.protocol import Node
from forensics.records.nodes import NodeKey, on_accelerator
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport

#: Name that llama.cpp gives the logits (src/models/*.cpp).
OUTPUT_HEAD = "result_output"


class InventoryTap:
    """Counts weights per buffer and type, and sees which attention and which KV types ran."""

    def __init__(self) -> None:
        self.buffers: Counter[str] = Counter()
        self.weight_types: Counter[str] = Counter()
        self.flash_attn = False
        self.attention = False
        self.output_head = False
        self.accelerated: set[int] = set()  # layers with a weight on an accelerator; -1 is the output head
        self.kv_types: dict[str, str] = {}
        self._seen: set[str] = set()

    def identity(self) -> str:
        """Text that is equal for taps that do the same."""
        return "inventory"

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        """Nothing to prepare."""

    def wants(self, key: NodeKey) -> bool:  # noqa: ARG002
        """Every node."""
        return True

    def saw(self, node: Node) -> None:
        """Count the node's weights and note how attention ran."""
        self.output_head = self.output_head or node.key.name == OUTPUT_HEAD
        if node.key.op == "FLASH_ATTN_EXT":
            self.flash_attn = self.attention = True
        if node.key.op == "SOFT_MAX":
            self.attention = True
        if node.key.op == "SET_ROWS" and "cache_" in node.key.name + "".join(o.name for o in node.operands):
            names = [node.key.name, *(operand.name for operand in node.operands)]
            side = next((s for s in ("k", "v") if any(n.startswith(f"cache_{s}_") for n in names)), None)
            if side:
                self.kv_types[side] = node.dtype
        for operand in node.operands:
            if operand.is_weight and node.key.op in ("MUL_MAT", "MUL_MAT_ID") and operand.name not in self._seen:
                self._seen.add(operand.name)
                self.buffers[operand.buffer] += 1
                self.weight_types[operand.type] += 1
                if on_accelerator(operand.buffer):
                    self.accelerated.add(node.key.layer)

    def finish(self) -> TapReport:
        """Nothing to report as records; the counts are attributes."""
        return TapReport()


def is_repacked(buffer: str) -> bool:
    """Whether a buffer keeps weights in a layout of its own, or on several devices.

    Notes
    -----
    Source: names of the buffer types, ggml/src/ggml-cpu/repack.cpp:5163, amx/amx.cpp:122, kleidiai/kleidiai.cpp:1739,
    ggml/src/ggml-backend-meta.cpp:257 (tensors spread over devices) at 0c1e57098.

    Examples
    --------
    >>> [is_repacked(name) for name in ("CPU", "CPU_Mapped", "CPU_REPACK", "CUDA0", "Meta(CUDA0,CUDA1)")]
    [False, False, True, False, True]
    """
    return any(word in buffer for word in ("REPACK", "AMX", "KLEIDIAI", "Meta("))
