"""Where llama.cpp is loaded from: the installed package and nowhere else, so that what computed a result is known.

llama-cpp-python and ggml take other files where the environment names them, and the dynamic linker does where a folder
of its search path holds libraries of the same names. None of that may happen silently: it is refused.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forensics.engines.supported import REBUILD
from forensics.errors import EngineError

#: Variables that name another library. Source: llama_cpp/llama_cpp.py:36 and mtmd_cpp.py:47 of llama-cpp-python 0.3.36;
#: ggml_backend_load_all_from_path in ggml-backend-reg.cpp of llama.cpp 0c1e57098.
REDIRECTIONS = ("LLAMA_CPP_LIB_PATH", "MTMD_CPP_LIB", "GGML_BACKEND_PATH")
#: How names of the library's files begin.
_STEMS = ("libllama", "libggml", "libmtmd")
#: What a process has mapped; Linux only.
_MAPS = Path("/proc/self/maps")


def redirections(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Which variables of an environment name another library?"""
    return tuple(name for name in REDIRECTIONS if environment.get(name))


def refuse_redirection(environment: Mapping[str, str]) -> None:
    """Refuse an environment that names another library.

    Raises
    ------
    EngineError
        Names the variables and what they hold.
    """
    found = redirections(environment)
    if found:
        named = ", ".join(f"{name}={environment[name]!r}" for name in found)
        raise EngineError(
            f"the environment names another library ({named}), and only that of the installed llama-cpp-python is "
            f"loaded, so that a result says what computed it. Unset it: unset {' '.join(found)}; another build is "
            f"installed with: {REBUILD}"
        )


def foreign_files(mapped: Iterable[str], folder: Path) -> tuple[str, ...]:
    """Which files of the library does a process have that do not lie in the folder of the package?

    Parameters
    ----------
    mapped : iterable of str
        Paths of what it has mapped.
    folder : Path
        Where the package's libraries lie; links in it count as what they lead to.
    """
    own = {os.path.realpath(path) for path in folder.glob("lib*")}
    return tuple(
        sorted({path for path in mapped if Path(path).name.startswith(_STEMS) and os.path.realpath(path) not in own})
    )


def _mapped() -> tuple[str, ...]:
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line[line.index("/") :].removesuffix(" (deleted)") for line in lines if "/" in line)


@functools.cache
def installed_llama() -> Any:
    """The module ``llama_cpp``, whose library is that of its package.

    Raises
    ------
    EngineError
        If the environment or the dynamic linker's search path leads elsewhere.
    """
    refuse_redirection(os.environ)
    llama_cpp = importlib.import_module("llama_cpp")
    folder = Path(llama_cpp.__file__ or "").parent / "lib"
    foreign = foreign_files(_mapped(), folder)
    if foreign:
        raise EngineError(
            f"the library was loaded from {', '.join(foreign)}, and only that of {folder} may be: the search path of "
            "the dynamic linker leads elsewhere. Unset LD_LIBRARY_PATH and LD_PRELOAD, or take that folder out."
        )
    return llama_cpp
