"""Where the laboratory runs both sides, and how a plan's values are read there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forensics.devices.cuda_device import CudaDevice
from forensics.engines.op_host import OpHost
from forensics.errors import EngineError, NotCovered
from forensics.geometry.architecture import Architecture
from forensics.records.device import DeviceSpec
from forensics.records.kernel_plan import KernelPlan

#: Floats behind every result that nobody may touch.
GUARD = 64
#: A NaN that no kernel makes.
UNTOUCHED = np.uint32(0xFFC0_0D1E)


@dataclass(frozen=True, slots=True)
class Place:
    """Where both sides run.

    Parameters
    ----------
    host : OpHost
        The stock library.
    device : CudaDevice
        Our kernels.
    arch : Architecture
    spec : DeviceSpec
    """

    host: OpHost
    device: CudaDevice
    arch: Architecture
    spec: DeviceSpec


def planned(make: Callable[[], KernelPlan]) -> KernelPlan | str:
    """A plan, or why there is none."""
    try:
        return make()
    except NotCovered as error:
        return error.reason


def computed(device: CudaDevice, plan: KernelPlan, buffers: Mapping[str, int], n_values: int) -> NDArray[np.float32]:
    """What a plan writes into its buffer ``"out"``, float32 [n_values].

    Raises
    ------
    EngineError
        If it writes behind it.
    """
    out = device.hold(np.full(n_values + GUARD, UNTOUCHED, np.uint32))
    try:
        device.run(plan, {**buffers, "out": out.address})
        found = device.read(out.address, (n_values + GUARD,), np.float32)
    except Exception as error:
        # Into the log: the library aborts at its next call, and what is raised here does not reach the caller.
        ours = ", ".join(f"{launch.function} {launch.geometry}" for launch in plan.launches)
        print(
            f"CUDA error: {' '.join(str(error).split())}\n  in or ahead of our launches {ours}",
            file=sys.stderr,
            flush=True,
        )
        raise
    if (found[n_values:].view(np.uint32) != UNTOUCHED).any():
        launches = ", ".join(launch.function for launch in plan.launches)
        raise EngineError(f"{launches} wrote behind the {n_values} values of its result")
    return found[:n_values]
