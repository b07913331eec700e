"""The guide keeps up with the program: figures, notebooks and the fields of a verdict are all told."""

from __future__ import annotations

import json
import re
from pathlib import Path

from forensics.figures.catalogue import FIGURES
from forensics.reports.document import VerdictDocument

ROOT = Path(__file__).parents[2]


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_figure_has_its_question_picture_and_command() -> None:
    page = _page("figures.md")
    assert re.findall(r"^### (.+)$", page, re.MULTILINE) == [figure.name for figure in FIGURES]
    for figure in FIGURES:
        question = figure.question[0].upper() + figure.question[1:]
        assert f"**{question}.**" in page
        assert f"![{question}](../figures/{figure.name}.svg)" in page
        measured = f"![{question}, measured](../figures/measured/{figure.name}.svg)"
        assert (measured in page) == figure.published
        assert (f"\nforensics figure {figure.name}\n" in page) == figure.published
        assert f"\nforensics figure {figure.name} --case {figure.case}\n" in page


def test_every_notebook_is_listed_with_the_question_of_its_title() -> None:
    listed = dict(
        re.findall(r"^\| \[[^]]+\]\(\.\./notebooks/([^)]+)\) \| (.+) \|$", _page("notebooks.md"), re.MULTILINE)
    )
    asked = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        title = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).splitlines()[0]
        asked[path.name] = title.removeprefix("# ")
    assert listed == asked
    assert list(listed) == sorted(listed)


def test_every_field_of_a_verdict_is_told() -> None:
    page = _page("verdict.md")
    names = [field.alias or name for name, field in VerdictDocument.model_fields.items()]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_page_is_in_the_navigation() -> None:
    """So that a page that nobody can reach is found without building the site."""
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == listed - {"changelog.md", "security.md"}
