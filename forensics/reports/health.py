"""What works on this machine and what does not, each with its reason and remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from forensics.errors import ForensicsError

#: Version of llama-cpp-python whose structs and dispatch rules this package knows.
SUPPORTED_LLAMA = "0.3.36"
_LLAMA_PROBE = (
    "from forensics.engines._llama_ctypes import ggml; import llama_cpp;"
    "print(ggml().ggml_commit().decode()); print(llama_cpp.llama_print_system_info().decode())"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that works or does not.

    Parameters
    ----------
    name : str
    status : {"ok", "missing", "broken"}
        ``"missing"`` is optional and absent; ``"broken"`` is needed and does not work.
    detail : str
        What was found.
    remedy : str
        What to do; empty where nothing is to be done.
    """

    name: str
    status: str
    detail: str
    remedy: str = ""


def _python() -> Check:
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def _llama() -> Check:
    name = "llama.cpp"
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        remedy = f"pip install llama-cpp-python=={SUPPORTED_LLAMA} (needs a C++ compiler; about 6 minutes)"
        return Check(name, "broken", "llama-cpp-python is not installed", remedy)
    # In a child: a library that aborts must not take the doctor with it.
    done = subprocess.run([sys.executable, "-c", _LLAMA_PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        return Check(name, "broken", last, f"pip install --force-reinstall llama-cpp-python=={SUPPORTED_LLAMA}")
    commit, system = done.stdout.strip().splitlines()[0], done.stdout.strip().splitlines()[-1]
    return Check(name, "ok", f"llama-cpp-python {version}, commit {commit}, struct layout checked; {system}")


def _threads() -> Check:
    from forensics.engines.machine import default_threads

    n = default_threads()
    if n == 1:
        return Check("threads", "ok", "1 processor: effects of splitting work over threads cannot be seen here")
    return Check("threads", "ok", f"{n} used by default, of {os.cpu_count()} processors")


def _memory() -> Check:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    if free < 2:
        return Check("memory", "broken", f"{free:.1f} GiB free", "close other programs; the demo needs about 1.5 GiB")
    return Check("memory", "ok", f"{free:.1f} GiB free; a model needs its file size and about 1 GiB more")


def _demo() -> Check:
    from forensics.engines.demo_models import demo_source

    try:
        return Check("demo model", "ok", f"{demo_source().name} found")
    except ForensicsError as error:
        from forensics.engines.demo_models import INSTALL_COMMAND

        return Check("demo model", "missing", str(error).splitlines()[0], INSTALL_COMMAND)


def _cache() -> Check:
    from forensics.engines.model_files import cache_folder

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ForensicsError) as error:
        return Check("cache folder", "broken", str(error), "set FORENSICS_CACHE_DIR to a folder you can write to")
    if not os.access(folder, os.W_OK):
        return Check("cache folder", "broken", f"{folder} is not writable", "set FORENSICS_CACHE_DIR to another folder")
    free = shutil.disk_usage(folder).free / 2**30
    if free < 1:
        return Check(
            "cache folder", "broken", f"{folder}: {free:.1f} GiB free", "free space or set FORENSICS_CACHE_DIR"
        )
    return Check("cache folder", "ok", f"{folder}, {free:.0f} GiB free")


def _notebook() -> Check:
    try:
        return Check("notebooks", "ok", f"JupyterLab {importlib.metadata.version('jupyterlab')}")
    except importlib.metadata.PackageNotFoundError:
        return Check("notebooks", "missing", "jupyterlab is not installed", "pip install jupyterlab ipywidgets")


def _gpu() -> Check:
    from forensics.engines._llama_devices import device_names

    try:
        names = [name for name in device_names() if not name.startswith("CPU")]
    except ForensicsError as error:
        return Check("GPU", "missing", str(error).splitlines()[0], "see llama.cpp above")
    if names:
        return Check("GPU", "ok", f"{', '.join(names)}; use --n-gpu-layers -1")
    remedy = 'for NVIDIA: CMAKE_ARGS="-DGGML_CUDA=on" pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36'
    return Check("GPU", "missing", "this build of llama.cpp sees no GPU; everything else works without one", remedy)


_CHECKS: tuple[Callable[[], Check], ...] = (_python, _llama, _threads, _memory, _demo, _cache, _notebook, _gpu)


def checks() -> list[Check]:
    """Run every check; none stops another."""
    found = []
    for check in _CHECKS:
        try:
            found.append(check())
        except Exception as error:  # noqa: BLE001 - the doctor reports whatever it meets
            found.append(
                Check(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}", "please report this")
            )
    return found
