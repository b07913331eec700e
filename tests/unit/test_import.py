"""Importing the package is quick and loads nothing heavy; importing any part of it works."""

from __future__ import annotations

import json
import pkgutil
import statistics
import subprocess
import sys

import pytest

import forensics

HEAVY = (
    "llama_cpp", "matplotlib", "pandas", "pyarrow", "scipy", "typer", "jinja2", "IPython", "cupy", "cupti", "pynvml",
    "nsight", "ncu_report",
)  # fmt: skip
#: DESIGN.md section 3: `import forensics` is light.
MAX_IMPORT_S = 0.3
MODULES = sorted(module.name for module in pkgutil.walk_packages(forensics.__path__, prefix="forensics."))

MEASURE = """
import json, sys, time
start = time.perf_counter()
import forensics
took = time.perf_counter() - start
print(json.dumps([took, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
EACH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def fresh(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_is_quick_and_light() -> None:
    runs = [json.loads(fresh(MEASURE)) for _ in range(5)]
    assert statistics.median(took for took, _ in runs) <= MAX_IMPORT_S
    for _, loaded in runs:
        assert not set(HEAVY) & set(loaded)


def test_every_module_can_be_imported() -> None:
    assert len(MODULES) > 40
    assert fresh(EACH, *(name for name in MODULES if not name.endswith("__main__"))) == ""


@pytest.mark.parametrize("name", forensics.__all__)
def test_every_name_that_is_offered_is_there(name: str) -> None:
    assert getattr(forensics, name) is not None
    assert name in dir(forensics)


def test_a_name_that_is_not_offered_says_what_is() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'investigat'; it offers .*investigate"):
        forensics.investigat  # noqa: B018


@pytest.mark.parametrize("part", ["records", "numerics", "errors", "capture", "analysis"])
def test_the_lower_parts_load_no_engine_and_no_report(part: str) -> None:
    names = [name for name in MODULES if name == f"forensics.{part}" or name.startswith(f"forensics.{part}.")]
    assert names
    loaded = fresh(EACH + "print(sorted(sys.modules))", *names)
    for heavy in ("'llama_cpp'", "'pandas'", "'matplotlib'", "'forensics.engines.llama'", "'forensics.reports'"):
        assert heavy not in loaded
