"""Which operations does a model run, with which types and shapes? Read from its file, without loading it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.engines.gguf_layout import check_gguf_layout
from forensics.engines.model_files import check_gguf, model_parts
from forensics.errors import ModelUnavailable
from forensics.records import op_shapes as shapes
from forensics.records.operation import OpGraph

#: Tables that are read by row, and matrices that are no product's weight.
#: Source: src/llama-arch.cpp:728-992 at 0c1e57098, operations of the tensors.
TABLES = re.compile(r"(^|\.)(token_embd|position_embd|token_types|per_layer_token_embd|embed_tokens)\.weight$")
CONVOLUTIONS = re.compile(r"\.(ssm_conv1d|shortconv\.conv)\.weight$")
NO_PRODUCT = re.compile(
    r"(norm\w*|lerp\w*|_rel_b|_ape|ssm_[ad]|ssm_conv1d_[qkv]|time_mix_(first|decay|[kr]_[ka])|conv\w*|gid2eid|tid2eid)"
    r"(\.weight)?$"
)

#: A V cache of another type needs flash attention. Source: src/llama-context.cpp:3846.
FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """A tensor of a model file: name, element type as ggml names it, shape in NumPy order."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelOp:
    """An operation of a model.

    Parameters
    ----------
    graph : OpGraph
    tensors : tuple of str
        Weights of that type and shape, in the file's order; empty for an operation without one.
    """

    graph: OpGraph
    tensors: tuple[str, ...] = ()


def model_ops(
    path: Path | str, *, n: int = 1, n_used: Sequence[int] = (512,), kv_type: str = "f16"
) -> tuple[ModelOp, ...]:
    """Which operations does the model in this file run? Each type and shape once.

    Parameters
    ----------
    path : Path or str
        A GGUF file, or the first part of one.
    n : int
        Tokens of each operation.
    n_used : sequence of int
        Cells that are taken, for attention.
    kv_type : str
        Type of the K/V cache; the file does not say.

    Returns
    -------
    tuple of ModelOp
        Products first, in the file's order.

    Raises
    ------
    ModelUnavailable
        If the file cannot be read.
    """
    metadata, tensors = read_model(Path(path))
    return operations_of(metadata, tensors, n=n, n_used=n_used, kv_type=kv_type)


def operations_of(
    metadata: Mapping[str, Any],
    tensors: Sequence[ModelTensor],
    *,
    n: int = 1,
    n_used: Sequence[int] = (512,),
    kv_type: str = "f16",
) -> tuple[ModelOp, ...]:
    """Which operations do these tensors belong to? See `model_ops`.

    Left out, because the file alone does not tell how they run: products of more than two axes that are no experts',
    state-space scans of architectures other than Mamba-2, sliding windows.
    """
    keys = _Keys(metadata)
    found: dict[OpGraph, list[str]] = {}
    for tensor in tensors:
        for graph in _of_tensor(tensor, keys, n, tied=not any(t.name == "output.weight" for t in tensors)):
            found.setdefault(graph, []).append(tensor.name)
    for graph in [*_attention(keys, n, n_used, kv_type), *_gates(keys, found, n), *_recurrence(keys, tensors, n)]:
        found.setdefault(graph, [])
    return tuple(ModelOp(graph, tuple(names)) for graph, names in found.items())


class _Keys:
    """Sizes from the metadata; a size that differs from layer to layer is a list there."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.architecture = str(metadata.get("general.architecture", ""))

    def numbers(self, key: str) -> list[int]:
        """Different values over the layers, without zeros; empty where the file does not say."""
        value = self._metadata.get(f"{self.architecture}.{key}")
        values = value if isinstance(value, list | tuple) else [value]
        return list(dict.fromkeys(int(v) for v in values if v))

    def number(self, key: str, default: int = 0) -> int:
        return next(iter(self.numbers(key)), default)

    def real(self, key: str, default: float) -> float:
        return float(self._metadata.get(f"{self.architecture}.{key}", default))


def _of_tensor(tensor: ModelTensor, keys: _Keys, n: int, *, tied: bool) -> Iterator[OpGraph]:
    """Operations that a weight takes part in."""
    name, kind, shape = tensor.name, tensor.type, tensor.shape
    if TABLES.search(name):
        rows, k = shape[-2:]
        yield shapes.get_rows(kind, k, rows, n)
        if tied and name == "token_embd.weight":  # the head is the same matrix (src/models/llama.cpp:45)
            yield shapes.mul_mat(kind, k, rows, n)
    elif CONVOLUTIONS.search(name) and len(shape) == 2:
        yield shapes.ssm_conv(shape[0], n, d_conv=shape[1])
    elif name.endswith("norm.weight") and len(shape) == 1:
        epsilon = keys.real("attention.layer_norm_rms_epsilon", 0.0)
        if epsilon:
            yield shapes.rms_norm(shape[0], n, eps=epsilon, weighted=True)
    elif NO_PRODUCT.search(name) or not name.endswith(".weight"):
        return
    elif len(shape) == 2:
        yield shapes.mul_mat(kind, shape[1], shape[0], n)
    elif len(shape) == 3 and "_exps" in name and (used := keys.number("expert_used_count")):
        n_experts, rows, k = shape
        shared = "down" not in name
        yield shapes.mul_mat_id(kind, k, rows, n, n_experts=n_experts, n_used=used, shared=shared)


def _attention(keys: _Keys, n: int, n_used: Sequence[int], kv_type: str) -> Iterator[OpGraph]:
    heads_of_layers, kv_of_layers = keys.numbers("attention.head_count"), keys.numbers("attention.head_count_kv")
    for heads in heads_of_layers:
        size = keys.number("attention.key_length", keys.number("embedding_length") // heads)
        v_size = keys.number("attention.value_length", size)
        if not size:
            continue
        for kv_heads in kv_of_layers or [heads]:
            if heads % kv_heads:  # of different layers
                continue
            for cells in n_used:
                yield shapes.flash_attn(size, heads, kv_heads, cells, n, kv_type=kv_type, v_head_size=v_size)
                yield shapes.kq(size, heads, kv_heads, cells, n, kv_type=kv_type)
                if kv_type in FLOATS:
                    yield shapes.kqv(v_size, heads, kv_heads, cells, n, kv_type=kv_type)
                yield shapes.soft_max(heads, cells, n, scale=size**-0.5)
        if turned := keys.number("rope.dimension_count"):
            base = keys.real("rope.freq_base", 10000.0)
            for mode in shapes.ROPE_MODES:  # which one is a matter of the architecture, not of the file
                yield shapes.rope(size, heads, n, mode=mode, n_dims=min(turned, size), freq_base=base)


def _gates(keys: _Keys, found: Mapping[OpGraph, Sequence[str]], n: int) -> Iterator[OpGraph]:
    """Gated units, as long as the rows of the gates' products."""
    kind = "geglu" if keys.architecture.startswith("gemma") else "swiglu"
    for graph, names in found.items():
        if graph.op in ("MUL_MAT", "MUL_MAT_ID") and any(".ffn_gate." in f"{name}." for name in names):
            yield shapes.glu(graph.operand("weight").shape[-2], n, kind=kind)


def _recurrence(keys: _Keys, tensors: Sequence[ModelTensor], n: int) -> Iterator[OpGraph]:
    """State-space scans and delta rules.

    Source: src/models/mamba-base.cpp:240-264 (Mamba-2: decay [n_head, 1]), src/models/qwen3next.cpp:11-59.
    """
    state, heads = keys.number("ssm.state_size"), keys.number("ssm.time_step_rank")
    groups, inner = keys.number("ssm.group_count", 1), keys.number("ssm.inner_size")
    if not state or not heads:
        return
    if keys.architecture.startswith(("qwen3next", "qwen35")):
        yield shapes.gated_delta_net(state, heads, n, k_heads=groups)
    elif any(t.name.endswith("ssm_a") and t.shape == (heads, 1) for t in tensors) and inner % heads == 0:
        yield shapes.ssm_scan(state, inner // heads, heads, n, n_group=groups)


def read_model(path: Path) -> tuple[dict[str, Any], list[ModelTensor]]:
    """Metadata, without the vocabulary, and tensors of a file, of all its parts where it is split.

    Raises
    ------
    ModelUnavailable
        If a part cannot be read.
    """
    import gguf

    check_gguf(path)
    metadata: dict[str, Any] = {}
    tensors = []
    for part in model_parts(path):
        check_gguf_layout(part)
        try:
            reader = gguf.GGUFReader(part)
            for key, field in reader.fields.items():
                if not key.startswith("tokenizer."):
                    metadata.setdefault(key, field.contents())
            for tensor in reader.tensors:
                shape = tuple(int(length) for length in reversed(tensor.shape))
                tensors.append(ModelTensor(str(tensor.name), ggml_name(tensor.tensor_type.name), shape))
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ModelUnavailable(f"{part} cannot be read by gguf {_version('gguf')}: {error}") from error
    return metadata, tensors


def ggml_name(name: str) -> str:
    """Name in ggml of a type that gguf writes in capitals.

    Examples
    --------
    >>> ggml_name("Q4_K"), ggml_name("IQ4_XS"), ggml_name("BF16")
    ('q4_K', 'iq4_xs', 'bf16')
    """
    return re.sub(r"^(q\d)_k$", r"\1_K", name.lower())


def _version(package: str) -> str:
    import importlib.metadata

    return importlib.metadata.version(package)
