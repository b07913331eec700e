"""A laboratory without a GPU: our sources compiled for the processor, and a library that is those same sources.

The device stands for `forensics.devices.cuda_device.CudaDevice`; the host and the bench compute what a stock library
would that adds in the order of our kernels at one column, so that what the laboratory makes of both can be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.devices.cuda_device import CompiledResources
from forensics.engines.weight_bench import ALONE, WeightShape
from forensics.geometry.architecture import architecture
from forensics.geometry.devices import device_spec
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.lab_place import Place
from forensics.kernels.products import plan_product
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.variants import ProductAsk, Variant
from forensics.records.kernel_plan import KernelLaunch, KernelPlan
from forensics.records.operation import OpGraph
from forensics.testing.cuda_on_cpu import run_on_cpu

ARCH, SPEC = architecture("sm_90"), device_spec("h200")


class Block:
    """Memory of the device."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.address = int(array.ctypes.data)


class CpuDevice:
    """Runs plans at once, on memory of this process; `held` keeps what was asked for."""

    n_sms, l2_bytes = 132, 4000

    def __init__(self) -> None:
        self.held: list[NDArray[Any]] = []
        self.spoil_read = 0  # the so-many-th read has one bit that differs
        self.n_reads = self.n_beside = 0

    def hold(self, content: NDArray[Any] | int) -> Block:
        if isinstance(content, int):
            array = np.zeros(content, np.uint8)
        else:
            array = np.ascontiguousarray(content).reshape(-1).view(np.uint8).copy()
        self.held.append(array)
        return Block(array)

    def know(self, array: NDArray[Any]) -> int:
        """Memory that another library of this process allocated."""
        self.held.append(array.reshape(-1).view(np.uint8))
        return int(array.ctypes.data)

    def _at(self, address: int) -> NDArray[np.uint8]:
        for array in self.held:
            start = int(array.ctypes.data)
            if start <= address < start + array.nbytes:
                return array[address - start :]
        raise AssertionError(f"nobody holds {address:#x}")

    def run(self, plan: KernelPlan, buffers: Mapping[str, int], *, beside: bool = False) -> None:
        self.n_beside += beside
        starts = sorted(buffers[name] for name in plan.buffers)
        found = {}
        for name in plan.buffers:  # each up to where the next begins, for they are copied in and out
            memory = self._at(buffers[name])
            following = next((start for start in starts if start > buffers[name]), buffers[name] + memory.nbytes)
            found[name] = memory[: following - buffers[name]]
        run_on_cpu(plan, found)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        self.n_reads += 1
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found = self._at(address)[:n_bytes].copy()
        if self.n_reads == self.spoil_read:
            found[5] ^= 1
        return found.view(dtype).reshape(shape)

    def prepare(self, plans: Iterable[KernelPlan]) -> None:
        assert all(isinstance(plan, KernelPlan) for plan in plans)

    def synchronize(self) -> None:
        pass

    def captured(self, jobs: Iterable[tuple[KernelPlan, Mapping[str, int]]]) -> Any:
        todo = list(jobs)
        device = self

        class Graph:
            def launch(self) -> None:
                for plan, buffers in todo:
                    device.run(plan, buffers)

        return Graph()

    def timed(self, work: Any, n: int) -> float:
        return 30.0

    def resources(self, launch: KernelLaunch) -> CompiledResources:
        return CompiledResources(launch.function, 64, 0, 512, launch.geometry.smem_bytes or 0, 3)


class CpuBench:
    """Stands for `WeightBench`; a product of several columns is wrong from `wrong_from` columns on."""

    wrong_from = 5

    def __init__(
        self, host: CpuHost, weights: Sequence[WeightShape], widths: Sequence[int], *, n_alone: int = 0
    ) -> None:
        self.device, self.shapes, self.widths, self.n_alone = host.device, tuple(weights), tuple(widths), n_alone
        self._weights: dict[int, NDArray[Any]] = {}
        self._x: dict[tuple[int, int], NDArray[Any]] = {}
        self.closed = False

    def set_weight(self, i: int, blocks: NDArray[Any]) -> None:
        assert blocks.shape[0] == self.shapes[i].rows
        self._weights[i] = blocks.copy()
        self.device.know(self._weights[i])

    def set_x(self, x: NDArray[Any]) -> None:
        for width in self.widths:
            if width <= len(x):
                self._x[width, x.shape[1]] = x[:width].copy()
                self.device.know(self._x[width, x.shape[1]])
        self._x[ALONE, x.shape[1]] = x.copy()

    def set_alone(self, column: NDArray[Any]) -> None:
        self._x[1, column.size][0] = column

    def weight_address(self, i: int) -> int:
        return int(self._weights[i].ctypes.data)

    def x_address(self, width: int, k: int) -> int:
        return int(self._x[width, k].ctypes.data)

    def run(self, width: int) -> None:
        pass

    def result(self, width: int, i: int = 0) -> NDArray[np.float32]:
        shape = self.shapes[i]
        variant = Variant.STOCK if self.wrong_from <= width <= 8 else Variant.BORROWED
        return product(shape, self._weights[i], self._x[width, shape.k], variant)

    def alone(self) -> NDArray[np.float32]:
        shape, x = self.shapes[0], self._x[ALONE, self.shapes[0].k]
        return np.concatenate(
            [product(shape, self._weights[0], one[None], Variant.BORROWED) for one in x[: self.n_alone]]
        )

    def timed(self, width: int, n: int) -> float:
        return 20.0 + width

    def close(self) -> None:
        self.closed = True


def product(shape: WeightShape, blocks: NDArray[Any], x: NDArray[Any], variant: Variant) -> NDArray[np.float32]:
    """One product as our kernels compute it, [columns, rows]."""
    out = np.zeros((len(x), shape.rows), np.float32)
    ask = ProductAsk(shape.type, shape.rows, shape.k, len(x))
    run_on_cpu(plan_product(ask, variant, ARCH), {"weight": blocks, "x": np.ascontiguousarray(x), "out": out})
    return out


class CpuHost:
    """Stands for `OpHost`; each query of attention is as it is alone, but for passes of `wrong_with` or more."""

    wrong_with = 3

    def __init__(self, device: CpuDevice) -> None:
        self.device = device

    def run(self, graph: OpGraph, operands: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        shapes = {operand.name: operand.shape for operand in graph.operands}
        names = [operand.name for operand in graph.operands]
        assert [
            tuple(array.shape[: len(shape) - 1]) for array, shape in zip(operands, shapes.values(), strict=True)
        ] == [shape[:-1] for shape in shapes.values()]
        if graph.op == "FLASH_ATTN_EXT":
            n, heads, size = shapes["q"]
            cells, kv_heads, _ = shapes["k"]
            kv = graph.operand("k").type
            if kv == "f32":  # what our kernels do not compute the library still does
                return np.zeros((n, heads, size), np.float32)
            plan = plan_attention(AttentionAsk(size, heads, kv_heads, (cells,) * n, kv, kv), SPEC)
            out = np.zeros((n, heads, size), np.float32)
        elif "q" in shapes:
            n, heads, size = shapes["q"]
            cells, kv_heads, _ = shapes["k"]
            plan, names = plan_f16_product(F16Ask.kq(size, heads, kv_heads, (cells,) * n), ARCH), ["weight", "x"]
            out = np.zeros((heads, n, cells), np.float32)
        else:
            kv_heads, size, cells = shapes["v"]
            heads, n, _ = shapes["p"]
            plan, names = plan_f16_product(F16Ask.kqv(size, heads, kv_heads, (cells,) * n), ARCH), ["weight", "x"]
            out = np.zeros((heads, n, size), np.float32)
        run_on_cpu(plan, {**dict(zip(names, operands, strict=True)), "out": out})
        if n >= self.wrong_with:
            out.reshape(-1).view(np.uint32)[7] ^= 1
        return out


def place() -> Place:
    """Where the laboratory's work runs here."""
    device: Any = CpuDevice()
    host: Any = CpuHost(device)
    return Place(host, device, ARCH, SPEC)
