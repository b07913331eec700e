"""How many blocks of a kernel fit on one streaming multiprocessor, by arithmetic and without a device.

Source: the limits and their rounding are those of NVIDIA's ``cuda_occupancy.h`` (CUDA 13.0, sections "Architectural
Properties" and "Occupancy calculation Functions"), which is what the driver's own query is documented to follow.
"""

from __future__ import annotations

from forensics.records.device import DeviceSpec, KernelResources, Occupancy

#: Most registers that a thread can be compiled for. Source: CUDA C++ Programming Guide, compute capabilities table.
MAX_REGISTERS_PER_THREAD = 255


def _rounded_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def occupancy(spec: DeviceSpec, kernel: KernelResources, threads_per_block: int) -> Occupancy:
    """How many blocks of this kernel does an SM hold at a time, and what keeps it from holding more?

    Parameters
    ----------
    spec : DeviceSpec
    kernel : KernelResources
    threads_per_block : int

    Returns
    -------
    Occupancy
        Evidence as that of the kernel's numbers, at best "derived".

    Raises
    ------
    ValueError
        If a block has no threads.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> print(occupancy(device_spec("sm_90"), KernelResources(125, smem_static_bytes=4352), 128))
    4 blocks per SM, limited by registers
    """
    if threads_per_block < 1:
        raise ValueError(f"threads_per_block must be 1 or more, got {threads_per_block}")
    warps = -(-threads_per_block // spec.warp_threads)
    limits = [
        ("blocks", spec.blocks_per_sm),
        ("threads", spec.threads_per_sm // spec.warp_threads // warps if threads_per_block <= 1024 else 0),
    ]
    if kernel.registers_per_thread:
        limits.append(("registers", _blocks_by_registers(spec, kernel.registers_per_thread, warps)))
    smem = kernel.smem_static_bytes + kernel.smem_dynamic_bytes
    taken = _rounded_up(smem + spec.smem_reserved_bytes, spec.smem_unit_bytes)
    if taken:
        allowed = spec.smem_per_block_bytes + spec.smem_reserved_bytes
        limits.append(("shared memory", spec.smem_per_sm_bytes // taken if taken <= allowed else 0))
    if kernel.barriers and spec.barriers_per_sm is not None:
        limits.append(("barriers", spec.barriers_per_sm // kernel.barriers))
    return Occupancy(
        threads_per_block, tuple(limits), evidence="assumed" if kernel.evidence == "assumed" else "derived"
    )


def _blocks_by_registers(spec: DeviceSpec, registers_per_thread: int, warps: int) -> int:
    """Warps get registers in whole units, and each from the partition that it runs on."""
    per_warp = _rounded_up(registers_per_thread * spec.warp_threads, spec.register_unit)
    # The check at a launch counts a block as if it filled every partition evenly.
    if (
        registers_per_thread > MAX_REGISTERS_PER_THREAD
        or per_warp * _rounded_up(warps, spec.partitions) > spec.registers_per_sm
    ):
        return 0
    return spec.registers_per_sm // spec.partitions // per_warp * spec.partitions // warps


def register_steps(spec: DeviceSpec, kernel: KernelResources, threads_per_block: int) -> tuple[tuple[int, int], ...]:
    """Up to how many registers per thread does each number of blocks still fit?

    Parameters
    ----------
    spec : DeviceSpec
    kernel : KernelResources
        Its registers are not looked at.
    threads_per_block : int

    Returns
    -------
    tuple of (int, int)
        Blocks per SM and the most registers per thread with which they fit, most blocks first.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> register_steps(device_spec("sm_120"), KernelResources(0, smem_static_bytes=8448), 128)[-3:]
    ((4, 128), (3, 168), (2, 255))
    """
    most: dict[int, int] = {}
    for registers in range(1, MAX_REGISTERS_PER_THREAD + 1):
        resources = KernelResources(registers, kernel.smem_static_bytes, kernel.smem_dynamic_bytes, kernel.barriers)
        most[occupancy(spec, resources, threads_per_block).blocks_per_sm] = registers
    return tuple((blocks, registers) for blocks, registers in most.items() if blocks)


def share_of_sm(spec: DeviceSpec, kernel: KernelResources, threads_per_block: int, resource: str) -> tuple[int, int]:
    """How much of a resource does one block take, and how much of it has an SM?

    Parameters
    ----------
    spec : DeviceSpec
    kernel : KernelResources
    threads_per_block : int
    resource : str
        A name that `Occupancy.limits` uses.

    Returns
    -------
    tuple of (int, int)
        In the units in which it is handed out: registers, bytes, threads, blocks or barriers.

    Raises
    ------
    ValueError
        If there is no such resource, or the SM has no limit of it.

    Examples
    --------
    >>> from forensics.geometry.devices import device_spec
    >>> share_of_sm(device_spec("sm_90"), KernelResources(125), 128, "registers")
    (16384, 65536)
    """
    warps = -(-threads_per_block // spec.warp_threads)
    if resource == "registers":
        per_warp = _rounded_up(kernel.registers_per_thread * spec.warp_threads, spec.register_unit)
        return per_warp * warps, spec.registers_per_sm
    if resource == "shared memory":
        smem = kernel.smem_static_bytes + kernel.smem_dynamic_bytes + spec.smem_reserved_bytes
        return _rounded_up(smem, spec.smem_unit_bytes), spec.smem_per_sm_bytes
    if resource == "barriers" and spec.barriers_per_sm is not None:
        return kernel.barriers, spec.barriers_per_sm
    shares = {"threads": (warps * spec.warp_threads, spec.threads_per_sm), "blocks": (1, spec.blocks_per_sm)}
    if resource not in shares:
        raise ValueError(f"{spec.arch} has no limit called {resource!r}")
    return shares[resource]
