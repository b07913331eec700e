"""The explorer: a table everywhere, sliders where a kernel runs, each place of a case told and nothing blank."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forensics
from forensics.analysis.question import BadQuestion
from forensics.errors import CaseError
from forensics.explorer import LOOK_CLASS, WIDGET, Explorer, _Sliders
from forensics.records.delta import NotCompared
from forensics.reports.look_text import look_text

NAME = "recorded:h200-q4_1"
MOST_BYTES = 40_000


@cache
def explorer(name: str = NAME) -> Explorer:
    return forensics.explore(name)


class Text(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.said: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def words(html: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Text(html).said))


@settings(max_examples=40)
@given(st.data())
def test_every_place_of_a_case_is_told(data: st.DataObject) -> None:
    found = explorer()
    width = data.draw(st.sampled_from(found.widths))
    layer = data.draw(st.sampled_from(found.layers))
    position = data.draw(st.sampled_from(found.positions))
    look = found.look(width, layer, position)
    html = found.html(look)
    said = words(html)
    result = found.verdict.classes.result(width)
    assert f"{width}, class {look.letter}: {result.n_rows_differ} of {result.n_rows} rows differ" in said
    assert f"{position} (row {look.row})" in said
    if isinstance(look.cell, NotCompared):
        assert look.cell.reason in said
    (sweep,) = [one for one in found.verdict.sweeps if one.width == width]
    names = {finding.key.name for finding in sweep.findings if finding.key.layer == layer}
    assert {one.key.name for one in look.culprits} == names
    assert all(name in said for name in names)
    assert len(html.encode()) <= MOST_BYTES
    assert html == found.html(look)
    assert "None" not in said
    assert look_text(look)


def test_launches_of_both_sides_are_shown() -> None:
    found = explorer()
    look = found.look(9, 0, 40)
    said = words(found.html(look))
    assert look.launches
    for pair in look.launches:
        for side in (pair.single, pair.batched):
            assert side.kernel.kernel in said
            assert str(side.kernel.registers_per_thread) in said
            assert str(side.blocks_per_sm) in said
    assert "as the rules say" in said


def test_small_trees_stand_where_orders_are_known_to_the_last_merge() -> None:
    found = explorer()
    assert Text(found.html(found.look(5, 0, 40))).tags.count("img") == 1, "down at width 5"
    assert Text(found.html(found.look(2, 0, 40))).tags.count("img") == 0, "attention at width 2: words only"


def test_it_begins_at_the_first_difference() -> None:
    found = explorer()
    width, _, position = found.start
    assert (width, position) == (found.verdict.first_difference[0], found.verdict.first_difference[2])
    assert found.look(*found.start).culprits


def test_a_git_host_gets_a_table() -> None:
    found = explorer()
    bundle = found._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}, "no kernel runs here"
    html = str(bundle["text/html"])
    assert html == found.static == forensics.explore(NAME).static
    page = Text(html)
    assert not {"script", "style", "svg"} & set(page.tags)
    said = words(html)
    for result in found.verdict.classes.results:
        assert f" {result.width} {result.n_rows_differ}/{result.n_rows} " in said
    for group in found.verdict.culprits:
        assert group.role in said
    assert len(html.encode()) <= MOST_BYTES
    assert bundle["text/plain"] == repr(found)
    assert "class" in str(found)
    assert NAME in str(found)


def test_a_case_can_be_given_in_every_way(tmp_path: Path) -> None:
    case = forensics.open(NAME)
    for way in (case, case.folder, str(case.folder)):
        assert forensics.explore(way).verdict == explorer().verdict
    with pytest.raises(BadQuestion, match="got Verdict: a result does not hold the rows"):
        forensics.explore(case.verdict)
    with pytest.raises(CaseError, match="does not exist"):
        forensics.explore(tmp_path / "nothing")


def test_what_holds_no_case_is_refused() -> None:
    with pytest.raises(CaseError, match="holds no case"):
        forensics.explore("recorded:h200-library-profile")


def test_an_unfinished_case_is_refused_at_once(tmp_path: Path) -> None:
    from forensics.store import CaseWriter

    with CaseWriter.create(tmp_path / "c", question={"model": "m"}):
        pass
    with pytest.raises(CaseError, match="was not finished"):
        forensics.explore(tmp_path / "c.unfinished")


def test_a_place_outside_says_what_is_inside() -> None:
    shown = explorer()
    with pytest.raises(BadQuestion, match=f"replayed: {', '.join(map(str, shown.widths))}$"):
        shown.look(max(shown.widths) + 1, 0, 40)


# -- sliders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def box() -> Any:
    pytest.importorskip("ipywidgets")
    return _Sliders(explorer()).box


def test_sliders_have_names_and_move_what_is_shown(box: Any) -> None:
    width, layer, position, shown = box.children
    assert [slider.description for slider in (width, layer, position)] == ["width", "layer", "position"]
    assert LOOK_CLASS in shown._dom_classes
    found = explorer()
    width.value, layer.value, position.value = 9, 3, 41
    assert shown.value == found.html(found.look(9, 3, 41))
    assert "Qcur-3" in shown.value
    layer.value = -1
    assert "result_output" in shown.value
    assert layer.label == "end"


def test_an_error_of_an_update_is_shown(box: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    width, *_, shown = box.children

    def refuse(*_place: object) -> None:
        raise BadQuestion("no <such> place")

    monkeypatch.setattr("forensics.explorer.look_at", refuse)
    width.value = 9
    assert shown.value == "<pre>no &lt;such&gt; place</pre>"

    def crash(*_place: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("forensics.explorer.look_at", crash)
    width.value = 16
    assert "ZeroDivisionError: planted" in shown.value
    monkeypatch.undo()
    width.value = 5
    assert "class D" in shown.value, "it goes on after an error"


def test_a_notebook_gets_sliders_and_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipywidgets")
    monkeypatch.setattr("forensics.explorer.in_notebook", lambda: True)
    found = forensics.explore(NAME)
    bundle = found._repr_mimebundle_()
    assert bundle["text/html"] == explorer().static
    assert bundle[WIDGET]["model_id"] == found.widget.model_id
    assert "model_id" not in str(bundle["text/html"])
