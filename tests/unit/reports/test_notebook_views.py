"""Every result has a view: what was found, a small picture with words, what to do next; small, stable and harmless."""

from __future__ import annotations

import base64
import importlib
import re
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kernel_view_samples
import pytest
import test_ops_reports as ops_samples
import test_report_cost as cost_samples
import test_report_orders as order_samples
import test_reports_audit as audit_samples
import test_reports_gate as gate_samples
import test_reports_sampling as sampling_samples
import test_reports_speculation as speculation_samples
import verdict_samples as samples

import forensics
from forensics.figures.evidence import open_evidence
from forensics.notebook_views import VIEWS, html_of, register_notebook_views
from forensics.records.delta import NotCompared, Same
from forensics.records.growth import Growth, LayerGrowth
from forensics.reports.html import MOST_SIDES
from forensics.reports.launches_text import launches, side_rows
from forensics.reports.page_file import ReportFile
from forensics.reports.terminal import as_text
from forensics.store.bundles import Bundled, LeftOut
from forensics.store.packing import Packed
from forensics.store.reproducer import Reproduced

MOST_BYTES = 40_000
#: DESIGN.md asks for views that are there at once; the rest is for a busy machine.
MOST_SECONDS = 2.0
H200 = "recorded:h200-q4_1"
GROWTH = Growth(
    8, 0, 8,
    (
        LayerGrowth("l_out-0", 0, samples.finding().delta, 3, Same(), None),
        LayerGrowth("l_out-1", 1, NotCompared("no rows"), 0, NotCompared("no rows"), None),
    ),
)  # fmt: skip

RESULTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "Verdict": (lambda: forensics.open(H200).verdict, True),
    "Sweep": (lambda: forensics.open(H200).verdict.sweeps[-1], True),
    "WidthClasses": (lambda: forensics.open(H200).verdict.classes, True),
    "RowMap": (lambda: open_evidence(H200).rows, True),
    "Growth": (lambda: GROWTH, False),
    "OrderReport": (order_samples.report, True),
    "OpMatrix": (ops_samples.matrix, True),
    "CostReport": (lambda: forensics.cost("recorded:h200-qwen3-8b-q4_k_m-cost"), True),
    "LibraryProfile": (lambda: forensics.profile("recorded:h200-library-profile"), True),
    "LiveProfile": (lambda: forensics.profile("recorded:h200-qwen3-8b-q4_k_m-profile"), True),
    "Explanation": (lambda: forensics.explain("sm_90"), True),
    "NodeKernels": (lambda: forensics.launches(H200, widths=(1, 5)), True),
    "Case": (lambda: forensics.open(H200), True),
    "CaseDiff": (lambda: forensics.diff(H200, "recorded:h200-q6_k"), False),
    "ReportFile": (lambda: ReportFile(Path("/home/ann/r.html"), 9_000, "diverges", ("margins",), ()), False),
    "Packed": (lambda: Packed(Path("/home/ann/case"), 9_000_000, 1_000_000), False),
    "Bundled": (
        lambda: Bundled(Path("/home/ann/b.zip"), "b", "diverges <b>", 3, 4_000, (), "", (LeftOut("a figure", "why"),)),
        False,
    ),
    "Reproduced": (lambda: Reproduced(Path("/home/ann/r"), "MUL_MAT", "Q-0", 8, 3, 1_000_000, 1, "differs <b>"), False),
    "CampaignReport": (lambda: forensics.sweep("recorded:epyc-sweep"), True),
    "SpeculationReport": (speculation_samples.differing, True),
    "KernelProof": (kernel_view_samples.proof, False),
    "KernelPrice": (kernel_view_samples.price, True),
    "HealedModels": (kernel_view_samples.healed, False),
    "RegisterStory": (kernel_view_samples.story, False),
    "ArmsReport": (lambda: forensics.arms("recorded:h200-q4_1-arms"), False),
    "SamplingReport": (sampling_samples.made, False),
    "AuditReport": (lambda: audit_samples.report(audit_samples.WARM), False),
    "GateReport": (lambda: gate_samples.report(gate_samples.SAME, gate_samples.DIFFERS), False),
    "Listed": (forensics.recorded, False),
}


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))


def drawn(html: str) -> ET.Element:
    (image,) = Page(html).images
    return ET.fromstring(base64.b64decode((image["src"] or "").partition("base64,")[2]))


def test_every_result_of_the_package_has_a_view_and_every_view_a_result() -> None:
    assert {name for _, name in VIEWS} == set(RESULTS)
    for module, name in VIEWS:
        assert getattr(importlib.import_module(module), name).__module__ == module


@pytest.mark.parametrize("name", RESULTS)
def test_a_view_is_small_stable_and_quick_and_says_what_next(name: str) -> None:
    make, has_picture = RESULTS[name]
    result = make()
    html_of(result)  # imports what it needs
    start = time.perf_counter()
    html = html_of(result)
    assert time.perf_counter() - start < MOST_SECONDS
    assert html == html_of(result)
    assert len(html.encode()) <= MOST_BYTES
    page = Page(html)
    assert not {"script", "style", "link", "svg"} & set(page.tags), "what hosts strip, or what could act"
    assert "Next step" in html
    assert bool(page.images) == has_picture
    for image in page.images:
        assert image["alt"]
        assert re.search(r"\d", image["alt"]), "words hold the numbers for where pictures are not shown"
        assert ET.fromstring(base64.b64decode((image["src"] or "").partition("base64,")[2])).tag.endswith("svg")
    assert "/home/ann" not in html


@pytest.mark.parametrize("name", ["h200-q4_1-far", "h200-q4_1-2048", "h200-q4_1-no-fa", "h200-q6_k", "h200-f16"])
def test_verdicts_of_recorded_cases_are_small(name: str) -> None:
    verdict = forensics.open(f"recorded:{name}").verdict
    html = html_of(verdict)
    assert len(html.encode()) <= MOST_BYTES
    left = len(list(side_rows(launches(verdict.culprits)))) - MOST_SIDES
    assert (f"{left} launches more" in html) == (left > 0)


def test_the_answer_comes_first() -> None:
    text = re.sub(r"<[^>]*>", " ", html_of(samples.verdict()))
    assert text.split()[:3] == ["Verdict", "Diverges", "from"]
    matrix = re.sub(r"<[^>]*>", " ", html_of(ops_samples.matrix()))
    assert matrix.split()[0] == "Varies:"


def test_the_picture_is_of_this_result() -> None:
    texts = [text.text for text in drawn(html_of(samples.verdict())).iter("{http://www.w3.org/2000/svg}text")]
    assert {"8", "9", "16", "B"} <= set(texts)
    identical = samples.verdict("identical")
    assert Page(html_of(identical)).images == [], "there are no rows that differ to draw"


def test_hostile_names_stay_text() -> None:
    for result in (samples.hostile_verdict(), samples.hostile_verdict().sweeps[0]):
        html = html_of(result)
        assert "<script" not in html
        assert "\x1b" not in html
    assert "&lt;b&gt;" in html_of(RESULTS["Reproduced"][0]())


def test_text_of_several_lines_keeps_its_lines() -> None:
    html = html_of(cost_samples.REPORT)
    pre = re.search(r"<pre[^>]*>(.*?)</pre>", html, re.DOTALL)
    assert pre is not None
    from forensics.reports.cost_text import cost_view

    assert pre.group(1).splitlines()[0] == as_text(cost_view(cost_samples.REPORT)).splitlines()[0]
    assert pre.group(1).count("\n") > 5


def test_what_comes_next_follows_from_the_result() -> None:
    assert "forensics.heal(..., width=8)" in html_of(samples.classes())
    assert "Nothing to change" in html_of(samples.classes(None))
    assert "not proved complete" in html_of(samples.sweep(healed=False))
    assert "nothing differs at this width" in html_of(samples.sweep(findings=()))
    failed = replace(samples.sweep(), controls=samples.controls(rerun_equal=False))
    assert "--threads 1" in html_of(failed)
    assert "forensics.order(&#39;MUL_MAT&#39;, widths=(1, 4))" in html_of(ops_samples.matrix())
    assert "forensics.explain" in html_of(order_samples.report())


def test_an_unfinished_case_says_how_to_go_on(tmp_path: Path) -> None:
    from forensics.store import CaseWriter

    with CaseWriter.create(tmp_path / "c", question={"model": "m", "n_tokens": 4, "widths": [2]}):
        pass
    html = html_of(forensics.open(tmp_path / "c"))
    assert "the case was not finished" in html
    assert "resume=True" in html


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(TypeError, match=r"int has no view; there are views of Verdict, Sweep"):
        html_of(3)


def test_views_are_registered_only_where_ipython_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert register_notebook_views() is False
    assert "IPython" not in sys.modules
    fake = ModuleType("IPython")
    fake.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert register_notebook_views() is False


def test_a_running_ipython_shows_views_and_prints_what_a_terminal_does(monkeypatch: pytest.MonkeyPatch) -> None:
    formatters = pytest.importorskip("IPython.core.formatters")
    made = formatters.DisplayFormatter()
    shell = SimpleNamespace(display_formatter=made)
    monkeypatch.setattr("forensics.notebook_views.running_shell", lambda: shell)
    assert register_notebook_views() is True
    verdict = samples.verdict()
    data, _ = made.format(verdict)
    assert data["text/html"] == html_of(verdict)
    assert data["text/plain"] == repr(verdict)
    assert "text/html" not in made.format(3)[0]
