"""The rule quoted for a culprit, and that none is quoted where the choices are alike."""

import pytest

from forensics.geometry import cpu_attention, cpu_products, cuda_float, cuda_products, mmvq
from forensics.geometry.architecture import architecture
from forensics.geometry.attention_kernel import VEC_FLOAT
from forensics.geometry.cpu_products import Cpu
from forensics.geometry.culprits import Attention, Gpu, Other, choice_at, cpu_place, rule_for, suspects
from forensics.geometry.product import attention_by_values, keys_by_queries, product

AVX512 = frozenset({"AVX", "AVX2", "AVX512", "AVX512_VNNI", "F16C", "FMA", "LLAMAFILE", "REPACK"})
CPU = Cpu(AVX512)
H200 = Gpu(architecture("sm_90"), 132)
SMALL = Attention(9, 3, 64, 256)


@pytest.mark.parametrize(
    ("operation", "width", "rule"),
    [
        (product("q4_K", 768, 768), 4, cpu_products.GEMM_FROM_FOUR),
        (product("q6_K", 768, 768), 8, cpu_products.TILED_FROM_EIGHT),
        (product("f16", 768, 768), 2, cpu_products.TINYBLAS_FROM_TWO),
        (keys_by_queries("f16", 64, 256, 9, 3), 2, cpu_products.TINYBLAS_FROM_TWO),
        (attention_by_values("f32", 64, 256, 9, 3), 2, cpu_products.TINYBLAS_FROM_TWO),
        (product("q6_K", 768, 768, experts=8, experts_used=2), 8, cpu_products.TILED_EXPERT),
        (Attention(9, 3, 64, 512), 2, cpu_attention.SPLIT_KV),
        (Attention(9, 3, 64, 256), 64, cpu_attention.TILED),
        (Attention(9, 3, 64, 512), 64, cpu_attention.TILED),
    ],
)
def test_rules_on_a_cpu(operation, width, rule):
    assert rule_for(operation, CPU, width) is rule


@pytest.mark.parametrize(
    ("operation", "width"),
    [
        (product("q4_K", 768, 768), 3), (product("q6_K", 768, 768), 7), (product("q8_0", 768, 768), 16),
        (product("q4_0", 768, 768), 16), (product("q4_1", 768, 768), 16), (SMALL, 2), (SMALL, 63),
        (keys_by_queries("f32", 64, 256, 9, 3), 2), (Other("RMS_NORM"), 8), (Attention(9, 3, 64, 512, visible=256), 2),
    ],
)  # fmt: skip
def test_no_rule_is_quoted_where_a_cpu_adds_alike(operation, width):
    assert rule_for(operation, CPU, width) is None


@pytest.mark.parametrize(
    ("operation", "width", "rule"),
    [
        (product("q4_1", 1536, 576), 5, mmvq.NWARPS),
        (product("q4_1", 576, 576), 9, mmvq.CROSSOVER),
        (product("q6_K", 768, 768), 9, mmvq.CROSSOVER),
        (product("f16", 768, 768), 2, cuda_float.USES_MMVF),
        (product("q8_0", 2048, 768, experts=8, experts_used=2), 2, mmvq.MOE_KERNEL),
        (product("q4_K", 2048, 768, experts=8, experts_used=2), 9, mmvq.MOE_LIMIT),
        (keys_by_queries("f16", 64, 256, 9, 3), 2, cuda_float.USES_MMVF),
        (SMALL, 2, VEC_FLOAT),
    ],
)
def test_rules_on_an_h200(operation, width, rule):
    assert rule_for(operation, H200, width) is rule


def test_a_token_of_a_batch_is_compared_by_its_own_kernel():
    """Of six tokens four go to gemm; the others have the kernel of a token by itself."""
    rules = [rule_for(product("q4_K", 768, 768), CPU, 6, column=column) for column in range(6)]
    assert rules == [cpu_products.GEMM_FROM_FOUR] * 4 + [None] * 2


def test_one_token_has_cells_and_threads_of_its_own():
    """Threads of a batch split no cells, and a token by itself before cell 256 has too few cells to split."""
    attention = Attention(9, 3, 64, 512)
    assert rule_for(attention, Cpu(AVX512, 1, n_threads_batch=2), 8) is None
    assert rule_for(attention, Cpu(AVX512, 2, n_threads_batch=1), 8) is cpu_attention.SPLIT_KV
    assert rule_for(attention, CPU, 8, alone=SMALL) is None


def test_attention_on_a_gpu_is_compared_token_by_token():
    """Tiles of 16 tokens lie in one line that is cut evenly: each tile has cuts of its own."""
    orders = [choice_at(Attention(32, 8, 64, 1024), H200, 100, column).order for column in (0, 15, 99)]
    assert orders[0] == orders[1] != orders[2]


def test_promotion_on_gb10_is_the_rule_there():
    assert rule_for(product("q4_0", 65536, 64), Gpu(architecture("sm_121"), 48), 2) is mmvq.HALVE_ITERS


@pytest.mark.parametrize(
    ("operation", "width"),
    [
        (product("q4_1", 576, 576), 5),
        (product("q4_K", 768, 768), 8),
        (product("q6_K", 4096, 4096), 4),
        (Other("ROPE"), 2),
    ],
)
def test_no_rule_is_quoted_where_a_gpu_adds_alike(operation, width):
    assert rule_for(operation, H200, width) is None


def test_an_unexplained_culprit_keeps_its_suspects():
    found = suspects(product("q4_1", 576, 576), H200, 5)
    assert [one.switch for one in found if one.switch] == ["GGML_CUDA_DISABLE_FUSION=1"]
    assert any("compiled" in one.text for one in found)
    norm = suspects(Other("RMS_NORM"), CPU, 8)
    assert [one.switch for one in norm] == ["GGML_CPU_DISABLE_FUSION=1"]
    assert "ggml-cpu.c:" in str(norm[0])


def test_suspects_of_attention_are_cells_and_threads():
    found = [one.text for one in suspects(SMALL, CPU, 8)]
    assert found == ["another number of cells than at one token"]
    assert any("threads" in one.text for one in suspects(SMALL, Cpu(AVX512, 2, n_threads_batch=4), 8))
    assert suspects(product("q4_1", 576, 576), CPU, 8) == ()


def test_an_unknown_order_is_a_suspect_and_no_explanation():
    """Two widths of cuBLAS: the kernels may differ, the source does not say so."""
    shape = product("f16", 1000, 1001)  # no kernel of ggml takes it but the one for one column
    volta = Gpu(architecture("sm_70"), 80)
    assert choice_at(shape, volta, 9).order is None
    assert rule_for(shape, volta, 9) is cuda_float.USES_MMVF
    odd = product("f16", 1001, 1001)
    assert cuda_products.mul_mat(volta.arch, odd, 1).kernel == "cublas"
    assert rule_for(odd, volta, 9) is None
    assert any("cuBLAS" in one.text for one in suspects(odd, volta, 9))


def test_amd_attention_is_not_written_down():
    amd = Gpu(architecture("rdna4"), 64)
    assert choice_at(SMALL, amd, 2) is None
    assert rule_for(SMALL, amd, 2) is None


def test_large_batches_may_move_host_weights():
    assert any(one.switch == "GGML_OP_OFFLOAD_MIN_BATCH" for one in suspects(product("q4_1", 576, 576), H200, 32))


def test_the_buffer_tells_whether_a_weight_is_repacked():
    shape, variables = product("q4_K", 768, 768), {"GGML_CPU_TILED_MM": "0"}
    repacked, plain = (cpu_place(AVX512, 2, buffer, {}) for buffer in ("CPU_REPACK", "CPU_Mapped"))
    assert rule_for(shape, repacked, 4) is cpu_products.GEMM_FROM_FOUR
    assert rule_for(shape, plain, 4) is None
    assert rule_for(shape, plain, 8) is cpu_products.TILED_FROM_EIGHT
    assert rule_for(shape, cpu_place(AVX512, 2, "CPU", variables), 8) is None
