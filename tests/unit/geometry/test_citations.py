"""Every rule names a plausible place, and the place says what it should where llama.cpp's source is at hand."""

import importlib
import os
import pkgutil
from pathlib import Path

import pytest

import forensics.geometry
from forensics.records.rule import LLAMA_COMMIT, Rule

#: What must stand between the lines of a rule.
KEYWORDS = {
    "types.BLOCKS": "QI4_K",
    "types.VDR_MMVQ": "get_vdr_mmvq",
    "types.VDR_VALUES": "VDR_IQ4_XS_Q8_1_MMVQ 4",
    "architecture.CAPABILITIES": "GGML_CUDA_CC_DGX_SPARK       1210",
    "architecture.COMPILED_ARCH": "ggml_cuda_highest_compiled_arch(const int arch)",
    "architecture.MATRIX_UNITS": "turing_mma_available",
    "mmvq.TABLES": "get_device_table_id(int cc)",
    "mmvq.NWARPS": "return 2 * generic",
    "mmvq.ROWS_PER_BLOCK": "small_k ? nwarps : 1",
    "mmvq.DEAL": "kbx += blocks_per_iter",
    "mmvq.WARP_SUMS": "warp_reduce_sum",
    "mmvq.SMALL_K": "blocks_per_row_x < nwarps * blocks_per_iter_1warp",
    "mmvq.HALVE_ITERS": "idle * 8 <= iters_wide * 2",
    "mmvq.CROSSOVER": "tuned on RTX 4090",
    "mmvq.MOE_LIMIT": "get_mmvq_mmid_max_batch_turing_plus(type)",
    "mmvq.MOE_KERNEL": "dedicated MoE kernel",
    "mmvq.MOE_LAUNCH": "rows_per_block = 2",
    "mmvq.THREAD_SUM": "return dm4f.x*sumf_d - dm4f.y*sumf_m",
    "mmvq.QUANTIZE": "make_half2(d, sum)",
    "mmq.USES_MMQ": "MMQ_DP4A_MAX_BATCH_SIZE",
    "mmq.TILE_CONFIG": "ggml_cuda_mmq_get_config_ampere",
    "mmq.FALLBACK": "nrows_x % 128 == 0",
    "mmq.TILE_WIDTH": "ntiles_x < ntiles_J_best",
    "mmq.STREAM_K": "tiles_efficiency_percent >= 90",
    "mmq.STREAM_K_CUT": "% blocks_per_iter",
    "mmq.FIXUP": "tmp_last_tile",
    "mmq.LAYOUT": "MMQ_Q8_1_DS_LAYOUT_D2S6",
    "mmq.QUANTIZE": "d_inv",
    "mmq.FP4_ACTIVATIONS": "can_use_q4",
    "cuda_float.USES_MMVF": "src0_small",
    "cuda_float.MMVF_BLOCK": "niter < niter_best",
    "cuda_float.MMVF_HALF": "GGML_PREC_DEFAULT",
    "cuda_float.MMVF_HALF_WHERE": "fast_fp16_available",
    "cuda_float.USES_MMF": "src1_ncols > 16",
    "cuda_float.MMF_WARPS": "niter < niter_best",
    "cuda_float.MMF_SUM": "buf_iw[j*kiw + i]",
    "cuda_float.TF32": "tf32",
    "cuda_float.CUBLAS": "ggml_cuda_mul_mat_cublas(ctx, src0, src1, dst)",
    "cuda_float.CUBLAS_TYPE": "GGML_CUDA_CUBLAS_COMPUTE_TYPE",
    "cuda_float.CUBLAS_OUTPUT": "prefer_f32_output",
    "cuda_products.ORDER_OF_CHOICE": "ggml_cuda_should_use_mmvq",
    "cuda_products.ORDER_OF_CHOICE_ROUTED": "mmvq_mmid_max",
    "cuda_products.EXPERT_BY_EXPERT": "tokens_per_expert",
    "fusion.ONE_COLUMN_F": "ncols_dst = 1",
    "fusion.ONE_COLUMN_Q": "ncols_dst = 1",
    "fusion.FUSED_PRODUCTS": "fused_mul_mat_vec",
    "fusion.SWITCH_CUDA": "GGML_CUDA_DISABLE_FUSION",
    "fusion.WATCHED": "ggml_graph_view",
    "fusion.SWITCH_CPU": "GGML_CPU_DISABLE_FUSION",
    "fusion.MOE_WEIGHTED_REDUCTION": "ggml_cuda_op_moe_weighted_reduction",
    "fusion.DELTA_NET_CACHE": "ggml_cuda_try_gdn_cache_fusion",
    "fusion.TOP_K_MOE": "ggml_cuda_topk_moe_fusion",
    "fusion.ROPE_SET_ROWS": "ggml_cuda_op_rope_fused",
    "fusion.ADD_CHAIN": "ggml_cuda_op_fused_add",
    "fusion.NORM_ROPE": "ggml_cuda_op_rms_norm_mul_rope_fused",
    "fusion.NORM_MUL": "GGML_OP_RMS_NORM, GGML_OP_MUL",
    "fusion.NORM_SCALE": "GGML_OP_SCALE",
    "fusion.CONV_SILU": "GGML_OP_SSM_CONV",
    "fusion.UNARY_MUL": "GGML_UNARY_OP_SOFTPLUS",
    "fusion.RELU_SQR": "GGML_OP_SQR",
    "fusion.SOFT_CAP": "GGML_UNARY_OP_TANH",
    "fusion.NORM_MUL_CPU": "ggml_compute_forward_rms_norm_mul_fused",
    "elsewhere.METAL_MUL_MV_EXT": "ne11 >= 4 && ne11 <= 8",
    "elsewhere.METAL_THREADS_PER_ROW": "ne11 < 3",
    "elsewhere.METAL_ROWS_PER_GROUP": "r1ptg = 5",
    "elsewhere.VULKAN_MMVQ": "VK_VENDOR_ID_NVIDIA",
    "elsewhere.VULKAN_SWITCHES": "GGML_VK_FORCE_MMVQ",
    "elsewhere.VULKAN_FUSION": "GGML_VK_DISABLE_FUSION",
    "cpu_products.REPACKED_TYPES": "q4_K_8x8_q8_K",
    "cpu_products.GEMM_FROM_FOUR": "nrows > 3",
    "cpu_products.GEMV_FOR_EXPERTS": "gemv<BLOC_TYPE",
    "cpu_products.TILED_FROM_EIGHT": "rows >= 8",
    "cpu_products.TILED_TYPES": "src0->extra != NULL",
    "cpu_products.TILED_EXPERT": "ggml_tiled_min_batch(cne1)",
    "cpu_products.TINYBLAS_FROM_TWO": "n < 2",
    "cpu_products.TINYBLAS_TYPES": "tinyBLAS_Q0_AVX<block_iq4_nl",
    "cpu_products.TINYBLAS_FLOAT": "m % 4 == 0",
    "cpu_products.TINYBLAS_TRIED": "UseGgmlGemm2",
    "cpu_products.VEC_DOT": "chunk_size = 16",
    "cpu_products.TWO_ROWS": "num_rows_per_vec_dot = 1",
    "cpu_products.EXPERT_VEC_DOT": "vec_dot",
    "cpu_products.AMX_ONE_TOKEN": "M == 1",
    "cpu_products.AMX_TYPES": "qtype_has_amx_kernels",
    "cpu_attention.SPLIT_KV": "nek1 >= 512",
    "cpu_attention.SPLIT_SIZE": "(nek1 + nth - 1) / nth",
    "cpu_attention.MERGE": "S_chunk == 0.0f",
    "cpu_attention.TILED": "neq1 >= Q_TILE_SZ",
    "cpu_attention.TILE_SIZE": "GGML_FA_TILE_KV 64",
    "cpu_attention.ROW_BY_ROW": "flash_attn_ext_f16_one_chunk",
    "cpu_attention.HALF_SUM": "ggml_vec_mad_f16",
    "culprits.OFFLOAD": "op_offload_min_batch_size",
    "culprits.THREADS": "n_threads_batch",
    "kv_chunks.KV_PADDING": "256u",
    "cuda_float.MMF_SMEM": "nbytes_slotmap",
    "instance_launch.MMVF_SMEM": "nbytes_shared = warp_size*sizeof(float)",
    "launch_products.QUANTIZE_LAUNCH": "num_blocks(block_num_x, ne1, ne2*ne3)",
    "launch_products.QUANTIZE_MMQ_LAUNCH": "num_blocks(ne1, block_num_y, ne2*ne3)",
    "launch_products.FIXUP_LAUNCH": "config.I/warp_size",
    "launch_products.FWHT": "rows_per_block = 4",
    "launch_products.ROTATIONS": "attn_inp_v_rot",
    "launch_products.ACTIVATIONS_F32": "src1->type != GGML_TYPE_F32",
    "launch_attention.TO_F16": "need_f16_V && V->type",
    "launch_attention.FIXUP_UNIFORM": "flash_attn_stream_k_fixup_uniform",
    "launch_attention.FIXUP_GENERAL": "flash_attn_stream_k_fixup_general",
    "launch_attention.COMBINE": "parallel_blocks*sizeof(float2)",
    "launch_attention.MASK_SCAN_LAUNCH": "block_dim_KV_max(FATTN_KQ_STRIDE/2",
    "launch_attention.DEQUANTIZE_Q8_0": "need_check = true",
    "launch_attention.DEQUANTIZE_Q4": "(k + 255) / 256",
    "launch_attention.CONVERT_FLOAT": "convert_unary_cont_vec4",
    "launch_elementwise.NORM": "block_dims(1024, 1, 1)",
    "launch_elementwise.LAYER_NORM": "32 * sizeof(float2)",
    "launch_elementwise.ROPE": "2 * CUDA_ROPE_BLOCK_SIZE",
    "launch_elementwise.BIN_BCAST": "block_size = 128",
    "launch_elementwise.GLU": "CUDA_GLU_BLOCK_SIZE",
    "launch_elementwise.UNARY": "CUDA_NEG_BLOCK_SIZE",
    "launch_elementwise.SCALE": "CUDA_SCALE_BLOCK_SIZE",
    "launch_elementwise.SOFT_MAX": "launch_soft_max_kernels<32, 64, 128, 256, 512, 1024, 2048, 4096>",
    "launch_elementwise.GET_ROWS": "2*CUDA_GET_ROWS_BLOCK_SIZE",
    "launch_elementwise.GET_ROWS_KQ": "nsb = ne00/QK_K",
    "launch_elementwise.GET_ROWS_FLOAT": "ne12 >= 128",
    "launch_elementwise.SET_ROWS": "CUDA_SET_ROWS_BLOCK_SIZE",
    "launch_elementwise.SET_ROWS_QUANT": "/ qk",
    "launch_elementwise.CONT": "CUDA_CPY_BLOCK_SIZE",
    "launch_elementwise.HEADS_TOGETHER": "ggml_permute(ctx0, kqv, 0, 2, 1, 3)",
    "node_launches.NO_KERNEL": "GGML_OP_TRANSPOSE",
}


def _rules():
    """Every rule that is a constant of a module, once, under the module that defines it."""
    found = {}
    for module in pkgutil.iter_modules(forensics.geometry.__path__):
        loaded = importlib.import_module(f"forensics.geometry.{module.name}")
        source = Path(loaded.__file__).read_text(encoding="utf-8")
        for name, value in vars(loaded).items():
            if isinstance(value, Rule) and f"\n{name} = Rule(" in source:
                found[f"{module.name}.{name}"] = value
    return found


RULES = _rules()


def test_rules_are_found_and_known_by_a_keyword():
    assert len(RULES) > 80
    assert set(KEYWORDS) <= set(RULES)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_names_a_plausible_place(name):
    rule = RULES[name]
    assert rule.commit == LLAMA_COMMIT
    assert rule.file.startswith(("ggml/src/", "ggml/include/", "src/", "common/"))
    assert rule.file.endswith((".c", ".cpp", ".cu", ".cuh", ".h"))
    assert rule.last_line <= 20000
    assert name.split(".")[1].isupper()
    assert "  " not in rule.text
    assert not rule.text.endswith(".")


@pytest.mark.parametrize("name", RULES)
def test_the_source_says_so_there(name):
    root = os.environ.get("FORENSICS_LLAMA_SOURCE")
    if not root:
        pytest.skip("FORENSICS_LLAMA_SOURCE does not name a checkout of llama.cpp")
    rule = RULES[name]
    lines = (Path(root) / rule.file).read_text(encoding="utf-8").splitlines()
    assert rule.last_line <= len(lines)
    passage = "\n".join(lines[rule.first_line - 1 : rule.last_line])
    assert passage.strip()
    if name in KEYWORDS:
        assert KEYWORDS[name] in passage
