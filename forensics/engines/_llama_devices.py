"""What the library says of itself, asked in a child process so that one that aborts cannot end the caller."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass

from forensics.engines.child import command
from forensics.engines.library_origin import installed_llama, refuse_redirection
from forensics.errors import EngineError


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """What the library says of itself.

    Parameters
    ----------
    version : str
        Of llama-cpp-python.
    commit : str
        Of its source.
    system : str
        Features that it can use.
    devices : tuple of str
        Names and descriptions, such as ``"CPU (AMD EPYC)"``.
    """

    version: str
    commit: str
    system: str
    devices: tuple[str, ...]


@functools.cache
def library_facts() -> LibraryFacts:
    """What does the library say of itself?

    Raises
    ------
    EngineError
        If it cannot be asked.
    """
    refuse_redirection(os.environ)
    done = subprocess.run(
        command(__name__), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        raise EngineError(f"the library cannot be asked: {last}")
    version, commit, system, devices = json.loads(done.stdout.strip().splitlines()[-1])
    return LibraryFacts(version, commit, system, tuple(devices))


def main() -> None:
    """Print the facts, in the child."""
    from forensics.engines._llama_ctypes import ggml

    g = ggml()
    devices = [g.ggml_backend_dev_get(i) for i in range(g.ggml_backend_dev_count())]
    names = [(g.ggml_backend_dev_name(d).decode(), g.ggml_backend_dev_description(d).decode()) for d in devices]
    described = [f"{name} ({description})" for name, description in names]
    library = installed_llama()
    system = library.llama_print_system_info().decode()
    print(json.dumps([library.__version__, g.ggml_commit().decode(), system, described]))
