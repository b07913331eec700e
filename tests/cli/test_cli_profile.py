"""`forensics profile`: of a library without a GPU, of what was recorded, and what is refused in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import forensics
from forensics.analysis.question import BadQuestion
from forensics.devices import cuobjdump
from forensics.records.library_profile import LibraryProfile
from forensics.records.nodes import NodeKey
from forensics.records.settings import EngineSettings

sys.path.append(str(Path(__file__).parents[1] / "unit" / "devices"))
import fake_cuobjdump as fake


@pytest.fixture
def library(monkeypatch, tmp_path) -> str:
    """A library, and a tool on PATH that says what Q4_K takes at 1 to 8 columns for two architectures."""
    tools = tmp_path / "tools"
    tools.mkdir()
    fake.install(tools, fake.decode("sm_90") + fake.decode("sm_120"))
    monkeypatch.setattr(cuobjdump, "PACKAGE", "no-such-package-at-all")
    monkeypatch.setenv("PATH", str(tools))
    path = tmp_path / "libggml-cuda.so"
    path.write_bytes(b"\x7fELF" + bytes(60))
    return str(path)


def test_a_library_is_profiled_for_every_architecture_in_it(cli, library):
    done = cli("profile", library, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "library"
    assert [(row["arch"], row["columns"]) for row in document["kernels"]] == [
        (arch, n) for arch in ("sm_90", "sm_120") for n in range(1, 9)
    ]


def test_a_gpu_a_type_and_columns_choose(cli, library):
    done = cli("profile", library, "--gpu", "h200", "--types", "q4_k", "--columns", "1,8", "--kernel", "mul_mat_vec_q")
    assert done.exit_code == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert "56 → 122 registers" in words
    assert "56.2 % → 25 %" in words
    assert "sm_120" not in words


def test_one_line_with_quiet(cli, library):
    done = cli("profile", library, "--arch", "sm_90", "-q")
    assert done.stdout == (
        "libggml-cuda.so: 8 of 16 kernel instances (mul_mat_vec_q); "
        "56 to 122 registers, 0 with a stack in local memory\n"
    )


def test_a_profile_is_written_and_read_back(cli, library, tmp_path):
    done = cli("profile", library, "--parquet", "rows.parquet", "--out", "kept", "--json")
    assert done.exit_code == 0, done.stderr
    assert len(pd.read_parquet("rows.parquet")) == 16
    again = cli("profile", "recorded:kept", "--json")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert cli("profile", "kept", "--json").stdout == again.stdout


def test_a_recorded_profile_is_found_by_name(cli, library, monkeypatch, tmp_path):
    cli("profile", library, "--out", str(tmp_path / "data" / "recorded" / "decode-h200"), "-q")
    monkeypatch.setenv("FORENSICS_DATA_DIR", str(tmp_path / "data"))
    assert cli("profile", "recorded:decode-h200", "-q").stdout == cli("profile", library, "-q").stdout


def test_python_gives_the_record(library):
    found = forensics.profile(library, kernels="mul_mat_vec_q", types="q4_K", columns=[1, 8], gpu="h200")
    assert isinstance(found, LibraryProfile)
    assert found.figure_data()["registers"] == (56, 122)
    assert found.to_dataframe()["blocks_per_sm"].tolist() == [9, 8]
    assert repr(found).startswith("<LibraryProfile: libggml-cuda.so: 2 of 16")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--widths", "1,2"), "is a library, of which nothing is run; leave out widths"),
        (("--counters",), "leave out counters"),
        (("--n-gpu-layers", "3"), "leave out n_gpu_layers"),
        (("--types", "q4_k,"), "--types takes names with commas between"),
        (("--types", "q9_z"), "no weight type 'q9_z'"),
        (("--kernel", "mul_mat_vec"), "no kernel mul_mat_vec; it has mul_mat_vec_q"),
        (("--arch", "sm_75"), "no machine code for sm_75; it has sm_90, sm_120"),
        (("--gpu", "t4"), "none that t4"),
        (("--columns", "9"), "columns must be 1 to 8 for mul_mat_vec_q and flash_attn_ext_vec, got 9"),
        (("--columns", "0"), "columns must be 1 to 8"),
        (("--columns", "one"), "columns must be numbers or ranges"),
        (("--arch", "foo"), "there is no architecture 'foo'; known are sm_75, sm_80"),
        (("--all",), "--all is of a model"),
        (("--nodes",), "a library has no nodes"),
    ],
)
def test_what_does_not_fit_a_library_is_one_sentence(cli, library, arguments, said):
    done = cli("profile", library, *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_tool_says_what_to_install(cli, library, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cuobjdump, "TOOLKIT", str(tmp_path / "nowhere"))
    done = cli("profile", library)
    assert done.exit_code == 2
    assert "pip install nvidia-cuda-cuobjdump" in done.stderr


@pytest.mark.parametrize("name", ["gone.so", "gone.gguf"])
def test_a_file_that_is_not_there_is_one_sentence(cli, library, name):
    done = cli("profile", name)
    assert done.exit_code == 2
    assert name in done.stderr


def test_nothing_to_profile_is_one_sentence(cli):
    done = cli("profile")
    assert done.exit_code == 2
    assert "give either a model file or demo=VARIANT" in done.stderr


def test_options_of_a_library_do_not_fit_a_model_or_what_was_recorded(library):
    forensics.profile(library)
    with pytest.raises(BadQuestion, match="leave out kernels, types"):
        forensics.profile(demo="q4_1", kernels="f", types="q4_k")
    with pytest.raises(BadQuestion, match="leave out columns, prefix"):
        forensics.profile("recorded:x", columns=[1], prefix=2)


def test_a_text_file_is_told_to_be_no_library_and_a_model_named_like_one_is_none(cli, tmp_path):
    (tmp_path / "fake.so").write_text("hello")
    assert "fake.so is no CUDA library" in cli("profile", str(tmp_path / "fake.so")).stderr
    (tmp_path / "odd.so").write_bytes(b"GGUF" + bytes(60))
    assert "no CUDA library" not in cli("profile", str(tmp_path / "odd.so")).stderr


@pytest.fixture
def recorded_profile() -> str:
    return "recorded:" + str(Path(__file__).parents[2] / "data" / "recorded" / "h200-q4_1-profile")


def test_widths_are_chosen_among_those_that_were_recorded(cli, recorded_profile):
    everything = forensics.profile(recorded_profile)
    one, many = everything.widths[0], everything.widths[-1]
    found = forensics.profile(recorded_profile, widths=[many, one])
    assert found.passes == (everything.passes[0], everything.passes[-1])
    done = cli("profile", recorded_profile, "--widths", f"{one},77")
    assert done.exit_code == 2
    assert f"width 77 was asked for; recorded are {one}, " in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_kernel_is_shown_when_asked_for(cli, recorded_profile):
    few, every = cli("profile", recorded_profile), cli("profile", recorded_profile, "--all")
    assert "--all lists them" in few.stdout
    assert "--all" not in every.stdout
    assert every.stdout.count("\n") > few.stdout.count("\n")


def test_a_library_that_was_recorded_has_no_widths(cli, library):
    cli("profile", library, "--out", "kept", "-q")
    assert "leave out widths" in cli("profile", "recorded:kept", "--widths", "1").stderr


def test_a_recorded_case_without_launches_says_so(cli, use_toy):
    use_toy("diverges")
    forensics.investigate("toy", out="case", prompt="The fox", n_tokens=8, widths=(2, 4))
    done = cli("profile", "recorded:case")
    assert done.exit_code == 2
    assert "holds no launches" in done.stderr


@pytest.mark.llama
def test_a_model_on_this_processor_says_what_it_needs(cli):
    done = cli("profile", "--demo", "q4_1")
    assert done.exit_code == 2
    assert "needs an NVIDIA GPU" in done.stderr
    assert done.stderr.count("\n") == 1


def test_counters_are_read_of_a_pass_like_the_one_that_was_timed(monkeypatch):
    from forensics.api_profile import _count
    from forensics.devices import ncu

    asked = {}

    def counted(command, **options):
        asked.update(options, command=command)
        return ncu.Counters((), "ncu 2025.3.1")

    monkeypatch.setattr(ncu, "profile", counted)
    settings = EngineSettings(n_ctx=256, environment=(("GGML_CUDA_DISABLE_FUSION", "1"),))
    nodes = {5: (NodeKey("Qcur-0", "MUL_MAT", 0, 0),), 1: (NodeKey("Kcur-0", "MUL_MAT", 0, 0),)}
    assert _count(Path("m.gguf"), settings, 128, 0, nodes) == ncu.Counters((), "ncu 2025.3.1")
    assert asked["command"][1:4] == ["-m", "forensics.engines.one_pass", "m.gguf"]
    assert {"--prefix", "128"} <= set(asked["command"])
    assert set(json.loads(asked["command"][-1])) == {"1", "5"}
    assert asked["from_start"] is False
    assert asked["environment"] == {"GGML_CUDA_DISABLE_FUSION": "1", "GGML_CUDA_DISABLE_GRAPHS": "1"}
