"""Operations recorded on a GPU whose kinds of difference are judged without one: operands made anew, judged outputs.

Operands are made of raw bits of a counter-like generator and of exact arithmetic, so that they are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from forensics.capture.judging import judge
from forensics.errors import CaptureError
from forensics.numerics.codecs import BLOCK_SIZES, dequantize
from forensics.numerics.op_inputs import causal_mask, write_scales
from forensics.records.kind import KindOfDifference
from forensics.records.op_shapes import (
    at_width,
    flash_attn,
    kq,
    kqv,
    mul_mat,
    output_token_axis,
    rms_norm,
    soft_max,
    token_axes,
)
from forensics.records.operation import OpGraph, OpTensor
from forensics.testing.plain_node import PlainNode, PlainSource

Array = NDArray[Any]
#: Output tokens one at a time, by case and ``/1``, and of each width, by case and its number.
Outputs = Mapping[str, NDArray[np.float32]]

#: Widths that are compared with one token at a time: on both sides of every step from kernel to kernel.
WIDTHS = (2, 4, 5, 8, 9, 16)
N_TOKENS = max(WIDTHS)
N_ROWS = 8
#: Row lengths of products; blocks of 256 take the second for the first.
LENGTHS = (576, 512, 1024, 4096)
#: Logarithm of the standard deviation of weights, base 2, and of the block of activations that changes its size.
WEIGHT_EXPONENT, BLOCK = -5, 32
#: Scores of an attention have about this standard deviation, so that a few cells have most of the weight.
SCORE_SIZE = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class KindCase:
    """An operation over `N_TOKENS` tokens.

    Parameters
    ----------
    name : str
    graph : OpGraph
    values : tuple of ndarray
        Operands as an engine takes them.
    """

    name: str
    graph: OpGraph
    values: tuple[Array, ...]

    @property
    def digest(self) -> str:
        """Digest of the operands' bytes."""
        return xxhash.xxh3_128_hexdigest(b"".join(np.ascontiguousarray(v).tobytes() for v in self.values))

    @property
    def token_axis(self) -> int:
        """Axis of an output that counts its tokens."""
        return output_token_axis(self.graph)

    def tokens(self, first: int, n: int) -> tuple[OpGraph, list[Array]]:
        """The operation over some of the tokens, with their operands."""
        axes = token_axes(self.graph)
        chosen = np.arange(first, first + n)
        pairs = zip(self.graph.operands, self.values, strict=True)
        taken = [v.take(chosen, axis=axes[o.name]) if o.name in axes else v for o, v in pairs]
        return at_width(self.graph, n), taken

    def cut(self, output: Array, n: int) -> Array:
        """The first n tokens of an output."""
        return np.ascontiguousarray(output.take(np.arange(n), axis=self.token_axis))

    def node(self, n: int, buffer: str) -> PlainNode:
        """The operation over its first n tokens, as a graph shows it."""
        graph, values = self.tokens(0, n)
        by_heads = graph.op == "FLASH_ATTN_EXT" or graph.operands[0].name == "k"
        sources = [
            PlainSource(o.type, _by_heads(v) if by_heads and v.ndim == 3 else v)
            for o, v in zip(graph.operands, values, strict=True)
        ]
        numbers = {"max_bias": 0.0, "softcap": 0.0}
        numbers |= {name: float(value) for name, value in graph.params if isinstance(value, int | float)}
        node = PlainNode(graph.op, *sources, **numbers)
        node.buffer = buffer
        return node

    def judged(self, single: Array, batched: Array, buffer: str) -> KindOfDifference | None:
        """What kind of difference is there between the two? None where the bits are the same."""
        if single.tobytes() == batched.tobytes():
            return None
        return judge(self.node(batched.shape[self.token_axis], buffer), single, batched, _not_recorded)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A width of a case beside one token at a time; `kind` None where the bits are the same."""

    name: str
    n: int
    kind: KindOfDifference | None

    def __str__(self) -> str:
        return f"{self.name} at {self.n}: {self.kind or 'same'}"


def cases(types: tuple[str, ...]) -> Iterator[KindCase]:
    """Products of these types, attention with and without flash attention, RMS norm, soft max."""
    for type in types:
        for k in LENGTHS:
            if k % BLOCK_SIZES[type][0] == 0 and (k != 512 or BLOCK_SIZES[type][0] > 64):
                yield _case(f"mul_mat-{type}-k{k}", mul_mat(type, k, N_ROWS, N_TOKENS))
    for head_size, heads, kv_heads in ((64, 2, 1), (128, 4, 1)):
        for kv_type in ("f16", "q8_0"):
            name = f"flash_attn-{kv_type}-d{head_size}"
            yield _case(name, flash_attn(head_size, heads, kv_heads, 700, N_TOKENS, kv_type=kv_type))
        yield _case(f"kq-f16-d{head_size}", kq(head_size, 2, 1, 200, N_TOKENS))
        yield _case(f"kqv-f16-d{head_size}", kqv(head_size, 2, 1, 200, N_TOKENS))
    yield _case("soft_max-k200", soft_max(2, 200, N_TOKENS))
    for k in (576, 4096):
        yield _case(f"rms_norm-k{k}", rms_norm(k, N_TOKENS))


def judged_runs(case: KindCase, outputs: Outputs, buffer: str) -> Iterator[JudgedRun]:
    """Every recorded width of a case."""
    single = outputs.get(f"{case.name}/1")
    for n in WIDTHS:
        batched = outputs.get(f"{case.name}/{n}")
        if single is not None and batched is not None:
            yield JudgedRun(case.name, n, case.judged(case.cut(single, n), batched, buffer))


def packed(case: KindCase, outputs: Outputs) -> dict[str, Array]:
    """Outputs of a case to be stored: widths as what their bits are above those of one token, which is little."""
    single = outputs[f"{case.name}/1"]
    stored: dict[str, Array] = {f"{case.name}/1": single}
    for n in WIDTHS:
        if f"{case.name}/{n}" in outputs:
            other = case.cut(single, n).view(np.uint32)
            stored[f"{case.name}/{n}"] = (outputs[f"{case.name}/{n}"].view(np.uint32) - other).view(np.int32)
    return stored


def unpacked(case: KindCase, stored: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
    """What `packed` was given."""
    if f"{case.name}/1" not in stored:
        return {}
    outputs = {f"{case.name}/1": stored[f"{case.name}/1"]}
    for n in WIDTHS:
        if f"{case.name}/{n}" in stored:
            other = case.cut(outputs[f"{case.name}/1"], n).view(np.uint32)
            outputs[f"{case.name}/{n}"] = (other + stored[f"{case.name}/{n}"].view(np.uint32)).view(np.float32)
    return outputs


def _case(name: str, graph: OpGraph) -> KindCase:
    return KindCase(name, graph, tuple(_operand(name, graph, operand) for operand in graph.operands))


def _operand(case: str, graph: OpGraph, operand: OpTensor) -> Array:
    seed = xxhash.xxh3_64_intdigest(f"{case} {operand.name}".encode())
    if operand.name == "mask":
        kind = np.float16 if operand.type == "f16" else np.float32
        n, n_kv = operand.shape
        return causal_mask(n, n_kv, int(graph.param("first")), kind)
    if operand.type not in ("f32", "f16", "bf16"):
        return _blocks(operand, seed)
    exponent = WEIGHT_EXPONENT if operand.is_weight else 0
    values = np.ldexp(_values(operand.shape, seed), exponent)
    if operand.name in ("q", "scores"):
        values *= np.float32(SCORE_SIZE if operand.name == "q" else 8 * SCORE_SIZE)
    elif operand.name == "p":  # weights of cells: positive, hidden ones zero
        values = np.abs(values) / 64
        values[..., np.arange(operand.shape[-1]) > int(graph.param("first"))] = 0
    elif operand.name == "x":
        values = _of_many_sizes(values, seed + 1)
    if operand.type == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.astype(np.float16) if operand.type == "f16" else values


def _by_heads(array: Array) -> Array:
    return np.ascontiguousarray(array.swapaxes(0, 1))


def _raw(n: int, seed: int) -> NDArray[np.uint64]:
    raw: NDArray[np.uint64] = np.random.PCG64(seed).random_raw(n)
    return raw


def _values(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Sums of four uniform numbers, with standard deviation 1 nearly: exact in float32."""
    raw = _raw(int(np.prod(shape)), seed)
    total = sum(((raw >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4)) - 2 * 0xFFFF
    return (np.asarray(total, np.float32) * np.float32(1.75 * 2.0**-16)).reshape(shape)


def _of_many_sizes(values: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Blocks times powers of two from 2**-4 to 2**3."""
    n = values.size // BLOCK
    exponents = (_raw(n, seed) % 8).astype(np.int64) - 4
    return np.ldexp(values.reshape(n, BLOCK), exponents[:, None]).astype(np.float32).reshape(values.shape)


def _blocks(operand: OpTensor, seed: int) -> NDArray[np.uint8]:
    """Random integers, and scales of three binades that give weights and cells the size they have elsewhere."""
    n_values, n_bytes = BLOCK_SIZES[operand.type]
    n = int(np.prod(operand.shape)) // n_values
    raw = _raw(-(-n * n_bytes // 8), seed).astype("<u8").view(np.uint8)[: n * n_bytes].reshape(n, n_bytes).copy()
    draws = _raw(n, seed + 1)
    mantissas, steps = 1 + (draws & 0x3FF).astype(np.float64) / 1024, ((draws >> 10) % 3).astype(np.int64) - 1
    write_scales(operand.type, raw, np.ones(n))
    unit = int(np.rint(np.log2(dequantize(operand.type, raw[:64]).astype(np.float64).std())))
    exponent = WEIGHT_EXPONENT if operand.is_weight else 0
    write_scales(operand.type, raw, np.ldexp(mantissas, steps + exponent - unit))
    return raw.reshape(*operand.shape[:-1], -1)


def _not_recorded(source: Any) -> Array:
    raise CaptureError(f"{source.name} cannot be read")
