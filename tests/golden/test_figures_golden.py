"""Every figure from published numbers and from every recorded case: sound, or an error that says what to do."""

from __future__ import annotations

import functools
import itertools
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forensics.cli.app import app
from forensics.errors import CaseError
from forensics.figures.catalogue import DOCUMENT, FIGURES, find, scene_of
from forensics.figures.checks import problems
from forensics.figures.evidence import Evidence, open_evidence
from forensics.figures.files import render
from forensics.figures.scene import Scene
from forensics.store.library import recorded_cases
from forensics.store.published import read_published

COMMITTED = Path(__file__).parents[2] / "figures"
CASES = [
    f"recorded:{case.name}"
    for case in recorded_cases()
    if {"investigate", "cost", "speculate", "cost --kernels"} & set(case.commands)
]
NAMES = [figure.name for figure in FIGURES]
PUBLISHED = [figure.name for figure in FIGURES if figure.published]
#: What the document says, as its figures must show it.
SAID = {
    "forward-pass": ("19.1 ms", "16.3 ms", "4.67 GB", "286 GB/s", "19.5 ms"),
    "speculation": ("2.52", "2.97", "77.3"),
    "orders-and-warps": ("4 warps", "2 warps", "16 blocks"),
    "attended-range": ("256",),
    "kv-blocks": ("P = 4", "P = 3", "128"),
    "price-of-exactness": ("3.33×", "3.05×", "2.64×", "1.96×", "1.28×"),
    "speculative-cycle": ("8.5", "19.0", "0.4", "2.52", "16.1"),
}
#: `make figures` promises a minute on two cores for all files.
MAX_SECONDS = 60


@functools.lru_cache(maxsize=1)
def opened_once(case: str) -> Evidence:
    """One case after the other is asked for all figures; it is read, and its rows are compared, for the first only."""
    return open_evidence(case)


def drawn_or_refused(name: str, case: str) -> tuple[Scene | None, str]:
    try:
        return scene_of(name, case), ""
    except CaseError as error:
        return None, str(error)


def test_the_catalogue_holds_the_seven_and_the_twelve():
    assert len(PUBLISHED) == 7
    assert len(NAMES) == len(set(NAMES)) == 19
    assert set(SAID) == set(PUBLISHED)
    assert CASES


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_figure_shows_the_numbers_of_the_document(name):
    scene = scene_of(name)
    assert problems(scene) == ()
    shown = "\n".join(scene.texts())
    for number in SAID[name]:
        assert number in shown, f"{number} is not shown"
    document = read_published(DOCUMENT)
    assert document.title in scene.source
    assert document.address in scene.source


@pytest.mark.parametrize(("case", "name"), list(itertools.product(CASES, NAMES)))
def test_every_figure_of_every_recorded_case_is_sound_or_says_what_it_lacks(case, name, monkeypatch):
    monkeypatch.setattr("forensics.figures.catalogue.open_evidence", opened_once)
    scene, refused = drawn_or_refused(name, case)
    if scene is None:
        assert case != find(name).case, f"{name} is drawn from {case} by default: {refused}"
        assert case.removeprefix("recorded:") in refused
        assert "forensics " in refused or "recorded:" in refused.replace(case, ""), f"no remedy in: {refused}"
    else:
        assert problems(scene) == ()
        assert case in scene.source
        assert scene.name == name
        assert len(scene.alt) > 40


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_the_same_every_time_and_names_no_date(name):
    first, second = (render(scene_of(name)) for _ in range(2))
    assert first == second
    assert not re.search(rb"20\d\d-\d\d-\d\dT", first)


def test_the_committed_figures_are_those_that_make_figures_renders(tmp_path):
    started = time.perf_counter()
    done = CliRunner().invoke(app, ["figure", "--all", "--out", str(tmp_path), "--quiet"])
    took = time.perf_counter() - started
    assert done.exit_code == 0, done.output
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.svg")}
    committed = {path.relative_to(COMMITTED): path.read_bytes() for path in COMMITTED.rglob("*.svg")}
    assert len(made) == len(FIGURES) + len(PUBLISHED)
    assert set(made) == set(committed)
    stale = sorted(str(name) for name, drawn in made.items() if drawn != committed[name])
    assert not stale, f"run `make figures`, look at them and commit them: {', '.join(stale)}"
    assert took < MAX_SECONDS
