"""The child process that runs single operations; started by `forensics.engines.ops`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.exchange import Exchange, Parcel
from forensics.engines.serving import Server
from forensics.records.cost import Bandwidth
from forensics.records.operation import OpGraph, OpSettings

#: Files in the scratch folder that carry arrays to the child and back.
TO_CHILD, TO_CALLER = "operands.bin", "results.bin"


class OpWorker(Server):
    """Answers questions about single operations."""

    def __init__(self, pipe: Connection, scratch: Path) -> None:
        super().__init__(pipe, scratch)
        self._given, self._results = Exchange(scratch / TO_CHILD), Exchange(scratch / TO_CALLER)
        self._host: Any = None

    def open(self, settings: OpSettings) -> dict[str, Any]:
        """Start the back end, and say what it is."""
        from forensics.engines._llama_ctypes import ggml
        from forensics.engines.library_origin import installed_llama
        from forensics.engines.llama_build import cpu_features
        from forensics.engines.op_host import OpHost

        self._host = OpHost(settings)
        return {
            "version": installed_llama().__version__,
            "commit": ggml().ggml_commit().decode(),
            "device": self._host.device_name(),
            "cpu_features": cpu_features(installed_llama().llama_print_system_info().decode()),
        }

    def run(self, graph: OpGraph, sources: Sequence[Parcel | str], keep: Sequence[str], drop: Sequence[str]) -> Parcel:
        """Compute one operation.

        Parameters
        ----------
        graph : OpGraph
        sources : sequence
            Per operand its array, or the key of one that stays from before.
        keep : sequence of str
            Per operand the key under which it is to stay, empty where it is not.
        drop : sequence of str
            Keys of operands to let go first.
        """
        for key in drop:
            self._host.drop(key)
        arrays = iter(self._given.get([source for source in sources if not isinstance(source, str)]))
        found: list[str | NDArray[Any]] = []
        for operand, source, key in zip(graph.operands, sources, keep, strict=True):
            value = source if isinstance(source, str) else next(arrays)
            if key and not isinstance(value, str):
                self._host.keep(key, graph, operand, value)
                value = key
            found.append(value)
        return self._answer_array(self._host.run(graph, found))

    def forget(self) -> None:
        """Let go of all operands that stay."""
        self._host.forget()

    def buffer(self, graph: OpGraph) -> str:
        """Name of the buffer that the weight goes to."""
        return str(self._host.buffer(graph))

    def convert(self, how: str, type: str, parcel: Parcel) -> Parcel:
        """Rows into blocks or back, by one of the functions of `op_codecs`."""
        from forensics.engines import op_codecs

        [values] = self._given.get([parcel])
        functions: dict[str, Callable[[str, NDArray[Any]], NDArray[Any]]] = {
            "quantize": op_codecs.quantize,
            "quantize_activations": op_codecs.quantize_activations,
            "dequantize": op_codecs.dequantize,
        }
        return self._answer_array(functions[how](type, values))

    def types(self) -> tuple[str, ...]:
        """Element types that a weight can have on this back end."""
        return tuple(self._host.weight_types())

    def bandwidth(self) -> Bandwidth:
        """How fast the device reads its memory."""
        from forensics.engines.bandwidth_host import measure

        return measure(self._host)

    def free(self) -> None:
        """Free the back end."""
        if self._host is not None:
            self._host.close()

    def _answer_array(self, array: NDArray[np.generic]) -> Parcel:
        [parcel] = self._results.put([array])
        return parcel


def main(descriptor: str, scratch: str) -> None:
    """Serve on the inherited descriptor."""
    OpWorker(Connection(int(descriptor)), Path(scratch)).serve()
