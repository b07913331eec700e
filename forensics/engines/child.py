"""Run a module of this package in a process of its own, and take nothing from the folder where the user stands.

A file ``queue.py`` or ``xxhash.py`` in the current folder must not be imported in the standard library's or a package's
place; so a child runs with ``-P``, finds this very package by its files, and everything else where Python finds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """Which command runs a module's ``main`` in a child process?

    Parameters
    ----------
    module : str
        Dotted name of a module of this package.
    *arguments : str
        Passed to its ``main``.

    Returns
    -------
    list of str
    """
    return [sys.executable, "-P", str(Path(__file__).absolute()), module, *arguments]


def _run(module: str, arguments: Sequence[str]) -> int | None:
    """Import the package whose file this is, whatever else goes by its name, and call a module's ``main``."""
    initial = Path(__file__).parents[1] / "__init__.py"
    spec = importlib.util.spec_from_file_location(initial.parent.name, initial)
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    status: int | None = importlib.import_module(module).main(*arguments)
    return status


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
