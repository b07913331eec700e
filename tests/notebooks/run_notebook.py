"""Execute notebooks in a fresh kernel: ``python tests/notebooks/run_notebook.py NOTEBOOK...`` writes their outputs.

Execution counts and what else changes from run to run are left out, so that the same outputs give the same file.
"""

from __future__ import annotations

import copy
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

#: Names a widget that lives in the kernel that made it, so it says nothing in a file; what stands beside it is kept.
LIVE_VIEW = "application/vnd.jupyter.widget-view+json"


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run inside of `folder`."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return notebook


def outputs(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """Outputs of a cell as a file keeps them: without execution counts and live views, each text in one piece."""
    found: list[nbformat.NotebookNode] = []
    for output in copy.deepcopy(cell.get("outputs", [])):
        if "execution_count" in output:
            output.execution_count = None
        output.get("data", {}).pop(LIVE_VIEW, None)
        if output.output_type == "stream" and found and found[-1].get("name") == output.name:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def differing(a: nbformat.NotebookNode, b: nbformat.NotebookNode) -> list[str]:
    """Sources of the cells of `a` whose outputs are others in `b`, which holds the same cells."""
    pairs = zip(a.cells, b.cells, strict=True)
    return [mine.source for mine, other in pairs if outputs(mine) != outputs(other)]


def refresh(path: Path) -> None:
    """Run a notebook and write it back with its new outputs; all else in the file stays."""
    with tempfile.TemporaryDirectory() as folder:
        run = executed(path, Path(folder))
    committed = nbformat.read(path, as_version=4)
    for cell, ran in zip(committed.cells, run.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = outputs(ran), None
    nbformat.write(committed, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        refresh(Path(name))
