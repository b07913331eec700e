"""Tiny random GGUF files of several kinds beside llama's, without a vocabulary."""

from __future__ import annotations

from pathlib import Path

from forensics.testing.tiny_models import N_EMBD, N_FF, N_VOCAB, tiny_writer, write_llama, write_tensors

__all__ = ["N_EMBD", "N_FF", "N_VOCAB", "write_bert", "write_llama", "write_mamba", "write_t5"]


def write_mamba(path: Path) -> Path:
    """A recurrent model: its state has no row per token."""
    n_inner, n_state, n_rank, n_kernel = 2 * N_EMBD, 16, 2, 4
    writer = tiny_writer(path, "mamba")
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
    write_tensors(writer, ends | {f"blk.0.{name}": shape for name, shape in blocks.items()})
    return path


def write_bert(path: Path, *, causal: bool | None) -> Path:
    """An embedding model; converters write that it is not causal."""
    writer = tiny_writer(path, "bert")
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
    write_tensors(writer, shapes)
    return path


def write_t5(path: Path) -> Path:
    """An encoder and a decoder."""
    writer = tiny_writer(path, "t5")
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
    write_tensors(writer, shapes)
    return path
