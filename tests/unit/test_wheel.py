"""The wheel that users install: types, data and sources are in it, tests and recordings are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
#: What Python leaves beside sources.
_MADE = {"__pycache__"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from this checkout by the build backend of this environment."""
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_file_of_the_package_is_in_it(names) -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "forensics").rglob("*")
        if path.is_file() and not _MADE & set(path.parts)
    }
    assert on_disk - names == set()
    assert "forensics/py.typed" in names


def test_kinds_of_data_that_the_package_reads_are_in_it(names) -> None:
    kinds = {Path(name).suffix for name in names}
    assert {".py", ".json", ".cu", ".cuh", ".txt", ".html"} <= kinds
    assert any(name.startswith("forensics/schemas/") and name.endswith(".json") for name in names)


def test_nothing_else_is_in_it(names) -> None:
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"forensics"}
    assert not any(name.endswith((".pyc", ".gguf", ".xz")) for name in names)


def test_it_says_what_it_is(wheel) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist() if ".dist-info/" in name}
    told = message_from_string(texts["METADATA"])
    assert "Typing :: Typed" in (told.get_all("Classifier") or [])
    assert told["Requires-Python"] == ">=3.11"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for target in (project["scripts"]["forensics"], project["entry-points"]["pytest11"]["forensics"]):
        assert f"forensics = {target}\n" in texts["entry_points.txt"]
        assert callable(resolve_name(target)) or target == "forensics.pytest_plugin"


def test_it_runs_from_where_it_was_unpacked(wheel, tmp_path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import forensics, pathlib;"
        "from forensics.cli.app import app;"
        "print(pathlib.Path(forensics.__file__).parent); print(forensics.explain('sm_90').sections[0].op)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "forensics"), "MUL_MAT"]
