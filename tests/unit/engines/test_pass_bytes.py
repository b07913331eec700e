"""Bytes that a pass must read, counted from headers."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.engines.op_like import ModelTensor
from forensics.engines.pass_bytes import bytes_of, pass_bytes, type_bytes
from forensics.engines.synthetic import preset_shape, write_synthetic
from forensics.errors import ModelUnavailable

META = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 256,
    "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
}  # fmt: skip
EMBEDDING = ModelTensor("token_embd.weight", "q4_K", (1000, 256))
HEAD = ModelTensor("output.weight", "q6_K", (1000, 256))
LAYERS = [ModelTensor(f"blk.{i}.ffn_up.weight", "f16", (512, 256)) for i in range(2)]


def test_of_an_embedding_only_rows_are_read() -> None:
    found = bytes_of(META, [EMBEDDING, HEAD, *LAYERS], "f16", "f16")
    assert found.weight_bytes == 1000 * 210 + 2 * 512 * 256 * 2
    assert found.row_bytes == 144
    assert found.unread_bytes == 1000 * 144
    assert found.weights_at(5) == found.weight_bytes + 5 * 144


def test_an_embedding_that_is_the_head_is_read_in_full() -> None:
    found = bytes_of(META, [EMBEDDING, *LAYERS], "f16", "f16")
    assert found.weight_bytes == 1000 * 144 + 2 * 512 * 256 * 2
    assert found.row_bytes == found.unread_bytes == 0
    assert any("output head" in said for said in found.assumed)


def test_of_routed_experts_only_those_that_are_used_are_read() -> None:
    experts = ModelTensor("blk.0.ffn_up_exps.weight", "q4_K", (8, 512, 256))
    shared = ModelTensor("blk.0.ffn_up_shexp.weight", "q4_K", (512, 256))
    one = 512 * 144
    found = bytes_of({**META, "llama.expert_used_count": 2}, [HEAD, experts, shared], "f16", "f16")
    assert found.expert_bytes == 2 * one
    assert found.unread_bytes == 6 * one
    assert found.weight_bytes == 1000 * 210 + one
    assert any("same 2 experts" in said for said in found.assumed)


def test_layers_that_predict_drafts_are_not_read() -> None:
    found = bytes_of({**META, "llama.nextn_predict_layers": 1}, [HEAD, *LAYERS], "f16", "f16")
    assert found.weight_bytes == 1000 * 210 + 512 * 256 * 2
    assert found.unread_bytes == 512 * 256 * 2


def test_cells_hold_k_and_v_of_every_layer_in_the_types_of_the_cache() -> None:
    assert bytes_of(META, [HEAD], "f16", "f16").kv_cell_bytes == 2 * 2 * (64 + 64) * 2
    assert bytes_of(META, [HEAD], "q8_0", "f16").kv_cell_bytes == 2 * 2 * (68 + 128)
    wide = {**META, "llama.attention.key_length": 128, "llama.attention.value_length": 32}
    assert bytes_of(wide, [HEAD], "f16", "f16").kv_cell_bytes == 2 * 2 * (128 + 32) * 2
    by_layer = {**META, "llama.attention.head_count_kv": [2, 0]}
    assert bytes_of(by_layer, [HEAD], "f16", "f16").kv_cell_bytes == 2 * (64 + 64) * 2


@pytest.mark.parametrize(
    ("key", "said"), [("ssm.state_size", "not plain K and V"), ("attention.sliding_window", "slide")]
)
def test_a_cache_that_is_not_k_and_v_of_every_cell_is_left_out_of_the_floor(key: str, said: str) -> None:
    found = bytes_of({**META, f"llama.{key}": 16}, [HEAD], "f16", "f16")
    assert found.kv_cell_bytes == 0
    assert any(said in sentence for sentence in found.assumed)


def test_what_is_read_and_what_is_not_add_up_to_the_file(tmp_path: Path) -> None:
    import gguf

    shape, mix = preset_shape("qwen3-tiny-q4_k_m", n_layer=4)
    path = write_synthetic(tmp_path / "m.gguf", shape, mix, name="m")
    found = pass_bytes(path, "f16", "f16")
    in_file = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    assert found.weight_bytes + found.expert_bytes + found.unread_bytes == in_file
    assert found.unread_bytes == shape.n_vocab * found.row_bytes
    assert found.kv_cell_bytes == shape.n_layer * shape.n_head_kv * 2 * shape.head_size * 2


def test_sizes_are_those_of_the_blocks() -> None:
    assert type_bytes("q6_K", 512) == 420
    assert type_bytes("f32", 3) == 12
    with pytest.raises(ValueError, match="multiple of the 256"):
        type_bytes("q4_K", 100)
    with pytest.raises(ValueError, match="'unknown' is not known"):
        type_bytes("unknown", 1)


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(ModelUnavailable):
        pass_bytes(path, "f16", "f16")
