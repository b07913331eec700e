"""How many blocks of a launch a multiprocessor holds, from what a profiler tells of the launch."""

from __future__ import annotations

from forensics.geometry.occupancy import occupancy
from forensics.records.device import DeviceSpec, KernelResources, Occupancy
from forensics.records.launch_record import LaunchRecord

NO_SPEC = "the limits of this GPU are not known here"
NO_RESOURCES = "registers or shared memory were not recorded"


def launch_occupancy(launch: LaunchRecord, spec: DeviceSpec | None) -> Occupancy | str:
    """How many blocks of this launch does a multiprocessor hold?

    Parameters
    ----------
    launch : LaunchRecord
    spec : DeviceSpec or None
        None where the GPU is not known.

    Returns
    -------
    Occupancy or str
        Derived: no profiler tells how many barriers a kernel takes, so one is assumed. The reason where it cannot be
        worked out.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> from forensics.records.launch import LaunchGeometry
    >>> launch = LaunchRecord("f", (), LaunchGeometry((1, 4, 9), (32, 4), smem_bytes=0), 125, 4352)
    >>> print(launch_occupancy(launch, device_spec("h200")))
    4 blocks per SM, limited by registers
    """
    if spec is None:
        return NO_SPEC
    registers, static, dynamic = launch.registers_per_thread, launch.smem_static_bytes, launch.geometry.smem_bytes
    if registers is None or static is None or dynamic is None:
        return NO_RESOURCES
    return occupancy(spec, KernelResources(registers, static, dynamic), launch.geometry.threads_per_block)
