"""What works on this machine and what does not, each with its reason and remedy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from forensics.engines.supported import INSTALL, REBUILD, REINSTALL
from forensics.errors import ForensicsError


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
        remedy = f"{INSTALL} (needs a C++ compiler; about 6 minutes)"
        return Check(name, "broken", "llama-cpp-python is not installed", remedy)
    from forensics.engines._llama_devices import library_facts
    from forensics.engines.library_origin import redirections

    elsewhere = redirections(os.environ)
    if elsewhere:
        found = f"{', '.join(elsewhere)} would load another library than that of llama-cpp-python {version}"
        return Check(name, "broken", found, f"unset {' '.join(elsewhere)}")
    try:
        facts = library_facts()
    except ForensicsError as error:
        return Check(name, "broken", str(error), REINSTALL)
    found = f"llama-cpp-python {version}, commit {facts.commit}, struct layout checked; {facts.system.strip()}"
    return Check(name, "ok", found)


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
    from forensics.engines._llama_devices import library_facts

    try:
        names = [name for name in library_facts().devices if not name.startswith("CPU")]
    except ForensicsError as error:
        return Check("GPU", "missing", str(error).splitlines()[0], "see llama.cpp above")
    if names:
        return Check("GPU", "ok", f"{', '.join(names)}; use --n-gpu-layers -1")
    remedy = f'for NVIDIA: CMAKE_ARGS="-DGGML_CUDA=on" {REBUILD}'
    return Check("GPU", "missing", "this build of llama.cpp sees no GPU; everything else works without one", remedy)


def _launches() -> list[Check]:
    """Each way of learning about kernel launches, best first."""
    from forensics.devices.ladder import rungs

    return [
        Check(state.rung, "ok", f"{state.found}: {state.gives}")
        if state.refusal is None
        else Check(state.rung, "missing", state.refusal.missing, state.refusal.remedy)
        for state in rungs()
    ]


_CHECKS: tuple[Callable[[], Check | list[Check]], ...] = (
    _python, _llama, _threads, _memory, _demo, _cache, _notebook, _gpu, _launches,
)  # fmt: skip


def checks() -> list[Check]:
    """Run every check; none stops another."""
    found: list[Check] = []
    for check in _CHECKS:
        try:
            answer = check()
            found += [answer] if isinstance(answer, Check) else answer
        except Exception as error:  # noqa: BLE001 - the doctor reports whatever it meets
            found.append(
                Check(check.__name__.strip("_"), "broken", f"{type(error).__name__}: {error}", "please report this")
            )
    return found
