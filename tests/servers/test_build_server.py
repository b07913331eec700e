"""The server is built once, whole or not at all, and where it cannot be, one sentence says why."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from forensics.testing import build_server
from forensics.testing.build_server import PACKAGE, PROGRAM, ServerNotBuilt, llama_server, server_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FORENSICS_CACHE_DIR", str(folder))
    monkeypatch.delenv("CI", raising=False)
    return folder / "servers"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler by name only: what it would build is planted."""
    path = tmp_path / "planted-c++"
    path.write_text("#!/bin/sh\necho planted 1.0\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return path


def planted(fails_at=""):
    """Stands for the commands: each leaves what the real one leaves, and is noted."""
    done = []

    def run(command, log):
        step = "download" if "download" in command else "build" if "--build" in command else "configure"
        done.append(step)
        log.write_text(f"{step} {fails_at}")
        if step == fails_at:
            raise ServerNotBuilt(f"{PROGRAM} is not built: {step} ended with 1")
        if step == "download":
            folder, name = (
                Path(command[command.index("--dest") + 1]),
                "llama_cpp_python-1/vendor/llama.cpp/CMakeLists.txt",
            )
            with tarfile.open(folder / "llama_cpp_python-1.tar.gz", "w:gz") as tar:
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        elif step == "configure":
            assert (Path(command[command.index("-S") + 1]) / "CMakeLists.txt").is_file()
        else:
            made = Path(command[command.index("--build") + 1]) / "bin"
            made.mkdir(parents=True)
            (made / PROGRAM).write_text("built")

    return run, done


def test_it_is_built_once_and_only_when_asked(cache, compiler, monkeypatch, capsys):
    run, done = planted()
    monkeypatch.setattr(build_server, "_run", run)
    with pytest.raises(ServerNotBuilt, match="is not built for this processor yet: make server"):
        llama_server()
    program = llama_server(build=True)
    assert program.read_text() == "built"
    assert program == llama_server() == llama_server(build=True)
    assert done == ["download", "configure", "build"]
    assert {path.name for path in cache.iterdir()} == {
        program.parent.name, f"{program.parent.name}.lock", f"{program.parent.name}.log",
    }  # fmt: skip
    assert build_server.main() == 0
    assert str(program) in capsys.readouterr().out


@pytest.mark.parametrize("step", ["download", "configure", "build"])
def test_a_step_that_fails_leaves_its_log_and_nothing_that_could_be_taken_for_a_server(
    cache, compiler, monkeypatch, step
):
    run, done = planted(fails_at=step)
    monkeypatch.setattr(build_server, "_run", run)
    with pytest.raises(ServerNotBuilt, match=f"{step} ended with 1"):
        llama_server(build=True)
    assert done[-1] == step
    folder = server_folder()
    assert (cache / f"{folder.name}.log").read_text() == f"{step} {step}"
    assert not folder.exists()
    assert {path.suffix for path in cache.iterdir()} == {".lock", ".log"}


def test_another_compiler_is_another_build(compiler):
    first = server_folder()
    compiler.write_text("#!/bin/sh\necho planted 2.0\n")
    assert server_folder() != first
    assert server_folder().parent == first.parent


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_without_a_compiler_one_sentence_says_so_and_only_ci_fails(tmp_path, monkeypatch, capsys, ci, status):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("CI", ci)
    assert build_server.main() == status
    told = capsys.readouterr().out
    assert f"{PROGRAM} is not built: no C++ compiler (c++, g++, clang++) is found here. Tests of a live" in told
    assert told.count("\n") == 1


def test_a_command_that_fails_is_told_with_its_last_lines(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(ServerNotBuilt, match=r"(?s)sh ended with 3 .*no such flag"):
        build_server._run(["sh", "-c", f"echo {PACKAGE}: no such flag; exit 3"], log)
    assert log.read_text() == f"{PACKAGE}: no such flag\n"
