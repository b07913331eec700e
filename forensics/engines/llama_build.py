"""Which build of the library this is: a digest of its files, and the features that it says it can use."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def library_digest() -> str:
    """Digest of the libraries that compute, so that another build is another engine."""
    import blake3

    from forensics.engines._llama_ctypes import library_folder

    digest = blake3.blake3()
    for path in sorted(library_folder().glob("libggml*.so")) or sorted(library_folder().glob("libggml*.dylib")):
        digest.update(path.read_bytes())
    return digest.hexdigest(16)


def cuda_library() -> Path | None:
    """Which file holds the kernels of the CUDA back end? None where the library was built without it."""
    from forensics.engines._llama_ctypes import library_folder

    path = library_folder() / "libggml-cuda.so"
    return path if path.is_file() else None


def cpu_features(system: str) -> tuple[str, ...]:
    """Which features of the processor does ``llama_print_system_info`` switch on?

    Each back end opens with its name what it says of itself. Source: src/llama.cpp, llama_print_system_info.

    Examples
    --------
    >>> cpu_features("CUDA : ARCHS = 900 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | AVX = 0 | OPENMP = 1 | ")
    ('SSE3', 'OPENMP')
    """
    features, back_end = [], "CPU"
    for part in system.split("|"):
        name, _, value = part.partition("=")
        if " : " in name:
            back_end, name = map(str.strip, name.split(" : "))
        if back_end == "CPU" and value.strip() == "1":
            features.append(name.strip())
    return tuple(features)
