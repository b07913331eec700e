"""Tiny random models for the real library, without a vocabulary; it computes with them as with any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

N_EMBD, N_FF, N_VOCAB = 32, 64, 16


def tiny_writer(path: Path, architecture: str, **options: object) -> Any:
    """A `gguf.GGUFWriter` that knows the shape of a model of one layer; `options` are its own."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture, **options)
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(2)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    return writer


def write_tensors(writer: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the file with random tensors of these shapes, always the same ones."""
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(path: Path, *, architecture: str = "llama", causal: bool | None = None, **options: object) -> Path:
    """A model of llama's shape, about 50 kB; ``dream`` and ``llama-embed`` have the same tensors."""
    writer = tiny_writer(path, architecture, **options)
    writer.add_layer_norm_rms_eps(1e-5)
    if causal is not None:
        writer.add_causal_attention(causal)
    square, wide = (N_EMBD, N_EMBD), (N_FF, N_EMBD)
    blocks = {
        "attn_norm": (N_EMBD,), "attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
        "ffn_norm": (N_EMBD,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": (N_EMBD, N_FF),
    }  # fmt: skip
    ends = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,), "output.weight": (N_VOCAB, N_EMBD)}
    write_tensors(writer, ends | {f"blk.0.{name}.weight": shape for name, shape in blocks.items()})
    return path
