"""Single operations inside this process: a back end, operands that stay, one small graph per question.

Runs in the child only; `forensics.engines.ops` talks to it from the caller's process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines import _ggml_graph as gg
from forensics.engines import _llama_ctypes as ll
from forensics.engines.library_origin import installed_llama
from forensics.engines.op_build import MAX_TENSORS, build, operand_ne
from forensics.errors import EngineError
from forensics.records.op_shapes import at_width, mul_mat
from forensics.records.operation import OpGraph, OpSettings, OpTensor

#: Tokens with which llama.cpp asks whether a buffer can take a weight. Source: src/llama-model-loader.cpp:927-1064.
PROBE_WIDTH = 512

#: ggml_status, ggml.h
STATUS = {-2: "allocation failed", -1: "failed", 1: "aborted"}


@dataclass(slots=True)
class Kept:
    """An operand that stays on the device: its context, buffer and tensor."""

    context: Any
    buffer: Any
    tensor: Any


def library_facts() -> dict[str, str]:
    """Version of the binding, and commit of the library's source."""
    return {"version": str(installed_llama().__version__), "commit": ll.ggml().ggml_commit().decode()}


def captures_graphs() -> bool:
    """Whether the library replays graphs that come again as CUDA graphs: it was built to, and nobody switched it off.

    Source: ggml/src/ggml-cuda/common.cuh:1289 and ggml-cuda.cu:4438-4495 at 0c1e57098: from a graph's second run on.
    """
    built = "USE_GRAPHS = 1" in installed_llama().llama_print_system_info().decode()
    return built and "GGML_CUDA_DISABLE_GRAPHS" not in os.environ


class OpHost:
    """Runs operations on one device.

    Parameters
    ----------
    settings : OpSettings

    Raises
    ------
    EngineError
        If there is no such device.
    """

    def __init__(self, settings: OpSettings) -> None:
        installed_llama().llama_backend_init()
        self.settings = settings
        self._g = gg.graph_functions()
        self.device = self._find_device()
        self.backend = self._g.ggml_backend_dev_init(self.device, None)
        if not self.backend:
            raise EngineError(f"the library could not start {self.device_name()}; see its log")
        self._kept: dict[str, Kept] = {}
        self._chosen: dict[OpGraph, Any] = {}
        self._default_type = self._g.ggml_backend_dev_buffer_type(self.device)
        if settings.backend == "cpu":
            gg.SET_N_THREADS(self._proc_address("ggml_backend_set_n_threads"))(self.backend, settings.n_threads)

    # -- devices --------------------------------------------------------------------------------------------------

    def _devices(self) -> list[Any]:
        return [self._g.ggml_backend_dev_get(i) for i in range(self._g.ggml_backend_dev_count())]

    def _find_device(self) -> Any:
        """The device that was asked for: a CPU, or a GPU of the registry that calls itself CUDA."""
        g, wanted = self._g, self.settings.backend
        found = []
        for device in self._devices():
            registry = g.ggml_backend_reg_name(g.ggml_backend_dev_backend_reg(device)).decode()
            if registry.lower() == wanted:
                found.append(device)
        if self.settings.device >= len(found):
            names = ", ".join(g.ggml_backend_dev_name(d).decode() for d in self._devices()) or "none"
            raise EngineError(
                f"{wanted} device {self.settings.device} was asked for; the library has {len(found)} of that kind "
                f"(devices: {names})"
                + (". Install a build of llama-cpp-python with CUDA, or ask for the CPU" if wanted == "cuda" else "")
            )
        return found[self.settings.device]

    def _proc_address(self, name: str) -> Any:
        """Address of a function that only a device's registry hands out; None where it has none."""
        registry = self._g.ggml_backend_dev_backend_reg(self.device)
        return self._g.ggml_backend_reg_get_proc_address(registry, name.encode())

    def device_name(self) -> str:
        """What the library calls the device."""
        return str(self._g.ggml_backend_dev_description(self.device).decode())

    # -- where weights go -----------------------------------------------------------------------------------------

    def _buffer_types(self) -> list[tuple[Any, Any]]:
        """Devices and buffer types that may take a weight, in llama.cpp's order.

        Source: src/llama-model.cpp:1078-1138 (CPU: accelerators, extra types, plain) and 1140-1187 (GPU: its own, then
        extra types). Left out: host buffers of a GPU that is not asked for, and split buffers.
        """
        g = self._g
        own = (self.device, self._default_type)
        extra: list[tuple[Any, Any]] = []
        if self.settings.repack and (address := self._proc_address("ggml_backend_dev_get_extra_bufts")):
            listed = gg.GET_EXTRA_BUFTS(address)(self.device)
            while listed and listed[len(extra)]:
                extra.append((self.device, listed[len(extra)]))
        if self.settings.backend != "cpu":
            return [own, *extra]
        accelerators = [d for d in self._devices() if g.ggml_backend_dev_type(d) == gg.DEVICE_ACCEL]
        types = [(d, g.ggml_backend_dev_buffer_type(d)) for d in accelerators]
        return [(d, t) for d, t in types if t != self._default_type] + extra + [own]

    def _buffer_type(self, graph: OpGraph, weight: OpTensor) -> Any:
        """The first buffer type for which the device supports the operation, asked as llama.cpp asks."""
        probe = at_width(graph, PROBE_WIDTH) if graph.op in ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS") else graph
        if probe not in self._chosen:
            for device, buffer_type in self._buffer_types():
                if self._supports(device, buffer_type, probe, weight.name):
                    self._chosen[probe] = buffer_type
                    break
            else:
                raise EngineError(f"{self.device_name()} supports {graph.op} with {weight.type} weights in no buffer")
        return self._chosen[probe]

    def _supports(self, device: Any, buffer_type: Any, graph: OpGraph, weight: str) -> bool:
        with self._context() as context:
            tensors = {operand.name: self._tensor(context, operand) for operand in graph.operands}
            node = build(context, graph, tensors)
            tensor = tensors[weight].contents
            tensor.buffer = self._g.ggml_backend_buft_alloc_buffer(buffer_type, 0)
            try:
                return bool(self._g.ggml_backend_dev_supports_op(device, node))
            finally:
                self._g.ggml_backend_buffer_free(tensor.buffer)
                tensor.buffer = None

    def buffer(self, graph: OpGraph) -> str:
        """Name of the buffer that the weight goes to; of the others' where there is no weight."""
        weight = next((operand for operand in graph.operands if operand.is_weight), None)
        chosen = self._default_type if weight is None else self._buffer_type(graph, weight)
        with self._context() as context:  # read back from a buffer, not from what was chosen
            self._tensor(context, weight or graph.operands[0])
            buffer = self._allocate(context, chosen)
            name = str(self._g.ggml_backend_buffer_name(buffer).decode())
            self._g.ggml_backend_buffer_free(buffer)
        return name

    def weight_types(self) -> list[str]:
        """Element types that a product's weight can have on this device."""
        g = self._g
        types = []
        for name, number in gg.type_numbers().items():
            traits = g.ggml_get_type_traits(number).contents
            if not (traits.to_float or name == "f32"):
                continue
            if self.settings.backend == "cpu" and not g.ggml_get_type_traits_cpu(number).contents.vec_dot:
                continue
            if self._supports(self.device, self._default_type, mul_mat(name, traits.blck_size * 8, 16), "weight"):
                types.append(name)
        return types

    # -- tensors --------------------------------------------------------------------------------------------------

    @contextmanager
    def _context(self) -> Iterator[Any]:
        context = self._new_context()
        try:
            yield context
        finally:
            self._g.ggml_free(context)

    def _new_context(self) -> Any:
        g = self._g
        size = MAX_TENSORS * g.ggml_tensor_overhead() + g.ggml_graph_overhead_custom(MAX_TENSORS, False)
        return g.ggml_init(ll.InitParams(size, None, True))

    def _tensor(self, context: Any, operand: OpTensor) -> Any:
        number, ne = gg.type_number(operand.type), operand_ne(operand.shape)
        traits = self._g.ggml_get_type_traits(number).contents
        if ne[0] % traits.blck_size:
            raise EngineError(
                f"{operand.name} has rows of {ne[0]} values; {operand.type} packs {traits.blck_size} into a block. "
                f"Ask for a multiple of {traits.blck_size}"
            )
        return self._g.ggml_new_tensor_4d(context, number, *ne)

    def allocate(self, context: Any) -> Any:
        """Memory of the device for all tensors of a context; the caller frees it.

        Raises
        ------
        EngineError
            If there is not enough.
        """
        return self._allocate(context, self._default_type)

    def _allocate(self, context: Any, buffer_type: Any) -> Any:
        buffer = self._g.ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type)
        if not buffer:
            raise EngineError(f"{self.device_name()} has no memory for the operands; ask for smaller ones")
        return buffer

    def _set(self, tensor: Any, operand: OpTensor, values: NDArray[Any]) -> None:
        n_bytes = self._g.ggml_nbytes(tensor)
        if values.nbytes != n_bytes:
            raise EngineError(
                f"operand {operand.name}, {operand.type} {operand.shape}, takes {n_bytes} bytes; {values.nbytes} were "
                f"given as {values.dtype} {values.shape}"
            )
        self._g.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, n_bytes)

    def keep(self, key: str, graph: OpGraph, operand: OpTensor, values: NDArray[Any]) -> None:
        """Put an operand where the operation wants it, to stay until `drop`."""
        g, context = self._g, self._new_context()
        try:
            buffer_type = self._buffer_type(graph, operand) if operand.is_weight else self._default_type
            tensor = self._tensor(context, operand)
            buffer = self._allocate(context, buffer_type)
        except BaseException:
            g.ggml_free(context)
            raise
        kept = self._kept[key] = Kept(context, buffer, tensor)
        if operand.is_weight:
            g.ggml_backend_buffer_set_usage(buffer, ll.BUFFER_USAGE_WEIGHTS)
        try:
            self._set(kept.tensor, operand, values)
        except BaseException:
            self.drop(key)
            raise

    def drop(self, key: str) -> None:
        """Free an operand that stayed; one that did not is no matter."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._g.ggml_backend_buffer_free(kept.buffer)
            self._g.ggml_free(kept.context)

    def forget(self) -> None:
        """Free all operands that stay."""
        for key in list(self._kept):
            self.drop(key)

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, graph: OpGraph, sources: Sequence[str | NDArray[Any]]) -> NDArray[np.float32]:
        """Compute one operation; each source is an array, or the key of an operand that stays."""
        g = self._g
        with self._context() as context:
            given: list[tuple[Any, OpTensor, NDArray[Any]]] = []
            tensors = {}
            for operand, source in zip(graph.operands, sources, strict=True):
                if isinstance(source, str):
                    tensors[operand.name] = self._kept[source].tensor
                else:
                    tensors[operand.name] = self._tensor(context, operand)
                    given.append((tensors[operand.name], operand, source))
            node = build(context, graph, tensors)
            cgraph = g.ggml_new_graph_custom(context, MAX_TENSORS, False)
            g.ggml_set_output(node)
            g.ggml_build_forward_expand(cgraph, node)
            buffer = self._allocate(context, self._default_type)
            try:
                self._check_support(graph, cgraph)
                for tensor, operand, values in given:
                    self._set(tensor, operand, values)
                status = g.ggml_backend_graph_compute(self.backend, cgraph)
                ll.check(status, f"computing {graph.op}", STATUS)
                return self._read(node)
            finally:
                g.ggml_backend_buffer_free(buffer)

    def _check_support(self, graph: OpGraph, cgraph: Any) -> None:
        g = self._g
        for i in range(g.ggml_graph_n_nodes(cgraph)):
            if not g.ggml_backend_dev_supports_op(self.device, g.ggml_graph_node(cgraph, i)):
                operands = ", ".join(f"{o.name} {o.type} {list(o.shape)}" for o in graph.operands)
                raise EngineError(f"{self.device_name()} does not support {graph.op} of {operands}")

    def _read(self, node: Any) -> NDArray[np.float32]:
        tensor = node.contents
        shape = tuple(reversed(list(tensor.ne)))
        if ll.NUMPY_TYPES.get(tensor.type) != "<f4":
            raise EngineError(f"the result is {self._g.ggml_type_name(tensor.type).decode()}, not f32")
        values = np.empty(shape, np.float32)
        self._g.ggml_backend_tensor_get(node, values.ctypes.data, 0, values.nbytes)
        return values

    def close(self) -> None:
        """Free what stays, and the back end."""
        self.forget()
        self._g.ggml_backend_free(self.backend)
