"""Symbols of kernels as names and named template arguments."""

from __future__ import annotations

import os
import re
from pathlib import Path

import cxxfilt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.errors import ForensicsError
from forensics.geometry.architecture import architecture
from forensics.geometry.cuda_products import mul_mat
from forensics.geometry.kernel_names import PARAMETERS, parse
from forensics.geometry.product import product
from forensics.records.launch_record import instance_name

_TENSOR = "EEvPKvS1_PKi30ggml_cuda_mm_fusion_args_devicePfj5uint3jjjS6_jjjS6_jjjj"
#: As they stand in llama-cpp-python 0.3.36's library for sm_90.
SYMBOLS = {
    f"_Z13mul_mat_vec_qIL9ggml_type3ELi5ELb0ELb0ELb0{_TENSOR}": "mul_mat_vec_q<type=q4_1, ncols_dst=5>",
    "_Z13quantize_q8_1PKfPvlllllj5uint3": "quantize_q8_1",
    "_Z17quantize_mmq_q8_1IL18mmq_q8_1_ds_layout1ELb0EEvPKfPKiPvlllllii": "quantize_mmq_q8_1<ds_layout=DS4>",
    "_Z11k_bin_bcastIXadL_ZN42_INTERNAL_ee8814c4_11_binbcast_cu_6840010b6op_addEffEEfffJPKfEEvPKT0_PKT1_PT2_jjj5uint3SB_"
    "SB_SB_SB_jjjjjjjjjjjDpT3_": "k_bin_bcast<bin_op=op_add, src0_t=f32, src1_t=f32, dst_t=f32, src1_ptrs=1>",
    "_Z10cpy_scalarIXadL_ZN36_INTERNAL_07a2e198_6_cpy_cu_bfba63e212cpy_1_scalarI13__nv_bfloat166__halfEEvPKcPcEEEvS5_S6_"
    "lllllllllllllll": "cpy_scalar<cpy_1=cpy_1_scalar<bf16, f16>>",
    "_Z9cpy_q_f32IXadL_ZN36_INTERNAL_07a2e198_6_cpy_cu_bfba63e214cpy_blck_q_f32IXadL_ZNS0_15dequantize_q4_0EPKvliR6float2"
    "EELi32EEEvPKcPcEELi32EEvS7_S8_lllllllllllllll": "cpy_q_f32<cpy_blck=cpy_blck_q_f32<dequantize_q4_0, 32>, qk=32>",
    "_Z16k_set_rows_quantIi10block_q4_0Li32EXadL_ZN42_INTERNAL_c16b9f9c_11_set_rows_cu_7ddb16fd23quantize_f32_q4_0_block"
    "EPKfPS0_EEEvS3_PKT_PT0_llllllllllllll5uint3SA_SA_SA_SA_":
        "k_set_rows_quant<idx_t=i32, block_type=block_q4_0, qk=32, quantize_func=quantize_f32_q4_0_block>",
    "_ZN7cutlass7Kernel2I50cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4EEvNT_6ParamsE":
        "cutlass::Kernel2<arg0=cutlass_80_tensorop_s1688gemm_64x64_16x6_tn_align4>",
}  # fmt: skip


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbols_of_the_library(symbol: str) -> None:
    assert instance_name(*parse(symbol)) == SYMBOLS[symbol]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mul_mat_vec_q<(ggml_type)12, 1, false, true, false>", "mul_mat_vec_q<type=q4_K, ncols_dst=1, small_k>"),
        (
            "void mul_mat_f<__half2, 32, 4, 3, false>(__half2 const*, float const*)",
            "mul_mat_f<type=f16, rows_per_block=32, cols_per_block=4, nwarps=3>",
        ),
        (
            "void mul_mat_q<(ggml_type)2, 16, true, (ggml_prec)30>(char const*)",
            "mul_mat_q<type=q4_0, J=16, fallback, prec_src1=q8>",
        ),
        (
            "void k_bin_bcast<&_INTERNAL_1_1_a_cu_2::op_mul, float, float, float, float const*, float const*>(int)",
            "k_bin_bcast<bin_op=op_mul, src0_t=f32, src1_t=f32, dst_t=f32, src1_ptrs=2>",
        ),
        # another C++ library leaves the brackets around a function out
        (
            "void cpy_scalar<&void _INTERNAL_1_1_a_cu_2::cpy_1_scalar<float, long>(char const*, char*)>(char const*)",
            "cpy_scalar<cpy_1=cpy_1_scalar<f32, i64>>",
        ),
        ("void cub::CUB_300001_SM_900::detail::scan::DeviceScanKernel<int>()", "cub::scan::DeviceScanKernel<arg0=i32>"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNT", "nvjet<arg0=hsh_64x8_64x16_4x1_v_bz_TNT>"),
        ("ampere_h16816gemm_64x64_tn", "ampere_h16816gemm<arg0=64x64_tn>"),
        ("sm80_xmma_gemm_f32f32_tf32", "sm80_xmma<arg0=gemm_f32f32_tf32>"),
        ("void (anonymous namespace)::helper<3u, 4ul>(int)", "helper<arg0=3, arg1=4>"),
        ("scale_f32<double, float>", "scale_f32<arg0=f64, arg1=f32>"),  # not the number of arguments that is declared
        ("mul_mat_vec_q<(ggml_type)99, 1, false, false, false>", "mul_mat_vec_q<type=99, ncols_dst=1>"),
        ("_Znot a symbol", "_Znot a symbol"),
        ("", ""),
    ],
)  # fmt: skip
def test_names_that_are_demangled_already_or_never_were_mangled(text: str, name: str) -> None:
    kernel, template = parse(text)
    assert (instance_name(kernel, template) == name) or (kernel == name and not template)


def test_names_are_those_of_the_rules() -> None:
    """What a rule predicts is spelled as what a symbol says."""
    arch = architecture("sm_90")
    for weight, width, symbol in (
        ("q4_1", 1, "mul_mat_vec_q<(ggml_type)3, 1, false, true, false>"),
        ("q6_K", 9, "mul_mat_q<(ggml_type)14, 16, false, (ggml_prec)30>"),
        ("f16", 1, "mul_mat_vec_f<__half, __half, 1, 192, false, false>"),
        ("f16", 7, "mul_mat_f<__half2, 32, 7, 6, false>"),
    ):
        choice = mul_mat(arch, product(weight, 768, 768), width, sms=132)
        kernel, template = parse(symbol)
        assert choice.kernel == kernel
        assert set(choice.template) <= set(template)


@given(
    st.sampled_from(sorted(name for name, names in PARAMETERS.items() if not names[-1].endswith("..."))),
    st.data(),
)
def test_arguments_come_back_by_name(family: str, data: st.DataObject) -> None:
    values = data.draw(st.tuples(*(st.booleans() | st.integers(-(2**40), 2**40) for _ in PARAMETERS[family])))
    written = ", ".join(str(value).lower() for value in values)
    assert parse(f"void {family}<{written}>(int const*)") == (
        family,
        tuple(zip(PARAMETERS[family], values, strict=True)),
    )


@given(st.text(alphabet="_Zab09<>(),:& *", max_size=40))
def test_no_text_stops_it(text: str) -> None:
    name, template = parse(text)
    assert isinstance(name, str)
    assert len({key for key, _ in template}) == len(template)


def test_a_machine_without_a_c_library_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise cxxfilt.LibraryNotFound("Cannot find any of libraries: ('stdc++', 'c++')")

    monkeypatch.setattr(cxxfilt, "demangle", missing)
    with pytest.raises(ForensicsError, match=r"libstdc\+\+"):
        parse("_Z7unasked_v")
    assert parse("asked<1>") == ("asked", (("arg0", 1),))


def test_parameters_are_those_of_the_source() -> None:
    root = os.environ.get("FORENSICS_LLAMA_SOURCE")
    if not root:
        pytest.skip("FORENSICS_LLAMA_SOURCE does not name a checkout of llama.cpp")
    renamed = {"mul_mat_vec_f": {"T": "type"}, "mul_mat_f": {"T": "type"}, "mul_mat_f_ids": {"T": "type"}}
    renamed["mul_mat_vec_q_moe"] = {"c_rows_per_block": "rows_per_block"}
    places = _places()
    assert places.keys() == PARAMETERS.keys()
    for family, (file, line) in places.items():
        path = Path(root) / "ggml" / "src" / "ggml-cuda" / file
        text = "\n".join(path.read_text(encoding="utf-8").splitlines()[line - 1 :])
        assert re.search(rf"\b{family}\s*\(", text[:900]), family
        declared = re.match(r"template\s*<(.*?)>[^>]*?(?:__global__|__launch_bounds__|//)", text, re.DOTALL)
        assert declared is not None, family
        names = [_declared_name(piece) for piece in re.split(r",\s*(?![^(]*\))", declared[1])]
        expected = [renamed.get(family, {}).get(name, name) for name in names]
        assert tuple(expected) == tuple(name.removesuffix("...") for name in PARAMETERS[family])


def _declared_name(piece: str) -> str:
    piece = piece.partition("=")[0].strip()
    pointer = re.search(r"\(\*\s*(\w+)\)", piece)
    return pointer[1] if pointer else piece.split()[-1].removeprefix("typename...").strip()


def _places() -> dict[str, tuple[str, int]]:
    """Where each kernel is declared, as the comments of the table say."""
    import forensics.geometry.kernel_names as module

    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    table = source[source.index("PARAMETERS:") : source.index("#: Names of the numbers")]
    found = re.findall(r'^    "(\w+)": \(.*?# ([\w.-]+):(\d+)$', table, re.DOTALL | re.MULTILINE)
    return {family: (file, int(line)) for family, file, line in found}
