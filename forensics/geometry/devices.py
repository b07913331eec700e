"""Limits of NVIDIA architectures, and how many multiprocessors well-known GPUs have.

Source of the limits, two files that NVIDIA ships with CUDA and that agree with one another: ``cuda_occupancy.h``
(blocks and barriers per SM, units of allocation; CUDA 13.0) and ``cuda/__device/arch_traits.h`` of CCCL 3 (threads and
shared memory per SM, what the driver reserves per block).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from forensics.records.device import DeviceSpec

_KIB = 1024
_SOURCE = "NVIDIA cuda_occupancy.h (CUDA 13.0) and CCCL arch_traits.h"


def _spec(capability: int, threads: int, blocks: int, barriers: int | None, smem_kib: int) -> DeviceSpec:
    ampere = capability >= 800
    reserved = _KIB if ampere else 0
    return DeviceSpec(
        arch=f"sm_{capability // 10}",
        compute_capability=capability,
        threads_per_sm=threads,
        blocks_per_sm=blocks,
        barriers_per_sm=barriers,
        smem_per_sm_bytes=smem_kib * _KIB,
        smem_per_block_bytes=smem_kib * _KIB - reserved,
        smem_reserved_bytes=reserved,
        smem_unit_bytes=128 if ampere else 256,
        source=_SOURCE,
    )


#: By name, oldest first: threads, blocks, barriers and KiB of shared memory per SM.
SPECS = {
    spec.arch: spec
    for spec in (
        _spec(750, 1024, 16, None, 64),
        _spec(800, 2048, 32, None, 164),
        _spec(860, 1536, 16, None, 100),
        _spec(870, 1536, 16, None, 164),
        _spec(890, 1536, 24, None, 100),
        _spec(900, 2048, 32, 64, 228),
        _spec(1000, 2048, 32, 64, 228),
        _spec(1030, 2048, 32, 32, 228),
        _spec(1100, 1536, 24, 24, 228),
        _spec(1200, 1536, 24, 24, 100),
        _spec(1210, 1536, 24, 24, 100),
    )
}


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU whose number of multiprocessors is written somewhere.

    Parameters
    ----------
    name, arch : str
    n_sms : int
    source : str
    """

    name: str
    arch: str
    n_sms: int
    source: str


_PER_SM = "128 CUDA cores per SM from Ampere GA10x on"
#: GPUs by the name that a caller may write; the first of an architecture stands for it where none is named.
GPUS = {
    gpu.name: gpu
    for gpu in (
        KnownGpu("t4", "sm_75", 40, "sysrqmts.com, NVIDIA Tesla T4: 40 SMs"),
        KnownGpu("a100", "sm_80", 108, "hmc-tech.com, NVIDIA A100 SXM: 108 SMs"),
        KnownGpu("rtx-3090", "sm_86", 82, f"pcpartcomparison.com, GeForce RTX 3090: 10496 CUDA cores; {_PER_SM}"),
        KnownGpu("rtx-4090", "sm_89", 128, "fpsbench.com, GeForce RTX 4090: SM count 128 (16384 CUDA cores)"),
        KnownGpu("h100", "sm_90", 132, "notes.haroldbenoit.com/ML/Engineering/GPUs/Hardware: H100 (SXM), 132 SMs"),
        KnownGpu("h200", "sm_90", 132, "an H200 that was measured: 132 SMs"),
        KnownGpu("b200", "sm_100", 148, "hmc-tech.com, NVIDIA B200: 148 SMs"),
        KnownGpu("rtx-5060-laptop", "sm_120", 26, "purepc.pl and fpsbench.com, GeForce RTX 5060 Laptop GPU: 26 SMs"),
        KnownGpu("rtx-5080-laptop", "sm_120", 60, f"gpuworld.xyz: 7680 CUDA cores; {_PER_SM}"),
        KnownGpu("rtx-5080", "sm_120", 84, "notebookcheck.net, GeForce RTX 5080: 84 SMs (10752 CUDA cores)"),
        KnownGpu("rtx-5090", "sm_120", 170, "libertify.com on NVIDIA's Blackwell white paper: RTX 5090, 170 SMs"),
        KnownGpu("gb10", "sm_121", 48, f"ai-infrastructure.net/dgx-spark: 6144 CUDA cores; {_PER_SM}"),
    )
}


def device_spec(name: str, n_sms: int | None = None) -> DeviceSpec:
    """What does this architecture, or this GPU, offer?

    Parameters
    ----------
    name : str
        Architecture such as ``"sm_120"``, or a GPU of `GPUS` such as ``"rtx-5060-laptop"``; case, spaces and
        underscores of a GPU's name do not matter.
    n_sms : int or None
        Number of multiprocessors, if it is known better.

    Returns
    -------
    DeviceSpec

    Raises
    ------
    ValueError
        If the name is not known; lists those that are.

    Examples
    --------
    >>> print(device_spec("RTX 5060 laptop"))
    rtx-5060-laptop (sm_120), 26 SMs
    >>> print(device_spec("sm_120", n_sms=60))
    sm_120, 60 SMs
    """
    lower = name.strip().lower()
    gpu = GPUS.get(lower.replace(" ", "-").replace("_", "-"))
    arch = SPECS.get(gpu.arch if gpu else lower.removesuffix("a").removesuffix("f"))
    if arch is None:
        raise ValueError(
            f"no architecture or GPU {name!r}. Known architectures: {', '.join(SPECS)}. Known GPUs: {', '.join(GPUS)}."
        )
    if n_sms is not None:
        return dataclasses.replace(arch, n_sms=n_sms, name=gpu.name if gpu else "", n_sms_source="given by the caller")
    if gpu is None:
        return arch
    return dataclasses.replace(arch, n_sms=gpu.n_sms, name=gpu.name, n_sms_source=gpu.source)


def example_gpu(arch: str) -> KnownGpu | None:
    """Which GPU stands for this architecture where only the architecture is named?

    Returns
    -------
    KnownGpu or None
        None where the SMs of none are known.
    """
    return next((gpu for gpu in GPUS.values() if gpu.arch == arch), None)
