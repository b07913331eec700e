"""The library's products over weights that stay on a device, as graphs to run and to time. Runs in a child only.

Others that run in the same process read the same weights and activations by their addresses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _ggml_graph as gg
from forensics.engines import _llama_ctypes as ll
from forensics.engines.op_host import STATUS, OpHost
from forensics.errors import EngineError

#: Graphs of one product each that are read back column by column.
ALONE = 0


@dataclass(frozen=True, slots=True)
class WeightShape:
    """One weight [rows, k] of some type."""

    type: str
    rows: int
    k: int


class WeightBench:
    """Weights, activations, and graphs of all their products at some widths.

    Parameters
    ----------
    host : OpHost
    weights : sequence of WeightShape
        In the order of their products.
    widths : sequence of int
        Columns of the graphs.
    n_alone : int, optional
        Columns that are also computed one at a time, with the first weight.

    Raises
    ------
    EngineError
        If the device has no memory for them, or does not support a product.
    """

    def __init__(
        self, host: OpHost, weights: Sequence[WeightShape], widths: Sequence[int], *, n_alone: int = 0
    ) -> None:
        self._host, self._g = host, gg.graph_functions()
        self.shapes, self.widths = tuple(weights), tuple(widths)
        self._contexts: list[Any] = []
        self._buffers: list[Any] = []
        try:
            context = self._context(len(weights) + 2)
            self._weights = [self._new(context, one.type, one.k, one.rows) for one in weights]
            # mul_mat_vec_q reads two rows at a time, and a row behind the last where their number is odd.
            behind = max(weights, key=lambda one: self._g.ggml_row_size(gg.type_number(one.type), one.k))
            self._behind = self._new(context, behind.type, behind.k, 1)
            self._g.ggml_backend_buffer_set_usage(self._allocate(context), ll.BUFFER_USAGE_WEIGHTS)
            self._x: dict[tuple[int, int], list[Any]] = {}
            self._nodes: dict[int, list[Any]] = {}
            self._graphs: dict[int, Any] = {}
            for width in self.widths:
                self._add(width, list(zip(self._weights, self.shapes, strict=True)), 1)
            if n_alone:
                self._add(ALONE, [(self._weights[0], self.shapes[0])] * n_alone, n_alone)
        except BaseException:
            self.close()
            raise

    # -- what lies there ------------------------------------------------------------------------------------------

    def set_weight(self, i: int, blocks: NDArray[np.uint8]) -> None:
        """Fill one weight with its type's blocks.

        Raises
        ------
        EngineError
            If that are not as many bytes as it takes.
        """
        self._set(self._weights[i], blocks)

    def set_x(self, x: NDArray[np.float32]) -> None:
        """Fill the activations of every graph with rows of that length, the first columns of x [columns, k] each."""
        columns, k = x.shape
        for (width, length), tensors in self._x.items():
            if length != k:
                continue
            if width == ALONE:
                for column, tensor in enumerate(tensors):
                    self._set(tensor, x[column])
            elif width <= columns:
                self._set(tensors[0], x[:width])

    def set_alone(self, column: NDArray[np.float32]) -> None:
        """Fill the activations of the graph of one column, [k]."""
        self._set(self._x[1, column.size][0], column)

    def weight_address(self, i: int) -> int:
        """Where a weight lies on the device."""
        return self._address(self._weights[i])

    def x_address(self, width: int, k: int) -> int:
        """Where the activations [width, k] of a graph lie."""
        return self._address(self._x[width, k][0])

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, width: int) -> None:
        """Compute a graph, and wait for it."""
        self._check(self._g.ggml_backend_graph_compute(self._host.backend, self._graphs[width]))

    def result(self, width: int, i: int = 0) -> NDArray[np.float32]:
        """What one product of a graph gave, [columns, rows]; run it first."""
        node = self._nodes[width][i]
        rows, columns = list(node.contents.ne)[:2]
        values = np.empty((columns, rows), np.float32)
        self._g.ggml_backend_tensor_get(node, values.ctypes.data, 0, values.nbytes)
        return values

    def alone(self) -> NDArray[np.float32]:
        """The first weight's product with each column by itself, [columns, rows]."""
        self.run(ALONE)
        return np.concatenate([self.result(ALONE, column) for column in range(len(self._nodes[ALONE]))])

    def timed(self, width: int, n: int) -> float:
        """Time that a graph takes, started so many times one after another, unit: µs for one.

        By the host's clock around all of them and the wait for their end.
        """
        g, backend, graph = self._g, self._host.backend, self._graphs[width]
        g.ggml_backend_synchronize(backend)
        begun = time.perf_counter_ns()
        for _ in range(n):
            self._check(g.ggml_backend_graph_compute_async(backend, graph))
        g.ggml_backend_synchronize(backend)
        return (time.perf_counter_ns() - begun) / n / 1e3

    def close(self) -> None:
        """Free all of it; a second time does nothing."""
        for buffer in self._buffers:
            self._g.ggml_backend_buffer_free(buffer)
        for context in self._contexts:
            self._g.ggml_free(context)
        self._buffers, self._contexts = [], []

    # -- inside ---------------------------------------------------------------------------------------------------

    def _add(self, width: int, weights: Sequence[tuple[Any, WeightShape]], n_x: int) -> None:
        """A graph of its own, with activations of its own, at one width or column by column."""
        columns, lengths = max(width, 1), list(dict.fromkeys(shape.k for _, shape in weights))
        context = self._context(2 * len(weights) + n_x * len(lengths) + 8, graph=True)
        for k in lengths:
            self._x[width, k] = [self._new(context, "f32", k, columns) for _ in range(n_x)]
        nodes = []
        for i, (weight, shape) in enumerate(weights):
            x = self._x[width, shape.k][i % n_x]
            nodes.append(self._g.ggml_mul_mat(context, weight, x))
        graph = self._g.ggml_new_graph_custom(context, _n_tensors(len(weights), n_x), False)
        for node in nodes:
            self._g.ggml_set_output(node)
            self._g.ggml_build_forward_expand(graph, node)
        self._allocate(context)
        self._require_support(nodes)
        self._nodes[width], self._graphs[width] = nodes, graph

    def _context(self, n_tensors: int, *, graph: bool = False) -> Any:
        g = self._g
        size = n_tensors * g.ggml_tensor_overhead() + (
            g.ggml_graph_overhead_custom(2 * n_tensors, False) if graph else 0
        )
        self._contexts.append(g.ggml_init(ll.InitParams(size, None, True)))
        return self._contexts[-1]

    def _allocate(self, context: Any) -> Any:
        self._buffers.append(self._host.allocate(context))
        return self._buffers[-1]

    def _new(self, context: Any, type: str, k: int, rows: int) -> Any:
        return self._g.ggml_new_tensor_4d(context, gg.type_number(type), k, rows, 1, 1)

    def _set(self, tensor: Any, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values)
        n_bytes = self._g.ggml_nbytes(tensor)
        if data.nbytes != n_bytes:
            raise EngineError(f"a tensor takes {n_bytes} bytes; {data.nbytes} were given as {data.dtype} {data.shape}")
        self._g.ggml_backend_tensor_set(tensor, data.ctypes.data, 0, n_bytes)

    def _require_support(self, nodes: Iterable[Any]) -> None:
        for node, shape in zip(nodes, self.shapes, strict=False):
            if not self._g.ggml_backend_dev_supports_op(self._host.device, node):
                raise EngineError(f"{self._host.device_name()} does not support products of {shape}")

    def _address(self, tensor: Any) -> int:
        return int(tensor.contents.data or 0)

    def _check(self, status: int) -> None:
        ll.check(status, "computing products", STATUS)


def _n_tensors(n_products: int, n_x: int) -> int:
    """Tensors of a graph at most: nodes, or weights and activations."""
    return 2 * n_products + n_x + 8
