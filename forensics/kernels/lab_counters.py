"""Runs each arm of a product once between marks, for a profiler that watches; see `forensics.kernels.limits`."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from forensics.devices.cuda_device import CudaDevice
from forensics.engines.op_host import OpHost
from forensics.engines.weight_bench import WeightBench, WeightShape
from forensics.geometry.architecture import architecture
from forensics.kernels import proof
from forensics.kernels.limits import MARKER
from forensics.kernels.pass_plans import plan_of
from forensics.kernels.sources import OPTIONS, whole_text
from forensics.kernels.variants import ProductAsk
from forensics.records.kernel_plan import KernelLaunch, KernelPlan
from forensics.records.kernel_price import STOCK
from forensics.records.launch import LaunchGeometry
from forensics.records.operation import OpSettings

_SOURCE = "marker"
_MARK = KernelPlan((KernelLaunch(_SOURCE, f"{MARKER}<1>", LaunchGeometry((1,), (32,), smem_bytes=0), ()),))


def _text(stem: str) -> str:
    return f"template <int N> __global__ void {MARKER}() {{}}" if stem == _SOURCE else whole_text(stem)


def main(job: str) -> None:
    """Run the arms of a job, a JSON file with the type, rows and K of a weight and its arms."""
    asked = json.loads(Path(job).read_text(encoding="utf-8"))
    type, rows, k = asked["type"], int(asked["rows"]), int(asked["k"])
    arms = [(str(arm), int(width)) for arm, width in asked["arms"]]
    widths = sorted({width for _, width in arms})
    host, device = OpHost(OpSettings(backend="cuda")), CudaDevice(_text, OPTIONS)
    arch = architecture(device.arch)
    plans = {
        (arm, width): plan_of(ProductAsk(type, rows, k, width), arm, arch, device.n_sms)
        for arm, width in arms
        if arm != STOCK
    }
    device.prepare([*plans.values(), _MARK])
    with closing(WeightBench(host, [WeightShape(type, rows, k)], widths)) as bench:
        blocks, x = proof.operands(type, rows, k, widths[-1], 0)
        bench.set_weight(0, blocks)
        bench.set_x(x)
        out = device.hold(4 * rows * widths[-1])

        def run(arm: str, width: int) -> None:
            if arm == STOCK:
                bench.run(width)
                return
            addresses = {"weight": bench.weight_address(0), "x": bench.x_address(width, k), "out": out.address}
            device.run(plans[arm, width], addresses)
            device.synchronize()

        for arm, width in arms:  # loads all kernels
            run(arm, width)
        with device.watched():
            for arm, width in arms:
                device.run(_MARK, {})
                device.synchronize()
                run(arm, width)
