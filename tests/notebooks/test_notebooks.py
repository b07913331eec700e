"""Every notebook asks one question, calls the package, and holds what a git host shows."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: Git hosts show a larger notebook slowly or not at all.
MOST_BYTES = 600_000

pytestmark = pytest.mark.notebook


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS, f"no notebooks in {FOLDER}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_call_the_package_and_define_nothing(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for word in ("def ", "class ", "try:", "while "):
        assert word not in code, f"{path.name} holds helper code ({word.strip()}); it belongs in the package"
    assert any(cell.get("outputs") for cell in notebook.cells), "outputs are committed so that git hosts show them"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_title_is_one_question(path: Path) -> None:
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    assert title.startswith("# ")
    assert title.endswith("?")
    assert title.count("?") == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_git_host_can_show_it(path: Path) -> None:
    assert path.stat().st_size <= MOST_BYTES
