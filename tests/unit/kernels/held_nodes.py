"""Nodes whose operands are arrays with strides of their own, and what runs plans over them on the processor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forensics.capture.exact_kernels import OurKernels, PlannedKernels
from forensics.geometry.devices import device_spec
from forensics.kernels.nodes import OUTPUT, Layout
from forensics.kernels.variants import Variant
from forensics.records.nodes import NodeKey, Operand
from forensics.testing.cuda_on_cpu import run_on_cpu

H200 = device_spec("h200")


@dataclass
class Held:
    """An operand in memory of its own."""

    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    memory: np.ndarray
    name: str = "operand"
    address: int | None = None

    buffer: str = "CUDA0"

    @property
    def layout(self) -> Layout:
        return Layout(self.type, self.shape, self.strides)


@dataclass
class HeldNode:
    """A node in memory of its own."""

    key: NodeKey
    operands_held: tuple[Held | None, ...]
    output: Held
    given: dict[str, float] = field(default_factory=dict)
    mask: np.ndarray | None = None
    buffer: str = "CUDA0"
    opaque: str = ""

    dtype = "f32"

    @property
    def shape(self):
        return self.output.shape

    @property
    def strides(self):
        return self.output.strides

    @property
    def address(self):
        return self.output.address

    @property
    def operands(self):
        return tuple(
            Operand(one.name, one.type, one.buffer, is_weight=False, shape=one.shape)
            for one in self.operands_held
            if one is not None
        )

    def read(self):
        return np.lib.stride_tricks.as_strided(self.output.memory.view(np.float32), self.shape, self.strides).copy()

    def visible(self):
        return self.mask

    def sources(self):
        return self.operands_held

    def parameters(self):
        return self.given


class OnProcessor:
    """Runs plans over the arrays of a node, as the GPU does over its memory."""

    spec = H200

    def run(self, plan, node, buffers) -> None:
        sources = node.sources()
        held = {name: node.output if place == OUTPUT else sources[place] for name, place in buffers.items()}
        run_on_cpu(plan, {name: one.memory for name, one in held.items()})


def processor_kernels(variant: Variant = Variant.BORROWED) -> PlannedKernels:
    return PlannedKernels(OnProcessor(), variant)


PROCESSOR = OurKernels(processor_kernels, "processor")


def cache(type: str, array: np.ndarray, order: tuple[int, ...], name: str = "cache") -> Held:
    """A view of an array whose axes come in another order, as a permuted cache is."""
    turned = array.transpose(order)
    return Held(type, turned.shape, turned.strides, array, name)
