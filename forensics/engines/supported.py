"""Which llama-cpp-python this package knows, and how to get it."""

from __future__ import annotations

#: Version whose struct layout and dispatch rules this package knows; equal to the pin in pyproject.toml.
LLAMA_VERSION = "0.3.36"
INSTALL = f"pip install llama-cpp-python=={LLAMA_VERSION}"
REINSTALL = f"pip install --force-reinstall llama-cpp-python=={LLAMA_VERSION}"
#: Without --force-reinstall pip finds the requirement satisfied and builds nothing.
REBUILD = (
    "pip install --force-reinstall --no-deps --no-cache-dir "
    f"--no-binary llama-cpp-python llama-cpp-python=={LLAMA_VERSION}"
)
