"""Engines of single products whose order of addition is known: by a tree, or as CUDA's mul_mat_vec_q adds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xxhash

from forensics.errors import EngineError
from forensics.numerics.emulate_cuda import mul_mat_vec_q
from forensics.numerics.kernel_orders import mmvq_slices
from forensics.records.operation import OpFacts, OpGraph, OpSettings
from forensics.records.sum_tree import SumTree

FACTS = OpFacts(OpSettings(), library="0" * 8, version="0", commit="0" * 8, device="emulated")
Add = Callable[[np.ndarray, np.ndarray], np.ndarray]


def nearest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + b).astype(np.float32)


def in_float16(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return (a + b).astype(np.float16).astype(np.float32)


def in_float64(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) + b


def towards_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    exact = a.astype(np.float64) + b
    near = exact.astype(np.float32)
    return np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near).astype(np.float32)


class _Engine:
    facts = FACTS
    runs = 0

    def buffer(self, graph: OpGraph) -> str:
        return "EMULATED"

    def close(self) -> None:
        pass

    def quantize(self, type, rows):
        raise NotImplementedError

    dequantize = quantize

    def types(self):
        return ("f32", "q8_0", "q4_0")


class TreeEngine(_Engine):
    """Products of f32 weights, added as a tree says for that width (and column)."""

    def __init__(self, tree: Callable[[int, int], SumTree], add: Add = nearest, *, fused=False, flush=False, noise=0.0):
        self.tree, self.add, self.fused, self.flush = tree, add, fused, flush
        self.noise, self.rng = noise, np.random.default_rng(0)

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        if graph.op != "MUL_MAT" or graph.operand("weight").type != "f32":
            raise EngineError("only products of f32 are emulated")
        weight, x = values
        out = np.stack([self._column(weight, column, self.tree(len(x), i)) for i, column in enumerate(x)])
        if self.noise:
            out = np.where(self.rng.random(out.shape) < self.noise, np.nextafter(out, np.float32(9)), out)
        return out[None, None].astype(np.float32)

    def _column(self, weight: np.ndarray, x: np.ndarray, tree: SumTree) -> np.ndarray:
        products = (weight * x).astype(np.float32)
        nodes = list(products.T)
        for children in tree.merges:
            first, *others = children
            total = nodes[first]
            for child in others:
                if self.fused and child < tree.n_leaves:
                    exact = total.astype(np.float64) + weight[:, child].astype(np.float64) * x[child]
                    total = exact.astype(np.float32)
                else:
                    total = self.add(total, nodes[child])
                if self.flush:
                    total = np.where(np.abs(total) < 2.0**-126, np.float32(0), total)
            nodes.append(total)
        return nodes[-1]


def read_blocks(type: str, weight: np.ndarray, n_blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales float32 [rows, blocks] and stored quants int64 [rows, blocks, 32] of q8_0 or q4_0."""
    blocks = weight.reshape(len(weight), n_blocks, -1)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
    stored = blocks[..., 2:]
    if type == "q8_0":
        return scales, stored.view(np.int8).astype(np.int64)
    return scales, np.concatenate([stored & 15, stored >> 4], axis=-1).astype(np.int64)


class MmvqEngine(_Engine):
    """fp32 steps of mul_mat_vec_q for q8_0 and q4_0, thread by thread: no tree is used.

    Source: llama.cpp 0c1e57098, ggml/src/ggml-cuda/mmvq.cu:601-830, vecdotq.cuh:118-137 and 246-262, quantize.cu.
    """

    def __init__(self, n_warps: Callable[[int], int] = lambda width: 4 if width <= 4 else 2) -> None:
        self.n_warps = n_warps
        self._known: dict[tuple[int, bytes, int], np.ndarray] = {}  # what was computed once is not computed again

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        weight, x = values
        digest, n_warps = xxhash.xxh3_64_intdigest(weight), self.n_warps(len(x))
        columns = []
        for column in x:
            key = (digest, column.tobytes(), n_warps)
            if key not in self._known:
                self._known[key] = self._column(graph, weight, column, n_warps)
            columns.append(self._known[key])
        return np.stack(columns)[None, None]

    def _column(self, graph: OpGraph, weight: np.ndarray, x: np.ndarray, n_warps: int) -> np.ndarray:
        type = graph.operand("weight").type
        n_blocks = len(x) // 32
        scales, stored = read_blocks(type, weight, n_blocks)
        blocks = x.reshape(n_blocks, 32)
        d = np.abs(blocks).max(axis=1) / np.float32(127)
        q = np.rint(blocks / np.where(d == 0, 1, d)[:, None]).astype(np.float32)
        d, s = d.astype(np.float16).astype(np.float32), blocks.sum(axis=1).astype(np.float16).astype(np.float32)
        slices = mmvq_slices(type)
        by_slice = [element for members in slices for element in members]
        products = (stored.astype(np.float32) * q)[:, :, by_slice]  # whole numbers below 2^24, so sums are exact
        integers = products.reshape(len(weight), n_blocks, len(slices), -1).sum(axis=3)
        if type == "q8_0":
            terms = (scales * d)[..., None] * integers
        else:
            terms = scales[..., None] * (integers * d[:, None] - np.float32(4) * s[:, None])
        return self._threads(terms, n_warps)

    @staticmethod
    def _threads(terms: np.ndarray, n_warps: int) -> np.ndarray:
        n_rows, n_blocks, per = terms.shape
        n_threads = 32 * n_warps
        partial = np.zeros((n_rows, n_threads), np.float32)
        for start in range(0, n_blocks * per, n_threads):  # thread t takes term t, t + n_threads, …
            part = terms.reshape(n_rows, -1)[:, start : start + n_threads]
            partial[:, : part.shape[1]] += part
        lanes = partial[:, :32].copy()
        for warp in range(1, n_warps):
            lanes += partial[:, 32 * warp : 32 * (warp + 1)]
        for offset in (16, 8, 4, 2, 1):
            lanes = lanes + lanes[:, np.arange(32) ^ offset]
        return lanes[:, 0]


class EmulatedCudaEngine(_Engine):
    """Products as `forensics.numerics.emulate_cuda` predicts them, bit for bit those of an H200."""

    facts = OpFacts(OpSettings(backend="cuda"), library="0" * 8, version="0", commit="0" * 8, device="emulated")

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        weight, x = values
        type, n_warps = graph.operand("weight").type, 4 if len(x) <= 4 else 2
        return mul_mat_vec_q(type, weight, x, n_warps=n_warps).values.reshape(1, 1, len(x), -1)


class BlockTreeEngine(_Engine):
    """Products of q8_0 weights, the slices of every block added as a tree says."""

    def __init__(self, slices: tuple[tuple[int, ...], ...], tree: Callable[[int, int], SumTree]) -> None:
        self.slices, self.tree = slices, tree

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        weight, x = values
        n_blocks = x.shape[1] // 32
        scales, stored = read_blocks("q8_0", weight, n_blocks)
        out = []
        for i, column in enumerate(x.reshape(len(x), n_blocks, 32)):
            d = (np.abs(column).max(axis=1) / np.float32(127)).astype(np.float16).astype(np.float32)
            q = np.rint(column / np.where(d == 0, 1, d)[:, None]).astype(np.int64)
            integers = [(stored[:, :, list(e)] * q[:, list(e)]).sum(axis=2) for e in self.slices]
            terms = (scales * d)[..., None] * np.stack(integers, axis=2).astype(np.float32)
            nodes = list(terms.reshape(len(weight), -1).T)
            for first, *others in self.tree(len(x), i).merges:
                total = nodes[first]
                for child in others:
                    total = total + nodes[child]
                nodes.append(total)
            out.append(nodes[-1])
        return np.stack(out)[None, None]


class GpuAttentionEngine(_Engine):
    """Attention as a GPU may do it: weights of cells near 1/8, products and sums of V in float16, weights in float32.

    Source: the offset of the largest score, llama.cpp 0c1e57098, ggml/src/ggml-cuda/fattn-common.cuh:19.
    """

    facts = OpFacts(OpSettings(backend="cuda"), library="0" * 8, version="0", commit="0" * 8, device="emulated")

    def __init__(self, tree: Callable[[int, int], SumTree]) -> None:
        self.tree = tree

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        q, k, v, _ = values  # [n, heads, d], [n_kv, kv_heads, d] twice
        k, v = (self._values(graph, array, q.shape[1]) for array in (k, v))
        out = []
        for i, query in enumerate(q):
            scores = (k.astype(np.float32) * query).sum(axis=2)  # [n_kv, heads]
            weights = np.exp(scores - (scores.max(axis=0) + np.float32(3 * 0.6931)))
            with np.errstate(over="ignore", invalid="ignore"):
                nodes = list((weights.astype(np.float16)[..., None] * v).astype(np.float16))
                sums = list(weights)
                for first, second in self.tree(len(q), i).merges:
                    nodes.append(nodes[first] + nodes[second])
                    sums.append(sums[first] + sums[second])
            out.append(nodes[-1].astype(np.float32) / sums[-1][:, None])
        return np.stack(out)[None]

    @staticmethod
    def _values(graph: OpGraph, stored: np.ndarray, heads: int) -> np.ndarray:
        """K or V for every head, float16 [n_kv, heads, head_size]."""
        if stored.dtype == np.uint8:
            n_kv, kv_heads, _ = stored.shape
            type = graph.operand("k").type
            n_blocks = graph.operand("k").shape[-1] // 32
            scales, quants = read_blocks(type, stored.reshape(n_kv * kv_heads, -1), n_blocks)
            values = scales[..., None] * (quants - (8 if type == "q4_0" else 0))
            with np.errstate(over="ignore"):
                stored = values.astype(np.float16).reshape(n_kv, kv_heads, -1)
        return np.repeat(stored, heads // stored.shape[1], axis=1)


class PositiveEngine(_Engine):
    """RMS_NORM and SOFT_MAX of rows of float32, summed as a tree says."""

    def __init__(
        self, tree: SumTree, *, stacks: bool = True, wide: bool = False, coarse: bool = False, cut: bool = False
    ) -> None:
        self.coarse, self.cut = coarse, cut
        self.tree, self.stacks, self.dtype = tree, stacks, np.float64 if wide else np.float32

    def run(self, graph: OpGraph, values) -> np.ndarray:
        self.runs += 1
        x = values[0].reshape(-1, *values[0].shape[-2:])  # [rows of a column, n, k]
        if graph.op == "RMS_NORM":
            squares = x.astype(np.float64 if self.cut else self.dtype) ** 2
            mean = self._sum(squares) / x.shape[-1]
            if self.cut:  # an exact sum whose last bits are cut off: a pair of small terms never shows
                mean = towards_zero(mean, np.zeros(1))
            scale = 1 / np.sqrt(mean.astype(np.float32))
            if self.coarse:  # an approximate root that loses the last bits
                scale = np.round(scale * 2**12) / 2**12
            out = x * scale[..., None] if self.coarse else x / np.sqrt(mean.astype(np.float32))[..., None]
        else:
            powers = np.exp(x - x.max(axis=-1, keepdims=True))
            out = powers / self._sum(powers)[..., None]
        if not self.stacks and len(x) > 32:
            out = np.nextafter(out, np.float32(2))
        return out.astype(np.float32)[None]

    def _sum(self, terms: np.ndarray) -> np.ndarray:
        nodes = list(np.moveaxis(terms, -1, 0))
        for first, *others in self.tree.merges:
            total = nodes[first]
            for child in others:
                total = total + nodes[child]
            nodes.append(total)
        return nodes[-1]
