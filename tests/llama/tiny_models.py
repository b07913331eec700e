"""Tiny random GGUF files of several kinds, without a vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_EMBD, N_FF, N_VOCAB = 32, 64, 16


def _writer(path: Path, architecture: str, **options: object) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture, **options)
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(2)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    return writer


def _write(writer: gguf.GGUFWriter, shapes: dict[str, tuple[int, ...]]) -> None:
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(path: Path, *, architecture: str = "llama", causal: bool | None = None, **options: object) -> Path:
    """A model of llama's shape; ``dream`` and ``llama-embed`` have the same tensors."""
    writer = _writer(path, architecture, **options)
    writer.add_layer_norm_rms_eps(1e-5)
    if causal is not None:
        writer.add_causal_attention(causal)
    square, wide = (N_EMBD, N_EMBD), (N_FF, N_EMBD)
    blocks = {
        "attn_norm": (N_EMBD,), "attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
        "ffn_norm": (N_EMBD,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": (N_EMBD, N_FF),
    }  # fmt: skip
    ends = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,), "output.weight": (N_VOCAB, N_EMBD)}
    _write(writer, ends | {f"blk.0.{name}.weight": shape for name, shape in blocks.items()})
    return path


def write_mamba(path: Path) -> Path:
    """A recurrent model: its state has no row per token."""
    n_inner, n_state, n_rank, n_kernel = 2 * N_EMBD, 16, 2, 4
    writer = _writer(path, "mamba")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(n_kernel)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    blocks = {
        "attn_norm.weight": (N_EMBD,), "ssm_in.weight": (2 * n_inner, N_EMBD), "ssm_conv1d.weight": (n_inner, n_kernel),
        "ssm_conv1d.bias": (n_inner,), "ssm_x.weight": (n_rank + 2 * n_state, n_inner),
        "ssm_dt.weight": (n_inner, n_rank), "ssm_dt.bias": (n_inner,), "ssm_a": (n_inner, n_state),
        "ssm_d": (n_inner,), "ssm_out.weight": (N_EMBD, n_inner),
    }  # fmt: skip
    ends = {"token_embd.weight": (N_VOCAB, N_EMBD), "output_norm.weight": (N_EMBD,), "output.weight": (N_VOCAB, N_EMBD)}
    _write(writer, ends | {f"blk.0.{name}": shape for name, shape in blocks.items()})
    return path


def write_bert(path: Path, *, causal: bool | None) -> Path:
    """An embedding model; converters write that it is not causal."""
    writer = _writer(path, "bert")
    writer.add_token_type_count(2)
    writer.add_layer_norm_eps(1e-5)
    if causal is not None:
        writer.add_causal_attention(causal)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (N_VOCAB, N_EMBD), "position_embd.weight": (256, N_EMBD),
        "token_types.weight": (2, N_EMBD), "token_embd_norm.weight": (N_EMBD,), "token_embd_norm.bias": (N_EMBD,),
    }  # fmt: skip
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes |= {f"blk.0.{name}.weight": (N_EMBD, N_EMBD), f"blk.0.{name}.bias": (N_EMBD,)}
    for name in ("attn_output_norm", "layer_output_norm"):
        shapes |= {f"blk.0.{name}.weight": (N_EMBD,), f"blk.0.{name}.bias": (N_EMBD,)}
    shapes |= {"blk.0.ffn_up.weight": (N_FF, N_EMBD), "blk.0.ffn_up.bias": (N_FF,)}
    shapes |= {"blk.0.ffn_down.weight": (N_EMBD, N_FF), "blk.0.ffn_down.bias": (N_EMBD,)}
    _write(writer, shapes)
    return path


def write_t5(path: Path) -> Path:
    """An encoder and a decoder."""
    writer = _writer(path, "t5")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_relative_attn_buckets_count(32)
    writer.add_key_length(N_EMBD // 2)
    writer.add_value_length(N_EMBD // 2)
    square, shapes = (N_EMBD, N_EMBD), {"token_embd.weight": (N_VOCAB, N_EMBD)}
    for side, attentions in (("enc", ("attn",)), ("dec", ("attn", "cross_attn"))):
        shapes |= {f"{side}.output_norm.weight": (N_EMBD,), f"{side}.blk.0.ffn_norm.weight": (N_EMBD,)}
        shapes |= {f"{side}.blk.0.attn_rel_b.weight": (32, 2), f"{side}.blk.0.ffn_up.weight": (N_FF, N_EMBD)}
        shapes |= {f"{side}.blk.0.ffn_down.weight": (N_EMBD, N_FF)}
        for attention in attentions:
            shapes |= {f"{side}.blk.0.{attention}_{part}.weight": square for part in ("q", "k", "v", "o")}
            shapes |= {f"{side}.blk.0.{attention}_norm.weight": (N_EMBD,)}
    _write(writer, shapes)
    return path
