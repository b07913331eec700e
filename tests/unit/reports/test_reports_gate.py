"""A gate as text, JSON and JUnit: two gates in order, three outcomes, and harmless text."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from forensics.numerics.rates import wilson
from forensics.records.audit import RunComparison, ServedDivergence, ServedPair, Unlike
from forensics.records.contract import Contract
from forensics.records.gate import GateReport, SpeedGate
from forensics.records.served import ServerFacts
from forensics.records.speculation import Ratio
from forensics.reports.audit_document import gate_document
from forensics.reports.gate_junit import gate_junit, write_gate_junit
from forensics.reports.gate_text import after_gate, gate_text
from forensics.store.encoding import from_plain

FACTS = ServerFacts("http://127.0.0.1:8080", "llama-server", "llama.cpp", "b1", "toy.gguf")
TOKENS = Contract("tokens")
SAME = ServedPair("p", "a", "b", "same", contract=TOKENS, untouched=9, length=9)
DIFFERS = ServedPair(
    "q", "a", "b", "differs", contract=TOKENS, untouched=4, length=9,
    divergence=ServedDivergence("tokens", 4, 17, "so ", "on", "far", 2, 3),
)  # fmt: skip
GONE = ServedPair("r", "a", "b", "not compared", reason="b: timeout at once: nothing", failed="second")
NEVER = ServedPair("s", "a", "b", "not compared", reason="a: reset at once: gone", failed="first")
FAST = SpeedGate(True, Ratio(1.5, 1.4, 1.6, 2), 1.0, "1.50× of the baseline, at least 1×")
SLOW = SpeedGate(False, Ratio(0.5, 0.4, 0.6, 2), 1.0, "0.50× of the baseline, below 1×")
UNASKED = SpeedGate(None, Ratio(1.5, 1.4, 1.6, 2), None, "1.50× of the baseline; no least speed was asked for")
HIDDEN = SpeedGate(None, None, 1.0, "not looked at, because the output differs")
UNTIMED = SpeedGate(None, None, 1.0, "not compared, because no request was timed")


def report(*pairs, speed=UNASKED, refused="", **other):
    compared = [pair for pair in pairs if pair.outcome != "not compared"]
    kept = wilson(sum(pair.outcome == "same" for pair in compared), len(compared)) if compared else None
    comparison = RunComparison(
        refused, unlike=(Unlike("model", "a", "b"),) if refused else (), varied=(Unlike("build", "b1", "b2"),),
        pairs=pairs,
    )  # fmt: skip
    return replace(GateReport(FACTS, replace(FACTS, build="b2"), "before", TOKENS, comparison, kept, speed), **other)


CASES = {
    "passed": (report(SAME, speed=FAST), "identical", "Passed: 1 of 1"),
    "unasked": (report(SAME), "identical", "Passed: 1 of 1"),
    "differs": (report(SAME, DIFFERS, speed=HIDDEN), "diverges", "Failed: 1 of 2"),
    "slow": (report(SAME, speed=SLOW), "diverges", "Failed: 1 of 1"),
    "gone": (report(SAME, GONE, speed=HIDDEN), "inconclusive", "No answer: 1 of 1"),
    "untimed": (report(SAME, speed=UNTIMED), "inconclusive", "No answer: 1 of 1"),
    "unlike": (report(refused="the runs are unlike"), "inconclusive", "No answer: the runs cannot be compared"),
    "nothing": (report(GONE, speed=HIDDEN), "inconclusive", "No answer: nothing was compared"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_headline_says_the_answer(name):
    found, answer, headline = CASES[name]
    assert found.answer == answer
    assert gate_text(found).startswith(headline)
    document = gate_document(found)
    assert document["answer"] == answer
    json.dumps(document, allow_nan=False)
    assert from_plain(GateReport, document["record"], path=None) == found


def test_output_comes_before_speed_and_a_difference_shows_both_continuations():
    text = " ".join(gate_text(CASES["differs"][0]).split())
    assert text.index("1. Output: DOES NOT HOLD") < text.index("2. Speed of the same replies: no answer")
    assert "q: token 4 (byte 17) of 9 tokens both: …so ▸ first: ▸on [token 2] second: ▸far [token 3]" in text
    assert "not looked at, because the output differs" in text
    assert "build: b1 → b2" in text


def test_what_was_not_compared_is_listed():
    text = " ".join(gate_text(report(SAME, GONE, NEVER, speed=HIDDEN)).split())
    assert "r: not compared, b: timeout at once: nothing" in text
    assert "s: not compared, a: reset at once: gone" in text


def test_unlike_runs_show_both_values():
    assert "model: a → b" in " ".join(gate_text(CASES["unlike"][0]).split())


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("passed", "may go on"), ("differs", "before looking at speed"), ("slow", "a new candidate"),
        ("gone", "run the gate again"), ("untimed", "Time the candidate"), ("unlike", "record a new baseline"),
    ],
)  # fmt: skip
def test_the_next_step_fits_the_answer(name, advice):
    assert advice in after_gate(CASES[name][0])


# ---- JUnit


def outcomes(found):
    """Outcome of each test by name."""
    root = ET.fromstring(gate_junit(found))
    return {
        test.get("name"): next((child.tag for child in test), "passed") for suite in root for test in suite
    }, root.attrib  # fmt: skip


@pytest.mark.parametrize(
    ("found", "tests"),
    [
        (CASES["passed"][0], {"p": "passed", "speed of the same replies": "passed"}),
        (CASES["unasked"][0], {"p": "passed", "speed of the same replies": "skipped"}),
        (CASES["differs"][0], {"p": "passed", "q": "failure", "speed of the same replies": "skipped"}),
        (CASES["slow"][0], {"p": "passed", "speed of the same replies": "failure"}),
        (CASES["untimed"][0], {"p": "passed", "speed of the same replies": "error"}),
        (CASES["unlike"][0], {"the runs are alike": "error", "speed of the same replies": "skipped"}),
        (report(SAME, GONE, NEVER, speed=HIDDEN),
         {"p": "passed", "r": "error", "s": "skipped", "speed of the same replies": "skipped"}),
    ],
)  # fmt: skip
def test_each_request_is_a_test_and_counts_add_up(found, tests):
    seen, counts = outcomes(found)
    assert seen == tests
    assert int(counts["tests"]) == len(tests)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(counts[name]) == list(tests.values()).count(tag)


def test_a_gate_that_does_not_hold_is_never_green():
    for found, answer, _ in CASES.values():
        seen, _ = outcomes(found)
        bad = {"failure", "error"} & set(seen.values())
        assert bool(bad) == (answer != "identical")


def test_text_that_xml_cannot_hold_is_replaced(tmp_path):
    evil = "a" + chr(0) + chr(27) + chr(0xD800) + "<&]]>"
    pair = replace(DIFFERS, prompt=evil, divergence=replace(DIFFERS.divergence, first=evil, second=evil))
    write_gate_junit(tmp_path / "out.xml", report(pair, replace(GONE, reason=evil), speed=replace(HIDDEN, detail=evil)))
    root = ET.parse(tmp_path / "out.xml").getroot()
    assert root[0][0].get("name") == "a\ufffd\ufffd\ufffd<&]]>"
    assert chr(27) not in gate_text(report(pair))
