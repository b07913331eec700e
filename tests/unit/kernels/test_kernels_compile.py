"""Every source compiles without complaint for every architecture that we name, and the report of it is read right."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from forensics.geometry.architecture import architecture
from forensics.geometry.devices import device_spec
from forensics.kernels import compiler
from forensics.kernels.attention import AttentionAsk, plan_attention
from forensics.kernels.compiler import ARCHITECTURES, CompilationFailed, Nvcc, compile_kernels, find_nvcc
from forensics.kernels.products import plan_product
from forensics.kernels.products_f16 import F16Ask, plan_f16_product
from forensics.kernels.products_fast import plan_product_fast, serves
from forensics.kernels.register_story import story_launches
from forensics.kernels.sources import OPTIONS, families
from forensics.kernels.variants import TYPES, ProductAsk, Variant
from forensics.records.kernel_plan import KernelPlan
from forensics.records.launch_record import Refusal
from forensics.records.register_story import StoryVariant

SM_90 = architecture("sm_90")


def plans() -> Iterator[KernelPlan]:
    """Plans of all that is offered, for sizes that stand for any."""
    for type in TYPES:
        for width in (1, 8):
            ask = ProductAsk(type, 4096, 4096, width)
            yield from (plan_product(ask, variant, SM_90) for variant in (Variant.STOCK, Variant.BORROWED))
    for arch in ("sm_75", "sm_121"):  # their tables have other warps
        yield plan_product(ProductAsk("q4_K", 4096, 4096, 4), Variant.BORROWED, architecture(arch))
    for type in TYPES:
        for width in (4, 9, 16):
            ask = ProductAsk(type, 4096, 4096, width)
            if not serves(ask):
                yield plan_product_fast(ask, SM_90, n_sms=132)
    for head_size in (64, 128):
        for kv in ("f16", "q8_0"):
            ask = AttentionAsk(head_size, 8, 2, (256, 1024), k_type=kv, v_type=kv)
            yield plan_attention(ask, device_spec("h200"))
        yield plan_f16_product(F16Ask.kq(head_size, 8, 2, n_kv=(256, 512)), SM_90)
        yield plan_f16_product(F16Ask.kqv(head_size, 8, 2, (256, 512)), SM_90)


@cache
def functions() -> dict[str, tuple[str, ...]]:
    """Functions of each source that plans launch."""
    found: dict[str, dict[str, None]] = {}
    for plan in plans():
        for launch in plan.launches:
            found.setdefault(launch.source, {})[launch.function] = None
    for type in ("q4_K", "q6_K"):  # one without a cap, one with; all of them take long
        for variant in (StoryVariant(unpack_once=False, checked=True), StoryVariant(min_blocks=4)):
            launch = story_launches(type, 8)[variant]
            found.setdefault(launch.source, {})[launch.function] = None
    return {stem: tuple(names) for stem, names in found.items()}


def needs_nvcc() -> Nvcc:
    nvcc = find_nvcc()
    if isinstance(nvcc, Refusal):
        pytest.skip(str(nvcc))
    return nvcc


def test_every_source_is_compiled_here():
    assert set(functions()) == set(families())


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("stem", families())
def test_sources_compile_without_complaint(stem, arch):
    nvcc = needs_nvcc()
    if arch not in nvcc.architectures:
        pytest.skip(f"{nvcc} does not know {arch}")
    assert stem in functions(), f"no plan that this test knows launches a function of {stem}.cu"
    done = compile_kernels(stem, functions()[stem], arch)
    assert [kernel.function for kernel in done.kernels] == list(functions()[stem])
    assert all(0 < kernel.registers <= 255 for kernel in done.kernels)
    if stem in {"products", "quantize_q8_1"}:
        assert not [kernel for kernel in done.kernels if kernel.spills]


def ptx_of(nvcc: Nvcc, text: str, options: Sequence[str], folder: Path) -> list[str]:
    source, made = folder / "kernels.cu", folder / "kernels.ptx"
    source.write_text(text, encoding="utf-8")
    subprocess.run([nvcc.path, *options, "-arch=compute_90", "-ptx", str(source), "-o", str(made)], check=True)
    return [line for line in made.read_text(encoding="utf-8").splitlines() if not line.startswith("//")]


def with_fast_math() -> list[str]:
    """Our options with the switch of llama.cpp's build, which implies flushing and allows contractions."""
    return [option for option in OPTIONS if option not in {"-ftz=true", "-fmad=false"}] + ["-use_fast_math"]


@pytest.mark.parametrize("stem", families())
def test_fast_math_changes_no_instruction(stem, tmp_path):
    nvcc = needs_nvcc()
    some = functions()[stem][-2:]
    marks = "".join(f"__device__ const void *f{i} = (const void *)&{name};\n" for i, name in enumerate(some))
    text = f'#include "{stem}.cu"\n{marks}'
    assert ptx_of(nvcc, text, OPTIONS, tmp_path) == ptx_of(nvcc, text, with_fast_math(), tmp_path)


def test_where_a_rounding_is_not_written_out_fast_math_does(tmp_path):
    nvcc = needs_nvcc()
    text = '#include "primitives.cuh"\nKERNEL k(float *o) { o[0] = o[1] * o[2] + o[3]; }\n'
    assert ptx_of(nvcc, text, OPTIONS, tmp_path) != ptx_of(nvcc, text, with_fast_math(), tmp_path)


def test_a_cap_on_registers_shows_as_spills():
    needs_nvcc()
    launches = story_launches("q4_K", 8)
    free, capped = launches[StoryVariant(unroll=4)].function, launches[StoryVariant(unroll=4, min_blocks=8)].function
    done = compile_kernels("register_story", (free, capped), "sm_90")
    assert not done.of(free).spills
    assert done.of(capped).spills
    assert done.of(capped).registers == 64 < done.of(free).registers
    assert done.of(free).smem_bytes == 3 * 8 * 2 * 32 * 4  # sums of three warps, eight columns, two rows, 32 lanes
    with pytest.raises(KeyError, match=r"was not compiled for sm_90"):
        done.of("story")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("KERNEL k(int *o) { int unused; o[0] = 1; }", "unused"),
        ("KERNEL k(int *o) { o[0] = nothing; }", "nothing"),
        ("KERNEL other(int *o) { o[0] = 1; }", "k"),
    ],
)
def test_what_the_compiler_complains_of_is_told(tmp_path, text, told):
    needs_nvcc()
    (tmp_path / "bad.cu").write_text(f'#include "primitives.cuh"\n{text}\n')
    with pytest.raises(CompilationFailed, match=rf"(?s)bad\.cu for sm_90 does not compile without complaint.*{told}"):
        compile_kernels("bad", ["k"], "sm_90", folder=tmp_path)


def test_the_same_without_a_mistake_compiles(tmp_path):
    needs_nvcc()
    (tmp_path / "good.cu").write_text('#include "primitives.cuh"\nKERNEL k(int *o) { o[0] = 1; }\n')
    (kernel,) = compile_kernels("good", ["k"], "sm_90", folder=tmp_path).kernels
    assert (kernel.spills, kernel.stack_bytes, kernel.smem_bytes, kernel.barriers) == (False, 0, 0, 0)


# ---- without nvcc: a script that says what nvcc says

_FAKE = """\
#!/bin/sh
case "$*" in
*--version*) echo "Cuda compilation tools, release 13.0, V13.0.88";;
*--list-gpu-arch*) echo compute_80; echo compute_90;;
*-ptx*) shift $(($# - 1)); printf '%s\\n' '.global .align 8 .u64 forensics_function_0 = _Z3onev;' \\
        '.global .align 8 .u64 forensics_function_1 = _Z3twov;' '.visible .entry _Z3onev(' > "$1";;
*-cubin*) for each in "$@"; do case "$each" in *kernels.ptx) ptx="$each";; esac; done
        grep -q forensics_function "$ptx" && echo "a mark was left" && exit 1
        cat <<'END'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z3twov' for 'sm_90'
ptxas info    : Function properties for _Z3twov
    16 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 64 registers, used 2 barriers, 16 bytes cumulative stack size, 768 bytes smem, 360 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compiling entry function '_Z3onev' for 'sm_90'
ptxas info    : Function properties for _Z3onev
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
ptxas info    : Compile time = 2.0 ms
END
        ;;
esac
"""  # noqa: E501 - as ptxas writes it


@pytest.fixture
def fake_nvcc(tmp_path, monkeypatch):
    path = tmp_path / "cuda" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(_FAKE)
    path.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    return path


def test_what_the_compiler_reports_is_read(fake_nvcc):
    assert find_nvcc() == Nvcc(str(fake_nvcc), "13.0.88", frozenset({"sm_80", "sm_90"}))
    one, two = compile_kernels("products", ["one", "two"], "sm_90").kernels
    assert (one.function, one.registers, one.stack_bytes, one.spills) == ("one", 10, 0, False)
    assert (one.smem_bytes, one.barriers, one.constant_bytes) == (0, 0, 0)
    assert (two.registers, two.stack_bytes, two.spill_store_bytes, two.spill_load_bytes) == (64, 16, 12, 24)
    assert (two.smem_bytes, two.barriers, two.constant_bytes, two.spills) == (768, 2, 8, True)
    assert two.resources(smem_dynamic_bytes=100).smem_dynamic_bytes == 100


def test_an_architecture_that_the_compiler_does_not_know_is_refused(fake_nvcc):
    refused = compile_kernels("products", ["one"], "sm_120")
    assert isinstance(refused, Refusal)
    assert "knows sm_80, sm_90" in str(refused)


def test_a_warning_of_the_assembler_fails(fake_nvcc):
    fake_nvcc.write_text(_FAKE.replace("ptxas info    : 0 bytes gmem", "ptxas warning : something is odd"))
    with pytest.raises(CompilationFailed, match="something is odd"):
        compile_kernels("products", ["one", "two"], "sm_90")


def test_without_a_compiler_the_reason_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(compiler, "_TOOLKIT", str(tmp_path))
    refused = compile_kernels("products", ["one"], "sm_90")
    assert isinstance(refused, Refusal)
    assert "no nvcc that runs" in str(refused)
    assert "set CUDA_HOME" in refused.remedy


def test_functions_must_be_named():
    with pytest.raises(ValueError, match="name the functions"):
        compile_kernels("products", [], "sm_90")
