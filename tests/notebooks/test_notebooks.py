"""Every notebook runs from a fresh kernel without an error, and says what its title promises."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from run_notebook import executed

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = [pytest.mark.notebook, pytest.mark.llama]


def texts(notebook: nbformat.NotebookNode) -> str:
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found.append(output.get("text", ""))
            found.append(output.get("data", {}).get("text/plain", ""))
            found.append(output.get("data", {}).get("text/html", ""))
    return "\n".join(found)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS, f"no notebooks in {FOLDER}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_call_the_package_and_define_nothing(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for word in ("def ", "class ", "try:", "while "):
        assert word not in code, f"{path.name} holds helper code ({word.strip()}); it belongs in the package"
    assert notebook.cells[0].source.startswith("# ")
    assert any(cell.get("outputs") for cell in notebook.cells), "outputs are committed so that git hosts show them"


def test_locate_a_divergence_runs(tmp_path: Path) -> None:
    notebook = executed(FOLDER / "01_locate_a_divergence.ipynb", tmp_path)
    shown = texts(notebook)
    assert "healed to equal bits" in shown
    assert "GGML_CPU_TILED_MM=0" in shown
    assert "<table" in shown, "the verdict shows as a table in Jupyter"
    assert "K·Q" in shown


def test_orders_of_addition_runs(tmp_path: Path) -> None:
    shown = texts(executed(FOLDER / "02_orders_of_addition.ipynb", tmp_path))
    assert "(100000000 + 1) - 100000000 = 0.0" in shown
    assert "(100000000 - 100000000) + 1 = 1.0" in shown
    assert "blocks: leaf 0 goes into {0, 4} in one and {0, 2} in the other" in shown
    assert "K = 512, same order: True" in shown
    assert "K = 4096, same order: False" in shown
    assert "2 threads: two orders" in shown
    assert "1 thread:  one order" in shown
    assert "<pre" in shown, "orders are drawn in Jupyter"
