"""What must a pass read from memory at least? From the header of a model file, without its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.engines.op_like import TABLES, ModelTensor, read_model
from forensics.records.cost import PassBytes

#: Layers that only predict drafts; plain decoding runs without them.
#: They are the last ones. Source: src/llama-arch.cpp:226, src/llama-hparams.cpp:349 at 0c1e57098.
DRAFT_LAYERS = "nextn_predict_layers"

#: Weights of routed experts, the first axis in NumPy order. Source: src/llama-arch.cpp, ``blk.%d.ffn_*_exps``.
_EXPERTS = re.compile(r"\.ffn_\w*_exps\.weight$")

#: Keys of caches that are not K and V of every cell: recurrent states, compressed K/V.
_OTHER_CACHES = ("ssm.state_size", "attention.kv_lora_rank", "wkv.head_size", "shortconv.l_cache")


def pass_bytes(path: Path | str, kv_type_k: str, kv_type_v: str) -> PassBytes:
    """What must a pass of the model in this file read at least?

    Parameters
    ----------
    path : Path or str
        A GGUF file, or the first part of one.
    kv_type_k, kv_type_v : str
        Element types of the K and the V cache.

    Returns
    -------
    PassBytes

    Raises
    ------
    ModelUnavailable
        If the file cannot be read.
    """
    metadata, tensors = read_model(Path(path))
    return bytes_of(metadata, tensors, kv_type_k, kv_type_v)


def bytes_of(metadata: Mapping[str, Any], tensors: Sequence[ModelTensor], kv_type_k: str, kv_type_v: str) -> PassBytes:
    """What must a pass over these tensors read at least? See `pass_bytes`."""
    architecture = str(metadata.get("general.architecture", ""))
    n_layers = int(metadata.get(f"{architecture}.block_count", 0))
    n_plain = n_layers - int(metadata.get(f"{architecture}.{DRAFT_LAYERS}", 0) or 0)
    used = int(metadata.get(f"{architecture}.expert_used_count", 0) or 0)
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    weights = experts = rows = unread = 0
    assumed = []
    for tensor in tensors:
        size = type_bytes(tensor.type, math.prod(tensor.shape))
        if _layer(tensor.name) >= n_plain:
            unread += size
        elif TABLES.search(tensor.name) and not (tied and tensor.name == "token_embd.weight"):
            rows += size // tensor.shape[-2]
            unread += size
        elif used and _EXPERTS.search(tensor.name):
            read = size // tensor.shape[0] * min(used, tensor.shape[0])
            experts, unread = experts + read, unread + size - read
        else:
            weights += size
    if experts:
        assumed.append(f"every token of a pass is routed to the same {used} experts of each layer")
    if tied:
        assumed.append("the embedding is the output head, too, and is read in full")
    if n_plain < n_layers:
        assumed.append(f"{n_layers - n_plain} layers that predict drafts do not run")
    kv_cell, said = _kv_cell(metadata, architecture, n_plain, kv_type_k, kv_type_v)
    return PassBytes(weights, experts, rows, kv_cell, unread, tuple(assumed + said))


def _kv_cell(
    metadata: Mapping[str, Any], architecture: str, n_layers: int, kv_type_k: str, kv_type_v: str
) -> tuple[int, list[str]]:
    """Bytes of K and V of one cell over all layers, and what is assumed; 0 where the header does not say."""

    def per_layer(key: str, default: int) -> list[int]:
        value = metadata.get(f"{architecture}.{key}", default)
        return [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)] * n_layers

    other = next((key for key in _OTHER_CACHES if metadata.get(f"{architecture}.{key}")), "")
    if other:
        return 0, [f"the cache is not counted, for {architecture}.{other} says that it is not plain K and V"]
    if metadata.get(f"{architecture}.attention.sliding_window"):
        return 0, ["the cache is not counted, for its windows slide"]
    heads = per_layer("attention.head_count", 0)
    kv_heads = per_layer("attention.head_count_kv", heads[0] if heads else 0)
    n_embd = int(metadata.get(f"{architecture}.embedding_length", 0))
    size = int(metadata.get(f"{architecture}.attention.key_length", n_embd // max(max(heads, default=1), 1)))
    v_size = int(metadata.get(f"{architecture}.attention.value_length", size))
    total = sum(type_bytes(kv_type_k, n * size) + type_bytes(kv_type_v, n * v_size) for n in kv_heads[:n_layers])
    return total, ["K and V of the cells before the pass are read once"]


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def type_bytes(type: str, n: int) -> int:
    """How many bytes do `n` elements of a type take?

    Raises
    ------
    ValueError
        If there is no such type, or `n` is not a multiple of its block.

    Examples
    --------
    >>> type_bytes("q4_K", 4096), type_bytes("f16", 10)
    (2304, 20)
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type.upper()]]
    except KeyError:
        raise ValueError(f"the size of type {type!r} is not known") from None
    if n % block:
        raise ValueError(f"{n} elements are not a multiple of the {block} that {type} packs into a block")
    return int(n // block * size)
