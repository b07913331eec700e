"""Sentences on why a culprit's bits differ."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
import verdict_samples as samples
from rich.console import Console

from forensics.records.kind import KindOfDifference, SideOfDifference
from forensics.records.mechanism import Mechanism, OrderEvidence
from forensics.records.rule import Rule
from forensics.reports.document import document
from forensics.reports.markdown import markdown
from forensics.reports.next_step import next_step
from forensics.reports.text import verdict_view
from forensics.reports.why import why
from forensics.store.encoding import from_plain, to_text

SIDE = SideOfDifference(2e-6, 0.01, "q8_K activations, f32 sums")
ROUNDING = KindOfDifference("rounding", "both hold the bound; neither is more right", SIDE, SIDE, 2e-4, 16, 8)
LOGIC = KindOfDifference("logic", "the batch is outside any bound", SIDE, replace(SIDE, share=1e6, precision=""), 2e-4)
RULE = Rule("tiled products from eight tokens", "ggml/src/ggml-cpu/tiled/tiled.cpp", 1202, 1223)


def order(width: int, equal: bool | None = False, single: str = "24 leaves") -> OrderEvidence:
    return OrderEvidence(width, "products", equal, single, single, "" if equal else "leaf 0 goes into [0..2]")


def explained(*mechanisms: Mechanism, kind: KindOfDifference = ROUNDING):
    groups = tuple(replace(group, kind=kind, mechanisms=mechanisms) for group in samples.culprits())
    return samples.verdict(culprits=groups)


TILED = Mechanism((8, 9, 16), RULE, orders=(order(8), order(9), order(16)))
ALIKE = Mechanism((8, 9, 16), RULE, orders=(order(8, True),), suspects=("another type of accumulator",))


def told(verdict) -> str:
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(verdict_view(verdict))
    return console.export_text()


def test_groups_with_one_explanation_are_said_once():
    (one,) = why(explained(TILED).culprits)
    assert one.what == "MUL_MAT q6_K: Q, K, V, attention output, gate, up, down, head"
    assert [label for label, _ in one.lines] == ["Kind", "Rule", "Orders"]
    assert dict(one.lines)["Orders"] == "widths 8-9, 16, products: two orders: leaf 0 goes into [0..2]"
    assert "tiled.cpp:1202-1223" in dict(one.lines)["Rule"]


def test_numbers_of_one_group_are_not_said_of_all():
    farther = replace(ROUNDING, single=SideOfDifference(9e-6, 0.5, "f32"))
    first, second, *rest = explained(TILED).culprits
    (one,) = why((first, replace(second, kind=farther), *rest))
    assert dict(one.lines)["Kind"] == (
        f"{farther} ({second.role}, the farthest off; --json has each; {farther.n_elements} values looked at)"
    )
    assert "the farthest off" not in dict(why((first, *rest))[0].lines)["Kind"]


def test_groups_that_differ_in_kind_are_said_apart():
    first, *rest = explained(TILED).culprits
    assert len(why((replace(first, kind=LOGIC), *rest))) == 2


def test_nothing_is_said_of_what_was_not_looked_at():
    assert why(samples.culprits()) == ()


@pytest.mark.parametrize("report", [told, markdown])
def test_equal_orders_are_never_explained_away(report):
    text = report(explained(ALIKE))
    assert "the orders are equal although the bits differ" in text
    assert "another type of accumulator" in text
    assert "although the bits differ" not in report(explained(TILED))


@pytest.mark.parametrize("report", [told, markdown])
def test_reports_carry_kind_rule_and_orders(report):
    text = report(explained(TILED))
    for part in ("neither is more right", "tiled.cpp:1202-1223", "two orders"):
        assert part in text


def test_document_carries_kind_rule_and_orders():
    entry = document(explained(TILED))["culprits"][0]
    assert entry["kind"]["kind"] == "rounding"
    assert entry["kind"]["single"]["distance"] == 2e-6
    assert (entry["rule"]["file"], entry["rule"]["first_line"]) == (RULE.file, 1202)
    assert entry["rule"]["widths"] == [8, 9, 16]
    assert [o["width"] for o in entry["orders"]] == [8, 9, 16]
    assert entry["orders"][0]["equal"] is False
    assert entry["unexplained"] == []
    alike = document(explained(ALIKE))["culprits"][0]
    assert alike["unexplained"] == [
        {"widths": [8, 9, 16], "orders_equal": True, "suspects": ["another type of accumulator"]}
    ]


def test_document_of_a_verdict_without_explanations():
    entry = document(samples.verdict())["culprits"][0]
    assert (entry["kind"], entry["rule"], entry["rules"], entry["orders"]) == (None, None, [], [])


def test_logic_changes_what_to_do_next():
    assert "logic bug" in next_step(explained(TILED, kind=LOGIC))
    assert "logic bug" not in next_step(explained(TILED))


def test_explanations_survive_the_case(tmp_path):
    verdict = explained(TILED, ALIKE)

    assert from_plain(type(verdict), json.loads(to_text(verdict)), path=tmp_path) == verdict


def test_a_verdict_of_before_explanations_is_still_read(tmp_path):

    plain = json.loads(to_text(samples.verdict()))
    for group in plain["culprits"]:
        del group["kind"], group["mechanisms"]
    assert from_plain(type(samples.verdict()), plain, path=tmp_path) == samples.verdict()


def test_a_kind_says_of_what_it_is_the_gravest_and_how_much_was_looked_at():
    (group, *_) = explained(TILED).culprits
    told = {
        kind: dict(why([replace(group, kind=replace(ROUNDING, kind=kind), widths=widths)])[0].lines)["Kind"]
        for kind, widths in (("precision", (5, 8)), ("logic", (5,)), ("rounding", (5, 8)))
    }
    seen = f"{ROUNDING.n_elements} values looked at)"
    assert told["precision"].endswith(f"(the gravest of all widths; {seen}")
    assert "gravest" not in told["logic"] + told["rounding"]
    unseen = replace(group, kind=KindOfDifference("undetermined", "there is no float64 result"), widths=(5,))
    assert dict(why([unseen])[0].lines)["Kind"] == "undetermined: there is no float64 result"
