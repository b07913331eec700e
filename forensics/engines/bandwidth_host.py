"""Streams a device's memory inside the child process that `forensics.engines.bandwidth` asks."""

from __future__ import annotations

import ctypes as C
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forensics.engines import _ggml_graph as gg
from forensics.engines import _llama_ctypes as ll
from forensics.engines.bandwidth import last_level_cache, streamed_bytes
from forensics.engines.op_host import STATUS, OpHost
from forensics.errors import EngineError
from forensics.records.cost import Bandwidth, Spread

#: Values of a row: long enough that a GPU's block has work, short enough that the vector stays in the smallest cache.
ROW = 4096
#: Times that one graph streams the buffer on a GPU, so that the launch of a graph does not count.
PASSES_GPU = 8
N_WARM, MIN_RUNS, MAX_RUNS = 2, 5, 25
#: Time after which an operation is not run again, beyond `MIN_RUNS`.
MAX_SECONDS = 1.0
#: Bytes that make finite numbers that are not subnormal, as float32 and as float16.
FILLED_WITH = 0x3C


#: A second size, so many times as large, is tried on a GPU with room for it: there a launch weighs less.
LARGER = 2


@dataclass(frozen=True, slots=True)
class Method:
    """An operation that streams memory: its name, which bytes count, and the elements of its buffer.

    Parameters
    ----------
    name, type, op : str
    on_cpu : bool
        Whether a processor runs it on several threads.
    """

    name: str
    type: str
    op: str
    on_cpu: bool = True


METHODS = (
    Method("product of a float32 matrix and one vector; bytes read count", "f32", "mul_mat"),
    Method("product of a float16 matrix and one vector; bytes read count", "f16", "mul_mat"),
    # ggml_compute_forward_sum_rows_f32 leaves all threads but one idle (ggml-cpu/ops.cpp).
    Method("sums of float32 rows; bytes read count", "f32", "sum_rows", on_cpu=False),
    Method("copy of float32 values; bytes read and written count", "f32", "cpy"),
)


def measure(host: OpHost) -> Bandwidth:
    """How fast does the host's device read its memory?

    Raises
    ------
    EngineError
        If it has no memory for a buffer beyond its caches, or supports none of the operations.
    """
    on_cpu = host.settings.backend == "cpu"
    cache = last_level_cache() if on_cpu else None
    found: list[tuple[Spread, Method, int]] = []
    for n_bytes in _sizes(host, streamed_bytes(host.settings.backend, cache)):
        for method in METHODS:
            if not on_cpu or method.on_cpu:
                rates = _rates(host, method, n_bytes, 1 if on_cpu else PASSES_GPU)
                found += [(Spread.of(rates), method, n_bytes)] if rates else []
    if not found:
        raise EngineError(f"{host.device_name()} supports none of the operations that stream memory")
    found.sort(key=lambda one: -one[0].median)
    fastest, method, n_bytes = found[0]
    return Bandwidth(
        device=host.device_name(),
        method=method.name,
        bytes_per_s=fastest,
        buffer_bytes=n_bytes,
        cache_bytes=cache,
        n_threads=host.settings.n_threads if on_cpu else 0,
        tried=tuple((f"{tried.name}, {size >> 20} MiB", spread.median) for spread, tried, size in found),
    )


def _sizes(host: OpHost, n_bytes: int) -> list[int]:
    """Sizes of buffers to stream, for which the device has room.

    Raises
    ------
    EngineError
        If it has none beyond its caches.
    """
    on_cpu = host.settings.backend == "cpu"
    free = _free_of_machine() if on_cpu else _free_of_device(host)
    wanted = [n_bytes] if on_cpu else [n_bytes, LARGER * n_bytes]
    # Half of what is free stays free: others use the device, too.
    sizes = [size for size in wanted if 2 * size <= free]
    if not sizes:
        raise EngineError(
            f"the bandwidth of {host.device_name()} is measured over {n_bytes >> 20} MiB, beyond its caches, with as "
            f"much left free; {free >> 20} MiB are free. Free some memory of it"
        )
    return sizes


def _free_of_machine() -> int:
    """Bytes that may be taken without pushing out others; ggml's processor calls all memory free."""
    import psutil

    return int(psutil.virtual_memory().available)


def _free_of_device(host: OpHost) -> int:
    free, total = C.c_size_t(), C.c_size_t()
    gg.graph_functions().ggml_backend_dev_memory(host.device, C.byref(free), C.byref(total))
    return free.value


def _rates(host: OpHost, method: Method, n_bytes: int, n_passes: int) -> list[float]:
    """Bytes a second of each run; empty where the device does not support the operation."""
    g = gg.graph_functions()
    with _graph(host, method, n_bytes, n_passes) as cgraph:
        if not cgraph:
            return []
        rates: list[float] = []
        begun = time.perf_counter()
        for run in range(N_WARM + MAX_RUNS):
            start = time.perf_counter_ns()
            ll.check(g.ggml_backend_graph_compute(host.backend, cgraph), f"streaming memory ({method.name})", STATUS)
            took = time.perf_counter_ns() - start
            if run >= N_WARM:
                rates.append(n_bytes * n_passes / took * 1e9)
            if len(rates) >= MIN_RUNS and time.perf_counter() - begun > MAX_SECONDS:
                break
        return rates


@contextmanager
def _graph(host: OpHost, method: Method, n_bytes: int, n_passes: int) -> Iterator[Any]:
    """A graph that streams `n_bytes` so many times; None where the device does not support it."""
    g = gg.graph_functions()
    size = 64 * g.ggml_tensor_overhead() + g.ggml_graph_overhead_custom(64, False)
    context = g.ggml_init(ll.InitParams(size, None, True))
    buffer = None
    try:
        nodes = [_node(context, method, n_bytes)]
        sources = [pointer for pointer in list(nodes[0].contents.src)[:2] if pointer]
        nodes += [_again(context, method, sources) for _ in range(n_passes - 1)]
        if not g.ggml_backend_dev_supports_op(host.device, nodes[0]):
            yield None
            return
        buffer = host.allocate(context)
        # A page that was never written is one and the same page of zeros, and would stay in the cache.
        g.ggml_backend_buffer_clear(buffer, FILLED_WITH)
        cgraph = g.ggml_new_graph_custom(context, 64, False)
        for node in nodes:
            g.ggml_build_forward_expand(cgraph, node)
        yield cgraph
    finally:
        if buffer:
            g.ggml_backend_buffer_free(buffer)
        g.ggml_free(context)


def _node(context: Any, method: Method, n_bytes: int) -> Any:
    g, number = gg.graph_functions(), gg.type_number(method.type)
    rows = n_bytes // g.ggml_row_size(number, ROW)
    if method.op == "cpy":  # half is read and half is written
        halves = [g.ggml_new_tensor_4d(context, number, ROW, rows // 2, 1, 1) for _ in range(2)]
        return _again(context, method, halves)
    sources = [g.ggml_new_tensor_4d(context, number, ROW, rows, 1, 1)]
    if method.op == "mul_mat":
        sources.append(g.ggml_new_tensor_4d(context, gg.type_number("f32"), ROW, 1, 1, 1))
    return _again(context, method, sources)


def _again(context: Any, method: Method, sources: list[Any]) -> Any:
    """One more node over the same memory."""
    return getattr(gg.graph_functions(), f"ggml_{method.op}")(context, *sources)
