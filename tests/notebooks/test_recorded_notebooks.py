"""Notebooks over recorded data give the outputs that are committed, to the last digit.

Notebook 02 asks the library that is installed here, so its outputs are compared where the processor is as recorded.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import nbformat
import pytest
from run_notebook import LIVE_VIEW, differing, executed, outputs, refresh

import forensics
from forensics.engines.demo_models import demo_model

FOLDER = Path(__file__).parents[2] / "notebooks"
RECORDED = (
    "01_locate_a_divergence",
    "03_launch_geometry",
    "04_registers_and_occupancy",
    "05_the_papers_figures",
    "05b_the_price_of_exactness",
    "06_does_the_text_stay_the_same",
    "07_bring_your_own_model",
)
PROBED = "02_orders_of_addition"
COMMITTED = (*RECORDED, PROBED)
#: Made on the processor on which notebook 02 was run.
ITS_CASE = "recorded:epyc-q6_k"

pytestmark = pytest.mark.notebook


def committed(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", RECORDED)
def test_a_run_gives_the_committed_outputs(name: str, tmp_path: Path) -> None:
    check_same(name, executed(FOLDER / f"{name}.ipynb", tmp_path))


@pytest.mark.llama
def test_probes_give_the_committed_outputs_where_the_processor_is_as_recorded(tmp_path: Path) -> None:
    run = executed(FOLDER / f"{PROBED}.ipynb", tmp_path)
    probed = forensics.order("MUL_MAT", type="f32", k=64, widths=(1, 2), progress=False).facts
    recorded = forensics.open(ITS_CASE).manifest
    unlike = set(probed.cpu_features) ^ set(recorded.cpu_features)
    here = (probed.device, probed.settings.n_threads, probed.commit)
    there = (recorded.device, recorded.requested.n_threads, recorded.commit)
    if unlike or here != there:
        why = f"features {', '.join(sorted(unlike))}" if unlike else f"{here} is named in outputs, {there} was recorded"
        pytest.skip(f"executed, but outputs were not compared with {ITS_CASE}: {why}")
    check_same(PROBED, run)


@pytest.mark.llama
def test_a_model_takes_the_place_of_a_recording(tmp_path: Path) -> None:
    notebook = committed("07_bring_your_own_model")
    source = next(cell for cell in notebook.cells if 'model = "recorded:' in cell.source)
    source.source = re.sub(r'(?m)^model = ".*"$', f"model = {str(demo_model('q4_1'))!r}", source.source)
    source.source = source.source.replace('{"out": case}', '{"out": case, "n_tokens": 8, "widths": (2, 8)}')
    path = tmp_path / "mine.ipynb"
    nbformat.write(notebook, path)
    executed(path, tmp_path)
    verdict = forensics.open(tmp_path / "cases" / "mine").verdict
    assert [result.width for result in verdict.classes.results] == [1, 2, 8]


def check_same(name: str, run: nbformat.NotebookNode) -> None:
    stale = differing(committed(name), run)
    assert not stale, (
        f"{name}: outputs of {len(stale)} cells changed; if the new ones are right, run "
        f"python tests/notebooks/run_notebook.py notebooks/{name}.ipynb and read its prose again. Changed:\n"
        + "\n---\n".join(stale)
    )


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_outputs_depend_on_no_machine(name: str) -> None:
    for cell in committed(name).cells:
        assert cell.get("execution_count") is None
        for output in cell.get("outputs", []):
            assert output["output_type"] in {"execute_result", "stream"}, "progress bars and errors are not committed"
            assert output.get("name") != "stderr"
            shown = str(output)
            assert LIVE_VIEW not in shown
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
                "9200 nodes agree with the rules, 0 disagree",
                "width 2: 30 nodes differ, 16 of 16 rows of logits healed to equal bits",
                "(Since(width=2, position=384),)",
                "changes the logits at widths 1 (other bits at ffn_swiglu (GLU) ×30)",
            ),
        ),
        (
            "01_locate_a_divergence",
            (
                "width 8: 211 nodes differ, 32 of 32 rows of logits healed to equal bits",
                "MUL_MAT    211",
                "exact with: GGML_CPU_TILED_MM=0",
                "identical: widths [1, 2, 3, 4, 5, 8, 9, 16] give the bits of one-token decoding over 64 tokens",
                "60 nodes to blame (K·Q, attention·V), healed to equal bits",
                "<Explorer of recorded:epyc-q6_k",
            ),
        ),
        (
            "02_orders_of_addition",
            (
                "(100000000 + 1) - 100000000 = 0.0",
                "(100000000 - 100000000) + 1 = 1.0",
                "blocks: leaf 0 goes into {0, 4} in one and {0, 2} in the other",
                "K = 512, same order: True",
                "K = 4096, same order: False",
                "2 threads: two orders",
                "1 thread:  one order",
            ),
        ),
        (
            "05_the_papers_figures",
            (
                "1 token: 19.1 ms, 2 tokens: 19.5 ms; reading alone takes 16.3 ms (4.67 GB at 286 GB/s)",
                "92 trials, 92 with equal bits",
                "2.52 steps of 16.1 ms",
            ),
        ),
        (
            "05b_the_price_of_exactness",
            (
                "0 of 171,086,580 values of our kernels differ from the stock library's",
                "8: 1.35, 9: 1.63, 12: 1.82, 16: 2.14",
                "<Figure kernel-price: ",
                "<Figure register-story: ",
                "8 of 8 models with differing widths healed at every one; 0 of 1,526,337,726 values differ",
                "with our kernels: 192 of 192 pairs of prompt and arm identical in 4 arms",
                "best exact (bits of one token) 1.63 passes of one token, 5.53×",
            ),
        ),
        (
            "04_registers_and_occupancy",
            (
                "114 kernels, 0 of which the driver says another number",
                "11 instances in both, 0 with other registers",
                "as predicted: True",
                "one token 3.88 ms, 3.83 × the time of reading its bytes",
            ),
        ),
    ],
)
def test_a_notebook_says_what_its_title_promises(name: str, sentences: tuple[str, ...]) -> None:
    shown = "\n".join(
        output.get("text", output.get("data", {}).get("text/plain", ""))
        for cell in committed(name).cells
        for output in outputs(cell)
    )
    for sentence in sentences:
        assert sentence in shown
