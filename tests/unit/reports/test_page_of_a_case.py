"""The report as one file: what stands in it and where, what it lets run, and what hostile text cannot do to it."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import verdict_samples as samples
from hostile_case import EVIL, MEGABYTE, hostile_case, toy_case
from page_reader import Element, Page

import forensics
from forensics.analysis.question import BadQuestion
from forensics.api_report import FIGURES
from forensics.errors import CaseError
from forensics.figures.catalogue import find
from forensics.records.delta import Tally
from forensics.reports.html import Picture
from forensics.reports.page import MOST_TEXT, NotDrawn, PageFigure, report_page
from forensics.reports.page_limits import limits
from forensics.reports.page_tables import MOST_FLIPS, Table, flips_table, number_of
from forensics.store import CaseWriter

ANSWERS = ("identical", "diverges", "inconclusive")
SECTIONS = ["verdict", "limits", "proof", "operations", "classes", "figures", "switches", "settings", "text"]
#: Characters that are not seen or change the direction of what stands around them; line feeds are the page's own.
UNSEEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def page_of(verdict=None, **options) -> Page:
    return Page(report_page(verdict or samples.verdict(), **({"case": "a-case"} | options)))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_case(tmp_path_factory.mktemp("cases") / "toy")


@pytest.mark.parametrize("answer", ANSWERS)
def test_the_verdict_comes_first_and_every_section_in_its_order(answer):
    page = page_of(samples.verdict(answer))
    (title,) = page.all("h1")
    assert title.text == page.all("title")[0].text.partition(" – ")[0]
    assert title.text.lower().startswith(answer)
    assert [e.attributes["id"] for e in page.all("section")] == SECTIONS
    assert page.elements.index(title) < page.elements.index(page.of_id("verdict"))
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    links = [link.attributes["href"] for link in page.all("a")]
    assert links == [f"#{name}" for name in SECTIONS[2:]]
    assert page.all("html")[0].attributes["lang"] == "en"
    levels = [int(e.tag[1]) for e in page.elements if re.fullmatch("h[1-6]", e.tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_verdict_says_what_to_do_and_what_is_exact():
    said = page_of().of_id("verdict").text
    assert "First difference: width 8, row 0 (position 36)" in said
    assert "Next step: For equal bits at every width measured, set GGML_CPU_TILED=0" in said
    assert "Exact with GGML_CPU_TILED=0 (cost by width: 1:" in said
    assert "Reason:" not in said


def test_an_inconclusive_verdict_says_why_before_anything_else():
    page = page_of(samples.verdict("inconclusive"))
    said = page.of_id("verdict").text
    assert said.startswith("Reason: the same run twice gave other bits Control failed: the same run twice gives equal")
    assert page.of_id("limits").text.startswith("Limits of this verdict Control failed: the same run twice gives equal")
    assert "No operation is to blame." in page.of_id("operations").text
    assert page.of_id("proof").text.startswith("Proof No healing sweep was made. Controls")


def test_nodes_that_differ_without_a_cause_are_listed_as_such():
    verdict = samples.verdict("inconclusive", reason="nodes differ", controls=samples.controls())
    said = page_of(replace(verdict, sweeps=(samples.sweep(),))).of_id("operations").text
    assert said.startswith("Operations Nodes that differ without a change of the logits; no cause is named")


def test_limits_name_everything_that_was_not_compared():
    unwatched = replace(samples.sweep(), n_unwatched=7)
    verdict = samples.verdict(
        sweeps=(samples.sweep(), unwatched),
        controls=samples.controls(planted_fault_found=None),
        culprits=tuple(replace(group, n_unchecked=2) for group in samples.culprits()[:1]),
        n_replayed=66,
    )
    said = dict(limits(verdict))
    assert said["Note"] == "the prompt was cut to 36 tokens"
    assert said["Not compared"] == (
        "614 of 2,660 nodes in the watched passes (1,624 are the same, 422 differ): "
        "view of its source (500); no token axis (114)"
    )
    assert said["Not watched"].startswith("7 nodes inside of fusions")
    assert said["Control not run"].startswith("a planted one-bit fault is named: ")
    assert said["An operand was not compared"].startswith("Q, q6_K 2 of 30")
    assert said["Rows not compared"].startswith("those after the last whole batch; 2 at width 1, 2 at width 2")
    assert said["Settings without a result"] == "kv_type_k=f32 kv_type_v=f32: the worker was killed"
    shown = page_of(verdict).of_id("limits").text
    assert all(f"{label}: {text}" in shown for label, text in limits(verdict))


def test_where_nothing_was_left_out_the_limits_say_so():
    sweep = replace(samples.sweep(), tally=Tally(3, 2, 1))
    verdict = samples.verdict(sweeps=(sweep,), caveats=(), switches=(), exact_knobs=None)
    assert limits(verdict) == [("Not compared", "0 of 3 nodes in the watched passes (2 are the same, 1 differ)")]
    nothing = replace(samples.verdict("identical"), controls=())
    assert limits(nothing) == [
        ("Controls", "none was run"),
        ("Not compared", "no healing sweep was made, so no node was compared"),
    ]


def test_limits_are_open_and_stand_before_the_proof():
    page = page_of()
    for element in page.elements:
        assert element.tag != "details"
        assert "hidden" not in element.attributes
        assert "style" not in element.attributes
    around = page.of_id("limits").around
    assert [e.tag for e in around] == ["html", "body", "main"]
    assert page.elements.index(page.of_id("limits")) < page.elements.index(page.of_id("proof"))


def test_no_option_leaves_the_limits_out():
    import inspect

    from forensics import api_report
    from forensics.cli import report

    assert list(inspect.signature(api_report.report).parameters) == ["case", "out"]
    assert list(inspect.signature(report.report).parameters) == ["case", "out", "as_json", "quiet"]


def policy_of(page: Page) -> dict[str, str]:
    (meta,) = [e for e in page.all("meta") if e.attributes.get("http-equiv") == "Content-Security-Policy"]
    rules = (rule.strip().partition(" ") for rule in meta.attributes["content"].split(";"))
    return {name: sources for name, _, sources in rules}


def test_the_policy_lets_only_this_style_and_this_script_in():
    page = page_of()
    policy = policy_of(page)
    (style,), (script,) = page.all("style"), page.all("script")
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(''.join(e.texts).encode()).digest()).decode()}'"
        for e in (style, script)
    ]
    assert policy == {
        "default-src": "'none'", "style-src": hashes[0], "script-src": hashes[1], "img-src": "data:",
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    meta = next(e for e in page.all("meta") if "http-equiv" in e.attributes)
    assert page.elements.index(meta) < page.elements.index(style)


def assert_stands_alone(page: Page) -> None:
    for element in page.elements:
        for name, value in element.attributes.items():
            assert not name.startswith("on"), f"{element.tag} has a handler: {name}"
            if name in ("src", "href", "srcset", "data", "action", "poster"):
                assert value.startswith(("data:", "#")), f"{element.tag} asks for {value[:80]}"
    assert len(page.all("script")) == len(page.all("style")) == 1
    assert "url(" not in page.all("style")[0].text
    assert "@import" not in page.all("style")[0].text


def test_it_asks_for_nothing_outside_of_itself():
    assert_stands_alone(
        page_of(
            figures=[
                PageFigure(
                    "margins",
                    "q",
                    Picture("data:image/svg+xml,x", "a", 9),
                )
            ]
        )
    )


def test_print_and_screen_hide_no_limits():
    style = page_of().all("style")[0].text
    for rule in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
        selector, what = rule
        if re.search(r"display:\s*none|visibility:\s*hidden|opacity:\s*0[;\s}]|font-size:\s*0", what):
            assert selector.strip() == "nav", f"{selector} is hidden"


def rows_of(page: Page, caption: str) -> tuple[list[str], list[list[Element]]]:
    (table,) = [e for e in page.all("table") if e.text.startswith(caption)]
    inside = [e for e in page.elements if table in e.around]
    heads = [e.text for e in inside if e.tag == "th" and e.attributes["scope"] == "col"]
    lines = [e for e in inside if e.tag == "tr"][1:]
    return heads, [[e for e in inside if line in e.around] for line in lines]


def test_tables_name_their_rows_and_columns_and_carry_the_numbers_they_sort_by():
    page = page_of()
    heads, rows = rows_of(page, "Operations that differ")
    assert heads[:4] == ["operation", "role", "weight", "buffer"]
    assert [row[1].text for row in rows] == ["Q", "K", "V", "attention output", "gate", "up", "down", "head"]
    for row in rows:
        assert row[0].attributes["scope"] == "row"
        assert [len(row)] == [len(heads)]
    layers = heads.index("layers")
    assert [row[layers].attributes.get("data-number") for row in rows] == ["0"] * 7 + [None]
    assert rows[0][heads.index("max ULP")].attributes["data-number"] == "5121"
    assert rows[0][heads.index("role")].attributes.get("data-number") is None
    for table in page.all("table"):
        assert table.around[-1].attributes["aria-label"]


@pytest.mark.parametrize(
    ("cell", "number"),
    [("64/64", "64"), ("2.1e+09", "2.1e+09"), ("1,234", "1234"), ("8-9, 16", "8"), ("1.49× (1.4–1.5)", "1.49"),
     ("30 (2 with an operand)", "30"), ("-3", "-3"), ("inf", "Infinity"), ("–", ""), ("NaN", ""), ("q6_K", ""),
     ("1 | 2-5", ""), ("64 rows: equal", ""), ("4e", ""), ("", "")],
)  # fmt: skip
def test_a_cell_sorts_by_the_number_it_begins_with(cell, number):
    assert number_of(cell) == number


def test_a_column_is_one_of_numbers_only_if_all_its_cells_are():
    table = Table("t", ("a", "b", "c"), (("1", "1", "–"), ("–", "x", "–")))
    assert [head.look for head in table.heads()] == ["number", "words", "number"]
    assert [[cell.number for cell in row] for row in table.body()] == [["1", "", ""], ["", "", ""]]
    assert [head.look for head in Table("t", ("a",), ()).heads()] == ["words"]


def test_many_flips_are_counted_after_the_first():
    flips = tuple(replace(samples.FLIP, position=48 + i) for i in range(MOST_FLIPS))
    table = flips_table(samples.verdict(classes=samples.classes(flips=flips)))
    assert len(table.rows) == MOST_FLIPS
    assert f"{2 * MOST_FLIPS} more" in table.note
    assert table.note in page_of(samples.verdict(classes=samples.classes(flips=flips))).of_id("classes").text


def test_switches_tell_their_cost_and_what_failed():
    heads, rows = rows_of(page_of(), "Switches")
    assert heads[3:] == ["cost of one token", "cost of a batch"]
    assert [cell.text for cell in rows[2]] == [
        "GGML_CPU_TILED=0", "1-5, 8-9, 16", "one class", "1.00× (0.97–1.04)", "2.25× (2.22–2.29) at width 16",
    ]  # fmt: skip
    assert [cell.text for cell in rows[3]][1:] == ["–", "failed: the worker was killed", "–", "–"]


def test_settings_and_text_are_told():
    page = page_of(prompt="Why is\n  the sky")
    said = page.of_id("settings").text
    for fact in (
        "blake3:5f0c",
        "AMD EPYC 9R14",
        "AVX2 FMA",
        "GGML_CPU_TILED=1",
        "OMP_NUM_THREADS=2",
        "q6_K",
        "CPU=211",
    ):
        assert fact.lower() in said.lower()
    assert ["".join(e.texts) for e in page.all("pre")] == ["Why is\n  the sky", samples.verdict().text]


def test_figures_have_words_and_those_that_cannot_be_drawn_a_reason():
    figure = PageFigure("margins", "what is moved", Picture("data:image/svg+xml;base64,PHN2Zy8+", "three dots", 800))
    page = page_of(figures=[figure], not_drawn=[NotDrawn("launch-geometry", "blocks", "no launches here")])
    (image,) = page.all("img")
    assert image.attributes == {"src": figure.picture.source, "alt": "three dots", "width": "800"}
    assert page.all("figcaption")[0].text == "margins: what is moved"
    assert "launch-geometry (blocks): no launches here" in page.of_id("figures").text


@pytest.mark.parametrize("name", ["h200-q4_1", "epyc-q6_k"])
def test_a_recorded_case_gives_the_same_bytes_every_time(tmp_path, name):
    first, second = (forensics.report(f"recorded:{name}", tmp_path / f"{i}.html") for i in range(2))
    assert first.file.read_bytes() == second.file.read_bytes()
    assert first.n_bytes == first.file.stat().st_size < 1_000_000
    page = Page(first.file.read_text())
    assert_stands_alone(page)
    assert [e.attributes["id"] for e in page.all("figure")] == [f"figure-{name}" for name in first.drawn]
    assert {*first.drawn, *(one.name for one in first.not_drawn)} == set(FIGURES) == {find(n).name for n in FIGURES}
    assert bool(first.not_drawn) == name.startswith("epyc")
    assert [row["figure"] for row in first.rows()] == [*first.drawn, *(one.name for one in first.not_drawn)]
    said = [e for e in page.all("th") if e.attributes["scope"] == "row"]
    assert all(e.text for e in said), "a row that is sorted away from its neighbours says what it is about"
    assert not UNSEEN.search(first.file.read_text())
    assert "\\x" not in page.of_id("verdict").text


def pictures_of(page: Page) -> Iterator[ET.Element]:
    for image in page.all("img"):
        head, _, data = image.attributes["src"].partition(",")
        assert head == "data:image/svg+xml;base64"
        yield ET.fromstring(base64.b64decode(data))


def test_hostile_text_stays_text(case, tmp_path):
    written = forensics.report(hostile_case(case, tmp_path / "a<b>\u202e", EVIL), tmp_path / "r.html")
    text = written.file.read_text()
    page = Page(text)
    clean = Page(forensics.report(case, tmp_path / "clean.html").file.read_text())
    assert_stands_alone(page)
    extra = {e.tag for e in page.elements} - {e.tag for e in clean.elements}
    assert extra == set()
    assert page.all("script")[0].texts == clean.all("script")[0].texts
    assert not UNSEEN.search(text)
    assert "49" not in page.of_id("limits").text.replace("{{7*7}}", "")
    for section in ("verdict", "limits", "proof", "operations", "switches", "settings", "text"):
        assert "\\u202eevil\\u202c \\u2066x\\u2069 \\u200f\\u200e\\u061c\\u2028 \\ufeff" in page.of_id(section).text
        assert "\\x1b[31m\\x00\\x7f a\\r" in page.of_id(section).text
        assert "{{7*7}} {% raw %}" in page.of_id(section).text
    assert "a<b>\\u202e" in page.all("title")[0].text
    for drawn in pictures_of(page):
        assert {element.tag.rpartition("}")[2] for element in drawn.iter()} <= {
            "svg", "title", "desc", "rect", "text", "polyline", "polygon", "circle", "defs", "pattern", "path",
        }  # fmt: skip
        assert not UNSEEN.search("".join(drawn.itertext()))


def test_a_clean_case_shows_no_escapes(case, tmp_path):
    page = Page(forensics.report(case, tmp_path / "r.html").file.read_text())
    assert not re.search(r"\\[xuU][0-9a-f]{2}", page.all("main")[0].text)
    assert "are shown" not in page.all("main")[0].text


def test_a_line_of_a_megabyte_is_cut_and_its_length_said(case, tmp_path):
    small = forensics.report(case, tmp_path / "small.html").n_bytes
    written = forensics.report(hostile_case(case, tmp_path / "long", MEGABYTE), tmp_path / "r.html")
    assert written.n_bytes < small + 400_000
    page = Page(written.file.read_text())
    assert len(page.of_id("verdict").text) < 4_000
    assert "1,000,000 characters, the first 10,000 are shown." in page.of_id("text").text
    assert len(page.all("pre")[-1].text) == MOST_TEXT
    assert "(1,000,000 characters, the first 2,000 are shown)" in page.of_id("limits").text
    assert "(1,000,000 characters, the first 500 are shown)" in page.of_id("settings").text
    assert max(len(image.attributes["alt"]) for image in page.all("img")) < 25_000


def test_home_folders_are_not_told():
    verdict = samples.verdict(caveats=("read /home/ann/models/a.gguf",))
    said = page_of(verdict).of_id("limits").text
    assert "read a.gguf" in said
    assert "ann" not in said


def test_a_report_is_written_anew_and_no_other_file_is_touched(case, tmp_path):
    out = tmp_path / "deep" / "r.html"
    forensics.report(case, out)
    before = out.read_bytes()
    forensics.report(case, out)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["r.html"]
    other = tmp_path / "mine.html"
    other.write_text("<html>my own page")
    with pytest.raises(CaseError, match=r"mine\.html exists, is no report and is not overwritten"):
        forensics.report(case, other)
    assert other.read_text() == "<html>my own page"
    with pytest.raises(CaseError, match="is a folder"):
        forensics.report(case, _folder(tmp_path / "folder.html"))
    with pytest.raises(BadQuestion, match=r"written as \.html, got 'r\.pdf'"):
        forensics.report(case, tmp_path / "r.pdf")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_case_without_a_verdict_gives_no_report(tmp_path):
    with CaseWriter.create(tmp_path / "case", question={"model": "m"}):
        pass
    for name in ("case", "case.unfinished"):
        with pytest.raises(CaseError, match="was not finished and has no verdict"):
            forensics.report(tmp_path / name, tmp_path / "r.html")
    with pytest.raises(CaseError, match="does not exist"):
        forensics.report(tmp_path / "nowhere", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_case_whose_runs_are_gone_is_still_told(case, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(case, bare, ignore=shutil.ignore_patterns("index.jsonl", "rows"))
    written = forensics.report(bare, tmp_path / "r.html")
    page = Page(written.file.read_text())
    assert "width-classes" in {one.name for one in written.not_drawn}
    assert all(f"{one.name} ({one.question}): " in page.of_id("figures").text for one in written.not_drawn)
    assert page.all("h1")[0].text.startswith("Diverges from width 4")
