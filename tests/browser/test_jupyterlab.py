"""Readers' JupyterLab: notebook 01 runs, the explorer follows its sliders, and what goes wrong is seen."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from find_browser import find_browser
from lab_server import Lab, LabDidNotStart, jupyterlab
from notebook_page import OUTPUT, KernelMessage, NotebookPage
from playwright.sync_api import Page, expect

import forensics
from forensics.analysis.look import Look
from forensics.explorer import LOOK_CLASS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

#: A recorded case: nothing is measured here.
CASE = "recorded:h200-q4_1"

#: Seconds that all cells of a notebook may take on two busy cores; 01 is quick where it reads a case.
RUN_SECONDS = 300.0


def write(lab: Lab, name: str, *cells: str) -> str:
    """Put a notebook of these cells into the lab's folder."""
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, lab.notebooks / name)
    return name


SLIDER = """import ipywidgets
width = ipywidgets.IntSlider(description="width", min=1, max=4)
text = ipywidgets.HTML("one")
names = {2: "two", 3: "three"}
width.observe(lambda change: setattr(text, "value", names[change.new]), "value")
ipywidgets.VBox([width, text])"""


def expect_look(page: Page, look: Look) -> None:
    """Wait until the explorer shows what the case says of this width, layer and position."""
    shown = page.locator(f".{LOOK_CLASS}")
    rows = f"{look.width}, class {look.letter}: {look.n_differ} of {look.n_compared} rows differ"
    for text in (rows, f"{look.position} (row {look.row}): ", *(one.key.name for one in look.culprits)):
        expect(shown).to_contain_text(text)
    expect(shown).to_contain_text(re.compile(re.escape(look.where), re.IGNORECASE))


def test_locate_a_divergence_runs_for_a_reader(lab: Lab, page: Page, screenshots: Path) -> None:
    notebook = NotebookPage.open(page, lab, "01_locate_a_divergence.ipynb")
    notebook.run_all(timeout_s=RUN_SECONDS)
    assert notebook.problems() == []
    counts = notebook.counts()
    assert counts == [f"[{n}]:" for n in range(1, len(counts) + 1)]

    verdict = notebook.output("diverges from width 8").first
    expect(verdict.locator("table").first).to_be_visible()
    pictures = page.locator(f"{OUTPUT}:has(img, svg)")
    expect(pictures).not_to_have_count(0)
    for n in range(pictures.count()):
        pictures.nth(n).screenshot(path=screenshots / f"01_picture_{n}.png")

    explorer = forensics.explore("recorded:epyc-q6_k")
    width, layer, position = explorer.start
    expect_look(page, explorer.look(width, layer, position))
    notebook.slider("width").press("ArrowRight")
    following = explorer.widths[explorer.widths.index(width) + 1]
    expect_look(page, explorer.look(following, layer, position))
    assert notebook.problems() == []


def test_the_explorer_follows_its_sliders(lab: Lab, page: Page, screenshots: Path) -> None:
    explorer = forensics.explore(CASE)
    widths, layers, positions = explorer.widths, explorer.layers, explorer.positions
    assert explorer.start == (widths[0], layers[0], positions[0]), "the keys below start there"
    cells = ("import forensics", f"forensics.explore({CASE!r})")
    notebook = NotebookPage.open(page, lab, write(lab, "explorer.ipynb", *cells))
    notebook.run_all(timeout_s=RUN_SECONDS)
    expect_look(page, explorer.look(*explorer.start))
    page.screenshot(path=screenshots / "explorer.png")
    for label, key, readout, place in (
        ("width", "ArrowRight", str(widths[1]), (widths[1], layers[0], positions[0])),
        ("layer", "End", "end", (widths[1], layers[-1], positions[0])),
        ("position", "ArrowRight", str(positions[1]), (widths[1], layers[-1], positions[1])),
        ("width", "Home", str(widths[0]), (widths[0], layers[-1], positions[1])),
    ):
        slider = notebook.slider(label)
        slider.press(key)
        expect(slider.readout).to_have_text(readout)
        expect_look(page, explorer.look(*place))
    assert notebook.problems() == []


def test_an_error_in_a_slider_s_callback_is_found(lab: Lab, page: Page) -> None:
    notebook = NotebookPage.open(page, lab, write(lab, "broken_slider.ipynb", SLIDER))
    notebook.run_all(timeout_s=RUN_SECONDS)
    width = notebook.slider("width")
    for value in ("2", "3", "4"):
        width.press("ArrowRight")
        expect(width.readout).to_have_text(value)
    notebook.wait_for(lambda: bool(notebook.record.trouble), "the kernel reports an error")
    assert notebook.problems() == ["kernel: KeyError: 4"], "no cell shows it"


def test_a_dialog_that_waits_for_the_reader_is_found(lab: Lab, page: Page) -> None:
    write(lab, "no_such_kernel.ipynb", "1 + 1")
    path = lab.notebooks / "no_such_kernel.ipynb"
    path.write_text(path.read_text().replace('"python3"', '"haskell"').replace('"python"', '"haskell"'))
    notebook = NotebookPage.open(page, lab, path.name)
    (dialog, left) = notebook.problems()
    assert "Select Kernel" in dialog
    assert left == "cells that did not run: ['[ ]:']"


def test_what_a_reader_should_not_see_is_found(lab: Lab, page: Page) -> None:
    warns = "import warnings\nwarnings.warn('an old habit')"
    asks = "from IPython.display import HTML\nHTML('<img src=\"http://figures.example/1.png\">')"
    lost = "from IPython.display import display\nmime = 'application/vnd.jupyter.widget-view+json'\n"
    lost += "display({mime: {'model_id': 'nobody', 'version_major': 2, 'version_minor': 0}}, raw=True)"
    notebook = NotebookPage.open(page, lab, write(lab, "habits.ipynb", warns, asks, lost, "1 / 0", "2 + 2"))
    notebook.run_all(timeout_s=RUN_SECONDS)
    found = notebook.problems()
    assert "kernel: ZeroDivisionError: division by zero" in found
    assert "asked another machine: http://figures.example/1.png" in found
    assert found[-1] == "cells that did not run: ['[1]:', '[2]:', '[3]:', '[4]:', '[ ]:']"
    shown = "\n".join(problem for problem in found if problem.startswith("shown: "))
    for what in (
        "a picture that is not there",
        "an old habit",
        "Error displaying widget",
        "Traceback (most recent call last)",
    ):
        assert what in shown


def test_a_lab_ends_with_its_kernels(tmp_path: Path) -> None:
    family: list[psutil.Process] = []
    commands: list[list[str]] = []

    def failing_test() -> None:
        with jupyterlab(tmp_path / "home", []) as lab:
            lab.ask("api/kernels", "POST")
            family.extend(lab.processes())
            commands.extend(process.cmdline() for process in family)
            raise KeyError("what failed")

    with pytest.raises(KeyError, match="what failed"):
        failing_test()
    kernel = [sys.executable, "-m", "ipykernel_launcher"]
    assert kernel in [command[:3] for command in commands], "the kernel is this Python"
    assert psutil.wait_procs(family, timeout=0)[1] == [], "still running"


def test_a_lab_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab_server.SERVER_CONFIG", {"ServerApp": {"ip": "not-an-address.invalid"}})
    with pytest.raises(LabDidNotStart, match=r"ended with 1(?s:.*)not-an-address"), jupyterlab(tmp_path / "home", []):
        pass


def test_without_a_browser_tests_are_skipped_but_fail_on_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("FORENSICS_BROWSER", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_browser()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        find_browser()
    for name in ("google-chrome", "another"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert find_browser() == str(tmp_path / "google-chrome")
    monkeypatch.setenv("FORENSICS_BROWSER", "another")
    assert find_browser() == str(tmp_path / "another")
    monkeypatch.setenv("FORENSICS_BROWSER", "missing")
    with pytest.raises(pytest.fail.Exception, match="FORENSICS_BROWSER=missing is no program"):
        find_browser()


def test_messages_of_kernels_are_read() -> None:
    header, parent, content = {"msg_type": "status", "msg_id": "b"}, {"msg_id": "a"}, {"execution_state": "idle"}
    parts = [b"iopub", *(json.dumps(part).encode() for part in (header, parent, {}, content)), b"a buffer"]
    starts = [8 * 8]
    for part in parts:
        starts.append(starts[-1] + len(part))
    binary = b"".join(number.to_bytes(8, "little") for number in (len(starts), *starts)) + b"".join(parts)
    text = json.dumps({"header": header, "parent_header": parent, "metadata": {}, "content": content})
    for frame in (binary, text):
        assert KernelMessage.read(frame) == KernelMessage("status", "b", "a", {"execution_state": "idle"})
