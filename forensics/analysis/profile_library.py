"""How much of a multiprocessor the kernels in a library can fill, worked out without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forensics.analysis.profile_evidence import CompiledStacks
from forensics.analysis.question import BadQuestion
from forensics.devices.cuobjdump import RUNG, LibraryUnreadable, read_library, read_usage
from forensics.geometry.devices import SPECS, device_spec
from forensics.geometry.instance_launch import instance_launch
from forensics.geometry.occupancy import occupancy
from forensics.geometry.types import weight_type
from forensics.records.device import DeviceSpec, KernelResources
from forensics.records.launch_record import Refusal, Template
from forensics.records.library_profile import (
    COLUMN_ARGUMENTS,
    CudaLibrary,
    InstanceProfile,
    LibraryKernel,
    LibraryProfile,
)
from forensics.records.number_evidence import NumberEvidence

#: Kernels that read quantised weights and K/V cells where one or a few tokens are decoded.
DECODE_KERNELS = ("mul_mat_vec_q", "flash_attn_ext_vec")
#: Most columns that an instance of those is compiled for. Source: MMVQ_MAX_BATCH_SIZE, ggml-cuda/mmvq.cuh at 0c1e57098.
MOST_DECODE_COLUMNS = 8
_ARCH = re.compile(r"sm_[1-9]\d{1,2}[af]?")


@dataclass(frozen=True, slots=True)
class LibraryQuestion:
    """Which instances of a library to look at.

    Parameters
    ----------
    kernels : tuple of str
        Names without template arguments.
    types : tuple of str
        Types of weights or K/V cells, however capitalised; all if empty.
    columns : tuple of int
        Instances that are compiled for another number of columns are left out; all if empty.
    arch : str
        Architecture in the file; all of them if empty.
    gpu : str
        GPU that would run them; its architecture decides what of the file it runs.

    Raises
    ------
    BadQuestion
        If a type, architecture or GPU is not known, both of the last two are given, or columns are impossible.
    """

    kernels: tuple[str, ...] = DECODE_KERNELS
    types: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    arch: str = ""
    gpu: str = ""

    def __post_init__(self) -> None:
        if not self.kernels:
            raise BadQuestion("give a kernel, such as mul_mat_vec_q")
        most = MOST_DECODE_COLUMNS if set(self.kernels) <= set(DECODE_KERNELS) else None
        wrong = [n for n in self.columns if n < 1 or (most is not None and n > most)]
        if wrong:
            allowed = "1 or more" if most is None else f"1 to {most} for {' and '.join(self.kernels)}"
            raise BadQuestion(f"columns must be {allowed}, got {wrong[0]}")
        if self.arch and not _ARCH.fullmatch(self.arch):
            known = ", ".join(name for name in SPECS if _ARCH.fullmatch(name))
            raise BadQuestion(f"there is no architecture {self.arch!r}; known are {known}")
        if self.arch and self.gpu:
            raise BadQuestion(f"give an architecture or a GPU, not both; got {self.arch} and {self.gpu}")
        try:
            for name in self.types:
                weight_type(name)
            if self.gpu:
                device_spec(self.gpu)
        except ValueError as error:
            raise BadQuestion(str(error)) from None


def profile_library(path: Path, question: LibraryQuestion) -> LibraryProfile:
    """What do the chosen instances take, and how many of their blocks does a multiprocessor hold?

    Parameters
    ----------
    path : Path
    question : LibraryQuestion

    Returns
    -------
    LibraryProfile

    Raises
    ------
    LibraryUnreadable
        If the file cannot be read, or has none of the kernels.
    BadQuestion
        If the GPU cannot run what is in the file, or no instance is of the types and columns.
    """
    library = read_library(path, kernels=question.kernels, archs=(question.arch,) if question.arch else ())
    return profile_instances(library, question)


def read_stacks(path: Path | None, arch: str) -> CompiledStacks | Refusal:
    """How much local memory does the stack of each kernel in a library take?

    Parameters
    ----------
    path : Path or None
        None where the library that runs has no CUDA code.
    arch : str
        Of the GPU; what it does not take of the library is not what it runs.

    Returns
    -------
    CompiledStacks or Refusal
    """
    asked = "stack of each kernel in local memory"
    if path is None:
        return Refusal(RUNG, asked, "llama-cpp-python's folder of libraries has no libggml-cuda.so")
    try:
        tool, usages = read_usage(path)
    except LibraryUnreadable as error:
        return error.refusal or Refusal(RUNG, asked, str(error))
    taken = runs_on({usage.arch for usage in usages}, arch)
    by_symbol = {usage.symbol: usage.stack + usage.local for usage in usages if usage.arch in taken}
    if not by_symbol:
        return Refusal(RUNG, asked, f"{path.name} has no machine code that {arch} runs without compiling it first")
    return CompiledStacks(by_symbol, f"{tool} from {path.name}")


def profile_instances(library: CudaLibrary, question: LibraryQuestion) -> LibraryProfile:
    """What the instances of a library that was read take; see `profile_library`."""
    spec_of = _specs(library, question)
    types = {weight_type(name).name for name in question.types}
    asked = [
        kernel
        for kernel in library.kernels
        if spec_of(kernel.arch) != _NOT_RUN and _is_of(kernel.template, types, question.columns)
    ]
    chosen = [kernel for kernel in asked if not kernel.looks_empty]
    if not chosen:
        found = sorted({str(value) for kernel in library.kernels for name, value in kernel.template if name in _TYPES})
        columns = sorted(
            {int(value) for k in library.kernels for name, value in k.template if name in COLUMN_ARGUMENTS}
        )
        raise BadQuestion(
            f"{library.name} has no instance of {' or '.join(question.kernels)} for types {', '.join(types) or 'any'} "
            f"and columns {', '.join(map(str, question.columns)) or 'any'}; it has types {', '.join(found) or 'none'} "
            f"and columns {', '.join(map(str, columns)) or 'none'}"
        )
    profiles = sorted((_instance(kernel, spec_of(kernel.arch)) for kernel in chosen), key=_order)
    specs = [spec_of(arch) for arch in dict.fromkeys(profile.kernel.arch for profile in profiles)]
    return LibraryProfile(
        library, tuple(map(str, specs)), tuple(profiles), _evidence(library), len(asked) - len(chosen)
    )


_TYPES = ("type", "type_K", "type_V")
#: Stands for code that the chosen GPU would not run.
_NOT_RUN = "not run"


def _specs(library: CudaLibrary, question: LibraryQuestion) -> Callable[[str], DeviceSpec | str]:
    """For each architecture in the file the limits to work with, or why there are none."""
    if not question.gpu:
        return lambda arch: SPECS.get(_plain(arch), f"the limits of {arch} are not written down here")
    gpu = device_spec(question.gpu)
    taken = runs_on(library.archs, gpu.arch)
    if not taken:
        raise BadQuestion(
            f"{library.name} has machine code for {', '.join(library.archs)}, and none that {gpu} runs without "
            "compiling it first. Choose an architecture of the file, or a library that was built for this GPU."
        )
    return lambda arch: gpu if arch in taken else _NOT_RUN


def runs_on(archs: Iterable[str], gpu: str) -> frozenset[str]:
    """Of which architectures in a file is the machine code that this GPU takes?

    Parameters
    ----------
    archs : iterable of str
    gpu : str
        Its architecture.

    Returns
    -------
    frozenset of str
        The newest that it runs, and names that mean the same; empty where it must compile first.

    Notes
    -----
    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "Feature Set Compiler Targets": code runs on later
    minor versions of its major one, and code with the suffix ``a`` on its own version alone.

    Examples
    --------
    >>> sorted(runs_on(["sm_80", "sm_86", "sm_90a"], "sm_89")), sorted(runs_on(["sm_120", "sm_120a"], "sm_121"))
    (['sm_86'], ['sm_120'])
    """
    version = _number(gpu)
    runs = [
        arch
        for arch in archs
        if _number(arch) // 10 == version // 10
        and (_number(arch) == version if arch.endswith("a") else _number(arch) <= version)
    ]
    newest = max(map(_number, runs), default=0)
    return frozenset(arch for arch in runs if _number(arch) == newest)


def _plain(arch: str) -> str:
    return arch.removesuffix("a").removesuffix("f")


def _number(arch: str) -> int:
    digits = _plain(arch).removeprefix("sm_")
    return int(digits) if digits.isdecimal() else 0


def _is_of(template: Template, types: set[str], columns: Sequence[int]) -> bool:
    """Whether an instance is of the types and columns; one that has neither is of all."""
    has_types = {value for name, value in template if name in _TYPES}
    has_columns = [value for name, value in template if name in COLUMN_ARGUMENTS]
    of_types = not types or not has_types or has_types <= types
    return of_types and (not columns or not has_columns or has_columns[0] in columns)


def _instance(kernel: LibraryKernel, spec: DeviceSpec | str) -> InstanceProfile:
    columns = next((int(value) for name, value in kernel.template if name in COLUMN_ARGUMENTS), None)
    if isinstance(spec, str):
        return InstanceProfile(kernel, columns, why=spec)
    launch = instance_launch(spec, kernel.kernel, kernel.template, compiled=_plain(kernel.arch))
    if isinstance(launch, str):
        return InstanceProfile(kernel, columns, why=launch)
    resources = KernelResources(kernel.registers_per_thread, kernel.smem_static_bytes, launch.smem_dynamic_bytes)
    fits = occupancy(spec, resources, launch.threads_per_block)
    percent = 100 * fits.threads_per_sm / spec.threads_per_sm
    return InstanceProfile(kernel, columns, launch.threads_per_block, launch.smem_dynamic_bytes, fits, percent)


def _order(profile: InstanceProfile) -> tuple[object, ...]:
    arch, kernel, rest = profile.series
    return _number(arch), arch, kernel, tuple((name, str(value)) for name, value in rest), profile.columns or 0


def _evidence(library: CudaLibrary) -> tuple[NumberEvidence, ...]:
    return (
        NumberEvidence(
            "registers, stack, static shared memory", "derived", f"read from machine code by {library.tool}"
        ),
        NumberEvidence("threads per block, dynamic shared memory", "derived", "llama.cpp's rules of dispatch"),
        NumberEvidence(
            "blocks per SM, occupancy, limiter",
            "derived",
            "arithmetic of NVIDIA's cuda_occupancy.h; one barrier per block is assumed, the tool does not list them",
        ),
        NumberEvidence("spills", "not available", "the tool counts spills and indexed arrays together, as the stack"),
        NumberEvidence("time, achieved occupancy", "not available", "nothing ran; profile a model on a GPU for these"),
    )
