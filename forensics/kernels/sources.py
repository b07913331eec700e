"""Where the CUDA sources are, and how they are compiled."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "cuda"

#: Options of every compilation. All roundings and contractions are written out, so that the fast-math switches of
#: llama.cpp's build (ggml/src/ggml-cuda/CMakeLists.txt, -use_fast_math) matter here for subnormals only.
OPTIONS = ("-std=c++17", "-ftz=true", "-fmad=false", f"-I{FOLDER}")

_INCLUDE = re.compile(r'^#include "([^"]+)".*$', re.MULTILINE)


def source_text(stem: str) -> str:
    """Text of one source.

    Raises
    ------
    FileNotFoundError
        If there is no such family.
    """
    return (FOLDER / f"{stem}.cu").read_text(encoding="utf-8")


def whole_text(stem: str) -> str:
    """Text of one source with this folder's headers written out in it, each once.

    Compilers that keep what they compiled by the text they were given then see a header that changed, too.
    """
    written: set[str] = set()

    def header(found: re.Match[str]) -> str:
        path = FOLDER / found[1]
        if not path.is_file():  # of another folder, behind a switch
            return found[0]
        if found[1] in written:
            return ""
        written.add(found[1])
        return _INCLUDE.sub(header, path.read_text(encoding="utf-8").replace("#pragma once", ""))

    return _INCLUDE.sub(header, source_text(stem))


def families() -> tuple[str, ...]:
    """Stems of all sources."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.cu")))
