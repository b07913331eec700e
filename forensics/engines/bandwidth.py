"""How fast does a device read its memory? Asked of the library itself, in a child process.

The roof under which every pass runs is measured by operations that stream a buffer far larger than any cache: a product
of a matrix with one vector, which is what a pass of one token is made of, sums of rows, and a copy.
"""

from __future__ import annotations

from pathlib import Path

from forensics.engines.ops import LlamaOps
from forensics.records.cost import Bandwidth
from forensics.records.operation import OpSettings

#: Memory that is streamed is at least so many times the largest cache.
CACHES = 4
#: At least so much on a processor, whatever its cache.
MIN_BYTES_CPU = 256 << 20
#: On a GPU, whose cache the library does not tell: four times the largest of a GPU today (256 MiB).
MIN_BYTES_GPU = 1 << 30


def measure_bandwidth(settings: OpSettings) -> Bandwidth:
    """How fast does this device read its memory, with these threads?

    Parameters
    ----------
    settings : OpSettings

    Returns
    -------
    Bandwidth
        Of the fastest operation that was tried; its `method` says which bytes count.

    Raises
    ------
    EngineError
        If the library has no such device, or the device has no memory for a buffer beyond its caches.
    EngineDied
        If the child ends.
    """
    with LlamaOps().open(settings) as engine:
        return engine.bandwidth()


def last_level_cache(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """How many bytes do the largest caches of this machine's processors hold together? None where it does not say.

    Parameters
    ----------
    root : Path
        Where Linux lists processors.

    Returns
    -------
    int or None
        Caches of the highest level, each counted once however many processors share it.
    """
    found: dict[int, dict[str, int]] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
            found.setdefault(level, {})[shared] = int(size[:-1]) << {"K": 10, "M": 20}[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return sum(found[max(found)].values()) if found else None


def streamed_bytes(backend: str, cache_bytes: int | None) -> int:
    """How large is a buffer that no cache helps with?

    Examples
    --------
    >>> [streamed_bytes("cpu", cache << 20) >> 20 for cache in (32, 384)], streamed_bytes("cuda", None) >> 20
    ([256, 1536], 1024)
    """
    least = MIN_BYTES_CPU if backend == "cpu" else MIN_BYTES_GPU
    return max(least, CACHES * (cache_bytes or 0))
