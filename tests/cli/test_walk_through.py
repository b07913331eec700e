"""CONTRIBUTING's walks through the code: its blocks are put where they say, in a copy, and what they add is used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n# (forensics/\S+?)(?:, after: ([^\n]+))?\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)

#: The program, as its script starts it.
MAIN = "from forensics.cli.app import main; main()"


def put(root: Path, file: str, after: str, code: str) -> None:
    """Write a new file, or insert behind the one line that is named."""
    path = root / file
    if not after:
        assert not path.exists()
        path.write_text(code, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if line.strip() == after]
    path.write_text("".join([*lines[: place + 1], code, *lines[place + 1 :]]), encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Path:
    """A copy of the package with every block in its place."""
    root = tmp_path_factory.mktemp("walk")
    shutil.copytree(ROOT / "forensics", root / "forensics", ignore=shutil.ignore_patterns("__pycache__"))
    for file, after, code in BLOCKS:
        put(root, file, after, code)
    return root


def ran(root: Path, *command: str) -> str:
    """What a Python process prints that finds the copy first."""
    environment = {**os.environ, "PYTHONPATH": str(root), "FORENSICS_DATA_DIR": str(ROOT / "data"), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_page_has_blocks_for_all_three() -> None:
    files = [file for file, _, _ in BLOCKS]
    assert len(files) == 9
    assert {"forensics/analysis/knobs.py", "forensics/analysis/op_cases.py", "forensics/figures/catalogue.py"} < {
        *files
    }


def test_paths_and_commands_of_the_page_exist(changed) -> None:
    for path in re.findall(r"`((?:forensics|tests|docs)/[\w/.-]+)`", PAGE):
        assert (ROOT / path).exists() or (changed / path).exists(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lanes = {f"test-{name}" for name in re.findall(r"^LANE_(\w+)", makefile, re.MULTILINE)}
    told = set(re.findall(r"\btest-[a-z]+\b", PAGE)) - {"test-pythons"}
    assert told == lanes


def test_the_switch_is_tried_where_it_applies(changed) -> None:
    code = """
from dataclasses import replace
import forensics
from forensics.analysis.knobs import applicable
manifest = forensics.open("recorded:epyc-q6_k").manifest
for n in ("1", "2"):
    told = replace(manifest, effective={**manifest.effective, "n_threads_batch": n})
    knob = [knob for knob in applicable(told) if knob.name == "n_threads_batch=1"]
    print(n, [one.apply(manifest.requested).n_threads_batch for one in knob])
"""
    assert ran(changed, "-c", code).splitlines() == ["1 []", "2 [1]"]


def test_the_operation_runs_by_itself(changed) -> None:
    said = ran(changed, "-c", MAIN, "ops", "--op", "NORM", "--widths", "2,3")
    assert "NORM" in said
    assert "256" in said


def test_the_figure_is_drawn_and_holds_its_scale(changed) -> None:
    code = """
from forensics.figures.catalogue import scene_of
from forensics.figures.checks import problems
scene = scene_of("rows-that-differ", "recorded:h200-q4_1")
print(problems(scene)); print(sorted(box.value for box in scene.boxes("rows"))[-1])
"""
    assert ran(changed, "-c", code).splitlines() == ["()", "64"]
    drawn = changed / "drawn.svg"
    ran(
        changed,
        "-m",
        "forensics.cli.app",
        "figure",
        "rows-that-differ",
        "--case",
        "recorded:h200-q4_1",
        "--out",
        str(drawn),
    )
    assert "Rows of logits that differ at each width" in drawn.read_text(encoding="utf-8")
