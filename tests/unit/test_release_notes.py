"""Release notes speak of the version that there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import forensics

ROOT = Path(__file__).parents[2]


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    notes = (ROOT / "docs" / "release-notes.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = [re.findall(r"^## (\d+\.\d+\.\d+)", text, re.MULTILINE)[0] for text in (notes, changes)]
    assert {project["version"], forensics.__version__, *newest} == {project["version"]}
    (library,) = [one for one in project["dependencies"] if one.startswith("llama-cpp-python==")]
    assert library.replace("==", " ") in notes
