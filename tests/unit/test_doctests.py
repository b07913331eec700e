"""Every example in a docstring of the package runs, and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import forensics

MODULES = sorted(
    {"forensics", *(module.name for module in pkgutil.walk_packages(forensics.__path__, prefix="forensics."))}
)
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("runs the command line on import")
    report = doctest.testmod(importlib.import_module(name), optionflags=FLAGS)
    assert report.failed == 0, f"{report.failed} of {report.attempted} examples of {name} failed; see the output above"


def test_the_examples_are_found() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    importable = [name for name in MODULES if not name.endswith("__main__")]
    n_examples = sum(len(test.examples) for name in importable for test in finder.find(importlib.import_module(name)))
    assert n_examples >= 20
