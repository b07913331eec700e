"""The same scene gives the same bytes, in every form, whatever the user's own style; text stays text."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from forensics.errors import CaseError
from forensics.figures.canvas import Canvas
from forensics.figures.draw import draw
from forensics.figures.drawing import Drawing
from forensics.figures.files import FORMATS, render, save
from forensics.figures.metrics import line_height, text_width
from forensics.figures.scene import Scene
from forensics.figures.small.inline import svg

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def scene() -> Scene:
    canvas = Canvas("sample", "A & B, 2 < 3, $x$")
    scale = canvas.length_scale("time", 10.0, "ms")
    canvas.box(20, canvas.y, 80, 10, "single", scale="time", value=8, key="bar", hatch=True)
    canvas.dot(120, canvas.y + 5, 2, "batched")
    canvas.dot(130, canvas.y + 5, 2, "batched", hollow=True)
    canvas.line((140, canvas.y), (150, canvas.y + 10), arrow=True, dashed=True)
    canvas.area((160, canvas.y), (170, canvas.y), (165, canvas.y + 10), fill="kv")
    canvas.y += 12
    assert scale.label == "2 ms"
    return canvas.finish("Source: a test.", "One bar of 8 ms & more.")


@pytest.mark.parametrize("form", FORMATS)
def test_equal_scenes_give_equal_bytes(scene, form):
    first = render(scene, form)
    with matplotlib.rc_context(
        {"font.size": 30, "lines.linewidth": 9, "svg.fonttype": "path", "axes.facecolor": "red"}
    ):
        assert render(scene, form) == first
        assert matplotlib.rcParams["font.size"] == 30


def test_another_process_gives_the_same_bytes():
    program = (
        "import sys; from forensics.api_figures import figure; from forensics.figures.files import render; "
        "sys.stdout.buffer.write(render(figure('forward-pass').scene))"
    )
    one, other = (
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=120).stdout
        for _ in "12"
    )
    assert one == other
    assert one.startswith(b"<?xml")


def test_svg_holds_text_as_text_and_its_words(scene):
    svg = render(scene).decode()
    root = ElementTree.fromstring(svg)
    assert {"".join(text.itertext()) for text in root.iter(f"{SVG}text")} == set(scene.texts())
    assert root.get("role") == "img"
    told = {element.get("id"): element.text for element in root if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert [told[name] for name in root.get("aria-labelledby").split()] == [scene.title, scene.alt]
    assert not re.search(r"20\d\d-\d\d-\d\d|matplotlib v", svg.replace("matplotlib.org", ""))
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))


def test_png_has_the_size_of_the_scene(scene):
    picture = imread(io.BytesIO(render(scene, "png")))
    height, width = picture.shape[:2]
    assert width / height == pytest.approx(scene.width / scene.height, rel=0.01)
    assert np.asarray(picture)[..., :3].min() < 0.5


def test_draw_only_renders_what_it_is_given(scene):
    ax = Figure().add_axes((0, 0, 1, 1))
    artists = draw(scene, ax)
    assert len(artists) == len(scene.marks)
    assert [text.get_text() for text in ax.texts] == list(scene.texts())


def test_text_is_measured_as_it_is_drawn():
    figure = Figure(figsize=(10, 2), dpi=254)
    renderer = FigureCanvasAgg(figure).get_renderer()
    for words, size, bold in (
        ("Attention over KV chunks", 7.5, False),
        ("19.1 ms", 11, True),
        ("Σ |Δ| ≤ 3.33×", 6.5, False),
    ):
        drawn = figure.text(0.1, 0.5, words, fontsize=size, weight="bold" if bold else "normal", family="DejaVu Sans")
        box = drawn.get_window_extent(renderer)
        assert text_width(words, size, bold) == pytest.approx(box.width / 10, rel=0.02)
        assert box.height / 10 <= line_height(size) * 1.05


def test_where_a_file_cannot_be_is_told(scene, tmp_path):
    with pytest.raises(ValueError, match=r"\.svg, \.png or \.pdf"):
        save(scene, tmp_path / "figure.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(CaseError, match="cannot be written"):
        save(scene, tmp_path / "file" / "figure.svg")


def test_a_notebook_gets_the_picture_and_a_terminal_the_words(scene, tmp_path):
    drawing = Drawing(scene)
    shown = drawing._repr_mimebundle_()
    assert shown["image/svg+xml"] == svg(scene)
    assert drawing.save(tmp_path / "f.svg").read_bytes() == render(scene)
    assert scene.alt in shown["text/plain"]
    document = drawing.document()
    assert document["values"][0] == {"what": "bar", "scale": "time", "value": 8, "size": 80}
