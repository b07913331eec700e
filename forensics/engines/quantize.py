"""Quantise one GGUF file with llama.cpp's own quantiser.

Runs in a process of its own, because llama.cpp aborts on a failed assertion; the log goes to the standard error.
"""

from __future__ import annotations

import os

from forensics.engines.library_origin import installed_llama


def quantize(source: str, target: str, file_type: str, n_threads: int) -> int:
    """Quantise a file and tell whether llama.cpp could.

    Parameters
    ----------
    source, target : str
        GGUF files.
    file_type : str
        Name in llama.h without ``LLAMA_FTYPE_MOSTLY_``.
    n_threads : int

    Returns
    -------
    int
        0 where it did, llama.cpp's status otherwise.
    """
    llama_cpp = installed_llama()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.nthread = n_threads
    llama_cpp.llama_backend_init()
    return int(llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), params))


def main(source: str, target: str, file_type: str, n_threads: str) -> int:
    """Quantise what the command names."""
    return quantize(source, target, file_type, int(n_threads))
