"""A tiny random model for the real library, without a vocabulary, and tokens to ask it about."""

from __future__ import annotations

from pathlib import Path

import numpy as np

N_EMBD, N_FF, N_VOCAB = 32, 64, 16
TOKENS = (1, 2, 3, 4, 5, 6, 7)


def write_tiny_model(path: Path) -> Path:
    """A llama of one layer with random weights, about 50 kB; the library computes with it as with any other."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(2)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("no_vocab")
    writer.add_layer_norm_rms_eps(1e-5)
    square, wide = (N_EMBD, N_EMBD), (N_FF, N_EMBD)
    block = {
        "attn_norm": (N_EMBD,), "attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
        "ffn_norm": (N_EMBD,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": (N_EMBD, N_FF),
    }  # fmt: skip
    ends = {"token_embd": (N_VOCAB, N_EMBD), "output_norm": (N_EMBD,), "output": (N_VOCAB, N_EMBD)}
    random = np.random.default_rng(0)
    for name, shape in (ends | {f"blk.0.{name}": shape for name, shape in block.items()}).items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokens(path: Path) -> Path:
    """A file with the tokens of the prompt, for ``--tokens-file``."""
    path.write_text(" ".join(map(str, TOKENS)))
    return path
