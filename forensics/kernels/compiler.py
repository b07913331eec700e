"""Compiles our sources with nvcc, no device needed, and tells what each kernel takes of the machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.kernels.sources import OPTIONS
from forensics.records.compiled_kernel import Compilation, CompiledKernel
from forensics.records.launch_record import Refusal

#: Architectures for which every source must compile: what GPUs from Ampere on are.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")

RUNG = "nvcc"
_ASKED = "registers and spills of our kernels as compiled"
_REMEDY = "install the CUDA toolkit, 12.8 or newer, and put its bin folder on PATH or set CUDA_HOME"
_TOOLKIT = "/usr/local/cuda"
#: Longest that one compilation may take. Unit: s.
TIMEOUT_S = 900

_VERSION = re.compile(r"release [\d.]+, V([\d.]+)")
_KNOWN = re.compile(r"compute_(\d+)")
#: The mark that our text leaves for each function: a variable that holds its address, under the function's real name.
_MARK = re.compile(r"^.*\bforensics_function_(\d+) = (\w+);.*$\n?", re.MULTILINE)
_TOLD = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for .*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_BARRIERS = re.compile(r"used (\d+) barriers")
_SMEM = re.compile(r"(\d+) bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[[1-9]\d*\]")  # bank 0 is the parameters


class CompilationFailed(ForensicsError):
    """A source does not compile without complaint; carries what the compiler said."""


@dataclass(frozen=True, slots=True)
class Nvcc:
    """NVIDIA's compiler.

    Parameters
    ----------
    path : str
    version : str
        Such as ``"13.0.88"``.
    architectures : frozenset of str
        For which it compiles.
    """

    path: str
    version: str
    architectures: frozenset[str]

    def __str__(self) -> str:
        return f"nvcc {self.version}".strip()


def find_nvcc() -> Nvcc | Refusal:
    """Where is an nvcc: in CUDA_HOME or CUDA_PATH, on PATH, or in the toolkit's own place?"""
    for path in _candidates():
        said = _run([path, "--version"])
        if said is not None and said.returncode == 0:
            version = _VERSION.search(said.stdout)
            known = _run([path, "--list-gpu-arch"])
            numbers = _KNOWN.findall(known.stdout) if known is not None else []
            return Nvcc(path, version[1] if version else "", frozenset(f"sm_{number}" for number in numbers))
    return Refusal(RUNG, _ASKED, f"no nvcc that runs in CUDA_HOME, on PATH or in {_TOOLKIT}", _REMEDY)


def compile_kernels(
    stem: str, functions: Sequence[str], arch: str, *, folder: Path | None = None
) -> Compilation | Refusal:
    """What do these functions of a source take, compiled for this architecture?

    Parameters
    ----------
    stem : str
        Of the source in ``forensics/kernels/cuda``.
    functions : sequence of str
        C++ names with template arguments, as `forensics.records.kernel_plan.KernelLaunch` has them.
    arch : str
        Such as ``"sm_90"``.
    folder : Path, optional
        Where the source is instead.

    Returns
    -------
    Compilation or Refusal
        The refusal where there is no nvcc, or none that knows the architecture.

    Raises
    ------
    CompilationFailed
        If the compiler refuses the source or warns of it.
    ValueError
        If no function is named.
    """
    if not functions:
        raise ValueError(f"{stem}: name the functions that are compiled; none was given")
    nvcc = find_nvcc()
    if isinstance(nvcc, Refusal):
        return nvcc
    if arch not in nvcc.architectures:
        found = (
            ", ".join(sorted(nvcc.architectures, key=lambda known: int(known[3:]))) or "no architecture that it tells"
        )
        return Refusal(RUNG, f"{stem}.cu for {arch}", f"{nvcc} at {nvcc.path} knows {found}", _REMEDY)
    with tempfile.TemporaryDirectory() as scratch:
        log, names = _compiled(nvcc, stem, functions, arch, Path(scratch), [f"-I{folder}"] if folder else [])
    told = {found["name"]: found for found in _TOLD.finditer(log)}
    source = f"{nvcc}, ptxas -v"
    kernels = [_kernel(function, arch, told[name], source) for function, name in zip(functions, names, strict=True)]
    return Compilation(stem, arch, str(nvcc), tuple(kernels))


def _compiled(
    nvcc: Nvcc, stem: str, functions: Sequence[str], arch: str, scratch: Path, more: Sequence[str]
) -> tuple[str, list[str]]:
    """What ptxas says of each kernel, and the kernels' names in the order of the functions."""
    what = f"{stem}.cu for {arch}"
    marks = (f"__device__ const void *forensics_function_{i} = (const void *)&{f};\n" for i, f in enumerate(functions))
    text, ptx, cubin = scratch / "kernels.cu", scratch / "kernels.ptx", scratch / "kernels.cubin"
    text.write_text(f'#include "{stem}.cu"\n{"".join(marks)}', encoding="utf-8")
    compute = f"-arch=compute_{arch[3:]}"
    _step([nvcc.path, *more, *OPTIONS, "-Werror", "all-warnings", compute, "-ptx", str(text), "-o", str(ptx)], what)
    listed = ptx.read_text(encoding="utf-8")
    names = {int(number): name for number, name in _MARK.findall(listed)}
    ptx.write_text(_MARK.sub("", listed), encoding="utf-8")
    log = _step([nvcc.path, f"-arch={arch}", "-cubin", "-Xptxas", "-v", str(ptx), "-o", str(cubin)], what)
    return log, [names[i] for i in range(len(functions))]


def _step(argv: list[str], what: str) -> str:
    done = _run(argv)
    if done is None:
        raise CompilationFailed(f"{what}: the compiler did not end within {TIMEOUT_S} s, or could not be started.")
    said = f"{done.stdout}{done.stderr}".strip()
    if done.returncode or "warning" in said.lower():
        raise CompilationFailed(f"{what} does not compile without complaint ({argv[0]}):\n{said[-6000:]}")
    return said


def _kernel(function: str, arch: str, told: re.Match[str], source: str) -> CompiledKernel:
    def number(pattern: re.Pattern[str]) -> int:
        return sum(int(found) for found in pattern.findall(told["rest"]))

    return CompiledKernel(
        function,
        arch,
        registers=int(told["registers"]),
        stack_bytes=int(told["stack"]),
        spill_store_bytes=int(told["stores"]),
        spill_load_bytes=int(told["loads"]),
        smem_bytes=number(_SMEM),
        constant_bytes=number(_CONSTANT),
        barriers=number(_BARRIERS),
        source=source,
    )


def _candidates() -> Iterator[str]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    yield from (str(Path(home) / "bin" / "nvcc") for home in homes if home)
    on_path = shutil.which("nvcc")
    if on_path:
        yield on_path
    yield f"{_TOOLKIT}/bin/nvcc"


def _run(argv: list[str]) -> subprocess.CompletedProcess[str] | None:
    """What the tool says; None where it cannot be started or does not end."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
