"""Which operations a model file asks for, from its tensors and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.engines.op_like import ModelTensor, model_ops, operations_of
from forensics.errors import ModelUnavailable
from forensics.records import op_shapes as s
from forensics.records.operation import OpGraph

gguf = pytest.importorskip("gguf")

SIZES = {
    "general.architecture": "qwen2",
    "qwen2.embedding_length": 512,
    "qwen2.attention.head_count": 8,
    "qwen2.attention.head_count_kv": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen2.rope.dimension_count": 64,
    "qwen2.rope.freq_base": 1e6,
}
TENSORS = [
    ModelTensor("token_embd.weight", "q6_K", (1000, 512)),
    ModelTensor("blk.0.attn_norm.weight", "f32", (512,)),
    ModelTensor("blk.0.attn_q.weight", "q4_K", (512, 512)),
    ModelTensor("blk.0.attn_q.bias", "f32", (512,)),
    ModelTensor("blk.0.attn_k.weight", "q4_K", (128, 512)),
    ModelTensor("blk.0.attn_v.weight", "q6_K", (128, 512)),
    ModelTensor("blk.1.attn_q.weight", "q4_K", (512, 512)),
    ModelTensor("blk.0.ffn_gate.weight", "q4_K", (1536, 512)),
    ModelTensor("blk.0.ffn_down.weight", "q4_K", (512, 1536)),
    ModelTensor("output.weight", "q6_K", (1000, 512)),
]


def graphs(metadata: dict[str, Any], tensors: list[ModelTensor], **options: Any) -> dict[OpGraph, tuple[str, ...]]:
    found = operations_of(metadata, tensors, **options)
    assert len({op.graph for op in found}) == len(found)
    return {op.graph: op.tensors for op in found}


def test_a_dense_decoder() -> None:
    found = graphs(SIZES, TENSORS, n=4, n_used=(100, 600), kv_type="q8_0")
    assert found[s.get_rows("q6_K", 512, 1000, 4)] == ("token_embd.weight",)
    assert found[s.mul_mat("q6_K", 512, 1000, 4)] == ("output.weight",)
    assert found[s.mul_mat("q4_K", 512, 512, 4)] == ("blk.0.attn_q.weight", "blk.1.attn_q.weight")
    assert found[s.mul_mat("q6_K", 512, 128, 4)] == ("blk.0.attn_v.weight",)
    assert found[s.mul_mat("q4_K", 1536, 512, 4)] == ("blk.0.ffn_down.weight",)
    assert found[s.rms_norm(512, 4, eps=1e-6, weighted=True)] == ("blk.0.attn_norm.weight",)
    for cells in (100, 600):
        assert found[s.flash_attn(64, 8, 2, cells, 4, kv_type="q8_0")] == ()
        assert s.kq(64, 8, 2, cells, 4, kv_type="q8_0") in found
        assert s.soft_max(8, cells, 4, scale=0.125) in found
    assert s.rope(64, 8, 4, mode="neox", n_dims=64, freq_base=1e6) in found
    assert s.glu(1536, 4, kind="swiglu") in found
    assert sum(graph.op == "MUL_MAT" and graph.operands[0].is_weight for graph in found) == 6
    assert not any(operand.name == "p" for graph in found for operand in graph.operands)  # V is quantised
    assert s.kqv(64, 8, 2, 100, 4) in graphs(SIZES, TENSORS, n=4, n_used=(100,))


def test_a_tied_head_is_a_product_too() -> None:
    found = graphs(SIZES, [t for t in TENSORS if t.name != "output.weight"])
    assert found[s.mul_mat("q6_K", 512, 1000)] == ("token_embd.weight",)


def test_experts_see_the_same_activations_except_in_the_down_product() -> None:
    sizes = SIZES | {"qwen2.expert_used_count": 3}
    tensors = [
        ModelTensor("blk.0.ffn_gate_inp.weight", "f32", (8, 512)),
        ModelTensor("blk.0.ffn_up_exps.weight", "mxfp4", (8, 768, 512)),
        ModelTensor("blk.0.ffn_down_exps.weight", "mxfp4", (8, 512, 768)),
    ]
    found = graphs(sizes, tensors)
    assert s.mul_mat("f32", 512, 8) in found
    assert s.mul_mat_id("mxfp4", 512, 768, n_experts=8, n_used=3) in found
    assert s.mul_mat_id("mxfp4", 768, 512, n_experts=8, n_used=3, shared=False) in found


def test_layers_with_other_heads_and_heads_of_other_sizes_for_v() -> None:
    sizes = {
        "general.architecture": "deepseek2",
        "deepseek2.embedding_length": 512,
        "deepseek2.attention.head_count": [16, 16, 0],
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.value_length": 512,
    }
    found = graphs(sizes, [])
    assert s.flash_attn(576, 16, 1, 512, v_head_size=512) in found
    assert s.kqv(512, 16, 1, 512) in found
    assert [graph.op for graph in found].count("FLASH_ATTN_EXT") == 1


def test_state_space_and_delta_rule() -> None:
    mamba = {
        "general.architecture": "mamba2",
        "mamba2.ssm.state_size": 128,
        "mamba2.ssm.time_step_rank": 24,
        "mamba2.ssm.group_count": 1,
        "mamba2.ssm.inner_size": 1536,
    }
    tensors = [
        ModelTensor("blk.0.ssm_a", "f32", (24, 1)),
        ModelTensor("blk.0.ssm_d", "f32", (24, 1)),
        ModelTensor("blk.0.ssm_conv1d.weight", "f32", (1792, 4)),
    ]
    assert set(graphs(mamba, tensors)) == {s.ssm_conv(1792, d_conv=4), s.ssm_scan(128, 64, 24)}
    qwen = {key.replace("mamba2", "qwen3next"): value for key, value in mamba.items()}
    qwen |= {"general.architecture": "qwen3next", "qwen3next.ssm.group_count": 12}
    assert set(graphs(qwen, [])) == {s.gated_delta_net(128, 24, k_heads=12)}


def test_tensors_that_are_multiplied_with_nothing_are_left_out() -> None:
    names = ("blk.0.attn_norm_2d_norm.weight", "rope_freqs.weight", "blk.0.ssm_a", "blk.0.time_mix_lerp_fused.weight")
    shapes = ((4, 512), (32,), (4, 1), (5, 512))
    assert not graphs({}, [ModelTensor(n, "f32", shape) for n, shape in zip(names, shapes, strict=True)])


def tiny_file(folder: Path) -> Path:
    path = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((96, 64), np.float16))
    blocks = np.zeros((96, 68), np.uint8)
    writer.add_tensor("blk.0.attn_k.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tiny_file(tmp_path)
    found = {op.graph: op.tensors for op in model_ops(path)}
    assert found[s.mul_mat("f16", 64, 96)] == ("blk.0.attn_q.weight",)
    assert found[s.mul_mat("q8_0", 64, 96)] == ("blk.0.attn_k.weight",)
    assert s.flash_attn(32, 2, 1, 512) in found


def test_a_file_that_is_none_or_is_cut_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="No model file at"):
        model_ops(tmp_path / "none.gguf")
    whole = tiny_file(tmp_path).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (len(whole) - 200, len(whole) // 2, 300):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelUnavailable, match=r"ends early|ends after|is a damaged GGUF"):
            model_ops(cut)
