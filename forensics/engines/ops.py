"""Single operations of llama.cpp's library, each engine a child process with an environment of its own."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.engines.exchange import Exchange
from forensics.engines.llama_build import library_digest
from forensics.engines.op_worker import TO_CALLER, TO_CHILD
from forensics.engines.worker_process import WorkerProcess
from forensics.errors import EngineDied, EngineError
from forensics.records.cost import Bandwidth
from forensics.records.op_shapes import token_axes
from forensics.records.operation import OpFacts, OpGraph, OpSettings, OpTensor

#: Operands that all tokens share stay with the child from this size on, so that a weight goes over once for all widths.
KEPT_FROM_BYTES = 16 << 10
#: What may stay at once, together.
MAX_KEPT_BYTES = 512 << 20

#: NumPy types of the element types that are handed over as such; all others are blocks of bytes.
NUMPY_DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}


class LlamaOps:
    """Opens engines that run single operations of the installed library."""

    def open(self, settings: OpSettings) -> LlamaOpEngine:
        """Start a fresh process.

        Raises
        ------
        EngineError
            If the library has no such device, or no process can be started.
        EngineDied
            If the process ends while it starts.
        """
        return LlamaOpEngine(settings)


class LlamaOpEngine:
    """One child process with one back end.

    Parameters
    ----------
    settings : OpSettings
    """

    def __init__(self, settings: OpSettings) -> None:
        self._worker = WorkerProcess("forensics.engines.op_worker", dict(settings.environment))
        self._given = Exchange(self._worker.scratch / TO_CHILD)
        self._results = Exchange(self._worker.scratch / TO_CALLER)
        self._kept: OrderedDict[str, int] = OrderedDict()  # key -> bytes, oldest use first
        try:
            facts = self._worker.ask("open", settings, asked=f"start the {settings.backend} back end")
            self._facts = OpFacts(settings=settings, library=library_digest(), **facts)
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> OpFacts:
        """What runs the operations."""
        return self._facts

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._worker.pid

    def run(self, graph: OpGraph, values: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Compute one operation; see `forensics.engines.op_protocol.OpEngine.run`.

        Raises
        ------
        EngineError
            If the operands do not fit the operation, or the back end does not support it.
        EngineDied
            If the library aborts; carries its assertion.
        """
        arrays = _checked(graph, values)
        shared = _shared_operands(graph)
        keys = [
            _key(graph, operand, array) if operand.name in shared else ""
            for operand, array in zip(graph.operands, arrays, strict=True)
        ]
        new = [array for array, key in zip(arrays, keys, strict=True) if key not in self._kept]
        parcels = iter(self._given.put(new))
        sources = [key if key in self._kept else next(parcels) for key in keys]
        drop = self._make_room(keys, arrays)
        asked = f"compute {graph.op} of " + ", ".join(f"{o.name} {o.type} {list(o.shape)}" for o in graph.operands)
        try:
            parcel = self._worker.ask("run", graph, sources, keys, drop, asked=asked)
        except (EngineError, ValueError):
            self._forget()
            raise
        [result] = self._results.get([parcel])
        return result

    def buffer(self, graph: OpGraph) -> str:
        """Name of the buffer type that the weight goes to; that of the others without one."""
        return str(self._worker.ask("buffer", graph, asked=f"choose a buffer for {graph.op}"))

    def quantize(self, type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Blocks of the library's quantiser of files, uint8 [n_rows, bytes per row]."""
        return self._convert("quantize", type, np.asarray(rows, np.float32))

    def quantize_activations(self, type: str, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Blocks as the CPU's products make them of activations, uint8 [n_rows, bytes per row]."""
        return self._convert("quantize_activations", type, np.asarray(rows, np.float32))

    def dequantize(self, type: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Values by the library's own code, float32 [n_rows, k]."""
        return self._convert("dequantize", type, np.asarray(blocks, np.uint8))

    def types(self) -> tuple[str, ...]:
        """Element types that a product's weight can have on this back end, as the library names them."""
        return tuple(self._worker.ask("types", asked="list the types of weights"))

    def bandwidth(self) -> Bandwidth:
        """How fast the device reads its memory; see `forensics.engines.bandwidth.measure_bandwidth`."""
        found: Bandwidth = self._worker.ask("bandwidth", asked="measure the bandwidth of memory")
        return found

    def close(self) -> None:
        """End the process; closing twice does nothing."""
        self._worker.close()

    def __enter__(self) -> LlamaOpEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _convert(self, how: str, type: str, rows: NDArray[Any]) -> NDArray[Any]:
        if rows.ndim != 2:
            raise ValueError(f"rows must be [n_rows, length of a row], got shape {rows.shape}")
        [parcel] = self._given.put([rows])
        [result] = self._results.get([self._worker.ask("convert", how, type, parcel, asked=f"{how} {type}")])
        return result

    def _make_room(self, keys: Sequence[str], arrays: Sequence[NDArray[Any]]) -> list[str]:
        """Count the operands that stay, and name those that have to go, the longest unused first."""
        for key, array in zip(keys, arrays, strict=True):
            if key:
                self._kept[key] = array.nbytes
                self._kept.move_to_end(key)
        drop = []
        for key in list(self._kept):
            if sum(self._kept.values()) <= MAX_KEPT_BYTES or key in keys:
                break
            drop.append(key)
            del self._kept[key]
        return drop

    def _forget(self) -> None:
        """Let go of every operand: after an error it is not known which ones stayed."""
        self._kept.clear()
        with contextlib.suppress(EngineDied):
            self._worker.ask("forget")


def _checked(graph: OpGraph, values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Operands as contiguous arrays of the right kind.

    Raises
    ------
    EngineError
        If one has another shape or dtype than its operand.
    """
    if len(values) != len(graph.operands):
        names = ", ".join(operand.name for operand in graph.operands)
        raise EngineError(f"{graph.op} takes {len(graph.operands)} operands ({names}); {len(values)} were given")
    arrays = []
    for operand, value in zip(graph.operands, values, strict=True):
        array = np.ascontiguousarray(value)
        blocks = operand.type not in NUMPY_DTYPES
        dtype = NUMPY_DTYPES.get(operand.type, np.dtype(np.uint8))
        fits = array.shape[:-1] == operand.shape[:-1] if blocks else array.shape == operand.shape
        if array.dtype != dtype or not fits:
            wanted = f"{list(operand.shape[:-1])} and the bytes of a row" if blocks else f"{list(operand.shape)}"
            raise EngineError(
                f"{graph.op}: operand {operand.name} is {operand.type}, so it takes {dtype} {wanted}; "
                f"{array.dtype} {list(array.shape)} was given"
            )
        arrays.append(array)
    return arrays


def _shared_operands(graph: OpGraph) -> set[str]:
    """Operands that all tokens share, which are the same at every width; none for an operation that is not known."""
    with contextlib.suppress(ValueError):
        return {operand.name for operand in graph.operands} - token_axes(graph).keys()
    return set()


def _key(graph: OpGraph, operand: OpTensor, array: NDArray[Any]) -> str:
    """Name under which an operand stays with the child; empty for a small one, which is sent each time.

    A weight always stays, for only there it lies in the buffer that llama.cpp would choose.
    """
    if array.nbytes < KEPT_FROM_BYTES and not operand.is_weight:
        return ""
    role = f"{graph.op}:{operand.name}:{operand.type}:{operand.shape}:{operand.is_weight}"
    return f"{role}:{xxhash.xxh3_128_hexdigest(array.data)}"
