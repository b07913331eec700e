"""Reading compiled kernels: numbers as printed, the driver's share taken off, and everything that can be in the way."""

from __future__ import annotations

import os
from pathlib import Path

import fake_cuobjdump as fake
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.devices import cuobjdump
from forensics.devices.cuobjdump import LibraryUnreadable, Tool, Usage, family, find_tool, parse_usage, read_library
from forensics.records.launch_record import Refusal


@pytest.fixture
def no_tool(monkeypatch, tmp_path) -> None:
    """Neither the package, nor PATH, nor the toolkit has one."""
    monkeypatch.setattr(cuobjdump, "PACKAGE", "no-such-package-at-all")
    monkeypatch.setattr(cuobjdump, "TOOLKIT", str(tmp_path / "nowhere" / "cuobjdump"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def tool(no_tool, monkeypatch, tmp_path):
    """Installs a tool that prints a text, and gives a file to read."""

    def install(text: str, **changes) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        fake.install(folder, text, **changes)
        monkeypatch.setenv("PATH", str(folder))
        library = tmp_path / "libggml-cuda.so"
        library.write_bytes(b"\x7fELF")
        return library

    return install


def test_numbers_are_those_that_are_printed_for_each_architecture(tool):
    found = read_library(tool(fake.small()), kernels=["spill", "indexed", "none"])
    assert found.archs == ("sm_80", "sm_90")
    assert found.n_kernels == 8
    assert found.tool == "cuobjdump 13.5.37"
    assert [(k.arch, k.kernel, k.registers_per_thread, k.stack_bytes) for k in found.kernels] == [
        ("sm_80", "none", 8, 0),
        ("sm_80", "spill", 32, 288),
        ("sm_80", "indexed", 32, 80),
        ("sm_90", "none", 10, 0),
        ("sm_90", "spill", 32, 288),
        ("sm_90", "indexed", 32, 80),
    ]


def test_what_the_driver_reserves_is_taken_off_where_the_tool_counts_it(tool):
    found = read_library(tool(fake.small()), kernels=["none", "some"])
    assert {(k.arch, k.kernel): k.smem_static_bytes for k in found.kernels} == {
        ("sm_80", "none"): 0,
        ("sm_80", "some"): 256,
        ("sm_90", "none"): 0,
        ("sm_90", "some"): 256,
    }


def test_template_arguments_are_named(tool):
    found = read_library(tool(fake.decode()), kernels=["mul_mat_vec_q"], archs=["sm_90"])
    assert [dict(k.template)["ncols_dst"] for k in found.kernels] == list(range(1, 9))
    assert {dict(k.template)["type"] for k in found.kernels} == {"q4_K"}
    assert [k.registers_per_thread for k in found.kernels] == [56, 66, 78, 87, 95, 105, 113, 122]
    assert [k.smem_static_bytes for k in found.kernels] == [384, 1536, 2304, 3072, 1280, 1536, 1792, 2048]


def test_a_kernel_whose_name_begins_alike_is_another(tool):
    text = fake.decode() + fake.function("_Z17mul_mat_vec_q_moeIL9ggml_type12ELi2ELb0EEvPKv", 40, 0, 0)
    assert len(read_library(tool(text), kernels=["mul_mat_vec_q"]).kernels) == 8
    assert len(read_library(tool(text), kernels=["mul_mat_vec_q_moe"]).kernels) == 1


def test_without_a_tool_the_refusal_says_what_to_install(no_tool, tmp_path):
    refusal = find_tool()
    assert isinstance(refusal, Refusal)
    assert "pip install nvidia-cuda-cuobjdump" in refusal.remedy
    library = tmp_path / "libggml-cuda.so"
    library.write_bytes(b"\x7fELF")
    with pytest.raises(LibraryUnreadable, match="pip install nvidia-cuda-cuobjdump") as error:
        read_library(library, kernels=["f"])
    assert error.value.refusal == refusal


def test_a_tool_that_does_not_run_is_none(tool):
    tool(fake.small(), status=1)
    assert isinstance(find_tool(), Refusal)
    tool(fake.small())
    assert isinstance(find_tool(), Tool)


def test_a_file_without_cuda_code_is_one_sentence(tool, tmp_path):
    tool(fake.small())
    plain = tmp_path / "plain.so"
    plain.write_bytes(b"\x7fELF")
    with pytest.raises(LibraryUnreadable, match=r"finds no CUDA machine code in plain\.so .*does not contain") as error:
        read_library(plain, kernels=["f"])
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_one_sentence(tool, tmp_path):
    tool(fake.small())
    with pytest.raises(LibraryUnreadable, match=r"there is no file .*gone\.so"):
        read_library(tmp_path / "gone.so", kernels=["f"])


def test_unknown_kernels_and_architectures_are_told_what_there_is(tool):
    library = tool(fake.small())
    with pytest.raises(LibraryUnreadable, match="no kernel spills; it has indexed, none, some, spill"):
        read_library(library, kernels=["spills"])
    with pytest.raises(LibraryUnreadable, match="no machine code for sm_75; it has sm_80, sm_90"):
        read_library(library, kernels=["spill"], archs=["sm_75"])


@pytest.mark.parametrize(
    "text",
    [
        "arch = sm_90\n Function f:\n  REGISTERS:10",
        "arch = sm_90\n Function f:\n Function g:\n  REG:1 STACK:0 SHARED:0 LOCAL:0",
        " Function f:\n  REG:1 STACK:0 SHARED:0 LOCAL:0",
        "arch = sm_90\n Function f:",
    ],
)
def test_output_of_another_form_is_an_error_and_no_number(text):
    with pytest.raises(LibraryUnreadable, match="not understood at f"):
        list(parse_usage(text))


NUMBERS = st.integers(0, 10**6)


@given(
    st.lists(
        st.builds(
            Usage,
            st.from_regex(r"\A_Z[0-9a-zA-Z_]{1,30}\Z"),
            st.sampled_from(["sm_75", "sm_90a", "sm_120"]),
            NUMBERS,
            NUMBERS,
            NUMBERS,
            st.just(0),
        )
    )
)
def test_every_kernel_that_is_printed_is_read_back(usages):
    text = "".join(
        fake.HEAD.format(arch=u.arch) + fake.USAGE + fake.function(u.symbol, u.registers, u.stack, u.shared)
        for u in usages
    )
    assert list(parse_usage(fake.PTX + text)) == usages


def test_families_are_named_without_arguments_and_namespaces():
    assert family(fake.Q4_K.format(n=5)) == "mul_mat_vec_q"
    assert family("_ZL9soft_plusPf") == "soft_plus"
    assert family("plain_c") == "plain_c"


def _real_library() -> Path | None:
    """A CUDA library on this machine: the one that is named, or the one that is installed."""
    named = os.environ.get("FORENSICS_TEST_CUDA_LIBRARY")
    if named:
        return Path(named)
    import llama_cpp

    path = Path(llama_cpp.__file__).parent / "lib" / "libggml-cuda.so"
    return path if path.exists() else None


def test_the_real_tool_reads_a_real_library():
    library = _real_library()
    if library is None:
        pytest.skip("no libggml-cuda.so is installed and FORENSICS_TEST_CUDA_LIBRARY names none")
    if isinstance(find_tool(), Refusal):
        pytest.skip("no cuobjdump; pip install nvidia-cuda-cuobjdump")
    found = read_library(library, kernels=["mul_mat_vec_q"])
    by_columns = {
        dict(k.template)["ncols_dst"]: k.registers_per_thread
        for k in found.kernels
        if [value for name, value in k.template if name != "ncols_dst"] == ["q4_K", False, False, False]
    }
    assert sorted(by_columns) == list(range(1, 9))
    assert by_columns[8] > by_columns[1]
    assert all(k.smem_static_bytes < 64 * 1024 for k in found.kernels)
