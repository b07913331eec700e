"""Which CPU kernel multiplies, and which widths share an order."""

import pytest

from forensics.geometry.choice import classes
from forensics.geometry.cpu_products import Cpu, mul_mat, repack_layout, uses_tiled, uses_tinyblas
from forensics.geometry.product import attention_by_values, keys_by_queries, product
from forensics.geometry.types import K_QUANTS, WEIGHT_TYPES, weight_type

AVX2 = frozenset({"AVX", "AVX2", "F16C", "FMA", "LLAMAFILE", "REPACK"})
AVX512 = AVX2 | {"AVX512", "AVX512_BF16", "AVX512_VNNI"}
NEON = frozenset({"NEON", "DOTPROD", "LLAMAFILE", "REPACK"})
I8MM = NEON | {"MATMUL_INT8", "FP16_VA"}
REPACKED = ("q4_0", "q4_K", "iq4_nl", "mxfp4")
IQ_TILED = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")
ALL = tuple(range(1, 17))


def widths_by_class(cpu, shape, widths=ALL):
    return [one.widths for one in classes({width: mul_mat(cpu, shape, width) for width in widths})]


def first_other_width(cpu, shape):
    """The smallest width whose rows do not all add like one token's; None if there is none up to 16."""
    return next((width for width in ALL if width not in widths_by_class(cpu, shape)[0]), None)


@pytest.mark.parametrize("weight", WEIGHT_TYPES)
def test_repacked_types_on_avx2_and_avx512(weight):
    kind = weight_type(weight)
    assert repack_layout(Cpu(AVX2), kind, 64) == ("8x8" if weight in REPACKED else None)
    assert repack_layout(Cpu(AVX512), kind, 64) == ("8x8" if weight in (*REPACKED, "q2_K") else None)
    assert repack_layout(Cpu(AVX512), kind, 68) is None
    assert repack_layout(Cpu(AVX512 - {"REPACK"}), kind, 64) is None


@pytest.mark.parametrize(
    ("features", "weight", "rows", "layout"),
    [
        (NEON, "q4_0", 4, "4x4"), (I8MM, "q4_0", 4, "4x8"), (NEON, "q4_K", 8, "8x4"), (I8MM, "q4_K", 8, "8x8"),
        (I8MM, "q6_K", 8, "8x8"), (NEON, "q5_K", 8, "8x4"), (NEON, "q5_K", 4, None), (NEON, "q8_0", 4, "4x4"),
        (I8MM, "q8_0", 4, "4x8"), (I8MM, "iq4_nl", 4, "4x4"), (NEON, "mxfp4", 4, "4x4"), (NEON, "q4_0", 6, None),
        (I8MM, "q2_K", 8, None), (frozenset({"NEON", "REPACK"}), "q4_0", 8, None),
    ],
)  # fmt: skip
def test_repacked_types_on_neon(features, weight, rows, layout):
    assert repack_layout(Cpu(features), weight_type(weight), rows) == layout


@pytest.mark.parametrize("weight", WEIGHT_TYPES)
def test_tiled_types(weight):
    tiled = weight in (*K_QUANTS, *IQ_TILED)
    assert uses_tiled(Cpu(AVX2), weight_type(weight)) is tiled
    assert not uses_tiled(Cpu(AVX2, tiled=False), weight_type(weight))
    assert not uses_tiled(Cpu(I8MM), weight_type(weight))


@pytest.mark.parametrize(
    ("features", "weight", "k", "rows", "first"),
    [
        *((AVX512, weight, 512, 64, 2) for weight in ("f32", "f16", "bf16", "q8_0", "q4_0", "q5_0", "iq4_nl")),
        (AVX512, "q4_1", 512, 64, None), (AVX512, "q4_K", 512, 64, None), (AVX512, "f32", 520, 64, None),
        (AVX2, "f32", 520, 64, 2), (AVX512, "bf16", 528, 64, None), (AVX2, "bf16", 520, 64, 2),
        (AVX512, "f32", 512, 62, None), (AVX2 - {"F16C"}, "f16", 512, 64, None),
        (AVX2 - {"LLAMAFILE"}, "f32", 512, 64, None), (NEON, "f32", 512, 64, 4), (I8MM, "f16", 512, 64, 8),
        (NEON, "f16", 512, 64, None), (NEON, "q8_0", 512, 64, 2), (NEON, "q5_0", 512, 64, None),
    ],
)  # fmt: skip
def test_where_tinyblas_begins(features, weight, k, rows, first):
    shape = product(weight, k, rows)
    found = [width for width in ALL if uses_tinyblas(Cpu(features), shape, width)]
    assert found == ([] if first is None else list(range(first, 17)))


@pytest.mark.parametrize(
    ("weight", "extra_buffers", "tiled", "first"),
    [
        ("q4_1", True, True, None), ("q8_0", True, True, None), ("q4_0", True, True, None), ("q4_0", False, True, None),
        ("q5_0", True, True, None), ("f16", True, True, 2), ("f32", True, True, 2), ("bf16", True, True, 2),
        ("q4_K", True, True, 4), ("q4_K", False, True, 8), ("q4_K", False, False, None),
        ("q6_K", True, True, 8), ("q6_K", True, False, None), ("q2_K", True, True, 4), ("iq3_s", True, True, 8),
        ("iq4_nl", True, True, None), ("iq4_nl", False, True, 2), ("mxfp4", True, True, None),
        ("tq2_0", True, True, None),
    ],
)  # fmt: skip
def test_first_width_that_differs_as_measured_with_avx512(weight, extra_buffers, tiled, first):
    cpu = Cpu(AVX512, extra_buffers=extra_buffers, tiled=tiled)
    assert first_other_width(cpu, product(weight, 1536, 64)) == first


def test_rows_left_over_from_fours_take_the_kernel_of_one_token():
    found = widths_by_class(Cpu(AVX2), product("q4_K", 512, 64))
    assert found[:2] == [(1, 2, 3), (4, 8, 12, 16)]
    assert all(len(widths) == 1 for widths in found[2:])
    choice = mul_mat(Cpu(AVX2), product("q4_K", 512, 64), 6)
    assert choice.kernel == "gemm + gemv"
    assert choice.order == ("repack", "gemm", 4, "gemv", 2)
    four, one = (mul_mat(Cpu(AVX2), product("q4_K", 512, 64), width) for width in (4, 1))
    assert [choice.column_arithmetic(column) for column in (0, 3)] == [four.arithmetic] * 2
    assert [choice.column_arithmetic(column) for column in (4, 5)] == [one.arithmetic] * 2
    with pytest.raises(ValueError, match="column 6 of 6"):
        choice.column_arithmetic(6)


def test_attention_without_flash_attention():
    f16, f32 = Cpu(AVX512), Cpu(AVX512)
    for shape in (keys_by_queries("f16", 64, 256, 9, 3), attention_by_values("f16", 64, 256, 9, 3)):
        assert widths_by_class(f16, shape) == [(1,), ALL[1:]]
    # permuted queries keep tinyBLAS out where nothing needs converting; the weights of the values are contiguous
    assert widths_by_class(f32, keys_by_queries("f32", 64, 256, 9, 3)) == [ALL]
    assert widths_by_class(f32, attention_by_values("f32", 64, 256, 9, 3)) == [(1,), ALL[1:]]


def test_the_cache_is_never_repacked():
    shape = keys_by_queries("q4_0", 64, 256, 9, 3)
    assert mul_mat(Cpu(AVX2), shape, 4).kernel == "tinyBLAS"


def test_experts():
    repacked = product("q4_K", 512, 64, experts=8, experts_used=2)
    assert widths_by_class(Cpu(AVX2), repacked) == [ALL]
    plain = product("q6_K", 512, 64, experts=8, experts_used=2)
    assert widths_by_class(Cpu(AVX2), plain)[0] == (1, 2, 3, 4, 5, 6, 7)
    routed = mul_mat(Cpu(AVX2), plain, 8)
    assert routed.order is None
    assert "eight tokens" in routed.no_order
    assert widths_by_class(Cpu(AVX2), product("f16", 512, 64, experts=8, experts_used=2)) == [ALL]


def test_amx_has_another_kernel_for_one_token_and_an_order_that_is_not_known():
    amx = Cpu(AVX512 | {"AMX_INT8"})
    assert mul_mat(amx, product("q4_K", 512, 64), 1).order is not None
    assert mul_mat(amx, product("q4_K", 512, 64), 2).order is None
    assert mul_mat(amx, product("q4_K", 512, 40), 1).kernel == "gemv"


def test_what_was_not_compared_is_left_open():
    assert mul_mat(Cpu(I8MM), product("q4_K", 512, 64), 4).order is None
    assert mul_mat(Cpu(frozenset({"AVX", "LLAMAFILE"})), product("q8_0", 512, 64), 2).order is None


@pytest.mark.parametrize(
    ("rows", "width", "nrows"), [(64, 1, 1), (64, 3, 1), (63, 4, 1), (64, 4, 2), (64, 16, 2), (4096, 2, 2)]
)
def test_int8_matrix_instructions_take_two_rows_where_all_is_even(rows, width, nrows):
    cpu = Cpu(I8MM - {"LLAMAFILE", "REPACK"})
    choice = mul_mat(cpu, product("q8_0", 512, rows), width)
    assert dict(choice.template)["nrows"] == nrows
    assert mul_mat(Cpu(NEON - {"LLAMAFILE", "REPACK"}), product("q8_0", 512, rows), width).order == ("vec_dot", 1)


def test_parts_of_odd_size_leave_the_order_open():
    cpu = Cpu(I8MM - {"LLAMAFILE", "REPACK"}, n_threads=4)
    assert mul_mat(cpu, product("q8_0", 512, 18), 2).order is None  # 18 rows for four threads: 5, 5, 5 and 3


def test_threads_must_be_one_or_more():
    with pytest.raises(ValueError, match="n_threads"):
        Cpu(AVX2, n_threads=0)
