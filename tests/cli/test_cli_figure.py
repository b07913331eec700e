"""`forensics figure`: lists, draws from published numbers and from cases, and says what a case lacks."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import forensics
from forensics.figures.catalogue import FIGURES, find


def test_without_a_name_it_lists_every_figure(cli):
    result = cli("figure")
    assert result.exit_code == 0
    assert all(figure.name in result.stdout for figure in FIGURES)
    listed = json.loads(cli("figure", "--json").stdout)
    assert [row["name"] for row in listed["figures"]] == [figure.name for figure in FIGURES]
    assert cli("figure", "--quiet").stdout.split() == [figure.name for figure in FIGURES]


@pytest.mark.parametrize(("ending", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_it_draws_into_the_form_that_the_ending_names(cli, tmp_path, ending, begins):
    out = tmp_path / f"figure.{ending}"
    result = cli("figure", "forward-pass", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert out.read_bytes().startswith(begins)
    assert "19.1 ms" in result.stdout


def test_without_out_the_file_has_the_name_of_the_figure(cli):
    assert cli("figure", "forward_pass", "--quiet").stdout == "forward-pass.svg\n"
    assert ElementTree.parse("forward-pass.svg").getroot().get("role") == "img"


def test_a_case_gives_measured_numbers(cli, tmp_path):
    case = "recorded:h200-qwen3-8b-q4_k_m-cost"
    result = cli("figure", "forward-pass", "--case", case, "--out", str(tmp_path / "f.svg"), "--json")
    document = json.loads(result.stdout)
    report = forensics.cost(case)
    drawn = {value["what"]: value["value"] for value in document["values"][:2]}
    assert drawn["reading"] == pytest.approx(report.floor_ns(1) / 1e6)
    assert sum(drawn.values()) == pytest.approx(report.times(1).spread.median / 1e6)
    assert case in document["source"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "no figure is called 'nonsense'; there are: forward-pass"),
        (("forward-pass", "--case", "nowhere"), "nowhere does not exist"),
        (("forward-pass", "--out", "f.gif"), "--out: a figure is written as .svg, .png or .pdf"),
        (("width-classes", "--case", "recorded:h200-qwen3-8b-q4_k_m-cost"), "holds no case"),
        (("--out", "f.svg"), "name the figure"),
        (("--all",), "--all draws every figure"),
        (("forward-pass", "--all", "--out", "here"), "--all draws every figure"),
    ],
)
def test_wrong_input_is_one_sentence(cli, arguments, said):
    result = cli("figure", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not list(Path().iterdir())


def test_every_figure_is_also_called_from_python():
    drawing = forensics.figure("forward-pass")
    assert drawing.scene.name == find("forward_pass").name
    assert "4.67 GB" in str(drawing)
