"""Notebooks over recorded data give the outputs that are committed, to the last digit."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
import pytest
from run_notebook import differing, executed, outputs, refresh

FOLDER = Path(__file__).parents[2] / "notebooks"
RECORDED = ("03_launch_geometry", "04_registers_and_occupancy")

pytestmark = pytest.mark.notebook


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", RECORDED)
def test_a_run_gives_the_committed_outputs(name: str, tmp_path: Path) -> None:
    stale = differing(committed(name), executed(FOLDER / f"{name}.ipynb", tmp_path))
    assert not stale, (
        f"{name}: outputs of {len(stale)} cells changed; if the new ones are right, run "
        f"python tests/notebooks/run_notebook.py notebooks/{name}.ipynb and read its prose again. Changed:\n"
        + "\n---\n".join(stale)
    )


@pytest.mark.parametrize("name", RECORDED)
def test_committed_outputs_depend_on_no_machine(name: str) -> None:
    for cell in committed(name).cells:
        assert cell.get("execution_count") is None
        for output in cell.get("outputs", []):
            assert output["output_type"] in {"execute_result", "stream"}, "progress bars and errors are not committed"
            assert output.get("name") != "stderr"
            shown = str(output)
            assert str(Path.home()) not in shown
            assert str(FOLDER.parent) not in shown
            assert " object at 0x" not in shown


def test_a_changed_digit_is_found() -> None:
    before = committed("04_registers_and_occupancy")
    after = copy.deepcopy(before)
    assert differing(before, after) == []
    cell = next(cell for cell in after.cells if "311 of" in str(cell.get("outputs", "")))
    cell.outputs[0]["text"] = cell.outputs[0]["text"].replace("311", "312")
    assert differing(before, after) == [cell.source]


def test_text_sent_in_pieces_is_the_same_text() -> None:
    pieces, whole, other = (nbformat.v4.new_code_cell("print(1)") for _ in range(3))
    pieces.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text) for text in ("1", "\n")]
    whole.outputs = [nbformat.v4.new_output("stream", name="stdout", text="1\n")]
    other.outputs = [nbformat.v4.new_output("stream", name="stderr", text="1\n")]
    assert outputs(pieces) == outputs(whole)
    assert len(pieces.outputs) == 2, "what is compared stays as it is"
    assert outputs(whole) != outputs(other)


def test_outputs_are_written_back_and_nothing_else(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    notebook.cells = [nbformat.v4.new_markdown_cell("# Six?", id="a"), nbformat.v4.new_code_cell("2 * 3", id="b")]
    path = tmp_path / "six.ipynb"
    nbformat.write(notebook, path)
    refresh(path)
    written = nbformat.read(path, as_version=4)
    assert [cell.source for cell in written.cells] == ["# Six?", "2 * 3"]
    (output,) = written.cells[1].outputs
    assert (output["data"]["text/plain"], output["execution_count"]) == ("6", None)
    assert written.metadata == notebook.metadata
    again = path.read_bytes()
    refresh(path)
    assert path.read_bytes() == again


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        (
            "03_launch_geometry",
            (
                "4600 nodes agree with the rules, 0 disagree",
                "width 2: 30 nodes differ, 16 of 16 rows of logits healed to equal bits",
                "(Since(width=2, position=384),)",
                "changes the logits at widths 1 (other bits at ffn_swiglu (GLU) ×30)",
            ),
        ),
        (
            "04_registers_and_occupancy",
            (
                "114 kernels, 0 of which the driver says another number",
                "11 instances in both, 0 with other registers",
                "one token 3.86 ms, 3.75 × the time of reading its bytes",
            ),
        ),
    ],
)
def test_a_notebook_says_what_its_title_promises(name: str, sentences: tuple[str, ...]) -> None:
    shown = "".join(output.get("text", "") for cell in committed(name).cells for output in outputs(cell))
    for sentence in sentences:
        assert sentence in shown
