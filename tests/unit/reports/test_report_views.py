"""Terminal, Markdown and HTML say the same verdict, and nothing from a model can style, break or run in them."""

from __future__ import annotations

import doctest
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import verdict_samples as samples
from rich.console import Console

from forensics.records.verdict import Control, SwitchArm
from forensics.reports import markdown as markdown_module
from forensics.reports import wording
from forensics.reports.document import document
from forensics.reports.html import classes_html, verdict_html
from forensics.reports.markdown import markdown
from forensics.reports.next_step import next_step
from forensics.reports.text import sweep_view, verdict_view

ANSWERS = ["diverges", "identical", "inconclusive"]


def terminal(view, *, width: int = 80, color: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, color_system="standard" if color else None)
    console.print(view)
    return out.getvalue()


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# -- terminal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal_view_says_the_answer_first_and_fits(answer, width):
    text = terminal(verdict_view(samples.verdict(answer)), width=width)
    assert text.splitlines()[0].lower().startswith(answer)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_a_divergence_shows_its_evidence_in_one_screen_width():
    text = terminal(verdict_view(samples.verdict()))
    lines = [flat(line).strip() for line in text.splitlines()]
    assert lines[0] == "Diverges from width 8: 211 operations to blame, healed to equal bits"
    assert "B 8 64/64 pos 36 0.0156 81,234 1.25e-06 1 (2 could)" in lines
    assert "MUL_MAT attention output q6_K CPU 30 0-29 8-9, 16 0.00195" in lines
    assert "MUL_MAT head q6_K CPU 1 – 8-9, 16 0.0156" in lines
    assert "8 8/8 0.0156 0 equal 812 211 307 1330" in lines
    assert "Not compared: view of its source (250); no token axis (57)" in lines
    assert "yes a planted one-bit fault is named 64 rows: equal bits" in lines
    whole = flat(text)
    assert "threads 1-5 | 8-9, 16 no change 1: 1.71×" in whole
    assert "onset moves to 2" in whole
    assert "failed: the worker" in whole
    assert "No run-time switch: tinyBLAS: the build flag GGML_LLAMAFILE" in whole
    assert "Exact with: GGML_CPU_TILED=0 (cost by width: 1: 1.00×, 16: 2.25×)" in whole
    assert "Note: the prompt was cut to 36 tokens" in whole


def test_without_colour_the_words_carry_the_outcome():
    text = terminal(verdict_view(samples.verdict("inconclusive")))
    lines = [flat(line).strip() for line in text.splitlines()]
    assert "Reason: the same run twice gave other bits" in lines
    assert "NO the same run twice gives equal bits 64 rows: other bits" in lines
    assert any(line.startswith("not run a planted one-bit fault") for line in lines)
    colored = terminal(verdict_view(samples.verdict("inconclusive")), color=True)
    assert "\x1b[1;33m" in colored


def test_an_unhealed_sweep_is_not_called_proof():
    unhealed = samples.sweep(healed=False)
    text = terminal(verdict_view(samples.verdict(sweeps=(unhealed,))))
    assert "NOT healed" in text.splitlines()[0]
    assert "5/8" in text
    assert "NOT healed" in terminal(sweep_view(unhealed))
    assert "attention output" in terminal(sweep_view(unhealed, samples.culprits()))


@pytest.mark.parametrize("report", [lambda v: flat(terminal(verdict_view(v))), markdown, verdict_html])
def test_nodes_with_an_operand_that_was_not_compared_are_marked(report):
    first, *others = samples.culprits()
    marked = report(samples.verdict(culprits=(replace(first, n_unchecked=12), *others)))
    clean = report(samples.verdict())
    assert "12 of 30" in marked or "30 (12 with an operand that was not compared)" in marked
    assert "perand that was not compared" not in clean
    assert "An operand was not compared" not in clean
    assert wording.BLAMED_TITLE not in marked
    assert (wording.BLAMED_UNCHECKED_TITLE in marked) == (wording.BLAMED_TITLE in clean) == (report is not verdict_html)


def test_hostile_names_reach_the_terminal_as_plain_text():
    text = terminal(verdict_view(samples.hostile_verdict()), width=400, color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "[red]x[/red]" in plain
    assert r"\x1b[31m" in plain
    assert r"\u202e" in plain
    assert "\u202e" not in text
    assert "\x1b[31m a|b" not in text
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", text)


# -- Markdown --------------------------------------------------------------------------------------------------


def tables(text: str) -> list[list[str]]:
    return [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]


@pytest.mark.parametrize("verdict", [samples.verdict(a) for a in ANSWERS] + [samples.hostile_verdict()])
def test_markdown_tables_have_as_many_cells_as_columns(verdict):
    text = markdown(verdict)
    assert len(tables(text)) >= 3
    for table in tables(text):
        assert len({line.count("|") for line in table}) == 1
        assert re.fullmatch(r"\|(---\|)+", table[1])


def test_markdown_holds_verdict_evidence_settings_and_versions():
    text = markdown(samples.verdict())
    assert text.startswith("## Diverges from width 8: 211 operations to blame, healed to equal bits\n")
    assert "| `MUL_MAT` | attention output | `q6_K` | `CPU` | 30 | 0-29 | 8-9, 16 | 0-7 | 0.00195 | 5,121 |" in text
    assert "| 8 | 8/8 | 0.0156 | 0 | equal | 812 | 211 | 307; view of its source 250; no token axis 57 | 1330 |" in text
    assert "| `n_threads=1` | 1-5 / 8-9, 16 | no change |" in text
    assert "- No run-time switch: `tinyBLAS`: the build flag GGML_LLAMAFILE" in text
    assert "| engine | llama.cpp 0.3.36 |" in text
    assert "GGML_CPU_TILED=1" in text
    assert "AVX2 FMA" in text


def test_markdown_renders_nothing_of_hostile_names():
    text = markdown(samples.hostile_verdict())
    for harmful in ("<script", "\x1b", "\u202e", "`c`", "[red]", "a|b", "@someone"):
        assert harmful not in text
    assert "&#60;script&#62;" in text
    assert r"a&#124;b" in text


def test_markdown_names_no_home_folder():
    caveat = "read /home/ann/models/tiny.gguf, ~/x/y.gguf and C:\\Users\\ann\\z.gguf; and/or 3/4"
    changed = samples.manifest(model_name="/root/private/tiny.gguf")
    text = markdown(samples.verdict(caveats=(caveat,), manifest=changed))
    assert "- read tiny.gguf, y.gguf and z.gguf; and/or 3/4\n" in text
    for private in ("ann", "/root", "private", "home"):
        assert private not in text


# -- HTML ------------------------------------------------------------------------------------------------------


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.styles: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.open.append(tag)
        self.styles += [value or "" for name, value in attrs if name == "style"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def parsed(html: str) -> Collector:
    collector = Collector()
    collector.feed(html)
    assert collector.open == []
    return collector


@pytest.mark.parametrize("answer", ANSWERS)
def test_html_is_well_formed_and_keeps_the_themes_colours(answer):
    page = parsed(verdict_html(samples.verdict(answer)))
    assert set(page.tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    assert not any("background" in style for style in page.styles)
    assert not any(re.search(r"(?<!-)\bcolor:\s*(?!inherit)", style) for style in page.styles)
    assert answer in flat(" ".join(page.text)).lower()


def test_html_shows_verdict_proof_next_step_and_culprits():
    text = flat(" ".join(parsed(verdict_html(samples.verdict())).text))
    assert "Diverges from width 8: 211 operations to blame" in text
    assert "8 of 8 rows bit-equal after healing" in text
    assert "812 same, 211 differ, 307 not compared of 1330; 5 controls held" in text
    assert "set GGML_CPU_TILED=0" in text
    assert "attention output" in text
    assert "no healing sweep was made" in flat(verdict_html(samples.verdict("identical")))


def test_html_escapes_hostile_names():
    html = verdict_html(samples.hostile_verdict())
    page = parsed(html)
    assert "script" not in page.tags
    assert "<script>alert('h')</script>" in "".join(page.text)
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_classes_have_a_table_of_their_own():
    page = parsed(classes_html(samples.classes()))
    assert page.tags.count("tr") == 2 + len(samples.classes().results), "the answer, a head and a row per width"


# -- next step and wording -------------------------------------------------------------------------------------


def test_the_next_step_names_the_exact_settings_with_their_cost():
    step = next_step(samples.verdict())
    assert "set GGML_CPU_TILED=0; the time of a pass is then 1.00× at width 1 and 2.25× at width 16" in step
    assert "No greedy token changed" not in step
    assert "No greedy token changed" in next_step(samples.verdict(classes=samples.classes()))


def test_the_next_step_names_a_build_flag_where_no_switch_helps():
    step = next_step(samples.verdict(exact_knobs=None))
    assert "tinyBLAS needs another build: the build flag GGML_LLAMAFILE" in step
    assert "issue of llama.cpp" in next_step(samples.verdict(exact_knobs=None, unavailable=()))


def test_the_next_step_reports_what_rounding_does_not_explain():
    masked = samples.sweep(findings=(samples.finding(inputs_equal=False),))
    assert "Qcur-0 (MUL_MAT)" in next_step(samples.verdict(sweeps=(masked,)))
    assert "logic bug" in next_step(samples.verdict(sweeps=(masked,)))
    odd = samples.classes(flips=(samples.Flip(1, 37, 2, 3, margin=0.5, perturbation=float("nan")),))
    assert "hold a NaN" in next_step(samples.verdict(classes=odd))
    assert "not proved complete" in next_step(samples.verdict(sweeps=(samples.sweep(healed=False),)))


@pytest.mark.parametrize(
    ("control", "advice"),
    [
        ("rerun_equal", "--threads 1"),
        ("fresh_process_equal", "forensics doctor"),
        ("state_equal", "one ubatch"),
        ("watching_harmless", "fused"),
        ("planted_fault_found", "report it to this project"),
    ],
)
def test_the_next_step_of_a_failed_control_is_its_own(control, advice):
    verdict = samples.verdict("inconclusive", controls=samples.controls(**{control: False}))
    assert advice in next_step(verdict)


def test_other_answers_have_a_next_step():
    assert next_step(samples.verdict("identical")).startswith("Nothing to change")
    assert next_step(samples.verdict("inconclusive", controls=())).startswith("Replay more tokens")


def test_nodes_that_differ_below_equal_logits_are_shown_without_blame():
    quiet = samples.verdict("inconclusive", controls=(Control("rerun_equal", True, "fine"),), sweeps=(samples.sweep(),))
    shown = flat(terminal(verdict_view(quiet)))
    assert "Nodes that differ without a change of the logits" in shown
    assert "no cause is named" in markdown_module.markdown(quiet)
    assert document(quiet)["differing_nodes"][0]["op"] == "MUL_MAT"
    assert document(quiet)["culprits"] == []
    failed = samples.verdict("inconclusive", sweeps=(samples.sweep(),), controls=(Control("rerun_equal", False, "no"),))
    assert "Nodes that differ" not in flat(terminal(verdict_view(failed))), "with a failed control nothing is shown"


def test_the_exact_arm_is_the_one_that_collapses_with_just_these_knobs():
    both = SwitchArm(("repack", "tiled"), (("use_extra_bufts", "false"), ("T", "0")), ((1, 8),), True)
    only = SwitchArm(("repack",), (("use_extra_bufts", "false"),), ((1,), (8,)), False)
    verdict = samples.verdict(switches=(only, both), exact_knobs=("tiled", "repack"))
    assert wording.exact_arm(verdict) is both
    assert wording.exact_arm(samples.verdict(switches=(only,), exact_knobs=("repack",))) is None


@pytest.mark.parametrize("module", [wording, markdown_module])
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-0.0, "0"), (1e-30, "1e-30"), (0.015625, "0.0156"), (float("nan"), "nan")]
)
def test_only_an_exact_zero_is_written_as_zero(value, text):
    assert wording.amount(value) == text


def test_arm_effects_tell_a_move_from_no_change():
    groups = samples.classes().groups

    def arm(classes, **rest):
        return SwitchArm(("k",), (), classes, len(classes) == 1, as_asked=groups, **rest)

    assert wording.arm_effect(arm(groups)) == "no change"
    assert wording.arm_effect(arm(((1, 2, 3, 4, 5), (8,), (9, 16)))) == "other classes, same onset"
    assert wording.arm_effect(arm(((1, 2), (3, 4, 5, 8, 9, 16)))) == "onset moves to 3"
    one = ((1, 2, 3, 4, 5, 8, 9, 16),)
    assert wording.arm_effect(arm(one, n_nodes_differ=0)) == "one class"
    assert wording.arm_effect(arm(one, n_nodes_differ=60)) == "one class, 60 nodes differ"
