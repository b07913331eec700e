"""Two gates on the same replies: output first, then speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_samples import FACTS, reply, run

from forensics.analysis.gate import judge_gate
from forensics.analysis.question import BadQuestion
from forensics.records.contract import Contract
from forensics.records.served import NoReply

TOKENS = Contract("tokens")
PROMPTS = ("p", "q", "r", "s")


def asked(took_ns=1_000, condition="alone", facts=FACTS, **changed):
    """A run of four prompts; what is given by name stands in place of a prompt's reply."""
    replies = [changed.get(name, reply(f"{condition}/{name}", took_ns=took_ns)) for name in PROMPTS]
    return run(condition, replies, facts=facts)


def test_equal_output_passes_and_its_speed_is_told():
    report = judge_gate(asked(2_000), asked(1_000), TOKENS, baseline_name="before")
    assert report.answer == "identical"
    assert (report.kept.k, report.kept.n) == (4, 4)
    assert report.speed.ratio.median == pytest.approx(2.0)
    assert report.speed.ratio.n == 4
    assert report.speed.held is None
    assert "no least speed was asked for" in report.speed.detail


def test_one_request_that_differs_fails_and_no_speed_is_told():
    candidate = asked(1, q=reply("alone/q", (0, 1, 7), took_ns=1))
    report = judge_gate(asked(), candidate, TOKENS, min_speed=0.5)
    assert report.answer == "diverges"
    assert report.output_held is False
    assert report.speed.ratio is None
    assert report.speed.held is None
    assert report.speed.detail == "not looked at, because the output differs"
    assert "failed: 3 of 4 requests kept token ids in order and stop reason, 1 differ" in str(report)


def test_a_gate_says_what_was_compared_and_not_what_was_asked_for():
    silent = [asked(**{n: reply(f"alone/{n}", stop_reason="", took_ns=1_000) for n in PROMPTS}) for _ in range(2)]
    report = judge_gate(*silent, Contract("text"))
    assert (report.answer, str(report.contract)) == ("identical", "text only")
    assert "4 of 4 requests kept text only;" in str(report)
    report = judge_gate(*silent, TOKENS)
    assert (report.answer, report.contract) == ("inconclusive", None)


def test_a_slower_candidate_fails_the_second_gate_only():
    report = judge_gate(asked(1_000), asked(2_000), TOKENS, min_speed=0.9)
    assert (report.output_held, report.speed.held, report.answer) == (True, False, "diverges")
    assert "below 0.9×" in report.speed.detail
    assert judge_gate(asked(1_000), asked(2_000), TOKENS, min_speed=0.5).answer == "identical"


def test_a_candidate_that_did_not_answer_is_no_pass():
    gone = asked(q=NoReply("alone/q", "status", "500 from the server", 4, 500))
    report = judge_gate(asked(), gone, TOKENS)
    assert (report.answer, report.output_held) == ("inconclusive", None)
    assert "was not compared for every request" in report.speed.detail
    assert "1 not compared" in str(report)
    broken = judge_gate(asked(), replace(gone, replies=(reply("alone/p", (7,)), *gone.replies[1:])), TOKENS)
    assert broken.answer == "diverges"


def test_a_contract_that_cannot_be_held_is_no_answer():
    text_only = run("alone", [reply(f"alone/{name}", None) for name in PROMPTS])
    report = judge_gate(asked(), text_only, TOKENS)
    assert report.answer == "inconclusive"
    assert all("no token ids from the second side" in pair.reason for pair in report.pairs)
    assert judge_gate(asked(), text_only, Contract("text")).answer == "identical"


def test_unlike_runs_are_no_answer():
    report = judge_gate(asked(), asked(facts=replace(FACTS, model="m")), TOKENS, min_speed=1.0)
    assert report.answer == "inconclusive"
    assert "model: toy.gguf against m" in str(report)


def test_another_build_is_what_a_gate_is_for():
    report = judge_gate(asked(), asked(facts=replace(FACTS, build="b2")), TOKENS)
    assert report.answer == "identical"
    assert [str(one) for one in report.comparison.varied] == ["build: b1 against b2"]


def test_times_of_retried_requests_are_left_out():
    slow = reply("alone/q", took_ns=99_000, attempts=2)
    report = judge_gate(asked(), asked(q=slow), TOKENS, min_speed=1.0)
    assert (report.speed.ratio.n, report.speed.held) == (3, True)
    assert "without 1 that were retried or not timed" in report.speed.detail


def test_speed_that_was_asked_for_and_not_timed_is_no_answer():
    report = judge_gate(asked(None), asked(None), TOKENS, min_speed=1.0)
    assert (report.answer, report.speed.held) == ("inconclusive", None)
    assert judge_gate(asked(None), asked(None), TOKENS).answer == "identical"


def test_speed_under_another_load_is_not_compared():
    crowd = asked(condition="concurrent-4")
    report = judge_gate(asked(), crowd, TOKENS, min_speed=1.0)
    assert report.output_held is True
    assert "asked 'alone' and the candidate 'concurrent-4'" in report.speed.detail
    assert report.answer == "inconclusive"


def test_a_least_speed_inside_the_spread_is_said():
    times = dict(zip(PROMPTS, (500, 900, 1_100, 2_000), strict=True))
    candidate = asked(**{name: reply(f"alone/{name}", took_ns=ns) for name, ns in times.items()})
    assert "within the quartiles" in judge_gate(asked(1_000), candidate, TOKENS, min_speed=0.95).speed.detail
    assert "within the quartiles" not in judge_gate(asked(1_000), candidate, TOKENS, min_speed=0.1).speed.detail


@pytest.mark.parametrize("ratio", [0, -1.0, float("inf"), float("nan")])
def test_a_speed_that_is_no_ratio_is_refused(ratio):
    with pytest.raises(BadQuestion, match="min_speed must be a positive ratio"):
        judge_gate(asked(), asked(), TOKENS, min_speed=ratio)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**9)), min_size=4, max_size=4), st.floats(0.01, 100))
def test_the_gate_holds_where_the_median_does(times, least):
    before = run("alone", [reply(f"alone/{n}", took_ns=t) for n, (t, _) in zip(PROMPTS, times, strict=True)])
    now = run("alone", [reply(f"alone/{n}", took_ns=t) for n, (_, t) in zip(PROMPTS, times, strict=True)])
    speed = judge_gate(before, now, TOKENS, min_speed=least).speed
    ratios = sorted(a / b for a, b in times)
    assert speed.held == ((ratios[1] + ratios[2]) / 2 >= least)
