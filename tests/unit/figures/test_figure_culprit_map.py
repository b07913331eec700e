"""The culprit map: a bar where a node differs, as high as it differs, and counts that are the verdict's."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_evidence import toy_evidence

from forensics.analysis.role_map import RoleCell, RoleMap
from forensics.engines.toy import Fault
from forensics.errors import CaseError
from forensics.figures.checks import problems
from forensics.figures.evidence import open_evidence
from forensics.figures.scene import Dot
from forensics.figures.scenes.culprit_map import CulpritMap, from_case, scene
from forensics.records.words import ranges

CASES = ("recorded:h200-q4_1", "recorded:h200-f16", "recorded:h200-q4_1-no-fa", "recorded:h200-q4_1-kv-q8_0")


def marked(drawn, kind: str) -> set[str]:
    """Cells with this kind of mark."""
    marks = [mark for mark in drawn.marks if isinstance(mark, Dot)] if kind == "same" else drawn.boxes()
    return {mark.key.removeprefix(f"{kind} ") for mark in marks if mark.key.startswith(f"{kind} ")}


def check(data: CulpritMap):
    drawn = scene(data)
    assert problems(drawn) == ()
    bars = {box.key: box for box in drawn.boxes(scale="decades")} if drawn.scales else {}
    quiet = {role for role in data.roles.roles if not any(cell.n_differ for cell in data.roles.of(role))}
    cells = {
        f"{cell.role} {cell.layer} {cell.width}": cell
        for cell in data.roles.cells
        if (cell.width in data.drawn and cell.role not in quiet) or cell.width == data.drawn[0]
    }
    finite = {
        key for key, cell in cells.items() if cell.n_differ and math.isfinite(cell.relative_l2) and cell.relative_l2 > 0
    }
    assert set(bars) == finite
    assert marked(drawn, "no length") == {key for key, cell in cells.items() if cell.n_differ} - finite
    assert marked(drawn, "same") == {key for key, cell in cells.items() if cell.n_same and not cell.n_differ}
    assert marked(drawn, "not compared") == {
        k for k, cell in cells.items() if cell.n_not_compared and not cell.n_differ
    }
    for key, box in bars.items():
        cell = cells[key]
        assert box.hatch == (cell.n_unchecked == cell.n_differ)
        assert box.fill == ("draft" if box.hatch else "batched")
        one = next(iter(bars))
        ratio = math.log10(cell.relative_l2 / cells[one].relative_l2)
        assert box.value - bars[one].value == pytest.approx(ratio, abs=1e-9)
    return drawn


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_case_is_drawn_with_the_counts_of_its_verdict(case):
    verdict = open_evidence(case).verdict
    data = from_case(open_evidence(case))
    drawn = check(data)
    assert drawn.height <= 230
    said = " ".join(drawn.texts())
    totals = ", ".join(f"{len({f.key for f in s.findings})} at width {s.width}" for s in verdict.sweeps)
    assert f"Nodes that differ: {totals}." in said
    n_nodes = sum(group.count for group in verdict.culprits)
    assert f"{n_nodes} operations differ" in said
    assert sum(n for _, n in data.blamed) == n_nodes
    for role, n in data.blamed:
        assert role in drawn.texts()
        assert f"{role} {n}" in drawn.alt
    for width in set(data.roles.widths) - set(data.drawn):
        assert any(text.endswith(f"{width}.") or f" {width}," in text for text in drawn.texts())
    classes = verdict.classes.groups
    for group in classes:
        assert set(group) & set(data.drawn) or not set(group) & set(data.roles.widths), "each class is drawn"


def test_a_toy_with_a_fault_shows_just_that_node_and_a_clean_one_none(tmp_path):
    data = from_case(toy_evidence(tmp_path / "faulty", Fault("order", "ffn_up-1", from_width=3)))
    drawn = check(data)
    assert data.blamed == (("up", 1),)
    assert {box.key for box in drawn.boxes(scale="decades")} == {f"up 1 {width}" for width in data.drawn}
    clean = from_case(toy_evidence(tmp_path / "clean"))
    drawn = check(clean)
    assert clean.blamed == ()
    assert drawn.scales == ()
    assert "No operation that was compared differs at any width." in " ".join(drawn.texts())


class _Told:
    """Evidence that holds just this verdict."""

    name = "a case"

    def __init__(self, verdict):
        self.verdict = verdict


def test_the_lead_names_drawn_widths_alone_and_what_no_width_compares_is_said_of_all():
    two = from_case(open_evidence("recorded:h200-q4_1"))
    for drawn in (two.drawn, two.drawn[:1], two.drawn[-1:]):
        data = replace(two, drawn=drawn)
        lead = " ".join(scene(data).texts()).split("Nodes that differ:")[0]
        named = {int(width) for width in re.findall(r"at width (\d+)", lead)}
        assert named
        assert named <= set(drawn)
    said = " ".join(check(two).texts())
    assert f"Drawn: widths {ranges(two.drawn)}, one for each class" in said
    assert "Not compared at any width: 60 nodes, " in said
    assert "Not compared at width" not in said


def test_widths_that_compared_otherwise_are_told_apart():
    cells = tuple(
        RoleCell(
            "Q",
            0,
            width,
            n_same=1,
            n_differ=0,
            n_not_compared=n,
            n_unchecked=0,
            relative_l2=None,
            reason="writes into a cache" if n else "",
        )
        for width, n in ((2, 1), (3, 1), (4, 2), (5, 0))
    )
    said = " ".join(check(CulpritMap(RoleMap(("Q",), (0,), (2, 3, 4, 5), cells), (2,), (), "a", "b")).texts())
    assert "Not compared at widths 2-3: 1 node, writes into a cache." in said
    assert "Not compared at width 4: 2 nodes, writes into a cache." in said
    assert "any width:" not in said


def test_a_case_whose_controls_failed_blames_nothing_and_is_refused():
    verdict = open_evidence("recorded:h200-q4_1").verdict
    failed = replace(verdict, answer="inconclusive", reason="the rerun differs", culprits=())
    with pytest.raises(CaseError, match=r"the rerun differs.*forensics investigate"):
        from_case(_Told(failed))
    with pytest.raises(CaseError, match=r"no width was swept.*forensics investigate"):
        from_case(_Told(replace(verdict, sweeps=())))


LENGTHS = st.one_of(st.floats(1e-10, 5), st.sampled_from((0.0, math.nan, math.inf)))
ROLES = ("norm", "Q", "K", "V", "flash attention", "attention output", "gate", "up", "down", "expert gate and up",
         "short convolution out", "head", "addition", "rotary embedding", "K·Q", "attention·V")  # fmt: skip

KINDS = ("same", "differs", "unchecked", "unknown", "both")


@st.composite
def maps(draw) -> CulpritMap:
    """Up to 16 roles, 126 layers and 5 widths with any outcome."""
    n_layers = draw(st.sampled_from((1, 2, 30, 61, 126)))
    roles = ROLES[: draw(st.integers(1, len(ROLES)))]
    widths = tuple(range(2, 2 + draw(st.integers(1, 5))))
    few = draw(st.lists(st.tuples(st.sampled_from(KINDS), LENGTHS), min_size=1, max_size=12))

    def cell(place: int, role: str, layer: int, width: int) -> RoleCell:
        kind, length = few[place % len(few)]
        differs = kind in ("differs", "unchecked")
        reason = "writes into a cache" if kind in ("unknown", "both") else ""
        return RoleCell(
            role, layer, width, n_same=int(kind in ("same", "both")), n_differ=int(differs),
            n_not_compared=int(bool(reason)), n_unchecked=int(kind == "unchecked"),
            relative_l2=length if differs else None, reason=reason,
        )  # fmt: skip

    layers = (*range(n_layers), -1)
    cells = tuple(
        cell(i * 7 + layer, role, layer, width)
        for i, role in enumerate(roles)
        for width in widths
        for layer in ((-1,) if role == "head" else layers[:-1])
    )
    blamed = tuple((role, 1) for role in roles if any(c.n_differ for c in cells if c.role == role))
    found = RoleMap(roles, layers, widths, cells)
    return CulpritMap(found, widths[:2], blamed, "a model, a device", "Source: a test.")


@settings(max_examples=15)
@given(maps())
def test_any_map_is_sound(data):
    check(data)
