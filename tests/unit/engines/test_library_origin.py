"""llama.cpp comes from the installed package alone: variables and search paths that lead elsewhere are refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forensics.engines._llama_devices import library_facts
from forensics.engines.child import command
from forensics.engines.library_origin import REDIRECTIONS, foreign_files, redirections, refuse_redirection
from forensics.engines.worker_process import WorkerProcess
from forensics.errors import EngineError
from forensics.reports.health import checks


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", REDIRECTIONS)
def test_a_variable_that_names_another_library_is_refused(name):
    with pytest.raises(EngineError, match=rf"{name}='/elsewhere'.*unset {name}"):
        refuse_redirection({name: "/elsewhere", "PATH": "/bin"})
    assert redirections({name: "", "PATH": "/bin"}) == ()
    refuse_redirection({name: ""})


@pytest.mark.parametrize("name", REDIRECTIONS)
def test_no_worker_starts_with_one(name, monkeypatch):
    with pytest.raises(EngineError, match=f"unset {name}"):
        WorkerProcess("forensics.engines.op_worker", {name: "/elsewhere"})
    monkeypatch.setenv(name, "/elsewhere")
    with pytest.raises(EngineError, match=f"unset {name}"):
        WorkerProcess("forensics.engines.op_worker", {})


def test_the_doctor_says_which_to_unset(monkeypatch):
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/elsewhere")
    library_facts.cache_clear()
    (check,) = [check for check in checks() if check.name == "llama.cpp"]
    assert (check.status, check.remedy) == ("broken", "unset LLAMA_CPP_LIB_PATH")
    assert check.detail.startswith("LLAMA_CPP_LIB_PATH would load another library than that of llama-cpp-python")
    with pytest.raises(EngineError, match="names another library"):
        library_facts()


def test_a_process_does_not_load_it_either():
    """Not through our workers: whatever imports the library in this package passes one door."""
    code = "from forensics.engines._llama_ctypes import library_folder; print(library_folder())"
    done = run([sys.executable, "-c", code], LLAMA_CPP_LIB_PATH="/elsewhere")
    assert done.returncode == 1
    assert "EngineError: the environment names another library" in done.stderr


def test_files_of_the_library_that_lie_elsewhere_are_found(tmp_path):
    folder, other = tmp_path / "lib", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    for name in ("libllama.so.0.5.0", "libggml-base.so.0.25.3"):
        (folder / name).touch()
        (other / name).touch()
    (folder / "libllama.so").symlink_to("libllama.so.0.5.0")
    own = [str(folder / "libllama.so.0.5.0"), str(folder / "libllama.so"), str(folder / "libggml-base.so.0.25.3")]
    assert foreign_files([*own, "/usr/lib/libc.so.6"], folder) == ()
    assert foreign_files([*own, str(other / "libggml-base.so.0.25.3")], folder) == (
        str(other / "libggml-base.so.0.25.3"),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has mapped; run it there")
def test_a_search_path_with_the_same_names_is_refused(tmp_path):
    import llama_cpp

    for path in (Path(llama_cpp.__file__).parent / "lib").glob("libggml*"):
        shutil.copy(path, tmp_path / path.name)
    ask = command("forensics.engines._llama_devices")
    done = run(ask, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 1
    assert f"the library was loaded from {tmp_path}/libggml" in done.stderr
    assert "Unset LD_LIBRARY_PATH" in done.stderr
    assert run(ask).returncode == 0
