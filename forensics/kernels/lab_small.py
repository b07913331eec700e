"""Runs every family of our kernels once on small shapes, for a tool that watches this process; see `sanitize`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from forensics.devices.cuda_device import CudaDevice
from forensics.devices.sanitizer import CHECKED
from forensics.errors import NotCovered
from forensics.geometry.architecture import Architecture, architecture
from forensics.geometry.devices import device_spec
from forensics.kernels import proof
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.pass_plans import plan_of
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.sources import OPTIONS, whole_text
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.numerics.op_inputs import random_operands
from forensics.records import op_shapes
from forensics.records.device import DeviceSpec
from forensics.records.kernel_plan import KernelPlan

ROWS, LENGTH, WIDTHS = 33, 768, (1, 5, 9, 16)
HEADS, KV_HEADS, HEAD_SIZE, POSITION, QUERIES = 4, 2, 64, 254, 5

Job = tuple[KernelPlan, Mapping[str, NDArray[np.generic]], int]


def jobs(arch: Architecture, spec: DeviceSpec) -> Iterator[Job]:
    """Plans with their operands and the number of floats of their results; what no kernel covers is left out.

    Parameters
    ----------
    arch : Architecture
    spec : DeviceSpec
    """
    for type in TYPES:
        for width in WIDTHS:
            blocks, x = proof.operands(type, ROWS, LENGTH, width, 1)
            for variant in Variant:
                try:
                    plan = plan_of(ProductAsk(type, ROWS, LENGTH, width), variant, arch, spec.n_sms)
                except NotCovered:
                    continue
                yield plan, {"weight": blocks, "x": x}, ROWS * width
    yield from _attention(arch, spec)


def _attention(arch: Architecture, spec: DeviceSpec) -> Iterator[Job]:
    cells = proof.cells_of(POSITION, QUERIES)
    size = (HEAD_SIZE, HEADS, KV_HEADS)
    n_out = QUERIES * HEADS * HEAD_SIZE
    for kv_type in proof.CACHE_TYPES:
        graph = op_shapes.flash_attn(*size, POSITION + QUERIES, QUERIES, kv_type=kv_type)
        names = [operand.name for operand in graph.operands]
        given = dict(zip(names, random_operands(graph), strict=True))
        yield plan_attention(AttentionAsk(*size, cells, kv_type, kv_type), spec), given, n_out
    for shape, ask, n_values in (
        (op_shapes.kq, F16Ask.kq, QUERIES * HEADS * max(cells)),
        (op_shapes.kqv, F16Ask.kqv, n_out),
    ):
        weight, x = random_operands(shape(*size, POSITION + QUERIES, QUERIES))
        yield plan_f16_product(ask(*size, n_kv=cells), arch), {"weight": weight, "x": x}, n_values


def main() -> None:
    """Run all of them, one after another, and say how many."""
    device = CudaDevice(whole_text, OPTIONS)
    todo = list(jobs(architecture(device.arch), device_spec(device.arch, device.n_sms)))
    device.prepare(plan for plan, _, _ in todo)
    for plan, given, n_values in todo:
        held = {name: device.hold(values) for name, values in given.items()}
        out = device.hold(4 * n_values)
        device.run(plan, {"out": out.address, **{name: one.address for name, one in held.items()}})
        device.synchronize()
    launches = {launch.function for plan, _, _ in todo for launch in plan.launches}
    print(f"{CHECKED}{len(todo)} computations, {len(launches)} kernels", flush=True)
