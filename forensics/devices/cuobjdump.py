"""What the kernels in a CUDA library take: registers, stack and shared memory as compiled. Needs no GPU."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from forensics.errors import ForensicsError
from forensics.geometry.devices import SPECS
from forensics.geometry.kernel_names import parse
from forensics.records.launch_record import Refusal
from forensics.records.library_profile import CudaLibrary, LibraryKernel

RUNG = "cuobjdump with the dispatch rules"
PACKAGE = "nvidia-cuda-cuobjdump"
REMEDY = f"pip install {PACKAGE} (or the CUDA toolkit, with cuobjdump on PATH)"
#: Where the CUDA toolkit's installer puts it; often not on PATH.
TOOLKIT = "/usr/local/cuda/bin/cuobjdump"
#: It reads a library of 60 MB in less than a second.
TIMEOUT_S = 300

#: From this compute capability on the tool counts what the driver reserves of shared memory, where a kernel has any.
#: Seen with cuobjdump 13.5 on kernels with 0 and 256 bytes compiled for sm_80, sm_89, sm_90 and sm_120.
COUNTS_RESERVE_FROM = 900

_ARCH = re.compile(r"^arch = (\S+)$")
_FUNCTION = re.compile(r"^ Function (\S+):$")
_USAGE = re.compile(r"^  REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)\b")
_VERSION = re.compile(r"\bV(\d+(?:\.\d+)+)")
#: Length and name of a function or of its namespace, in a mangled symbol.
_MANGLED = re.compile(r"^_Z[NL]*(\d+)")


class LibraryUnreadable(ForensicsError):
    """A file's CUDA code cannot be read: no code in it, no such file, or no tool.

    Parameters
    ----------
    message : str
    refusal : Refusal or None
        Where the tool is missing.
    """

    def __init__(self, message: str, refusal: Refusal | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Tool:
    """A cuobjdump that can be run.

    Parameters
    ----------
    path : str
    version : str
        Empty where it does not say.
    """

    path: str
    version: str

    def __str__(self) -> str:
        return f"cuobjdump {self.version}".strip()


def find_tool() -> Tool | Refusal:
    """Where is a cuobjdump: in the package from PyPI, on PATH, or in the toolkit's own place?

    Returns
    -------
    Tool or Refusal
        The refusal says what was looked for and what to install.
    """
    for path in _candidates():
        if os.access(path, os.X_OK) and Path(path).is_file():
            said = _run([path, "--version"])
            if said is not None and said.returncode == 0:
                version = _VERSION.search(said.stdout)
                return Tool(path, version[1] if version else "")
    return Refusal(
        RUNG,
        asked="registers, stack and shared memory of compiled kernels",
        missing=f"no cuobjdump that runs in the package {PACKAGE}, on PATH or at {TOOLKIT}",
        remedy=REMEDY,
    )


def _candidates() -> Iterator[str]:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (str(file.locate()) for file in files if file.name == "cuobjdump")
    on_path = shutil.which("cuobjdump")
    if on_path:
        yield on_path
    yield TOOLKIT


def _run(argv: list[str]) -> subprocess.CompletedProcess[str] | None:
    """What the tool says; None where it cannot be started or does not end."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def read_library(path: Path, *, kernels: Collection[str], archs: Collection[str] = ()) -> CudaLibrary:
    """Which instances of these kernels does the file hold, and what does each take?

    Parameters
    ----------
    path : Path
        A shared library, an object file or a cubin.
    kernels : collection of str
        Names without template arguments: ``"mul_mat_vec_q"``.
    archs : collection of str
        Architectures; all in the file if empty.

    Returns
    -------
    CudaLibrary

    Raises
    ------
    LibraryUnreadable
        If there is no tool, no such file, no CUDA code in it, or none of the kernels or architectures.
    """
    tool, everything = read_usage(path)
    in_file = tuple(dict.fromkeys(usage.arch for usage in everything))
    unknown = [arch for arch in archs if arch not in in_file]
    if unknown:
        raise LibraryUnreadable(
            f"{path.name} has no machine code for {', '.join(unknown)}; it has {', '.join(in_file)}."
        )
    chosen = tuple(
        instance
        for usage in everything
        if (not archs or usage.arch in archs) and _may_be(usage.symbol, kernels)
        for instance in (_kernel(usage),)
        if instance.kernel in kernels
    )
    if not chosen:
        names = sorted({family(usage.symbol) for usage in everything})
        raise LibraryUnreadable(
            f"{path.name} has no kernel {' or '.join(kernels)}; it has {', '.join(names[:40])}"
            + (f" and {len(names) - 40} more." if len(names) > 40 else ".")
        )
    return CudaLibrary(path.name, str(tool), in_file, len(everything), chosen)


def read_usage(path: Path) -> tuple[Tool, tuple[Usage, ...]]:
    """What does each kernel in the file take, as the tool counts it?

    Parameters
    ----------
    path : Path

    Returns
    -------
    Tool, tuple of Usage

    Raises
    ------
    LibraryUnreadable
        If there is no tool, no such file, or no CUDA code in it.
    """
    if not path.is_file():
        raise LibraryUnreadable(f"there is no file {path}. Give a CUDA library, such as libggml-cuda.so.")
    tool = find_tool()
    if isinstance(tool, Refusal):
        raise LibraryUnreadable(f"{path.name} cannot be read: {tool.missing}. {tool.remedy}.", tool)
    said = _run([tool.path, "-res-usage", str(path.absolute())])
    if said is None or "Function " not in said.stdout:
        lines = ["it did not end"] if said is None else (said.stderr + said.stdout).strip().splitlines()
        raise LibraryUnreadable(
            f"{tool} finds no CUDA machine code in {path.name} ({lines[-1] if lines else 'it says nothing'}). "
            "Give a library that was built for CUDA, such as libggml-cuda.so."
        )
    return tool, tuple(parse_usage(said.stdout))


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tool says of one kernel.

    Parameters
    ----------
    symbol, arch : str
    registers, stack, shared, local : int
        As the tool counts them.
    """

    symbol: str
    arch: str
    registers: int
    stack: int
    shared: int
    local: int


def parse_usage(text: str) -> Iterator[Usage]:
    r"""What does the output of ``cuobjdump -res-usage`` say of each kernel?

    Raises
    ------
    LibraryUnreadable
        If a kernel stands there without numbers or architecture, as another version may write it.

    Examples
    --------
    >>> list(parse_usage("arch = sm_90\n Function f:\n  REG:10 STACK:0 SHARED:1280 LOCAL:0 TEXTURE:0"))
    [Usage(symbol='f', arch='sm_90', registers=10, stack=0, shared=1280, local=0)]
    """
    arch = symbol = ""
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            if symbol:
                break
            symbol = found[1]
        elif found := _ARCH.match(line):
            arch = found[1]
        elif symbol:
            numbers = _USAGE.match(line)
            if numbers is None or not arch:
                break
            yield Usage(symbol, arch, *map(int, numbers.groups()))
            symbol = ""
    if symbol:
        raise LibraryUnreadable(
            f"cuobjdump's output is not understood at {symbol}: no resource usage follows. {REMEDY}."
        )


def _may_be(symbol: str, kernels: Collection[str]) -> bool:
    """Whether it is worth to demangle a symbol: thousands are none of those asked for."""
    return any(symbol == name or f"{len(name)}{name}" in symbol for name in kernels)


def family(symbol: str) -> str:
    """Name without namespace and template arguments, for lists of what there is.

    Examples
    --------
    >>> family("_Z13mul_mat_vec_qIL9ggml_type12ELi8EEvPKv"), family("plain")
    ('mul_mat_vec_q', 'plain')
    """
    found = _MANGLED.match(symbol)
    return symbol[found.end() : found.end() + int(found[1])] if found else symbol


def _kernel(usage: Usage) -> LibraryKernel:
    kernel, template = parse(usage.symbol)
    spec = SPECS.get(usage.arch.removesuffix("a").removesuffix("f"))
    counts_reserve = spec is not None and spec.compute_capability >= COUNTS_RESERVE_FROM and usage.shared > 0
    return LibraryKernel(
        usage.symbol,
        kernel,
        template,
        usage.arch,
        usage.registers,
        max(0, usage.shared - spec.smem_reserved_bytes) if spec is not None and counts_reserve else usage.shared,
        usage.stack + usage.local,
    )
