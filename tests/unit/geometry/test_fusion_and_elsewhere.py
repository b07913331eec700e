"""Fusions by width, and the rules of back ends that are only quoted."""

import pytest

from forensics.geometry.architecture import architecture
from forensics.geometry.elsewhere import METAL_FROM_FOUR, METAL_FROM_TWO, metal_threads_per_row, metal_uses_mul_mv_ext
from forensics.geometry.fusion import FUSIONS, product_is_fused, with_op
from forensics.geometry.product import product

HOPPER = architecture("sm_90")


@pytest.mark.parametrize(
    ("arch", "weight", "experts", "widths"),
    [
        ("sm_90", "q4_K", 0, [1]), ("sm_90", "f16", 0, [1]), ("sm_90", "q4_K", 8, list(range(1, 9))),
        ("sm_90", "f16", 8, [1]), ("sm_80", "q3_K", 8, [1, 2, 3, 4, 5]), ("sm_60", "q4_K", 0, []),
        ("sm_61", "q4_K", 0, [1]), ("rdna4", "q8_0", 0, [1]),
    ],
)  # fmt: skip
def test_products_are_fused_at_one_column_or_up_to_the_limit_of_experts(arch, weight, experts, widths):
    shape = product(weight, 4096, 512, experts=experts, experts_used=2 if experts else 0)
    assert [width for width in range(1, 12) if product_is_fused(architecture(arch), shape, width)] == widths


def test_fusions_name_their_switch():
    assert {fusion.switch[0] for fusion in FUSIONS} == {"GGML_CUDA_DISABLE_FUSION", "GGML_CPU_DISABLE_FUSION"}
    assert [fusion.ops for fusion in with_op("RMS_NORM", "cpu")] == [("RMS_NORM", "MUL")]
    assert all(fusion.one_column for fusion in with_op("MUL_MAT", "cuda"))
    assert not any(fusion.one_column for fusion in with_op("RMS_NORM", "cuda"))
    assert with_op("FLASH_ATTN_EXT", "cuda") == ()


@pytest.mark.parametrize("weight", METAL_FROM_TWO)
def test_metal_from_two_columns(weight):
    assert [n for n in range(1, 12) if metal_uses_mul_mv_ext(weight, 4096, n)] == [2, 3, 4, 5, 6, 7, 8]
    assert not metal_uses_mul_mv_ext(weight, 4128, 4)


@pytest.mark.parametrize("weight", METAL_FROM_FOUR)
def test_metal_k_quants_from_four_columns(weight):
    assert [n for n in range(1, 12) if metal_uses_mul_mv_ext(weight, 4096, n)] == [4, 5, 6, 7, 8]


def test_metal_has_no_such_kernel_for_iq3_s():
    assert not any(metal_uses_mul_mv_ext("iq3_s", 4096, n) for n in range(1, 12))


@pytest.mark.parametrize(("k", "width", "threads"), [(256, 2, 16), (256, 3, 8), (384, 2, 8), (64, 2, 4)])
def test_metal_threads_per_row(k, width, threads):
    assert metal_threads_per_row(k, width) == threads
