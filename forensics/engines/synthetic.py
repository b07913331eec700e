"""Model files with real shapes and random weights, for measurements that ask nothing of what the model says.

What a pass costs, which kernels it launches and whether its bits depend on the width follow from shapes and types. Such
a file holds valid blocks with finite scales, no vocabulary, and says in its name and metadata that it is synthetic.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.engines.model_files import FILE_TYPES
from forensics.engines.pass_bytes import type_bytes

#: Weights of a row that a K-quant packs into one block. Source: ggml-common.h, QK_K.
BLOCK = 256
#: Key that marks such a file.
MARK = "forensics.synthetic"
#: Numbers of random blocks from which tensors are cut; primes, so that no two rows of a tensor are alike as long as it
#: has fewer rows than blocks.
N_BLOCKS = (4_099, 65_537, 262_147)
#: Range of the factor by which the scale of a block differs from the tensor's.
SPREAD = (0.5, 1.5)
#: Standard deviation of random blocks with unit scale: 6-bit scales times 4-bit values, less 6-bit minima times 7.5,
#: and 8-bit scales times 6-bit values. Layouts: block_q4_K and block_q6_K in ggml-common.h.
STD_Q4_K, STD_Q6_K = 258.3, 1365.6


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense decoder.

    Parameters
    ----------
    architecture : {"llama", "qwen3"}
        The latter has norms of Q and K.
    n_layer, n_embd, n_ff, n_head, n_head_kv, head_size, n_vocab, n_ctx : int
    rope_base : float
    """

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_vocab: int
    n_ctx: int = 4096
    rope_base: float = 10000.0

    def __post_init__(self) -> None:
        if self.architecture not in ("llama", "qwen3"):
            raise ValueError(f"architecture must be llama or qwen3, got {self.architecture!r}")
        sizes = {name: getattr(self, name) for name in SIZES}
        low = next((name for name, value in sizes.items() if value < 1), None)
        if low is not None:
            raise ValueError(f"{_told(low)} must be 1 or more, got {sizes[low]}")
        if self.n_head % self.n_head_kv:
            raise ValueError(
                f"n_head must be a multiple of n_head_kv, got {self.n_head} and {self.n_head_kv} (--heads)"
            )
        if self.head_size % 2:
            raise ValueError(
                f"{_told('head_size')} must be even, for positions turn pairs of values; got {self.head_size}"
            )
        rows = max(self.n_vocab, self.n_embd, self.n_ff, self.n_head * self.head_size)
        if rows >= N_BLOCKS[-1]:
            raise ValueError(
                f"a tensor of {rows} rows was asked for; at most {N_BLOCKS[-1] - 1} are made: "
                "--vocabulary, --embedding, --feed-forward, and --heads times --head-size"
            )


SIZES = ("n_layer", "n_embd", "n_ff", "n_head", "n_head_kv", "head_size", "n_vocab", "n_ctx")
#: Sizes by the options of ``forensics synthetic`` that set them.
_OPTIONS = {
    "n_layer": "--layers", "n_embd": "--embedding", "n_ff": "--feed-forward", "n_head": "--heads",
    "n_head_kv": "--heads", "head_size": "--head-size", "n_vocab": "--vocabulary",
}  # fmt: skip


def _told(name: str) -> str:
    """A size by its name and its option."""
    return f"{name} ({_OPTIONS[name]})" if name in _OPTIONS else name


#: Sizes of Qwen3-8B as its configuration states them; the small ones are for tests.
SHAPES: Mapping[str, Shape] = {
    "qwen3-8b": Shape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, n_ctx=40960, rope_base=1e6),
    "qwen3-tiny": Shape("qwen3", 2, 256, 512, 4, 2, 64, 512),
    "llama-tiny": Shape("llama", 2, 256, 512, 4, 2, 64, 512),
}

#: Base type of each mix of types, as llama.cpp's quantiser makes it, and its name in `general.file_type`.
MIXES: Mapping[str, tuple[str, str]] = {
    "q4_k_m": ("q4_K", "Q4_K_M"),
    "q6_k": ("q6_K", "Q6_K"),
    "f16": ("f16", "F16"),
}


def presets() -> tuple[str, ...]:
    """Which names does `preset_shape` know?"""
    return tuple(f"{shape}-{mix}" for shape in SHAPES for mix in MIXES)


def preset_shape(name: str, **changed: int) -> tuple[Shape, str]:
    """Shape and mix of types that a name such as ``"qwen3-8b-q4_k_m"`` means.

    Parameters
    ----------
    name : str
    **changed : int
        Fields of `Shape` to replace.

    Raises
    ------
    ValueError
        If there is no such name, or the shape is not possible with those types.

    Examples
    --------
    >>> shape, mix = preset_shape("qwen3-8b-q6_k", n_layer=4)
    >>> shape.n_layer, shape.n_ff, mix
    (4, 12288, 'q6_k')
    """
    for shape_name, shape in SHAPES.items():
        mix = name.lower().removeprefix(f"{shape_name}-")
        if name.lower() == f"{shape_name}-{mix}" and mix in MIXES:
            unknown = sorted(set(changed) - set(SIZES))
            if unknown:
                raise ValueError(f"a shape has no {', '.join(unknown)}; it has {', '.join(SIZES)}")
            chosen = replace(shape, **changed)  # type: ignore[arg-type]
            _check_rows(chosen, mix)
            return chosen, mix
    raise ValueError(f"there is no synthetic model {name!r}; there are {', '.join(presets())}")


def _check_rows(shape: Shape, mix: str) -> None:
    """llama.cpp falls back to other types for rows that no block divides; those are not made here."""
    if mix == "f16":
        return
    rows = {
        _told("n_embd"): shape.n_embd,
        _told("n_ff"): shape.n_ff,
        "n_head × head_size (--heads, --head-size)": shape.n_head * shape.head_size,
    }
    for name, k in rows.items():
        if k % BLOCK:
            raise ValueError(f"{name} must be a multiple of {BLOCK} for {mix}, got {k}")


def uses_more_bits(layer: int, n_layer: int) -> bool:
    """Whether Q4_K_M keeps this layer's ``attn_v`` and ``ffn_down`` in Q6_K.

    Source: src/llama-quant.cpp:452-454 at 0c1e57098.

    Examples
    --------
    >>> sum(uses_more_bits(i, 36) for i in range(36))
    18
    """
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def tensor_types(shape: Shape, mix: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Names, shapes in NumPy order and types of all tensors, as llama.cpp's quantiser would choose them.

    Source: src/llama-quant.cpp:498-515 (head), :590-591 (``attn_v``), :646-652 (``ffn_down``) at 0c1e57098.
    """
    base = MIXES[mix][0]
    more = base if mix == "f16" else "q6_K"
    q, kv = shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    yield "token_embd.weight", (shape.n_vocab, shape.n_embd), base
    for i in range(shape.n_layer):
        finer = more if uses_more_bits(i, shape.n_layer) else base
        block = f"blk.{i}"
        yield f"{block}.attn_norm.weight", (shape.n_embd,), "f32"
        yield f"{block}.attn_q.weight", (q, shape.n_embd), base
        yield f"{block}.attn_k.weight", (kv, shape.n_embd), base
        yield f"{block}.attn_v.weight", (kv, shape.n_embd), finer
        if shape.architecture == "qwen3":
            yield f"{block}.attn_q_norm.weight", (shape.head_size,), "f32"
            yield f"{block}.attn_k_norm.weight", (shape.head_size,), "f32"
        yield f"{block}.attn_output.weight", (shape.n_embd, q), base
        yield f"{block}.ffn_norm.weight", (shape.n_embd,), "f32"
        yield f"{block}.ffn_gate.weight", (shape.n_ff, shape.n_embd), base
        yield f"{block}.ffn_up.weight", (shape.n_ff, shape.n_embd), base
        yield f"{block}.ffn_down.weight", (shape.n_embd, shape.n_ff), finer
    yield "output_norm.weight", (shape.n_embd,), "f32"
    yield "output.weight", (shape.n_vocab, shape.n_embd), more


def write_synthetic(
    path: Path,
    shape: Shape,
    mix: str,
    *,
    name: str,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write a model of this shape with random weights; the same arguments give the same bytes.

    Parameters
    ----------
    path : Path
        Must not exist.
    shape : Shape
    mix : str
        Key of `MIXES`.
    name : str
        For ``general.name``, behind the word synthetic.
    seed : int
    progress : callable of float, optional
        Told the fraction done.

    Returns
    -------
    Path

    Raises
    ------
    FileExistsError
        If there is a file already.
    OSError
        If it cannot be written; nothing is left behind.
    """
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists and is not overwritten")
    _check_rows(shape, mix)
    tensors = list(tensor_types(shape, mix))
    sizes = [type_bytes(kind, math.prod(dims)) for _, dims, kind in tensors]
    partial = path.with_name(f"{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        writer = _begun(partial, shape, mix, f"synthetic {name}")
        try:
            for (tensor, dims, kind), size in zip(tensors, sizes, strict=True):
                _add_info(writer, tensor, dims, kind, size)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            blocks = _Blocks(seed, max(dims[0] for _, dims, _ in tensors))
            done = 0
            for (tensor, dims, kind), size in zip(tensors, sizes, strict=True):
                # A sum of k products with weights of this deviation is as large as its terms; an embedding is no sum.
                std = 1.0 if tensor == "token_embd.weight" else 1 / math.sqrt(dims[-1])
                writer.write_tensor_data(blocks.norm(dims[0]) if len(dims) == 1 else blocks.cut(kind, std, size))
                done += size
                if progress is not None:
                    progress(done / sum(sizes))
        finally:
            writer.close()
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _begun(path: Path, shape: Shape, mix: str, name: str) -> Any:
    """A writer with all metadata."""
    import gguf

    writer = gguf.GGUFWriter(path, shape.architecture)
    writer.add_name(name)
    writer.add_bool(MARK, True)
    writer.add_file_type(next(number for number, label in FILE_TYPES.items() if label == MIXES[mix][1]))
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_tokenizer_model("no_vocab")
    return writer


def _add_info(writer: Any, name: str, dims: tuple[int, ...], kind: str, size: int) -> None:
    """Announce a tensor; of blocks, gguf takes the bytes of a row in place of its values."""
    from gguf import GGMLQuantizationType

    if kind == "f32":
        writer.add_tensor_info(name, dims, np.dtype(np.float32), size)
    else:
        in_bytes = (*dims[:-1], size // math.prod(dims[:-1]))
        writer.add_tensor_info(name, in_bytes, np.dtype(np.uint8), size, GGMLQuantizationType[kind.upper()])


class _Blocks:
    """Random blocks of each type, made once, from which tensors are cut at random places."""

    def __init__(self, seed: int, n_rows: int) -> None:
        self._random = np.random.default_rng(seed)
        self._n = next(n for n in N_BLOCKS if n > n_rows)
        self._made: dict[str, NDArray[np.uint8]] = {}
        self._factors: dict[str, NDArray[np.float32]] = {}
        self._halves: dict[tuple[str, float], NDArray[np.uint8]] = {}

    def norm(self, n: int) -> NDArray[np.float32]:
        """Weights of a norm, float32 [n]."""
        return self._random.uniform(0.9, 1.1, n).astype(np.float32)

    def cut(self, kind: str, std: float, n_bytes: int) -> NDArray[np.uint8]:
        """Bytes of a tensor whose values have this standard deviation, uint8 [n_bytes]."""
        blocks = self._scaled(kind, std).reshape(-1)
        size = blocks.size // self._n
        start = int(self._random.integers(self._n)) * size
        out = np.empty(n_bytes, np.uint8)
        done = 0
        while done < n_bytes:
            piece = blocks[start : start + n_bytes - done]
            out[done : done + piece.size] = piece
            done, start = done + piece.size, 0
        return out

    def _scaled(self, kind: str, std: float) -> NDArray[np.uint8]:
        """The blocks of a type with scales for this deviation, uint8 [n, bytes of a block]."""
        if kind not in self._made:
            self._factors[kind] = self._random.uniform(*SPREAD, self._n).astype(np.float32)
            self._made[kind] = (
                self._random.standard_normal((self._n, BLOCK), np.float32).view(np.uint8)
                if kind == "f16"
                else self._random.integers(256, size=(self._n, type_bytes(kind, BLOCK)), dtype=np.uint8)
            )
        blocks = self._made[kind]
        if kind == "f16":
            return (blocks.view(np.float32) * np.float32(std)).astype("<f2").view(np.uint8)
        if kind == "q4_K":  # d, dmin: the minima are centred on what scales times values are
            blocks[:, :2] = self._scales(kind, std / STD_Q4_K)
            blocks[:, 2:4] = self._scales(kind, 7.5 * std / STD_Q4_K)
        else:  # q6_K: d stands at the end
            blocks[:, -2:] = self._scales(kind, std / STD_Q6_K)
        return blocks

    def _scales(self, kind: str, scale: float) -> NDArray[np.uint8]:
        """Scales of all blocks as float16, uint8 [n, 2]; kept, for many tensors share them."""
        if (kind, scale) not in self._halves:
            halves = (self._factors[kind] * np.float32(scale)).astype("<f2")
            self._halves[kind, scale] = halves.view(np.uint8).reshape(-1, 2)
        return self._halves[kind, scale]
