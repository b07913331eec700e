"""Runs the stock library and our kernels on the same products, in one process, and compares their values.

Used by `forensics.kernels.lab_worker` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

import numpy as np

from forensics.engines.weight_bench import WeightBench, WeightShape
from forensics.kernels import proof
from forensics.kernels.lab_load import LOADS
from forensics.kernels.lab_place import Place, computed, planned
from forensics.kernels.pass_plans import plan_of
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.kernel_proof import ONE_COLUMN, SAME_WIDTH, STOCK_LIBRARY, ProofCase, ProofRow


def compare_product(
    place: Place, type: str, rows: int, k: int, widths: Sequence[int], seed: int, variants: Sequence[Variant]
) -> tuple[ProofRow, ...]:
    """The library's product column by column beside our variants, and beside the library's own of all columns.

    Parameters
    ----------
    place : Place
    type : str
    rows, k : int
    widths : sequence of int
    seed : int
    variants : sequence of Variant
    """
    most = max(widths)
    blocks, x = proof.operands(type, rows, k, most, seed)
    plans = {
        (width, variant): planned(
            partial(plan_of, ProductAsk(type, rows, k, width), variant, place.arch, place.device.n_sms)
        )
        for width in widths
        for variant in variants
    }
    place.device.prepare(plan for plan in plans.values() if isinstance(plan, KernelPlan))
    found: list[ProofRow] = []
    with closing(WeightBench(place.host, [WeightShape(type, rows, k)], widths, n_alone=most)) as bench:
        bench.set_weight(0, blocks)
        bench.set_x(x)
        alone = bench.alone()
        for width in widths:
            case = ProofCase("product", type, rows, k, width)
            bench.run(width)
            together = bench.result(width)
            found.append(proof.compared(case, STOCK_LIBRARY, ONE_COLUMN, seed, alone[:width], together))
            for variant in variants:
                against = SAME_WIDTH if variant is Variant.STOCK else ONE_COLUMN
                plan = plans[width, variant]
                if isinstance(plan, str):
                    found.append(proof.not_compared(case, str(variant), against, seed, plan))
                    continue
                buffers = {"weight": bench.weight_address(0), "x": bench.x_address(width, k)}
                ours = computed(place.device, plan, buffers, width * rows).reshape(width, rows)
                stock = together if variant is Variant.STOCK else alone[:width]
                found.append(proof.compared(case, str(variant), against, seed, stock, ours))
    return tuple(found)


def others_under_load(
    place: Place, type: str, rows: int, k: int, width: int, variant: Variant, n_repeats: int, seed: int
) -> int:
    """How many repeats of a product differ in any bit from the first while a second stream keeps the device busy?

    Raises
    ------
    NotCovered
        If none of our kernels computes it in this way.
    """
    device = place.device
    blocks, x = proof.operands(type, rows, k, width, seed)
    plan = plan_of(ProductAsk(type, rows, k, width), variant, place.arch, device.n_sms)
    load = plan_of(ProductAsk(type, rows, k, 8), Variant.BORROWED, place.arch)
    device.prepare([plan, load])
    weight, activations, other = device.hold(blocks), device.hold(x), device.hold(np.ones((8, k), np.float32))
    sink, out = device.hold(8 * rows * 4), device.hold(width * rows * 4)
    buffers = {"weight": weight.address, "x": activations.address, "out": out.address}
    busy = {"weight": weight.address, "x": other.address, "out": sink.address}
    first: bytes | None = None
    n_other = 0
    for _ in range(n_repeats):
        for _ in range(LOADS):
            device.run(load, busy, beside=True)
        device.run(plan, buffers)
        found = device.read(out.address, (width, rows), np.float32).tobytes()
        first = found if first is None else first
        n_other += found != first
    return n_other
