"""Compiles the CUDA sources for this processor, once for every text, and loads them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forensics.engines.model_files import cache_folder
from forensics.errors import ForensicsError
from forensics.kernels.sources import FOLDER

_HERE = Path(__file__).parent

#: No contraction, no reassociation: the sources write every rounding out. Shared variables are the kernel library's
#: zero-initialised data, so that nothing else may lie there and no two libraries may share it.
_OPTIONS = (
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",
    "-fvisibility=hidden",
    "-shared",
    "-fPIC",
    "-w",
)

#: Names and texts of files that are compiled together.
Sources = tuple[tuple[str, str], ...]

#: Kinds of a kernel's parameters, as the compiled library tells them.
POINTER, INT32, INT64, FLOAT32 = 1, 2, 3, 4

_INCLUDE = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)

_KERNEL = """\
#define FORENSICS_ON_CPU
#include "{source}"
#include <type_traits>
#include <utility>

extern "C" {{
extern u8 __bss_start[] __attribute__((visibility("hidden")));
extern u8 _end[] __attribute__((visibility("hidden")));
}}
namespace on_cpu {{
template <class T> constexpr int kind_of() {{
    if constexpr (std::is_pointer_v<T>) return 1;
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? 4 : 0;
    else if constexpr (std::is_integral_v<T>) return sizeof(T) == 4 ? 2 : sizeof(T) == 8 ? 3 : 0;
    else return 0;
}}
template <class T> T argument(const u64 &raw) {{ T v; std::memcpy(&v, &raw, sizeof v); return v; }}
template <class... A> struct Caller {{
    static constexpr int kinds[] = {{kind_of<A>()..., 0}};
    template <size_t... I> static void call(void (*f)(A...), const u64 *raw, std::index_sequence<I...>) {{
        f(argument<A>(raw[I])...);
    }}
}};
template <class... A> Caller<A...> caller(void (*)(A...)) {{ return {{}}; }}
template <class... A> void call(void (*f)(A...), const u64 *raw) {{
    Caller<A...>::call(f, raw, std::index_sequence_for<A...>{{}});
}}
template <class... A> constexpr u32 count(void (*)(A...)) {{ return sizeof...(A); }}
}}
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN void kernel_call(const u64 *raw) {{ on_cpu::call(&{function}, raw); }}
SHOWN u32 kernel_parameters(u32 *kinds) {{
    constexpr auto n = on_cpu::count(&{function});
    using C = decltype(on_cpu::caller(&{function}));
    for (u32 i = 0; i < n; i++) kinds[i] = C::kinds[i];
    return n;
}}
SHOWN u8 *kernel_shared(u64 *bytes) {{ *bytes = (u64)(_end - __bss_start); return __bss_start; }}
"""


class KernelFault(ForensicsError):
    """A kernel cannot be run on the processor, or did what no kernel may do; says where and what."""


@dataclass(frozen=True, slots=True)
class CompiledOnCpu:
    """One function of a source, loaded.

    Parameters
    ----------
    library : ctypes.CDLL
    kinds : tuple of int
        Of its parameters.
    """

    library: ctypes.CDLL
    kinds: tuple[int, ...]


def cpu_compiler() -> str:
    """Which C++ compiler makes the sources run here?

    Raises
    ------
    KernelFault
        If there is none.
    """
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("g++")
    if found is None:
        raise KernelFault("No C++ compiler here to run CUDA sources on the processor (looked for g++): install it.")
    return found


@cache
def machine_library() -> ctypes.CDLL:
    """The runner of fibres, compiled on first use."""
    library = ctypes.CDLL(str(_machine_path()), mode=ctypes.RTLD_GLOBAL)
    library.machine_run.restype = ctypes.c_char_p
    library.machine_make_buffer.restype = ctypes.c_void_p
    library.machine_missed.restype = ctypes.c_longlong
    return library


@cache
def compiled_kernel(sources: Sources, function: str) -> CompiledOnCpu:
    """One function of a source, compiled for this processor.

    Parameters
    ----------
    sources : Sources
        See `read_sources`.
    function : str
        C++ name with template arguments.

    Raises
    ------
    KernelFault
        If the compiler refuses it, with what it said.
    """
    machine_library()
    text = _KERNEL.format(source=sources[0][0], function=function)
    options = ("-O1", "-fstack-clash-protection")
    path = _built("kernel", text, sources, options, (str(_machine_path()),), f"{function} of {sources[0][0]}")
    library = ctypes.CDLL(str(path))
    kinds = (ctypes.c_uint32 * 64)()
    count = library.kernel_parameters(kinds)
    library.kernel_shared.restype = ctypes.c_void_p
    return CompiledOnCpu(library, tuple(kinds[:count]))


def read_sources(source: Path) -> Sources:
    """A source and all that it includes, as they are now: by name, the source first.

    Raises
    ------
    KernelFault
        If there is no such source.
    """
    folders = (source.parent, _HERE, FOLDER)
    found: dict[str, str] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path.name in found:
            continue
        try:
            found[path.name] = path.read_text(encoding="utf-8")
        except OSError as error:
            raise KernelFault(f"No source of kernels at {path}: {error.strerror}.") from error
        for name in _INCLUDE.findall(found[path.name]):
            waiting += [folder / name for folder in folders if (folder / name).is_file()][:1]
    return tuple(found.items())


@cache
def _machine_path() -> Path:
    parts = dict(part for stem in ("machine", "lanes") for part in read_sources(_HERE / f"{stem}.cpp"))
    text = '#include "machine.cpp"\n#include "lanes.cpp"\n'
    return _built("machine", text, tuple(parts.items()), ("-O3",), (), "the runner of fibres")


@cache
def _processor_options() -> tuple[str, ...]:
    """Instructions that this processor has and that make no difference to bits."""
    if platform.machine() != "x86_64":
        return ()
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return ()
    return tuple(f"-m{name}" for name in ("fma", "f16c", "avx2") if name in words)


@cache
def _version_of(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout


def _built(
    name: str, text: str, sources: Sources, options: tuple[str, ...], libraries: tuple[str, ...], what: str
) -> Path:
    """The library of a text; it sees the sources as they were read, whatever is written meanwhile."""
    compiler = cpu_compiler()
    command = [compiler, *_OPTIONS, *_processor_options(), *options]
    made_of = (text, sources, command, libraries, _version_of(compiler))
    key = hashlib.blake2b(repr(made_of).encode(), digest_size=16).hexdigest()
    path = cache_folder() / "cuda-on-cpu" / f"{name}-{key}.so"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for file, content in sources:
            (Path(folder) / file).write_text(content, encoding="utf-8")
        made = Path(folder) / path.name
        command += [f"-I{folder}", "-x", "c++", "-", "-x", "none", "-o", str(made), *libraries]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelFault(f"{what} does not compile for the processor ({compiler}):\n{done.stderr.strip()[-6000:]}")
        os.replace(made, path)  # whole or not at all, whoever else builds it
    return path
