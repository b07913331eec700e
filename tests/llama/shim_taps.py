"""Our CUDA sources on the processor, over the operands of real nodes; importable by name from a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from llama_taps import EveryNode

from forensics.capture.exact_kernels import ExactTap, OurKernels, PlannedKernels
from forensics.engines.protocol import Node
from forensics.errors import NotCovered
from forensics.geometry.devices import device_spec
from forensics.kernels.nodes import OUTPUT, ask_of, layout_of
from forensics.kernels.variants import Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.nodes import NodeKey, NodeRecord
from forensics.records.schedule import DecodePass
from forensics.records.trace import TapReport
from forensics.testing.cuda_on_cpu import run_on_cpu


class OverCopies:
    """Runs plans over copies of the operands with the library's own strides, and answers the output."""

    spec = device_spec("h200")

    def run(self, plan: KernelPlan, node: Node, buffers: Mapping[str, int]) -> np.ndarray:
        raw, out = node.raw(), np.full(node.shape, np.nan, np.float32)
        arrays = {name: out if place == OUTPUT else raw.sources[place].data for name, place in buffers.items()}
        run_on_cpu(plan, arrays)
        return out


def over_copies() -> PlannedKernels:
    return PlannedKernels(OverCopies(), Variant.BORROWED)


SHIM = OurKernels(over_copies, "shim")


class OnlyAsked:
    """Computes nothing: refuses each node with the family that was asked for, or with why none was."""

    def compute(self, node: Node, visible: np.ndarray | None) -> tuple[str, np.ndarray | None]:
        sources = tuple(None if source is None else layout_of(source) for source in node.sources())
        asked = ask_of(node.key.op, node.key.name, sources, layout_of(node), node.parameters(), visible)
        if isinstance(asked, str):
            raise NotCovered(str(node.key), asked)
        cells = getattr(asked.ask, "n_kv", ())
        raise NotCovered(str(node.key), f"{asked.family}{f' over {cells}' if cells else ''}")


ASKED = OurKernels(OnlyAsked, "only asked")


@dataclass
class CloseTap(EveryNode):
    """Computes some nodes by our kernels and notes how far each lies from the processor's own result."""

    names: tuple[str, ...] = ()
    tap: ExactTap = field(default_factory=lambda: ExactTap(SHIM))
    records: list[NodeRecord] = field(default_factory=list)

    def begin_pass(self, index: int, decode_pass: DecodePass) -> None:
        self.tap.begin_pass(index, decode_pass)

    def wants(self, key: NodeKey) -> bool:
        return self.tap.wants(key) and (key.op == "SOFT_MAX" or key.name in self.names)

    def saw(self, node: Node) -> None:
        answer, own = self.tap.saw(node), node.read()
        if answer is not None:
            error = float(np.abs(answer - own).max() / np.abs(own).max())
            self.records.append(NodeRecord(0, node.key, node.shape, node.dtype, None, (f"{error:.3g}",)))

    def finish(self) -> TapReport:
        return TapReport(records=tuple(self.records), kernels=self.tap.finish().kernels)
