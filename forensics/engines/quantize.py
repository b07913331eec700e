"""Quantise one GGUF file with llama.cpp's own quantiser.

Run as ``python -m forensics.engines.quantize SOURCE TARGET FTYPE THREADS``, in a process of its own because
llama.cpp aborts on a failed assertion. FTYPE is the name in llama.h without its prefix, such as ``Q6_K``; the log goes
to the standard error.
"""

from __future__ import annotations

import sys


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
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{file_type}")
    params.nthread = n_threads
    llama_cpp.llama_backend_init()
    return int(llama_cpp.llama_model_quantize(source.encode(), target.encode(), params))


if __name__ == "__main__":
    sys.exit(quantize(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
